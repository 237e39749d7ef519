"""The answer of a program whose extra is not installed.

One distribution has the libraries of each program as an extra, because the agent's environment on
each node must not carry the aggregator's. So a program can be there without its libraries.
"""

import sys

#: The exit code of each program for a mistake in its use.
USAGE = 2

_OWN_PACKAGES = frozenset({"aggregator", "nodeagent", "sickbay"})


def explain_missing(error: ModuleNotFoundError, *, program: str, extra: str) -> str | None:
    """One line for the user; None where the module is Python's or the project's own: a defect."""
    module = (error.name or "").partition(".")[0]
    if not module or module in _OWN_PACKAGES or module in sys.stdlib_module_names:
        return None
    return (
        f"{program}: the library {module} is not installed; it belongs to the extra {extra!r}: "
        f"pip install 'sickbay[{extra}]'"
    )
