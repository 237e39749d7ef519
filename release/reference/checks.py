"""docs/reference/checks.md: each check of the agent, with its settings."""

from nodeagent.checks import registry

_HEAD = """# Checks and their settings
Made from the code by `make docs-reference`. [checks.md](../checks.md) explains what a check
reports.

"""


def page() -> str:
    """The page's Markdown."""
    return _HEAD + registry.markdown()
