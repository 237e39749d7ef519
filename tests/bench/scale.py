"""What one replica bears: its cost with a fleet attached, one fault, bursts of faults.

The nodes are objects on the real API server, each with a simulated agent: real latch, real uplink,
real gRPC over TLS, a connection of its own. The control plane's files are in memory, for etcd's
disk is not in question. Run by `make bench-scale`; BENCH_NODES sets the nodes (10,000; at least
3,200), BENCH_SECONDS the time over which the steady cost is taken (60).
"""

import os
import random
import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.figures import percentile, table, write
from tests.bench.processes import cost
from tests.bench.watcher import Watcher, tainted
from tests.controlplane.plane import ControlPlane
from tests.support.simulator import Simulator
from tests.support.stack import AggregatorProcess, install

#: The aggregator's own user, as the audit log names it.
AGGREGATOR = "system:serviceaccount:sickbay:sickbay-aggregator"
SINGLES = 200
BURSTS = {100: 5, 500: 2, 1000: 1}
#: All limits out of the way: what is measured is the way from a fault to its taint.
UNLIMITED: dict[str, Any] = {
    "identity": {"kind": "insecure-trust-hello"},
    "limits": {
        "quorum_percent": "0%",
        "concurrent": 100_000,
        "concurrent_percent": "100%",
        "new_per_window": 5000,
        "new_per_window_percent": "100%",
        "common_cause_percent": "100%",
        "common_cause_nodes": 100_000,
        "domain_percent": "100%",
    },
}
LIFTED = {"requests_per_second": 100_000, "burst": 100_000}
FAULT = "xid:79"


class Bench:
    """One aggregator, one fleet. Each trial takes nodes that no other has used."""

    def __init__(self, plane: ControlPlane, nodes: list[str], simulator: Simulator) -> None:
        self._plane = plane
        self._fresh = list(nodes)
        self._simulator = simulator
        random.Random(0).shuffle(self._fresh)
        self._taints = Watcher(plane, "/api/v1/nodes?watch=true&resourceVersion=0", tainted)

    def burst(self, size: int) -> float:
        """Seconds from ``size`` faults at once to the last taint."""
        nodes = [self._fresh.pop() for _ in range(size)]
        begun = time.monotonic()
        self._simulator.inject(nodes=nodes, fault=FAULT)
        return max(self._taints.when(node, within=120) for node in nodes) - begun

    def singles(self, count: int) -> list[float]:
        """Milliseconds from a fault to its taint, one after the other."""
        return [self.burst(1) * 1000 for _ in range(count)]


def _requests(plane: ControlPlane, since: int) -> int:
    """What the aggregator asked of the API server, without watches that go on."""
    return sum(entry["user"]["username"] == AGGREGATOR for entry in plane.audit_entries(since))


def _nodes_requests(plane: ControlPlane) -> int:
    """Requests by any agent: by a node, or by the agents' service account."""
    users = [entry["user"]["username"] for entry in plane.audit_entries()]
    return sum(u.startswith("system:node:") or u.endswith(":sickbay-agent") for u in users)


def main() -> None:
    nodes, seconds = int(os.environ.get("BENCH_NODES", "10000")), _seconds()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, nodes * 2 + 1000)), hard))
    with (
        tempfile.TemporaryDirectory(prefix="sickbay-bench-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryDirectory(prefix="sickbay-bench-", dir="/dev/shm") as memory,
        ControlPlane(folder=Path(memory) / "plane", kwok=False) as plane,
    ):
        install(plane)
        names = plane.create_nodes(nodes, "scale")
        figures = {"agents": nodes, **_measure(plane, names, Path(folder), seconds)}
        figures["node_requests"] = _nodes_requests(plane)
    path = write("scale", figures)
    print(table(f"bench-scale: {path}", _rows(figures)))


def _seconds() -> float:
    return float(os.environ.get("BENCH_SECONDS", "60"))


def _measure(
    plane: ControlPlane, names: list[str], folder: Path, seconds: float
) -> dict[str, float | int]:
    figures: dict[str, float | int] = {}
    aggregator = AggregatorProcess(
        plane, folder / "aggregator", more={**UNLIMITED, "cluster": LIFTED}
    ).start()
    listed = folder / "names"
    listed.write_text("\n".join(names) + "\n")
    try:
        aggregator.ready()
        authority = aggregator.authority.certificate
        where = ["--aggregator", aggregator.address, "--ca-file", str(authority)]
        begun = time.monotonic()
        with Simulator(["--names", str(listed), *where], log=folder / "simulator.log") as simulator:
            simulator.until_streaming(len(names), timeout_s=600)
            figures["attached_s"] = round(time.monotonic() - begun, 1)
            assert aggregator.process is not None
            figures |= _steady(plane, aggregator.process.pid, seconds)
            bench = Bench(plane, names, simulator)
            bench.singles(5)  # warm
            mark = plane.audit_mark()
            singles = bench.singles(SINGLES)
            asked = _requests(plane, mark)
            figures |= {
                "taint_p50_ms": round(median(singles), 1),
                "taint_p99_ms": round(percentile(singles, 99), 1),
                "requests_per_quarantine": round(asked / SINGLES, 1),
            }
            for size, times in BURSTS.items():
                took = [bench.burst(size) for _ in range(times)]
                figures[f"burst_{size}_p99_s"] = round(percentile(took, 99), 2)
            figures["quarantines_per_s"] = round(1000 / figures["burst_1000_p99_s"], 0)
    finally:
        aggregator.close()
    return figures


def _steady(plane: ControlPlane, pid: int, seconds: float) -> dict[str, float | int]:
    time.sleep(15)  # a heartbeat of each, and its snapshot's garbage, are over
    mark, before, begun = plane.audit_mark(), cost(pid), time.monotonic()
    time.sleep(seconds)
    after, took = cost(pid), time.monotonic() - begun
    return {
        "rss_mib": round(after.rss_mib, 0),
        "cpu_percent": round((after.cpu_s - before.cpu_s) / took * 100, 1),
        "idle_requests_per_minute": round(_requests(plane, mark) / took * 60, 1),
    }


def _rows(figures: dict[str, float | int]) -> list[tuple[str, str, str]]:
    def row(what: str, key: str, unit: str, wanted: str) -> tuple[str, str, str]:
        return (what, f"{figures[key]:g} {unit}".rstrip(), wanted)

    return [
        row("agents on one replica, TLS", "agents", "", "10000"),
        row("until all are attached", "attached_s", "s", "-"),
        row("resident set size of the aggregator", "rss_mib", "MiB", "1229 MiB"),
        row("CPU of one core, steady", "cpu_percent", "%", "60 %"),
        row("requests a minute, at rest", "idle_requests_per_minute", "", "-"),
        row("requests by agents", "node_requests", "", "0"),
        row("fault to taint, p50", "taint_p50_ms", "ms", "50 ms"),
        row("p99", "taint_p99_ms", "ms", "250 ms"),
        row("requests for a quarantine", "requests_per_quarantine", "", "-"),
        row("100 faults at once, to the last taint", "burst_100_p99_s", "s", "0.5 s"),
        row("500", "burst_500_p99_s", "s", "2 s"),
        row("1,000", "burst_1000_p99_s", "s", "4 s"),
        row("quarantines a second", "quarantines_per_s", "", "250"),
    ]


if __name__ == "__main__":
    main()
