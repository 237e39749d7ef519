"""docs/reference/contract-bounds.md: the bounds of the agents' messages, with their comments."""

import re
from collections.abc import Iterator
from pathlib import Path

from release.reference.tables import table
from sickbay.v1 import limits

_HEAD = """# Bounds of the contract
Made from the code by `make docs-reference`: the most that one message, and one node's state, may
hold. [contract.md](../contract.md#bounds) explains what happens beyond them.
"""
_BOUND = re.compile(r"((?:^#: .*\n)+)([A-Z_]+) = ", re.MULTILINE)


def page() -> str:
    """The page's Markdown."""
    lines = [_HEAD, *table(("name", "value", "bounds"), _rows())]
    return "\n".join(lines).rstrip() + "\n"


def _rows() -> Iterator[tuple[str, str, str]]:
    for comment, name in _BOUND.findall(Path(limits.__file__).read_text("utf-8")):
        value = getattr(limits, name)
        shown = "2^64 - 1" if value == 2**64 - 1 else f"{value:,.0f}"
        yield f"`{name}`", shown, " ".join(comment.replace("#: ", "").split())
