"""Load on replicas: cost at rest and by number of nodes, faults one by one and in bursts.

The nodes are objects on the real API server, each with a simulated agent: real latch, real uplink,
real gRPC over mutual TLS, a connection of its own. Run by `make bench-scale`. BENCH_NODES sets the
nodes (10,000; a part that needs more is left out), BENCH_SECONDS the time over which the cost at
rest is taken (60), BENCH_PARTS which parts are run, of bare, limit, floor, steady, sustained,
growth and failover: the others' figures of an earlier run stay in build/bench/scale.json then.
"""

import os
import sys
from collections.abc import Callable

from tests.bench import parts, small
from tests.bench.failover import failover
from tests.bench.figures import read, table, write
from tests.bench.floor import floor
from tests.bench.limit import limit
from tests.bench.parts import Findings
from tests.bench.progress import Progress
from tests.bench.rows import scale_rows
from tests.bench.simulated_agents import AgentsRefused, most_agents
from tests.bench.small import number, start_quickly
from tests.bench.sustained import sustained

#: Each with the seconds that it takes with 10,000 nodes; the others' cost is in their order.
PARTS: dict[str, tuple[Callable[[Findings], None], float]] = {
    "bare": (parts.bare, 90.0),
    "limit": (limit, 560.0),
    "floor": (floor, 120.0),
    "steady": (parts.steady, 400.0),
    "sustained": (sustained, 150.0),
    "growth": (parts.growth, 250.0),
    "failover": (failover, 160.0),
}
#: The least seconds of a part, however few nodes there are.
LEAST_S = 40.0


def main() -> int:
    nodes = min(number("BENCH_NODES", 10_000, 12), most_agents())
    seconds = small.seconds("BENCH_SECONDS", 60.0, 0.2)
    start_quickly()
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
    except AgentsRefused as refused:
        sys.stderr.write(f"bench-scale: {refused}\n")
        return 1
    finally:  # figures from before a part failed took minutes: keep them
        progress.close()
        figures = ({} if whole else read("scale")) | {"agents": nodes} | found.figures
        path = write("scale", figures)
        write("scale-curves", found.curves)
        print(table(f"bench-scale: {path}", scale_rows(figures)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
