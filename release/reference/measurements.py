"""docs/reference/measurements.md: day, commit and machine of each benchmark's figures."""

import json
from collections.abc import Iterator

from release.reference.tables import table
from release.tree import ROOT

_HEAD = """# Measurements
Made from [measured.json](../figures/measured.json) by `make docs-reference`: the last run of each
benchmark whose figures [benchmarks.md](../benchmarks.md) has.
"""
#: Targets that are no `bench-NAME`.
_OTHERS = ("gpu-check", "mutants")


def page() -> str:
    """The page's Markdown."""
    lines = [_HEAD, *table(("benchmark", "day", "commit", "machine"), _rows())]
    return "\n".join(lines).rstrip() + "\n"


def _rows() -> Iterator[tuple[str, str, str, str]]:
    measured = json.loads((ROOT / "docs" / "figures" / "measured.json").read_text("utf-8"))
    for name, found in sorted(measured.items()):
        if name == "scale-curves":  # a part of bench-scale
            continue
        target = name if name in _OTHERS else f"bench-{name}"
        bench, short, _ = target.partition("-short")
        yield (
            f"`make {bench}`" + (", a short run" if short else ""),
            found["date"],
            found["commit"],
            found["machine"],
        )
