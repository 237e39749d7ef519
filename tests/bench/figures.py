"""Helpers of the benchmarks: percentiles, lines through points, the JSON of figures, a table."""

import datetime as dt
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.small import small_or

_ROOT = Path(__file__).parents[2]
#: Where each benchmark's figures are; those of small forms elsewhere, as they mean nothing.
FOLDER = Path(os.environ.get("BENCH_FOLDER") or _ROOT / "build" / small_or("bench-small", "bench"))


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was really seen."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line through the points, by least squares."""
    across = sum(x for x, _ in points) / len(points)
    up = sum(y for _, y in points) / len(points)
    return sum((x - across) * (y - up) for x, y in points) / sum(
        (x - across) ** 2 for x, _ in points
    )


def straightness(points: Sequence[tuple[float, float]]) -> float:
    """How far the worst point is from that line, as a share of the highest."""
    by = slope(points)
    across = sum(x for x, _ in points) / len(points)
    up = sum(y for _, y in points) / len(points)
    highest = max(y for _, y in points) or 1.0
    return max(abs(y - up - by * (x - across)) for x, y in points) / highest


def write(name: str, figures: Mapping[str, float | int | str]) -> Path:
    """``NAME.json`` in the folder of figures: one flat object, with the source of the figures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps({**figures, **source()}, indent=2) + "\n")
    return path


def source() -> dict[str, str]:
    """The day, the commit ("+" with changes) and the machine of figures that are measured now."""
    described = ("git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+")
    commit = subprocess.run(described, cwd=_ROOT, capture_output=True, text=True, check=False)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpus = len(os.sched_getaffinity(0))
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": commit.stdout.strip() or "unknown",
        "machine": f"{cpus} cores ({_processor()}), {memory:.0f} GiB, "
        f"Linux {platform.release().partition('-')[0]}, CPython {platform.python_version()}",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def read(name: str) -> dict[str, Any]:
    """The figures that ``write`` has written; empty without a file."""
    path = FOLDER / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


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
