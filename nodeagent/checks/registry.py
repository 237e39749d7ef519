"""Every check that exists, in the order in which people read about them.

A new check is one file, one line here, one test; ``python -m nodeagent.checks.registry`` prints
the table for docs/checks.md.
"""

from nodeagent.checks.base import CheckSpec

SPECS: tuple[CheckSpec, ...] = ()


def by_name() -> dict[str, CheckSpec]:
    return {spec.name: spec for spec in SPECS}
