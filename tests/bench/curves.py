"""Draws the results of bench-scale and bench-nodes into docs/figures, by matplotlib.

    build/bench/curves-env/bin/python tests/bench/curves.py

A program by itself, in an environment of its own: no other code needs matplotlib. A curve that was
not measured is not drawn, and that of an earlier run stays.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
# Text stays text, and the same figures give the same file.
mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "sickbay", "font.size": 9}

from matplotlib.figure import Figure  # noqa: E402

ROOT = Path(__file__).parents[2]
#: As `tests.bench.figures.FOLDER`; a small form's curves stay beside its figures.
SMALL = os.environ.get("BENCH_SMALL", "") not in {"", "0"}
BENCH = Path(
    os.environ.get("BENCH_FOLDER") or ROOT / "build" / ("bench-small" if SMALL else "bench")
)
FOLDER = BENCH if SMALL else ROOT / "docs" / "figures"
#: The most points that a curve of a distribution needs: the file stays small.
POINTS = 120
INK, SECOND, FAINT = "#1f5f8b", "#b5532a", "#999999"
BURSTS = {
    "single": "1 fault",
    "burst_100": "100 at once",
    "burst_500": "500 at once",
    "burst_1000": "1,000 at once",
    "burst_1000_default": "1,000, shipped API limiter",
}


def growth(curves: dict[str, Any]) -> Figure | None:
    """Memory and CPU of one replica against its agents."""
    points = curves.get("growth")
    if not points:
        return None
    figure = Figure(figsize=(7, 3), layout="constrained")
    memory, work = figure.subplots(1, 2)
    nodes = [row[0] for row in points]
    memory.plot(nodes, [row[1] for row in points], "o-", color=INK, label="aggregator")
    if curves.get("bare"):
        bare = curves["bare"]
        memory.plot([b[0] for b in bare], [b[1] for b in bare], "s--", color=FAINT, label="gRPC")
        memory.legend(frameon=False)
    memory.set_ylabel("resident, MiB")
    work.plot(nodes, [row[2] for row in points], "o-", color=INK)
    work.set_ylabel("CPU at rest, % of a core")
    for axes in (memory, work):
        axes.set_xlabel("agents on one replica")
    return figure


def bursts(curves: dict[str, Any]) -> Figure | None:
    """How many of a burst's nodes are tainted after so long."""
    measured = {name: curves[name] for name in BURSTS if curves.get(name)}
    if not measured:
        return None
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, latencies in measured.items():
        thin = _thin(latencies)
        axes.plot([at for at, _ in thin], [share for _, share in thin], label=BURSTS[name])
    axes.set_xscale("log")
    axes.set_xlabel("seconds from the fault to the taint")
    axes.set_ylabel("% of the nodes")
    axes.legend(frameon=False)
    return figure


def failover(curves: dict[str, Any]) -> Figure | None:
    """A failover second by second: agents with a stream, and those at the controller."""
    points = curves.get("failover")
    if not points:
        return None
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    seconds = [row[0] for row in points]
    axes.plot(seconds, [row[1] for row in points], color=INK, label="agents with a stream")
    axes.plot(seconds, [row[2] for row in points], color=SECOND, label="agents at the controller")
    axes.axvline(0, color=FAINT, linestyle=":")
    axes.set_xlabel("seconds since the controller of three was killed")
    axes.set_ylabel("nodes")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


def known_nodes(figures: dict[str, Any]) -> Figure | None:
    """The cost to each replica of the nodes that it knows, by their number."""
    sizes = sorted(
        int(key.removeprefix("rss_mib_per_replica_"))
        for key in figures
        if key.startswith("rss_mib_per_replica_")
    )
    if not sizes:
        return None

    def of(key: str) -> list[float]:
        return [figures[f"{key}_{size}"] for size in sizes]

    figure = Figure(figsize=(7, 3), layout="constrained")
    memory, start, admission = figure.subplots(1, 3)
    memory.plot(sizes, of("rss_peak_mib_per_replica"), "s--", color=FAINT, label="highest")
    memory.plot(sizes, of("rss_mib_per_replica"), "o-", color=INK, label="at rest")
    memory.set_ylabel("resident, MiB")
    start.plot(sizes, of("start_to_act_s"), "o-", color=INK, label="three at once")
    start.plot(sizes, of("restart_to_act_s"), "s--", color=SECOND, label="one of three")
    start.set_ylabel("start until it may act, s")
    admission.plot(sizes, of("admission_ms"), "o-", color=INK, label="p50")
    admission.plot(sizes, of("admission_cpu_ms"), "s--", color=SECOND, label="its CPU")
    admission.set_ylabel("one admission, ms")
    for axes in (memory, start, admission):
        axes.set_xlabel("nodes, thousands")
        axes.set_xticks(sizes, [f"{size // 1000}" for size in sizes])
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    return figure


CURVES: dict[str, Callable[[dict[str, Any]], Figure | None]] = {
    "scale-nodes": growth,
    "scale-bursts": bursts,
    "scale-failover": failover,
    "scale-known-nodes": known_nodes,
}
#: The files of the figures that they draw.
MEASURED = dict.fromkeys(CURVES, "scale-curves.json") | {"scale-known-nodes": "nodes.json"}


def _thin(latencies: Sequence[float]) -> list[tuple[float, float]]:
    """Latencies in order, each with the share of all that are no slower; the last one always."""
    step = max(1, len(latencies) // POINTS)
    kept = sorted({*range(0, len(latencies), step), len(latencies) - 1})
    return [(latencies[at], 100 * (at + 1) / len(latencies)) for at in kept]


def main() -> int:
    if not any((BENCH / file).exists() for file in MEASURED.values()):
        sys.stderr.write(f"{BENCH}: nothing measured yet; run `make bench-scale`\n")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in CURVES.items():
        file = BENCH / MEASURED[name]
        figure = draw(json.loads(file.read_text())) if file.exists() else None
        if figure is None:
            continue
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        path = FOLDER / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
        sys.stdout.write(f"drawn: {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
