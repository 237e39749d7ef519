"""What replicas bear: cost at rest and by number of nodes, faults one by one and in bursts.

The nodes are objects on the real API server, each with a simulated agent: real latch, real uplink,
real gRPC over mutual TLS, a connection of its own. Run by `make bench-scale`. BENCH_NODES sets the
nodes (10,000; whatever needs more than there are is left out), BENCH_SECONDS the time over which
the cost at rest is taken (60), BENCH_PARTS which parts are run, of bare, steady, growth, failover:
what the others gave in an earlier run stays in build/bench/scale.json then.
"""

import os
import sys
from collections.abc import Callable

from tests.bench import parts
from tests.bench.crowd import most_agents
from tests.bench.figures import read, table, write
from tests.bench.parts import Findings
from tests.bench.progress import Progress

#: Each with the seconds that it takes with 10,000 nodes; the others' cost is in their order.
PARTS: dict[str, tuple[Callable[[Findings], None], float]] = {
    "bare": (parts.bare, 90.0),
    "steady": (parts.steady, 330.0),
    "growth": (parts.growth, 250.0),
}
#: What one takes however few nodes there are.
LEAST_S = 40.0


def main() -> int:
    nodes = min(int(os.environ.get("BENCH_NODES", "10000")), most_agents())
    seconds = float(os.environ.get("BENCH_SECONDS", "60"))
    chosen = [part for part in os.environ.get("BENCH_PARTS", "").split(",") if part] or list(PARTS)
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        sys.stderr.write(f"BENCH_PARTS: no part {unknown[0]!r}; there are {', '.join(PARTS)}\n")
        return 2
    whole = set(chosen) == set(PARTS)
    found = Findings(nodes, seconds)
    if not whole:
        found.curves = read("scale-curves")
    progress = Progress({name: max(LEAST_S, PARTS[name][1] * nodes / 10_000) for name in chosen})
    try:
        for name in PARTS:
            if name in chosen:
                with progress.part(name):
                    PARTS[name][0](found)
    finally:
        progress.close()
    figures = ({} if whole else read("scale")) | {"agents": nodes} | found.figures
    path = write("scale", figures)
    write("scale-curves", found.curves)
    print(table(f"bench-scale: {path}", rows(figures)))
    return 0


#: What each figure is, its unit, and the most (or, with a ">", the least) that is wanted.
WANTED = (
    ("agents on one replica, mutual TLS", "agents", "", ">10000"),
    ("until all are attached", "attached_s", "s", ""),
    ("resident set size of the aggregator", "rss_mib", "MiB", "1229"),
    ("gRPC's streams alone", "bare_rss_mib", "MiB", ""),
    ("memory per node beyond the stream's own", "bytes_per_node", "bytes", "8192"),
    ("CPU of one core, steady", "cpu_percent", "%", "60"),
    ("gRPC's streams alone", "bare_cpu_percent", "%", ""),
    ("requests a minute, at rest", "idle_requests_per_minute", "", ""),
    ("requests by agents", "node_requests", "", "0"),
    ("fault to taint, p50", "taint_p50_ms", "ms", "50"),
    ("p99", "taint_p99_ms", "ms", "250"),
    ("requests for a quarantine", "requests_per_quarantine", "", ""),
    ("100 faults at once, to the last taint", "burst_100_p99_s", "s", "0.5"),
    ("500", "burst_500_p99_s", "s", "2"),
    ("1,000", "burst_1000_p99_s", "s", "4"),
    ("1,000 with the API limiter that ships", "burst_1000_default_p99_s", "s", "45"),
    ("quarantines a second, sustained", "quarantines_per_s", "", ">250"),
    ("conditions, Events, status trail behind by", "trailing_s", "s", ""),
    ("cost against nodes: up to", "growth_nodes", "", ">20000"),
    ("memory for 1,000 more", "growth_mib_per_1000", "MiB", ""),
    ("farthest off the line", "growth_rss_off_line_percent", "%", ""),
    ("CPU of one core for 1,000 more", "growth_cpu_percent_per_1000", "%", ""),
    ("farthest off the line", "growth_cpu_off_line_percent", "%", ""),
)


def rows(figures: dict[str, float]) -> list[tuple[str, str, str]]:
    """What was measured, with its share of what is wanted."""
    told = []
    for what, key, unit, wanted in WANTED:
        if key not in figures:
            told.append((what, "not measured", _aim(unit, wanted)))
            continue
        measured = f"{figures[key]:g} {unit}".rstrip()
        told.append((what, measured, _aim(unit, wanted, figures[key])))
    return told


def _aim(unit: str, wanted: str, measured: float | None = None) -> str:
    if not wanted:
        return "-"
    least, number = wanted.startswith(">"), float(wanted.lstrip(">"))
    text = f"{'at least ' if least else ''}{number:g} {unit}".rstrip()
    if measured is None or not number:
        return text
    return f"{text} ({measured / number:.2f} of it)"


if __name__ == "__main__":
    sys.exit(main())
