"""What benchmarks share: percentiles, the JSON of figures, a table for people."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "bench"


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was really seen."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def write(name: str, figures: Mapping[str, float | int | str]) -> Path:
    """``build/bench/NAME.json``, one flat object."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(figures, indent=2) + "\n")
    return path


def table(title: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """Rows of (what, measured, wanted)."""
    head = ("", "measured", "wanted")
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(3)]
    lines = [title]
    for row in (head, *rows):
        first, *rest = row
        cells = [
            first.ljust(widths[0]),
            *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True)),
        ]
        lines.append("  " + "  ".join(cells))
    return "\n".join(lines)
