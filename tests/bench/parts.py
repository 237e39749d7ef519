"""The parts of bench-scale: each starts its own processes, on a control plane of its own.

Nodes are objects on the real API server, whose files are in memory: etcd's disk is not in question.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from aggregator.demo.ports import free_port
from aggregator.ingest import grpc_env
from tests.bench import planes
from tests.bench.figures import percentile, slope, straightness
from tests.bench.planes import in_memory
from tests.bench.processes import cost
from tests.bench.simulated_agents import Crowd, certify, most_agents
from tests.bench.small import small_or
from tests.bench.trials import Trials, requests, requests_by_nodes, requests_until_taint
from tests.controlplane.plane import ControlPlane
from tests.support.pki import Authority
from tests.support.stack import AggregatorProcess, Place, install

Figures = dict[str, float | int]

SINGLES = small_or(1, 200)
BURSTS = small_or({100: 1, 500: 1, 1000: 1}, {100: 5, 500: 2, 1000: 1})
GROWTH = small_or((6, 12), (1_000, 2_500, 5_000, 10_000, 15_000, 20_000))
#: Seconds over which the cost of one step of the growth is taken.
GROWTH_SECONDS = small_or(0.2, 15.0)
#: The same for the replica without agents.
EMPTY_SECONDS = small_or(0.2, 5.0)
#: A heartbeat of each, and its snapshot's garbage, are over (seconds).
SETTLE = small_or(0.2, 12.0)
#: Trials that load libraries and are no part of the figures.
WARM = small_or(1, 5)
#: All limits out of the way: the figure is the time from a fault to its taint.
RAISED: dict[str, Any] = {
    "identity": {"kind": "certificate"},
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
#: Our own limiter out of the way, too.
LIFTED: dict[str, Any] = {
    **RAISED,
    "cluster": {"requests_per_second": 100_000, "burst": 100_000},
}


def burst_size(size: int) -> int:
    """How many faults a burst of this name has: two in a small form."""
    return small_or(2, size)


@dataclass
class Findings:
    """``figures`` are the keys of scale.json; ``curves`` are the drawn data, by name."""

    nodes: int
    seconds: float
    figures: Figures = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def plane_in_memory() -> Iterator[tuple[ControlPlane, Path]]:
    """A control plane, and a folder; both in memory, both gone afterwards."""
    with (
        in_memory() as memory,
        planes.plane(folder=memory / "plane", kwok=False, scheduler=False) as plane,
    ):
        install(plane)
        yield plane, memory


class Site:
    """One address of successive aggregators, and the authority that their agents trust."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.folder = folder
        authority = Authority.create(folder / "pki")
        self.place = Place("127.0.0.1", free_port(), free_port(), authority)

    @contextlib.contextmanager
    def aggregator(self, name: str, more: Mapping[str, Any]) -> Iterator[AggregatorProcess]:
        running = AggregatorProcess(
            self.plane, self.folder / name, more=more, place=self.place
        ).start()
        with closing(running):
            yield running.ready()

    def crowd(self, name: str) -> Crowd:
        folder = self.folder / name
        folder.mkdir()
        pki = self.place.authority.certificate
        where: list[str | Path] = ["--aggregator", f"localhost:{self.place.port}"]
        return Crowd(folder, [*where, "--ca-file", pki, "--cert-dir", pki.parent])


@contextlib.contextmanager
def bare_streams(folder: Path) -> Iterator[tuple[int, Crowd, Authority]]:
    """A server of gRPC's streams alone, its process id; a crowd that comes to it, still empty."""
    authority = Authority.create(folder / "pki")
    pair = authority.server("aggregator", ["localhost", "127.0.0.1"])
    port = free_port()
    line = [sys.executable, "-m", "tests.bench.bare", "--listen", f"127.0.0.1:{port}"]
    line += ["--cert", str(pair.certificate), "--key", str(pair.key)]
    server = subprocess.Popen(
        [*line, "--ca", str(authority.certificate)], env=grpc_env.ENVIRONMENT | os.environ
    )
    where: list[str | Path] = ["--aggregator", f"localhost:{port}"]
    where += ["--ca-file", authority.certificate, "--cert-dir", authority.certificate.parent]
    try:
        with Crowd(folder, where) as crowd:
            yield server.pid, crowd, authority
    finally:
        server.kill()
        server.wait()


def bare(found: Findings) -> None:
    """The cost of gRPC's streams by themselves, with a tenth of the agents, half, and all."""
    nodes = [f"bare-{number:05d}" for number in range(found.nodes)]
    points = []
    with (
        in_memory() as memory,
        bare_streams(memory) as (server, crowd, authority),
    ):
        certify(authority, nodes)
        for share in _steps(nodes, [len(nodes) // 10, len(nodes) // 2, len(nodes)]):
            crowd.come(share)
            points.append((len(crowd), *_cost_of(server, GROWTH_SECONDS)))
    found.curves["bare"] = points
    found.figures["bare_rss_mib"] = round(points[-1][1], 0)
    found.figures["bare_cpu_percent"] = round(points[-1][2], 1)


def steady(found: Findings) -> None:
    """One replica with all agents: its cost at rest, one fault, bursts.

    Then the same burst of 1,000 through the API limiter that ships.
    """
    with plane_in_memory() as (plane, folder):
        nodes = plane.create_nodes(found.nodes, "scale")
        site = Site(plane, folder)
        certify(site.place.authority, nodes)
        with site.crowd("crowd") as crowd:
            with site.aggregator("lifted", LIFTED) as aggregator:
                found.figures["attached_s"] = round(crowd.come(nodes), 1)
                assert aggregator.process is not None
                _rest(found, plane, aggregator.process.pid)
                trials = Trials(plane, crowd, nodes)
                _trials(found, plane, trials)
            if trials.left >= burst_size(max(BURSTS)):
                with site.aggregator("shipped", RAISED):
                    crowd.all_here(timeout_s=300)
                    took = trials.burst(burst_size(max(BURSTS)))
                found.curves["burst_1000_default"] = took
                found.figures["burst_1000_default_p99_s"] = round(took[-1], 1)
        found.figures["node_requests"] = requests_by_nodes(plane)


def _rest(found: Findings, plane: ControlPlane, pid: int) -> None:
    time.sleep(SETTLE)
    mark, begun = plane.audit_mark(), time.monotonic()
    rss, cpu = _cost_of(pid, found.seconds, settle=0.0)
    asked = requests(plane, mark)
    found.figures |= {
        "rss_mib": round(rss, 0),
        "cpu_percent": round(cpu, 1),
        "idle_requests_per_minute": round(asked / (time.monotonic() - begun) * 60, 1),
    }


def _trials(found: Findings, plane: ControlPlane, trials: Trials) -> None:
    trials.singles(WARM)
    trials.until_quiet()
    mark = plane.audit_mark()
    count = min(SINGLES, trials.left // 4)
    singles = trials.singles(count)
    trials.until_quiet()
    asked = requests(plane, mark, leases=False)
    found.curves["single"] = sorted(one / 1000 for one in singles)
    found.figures |= {
        "taint_p50_ms": round(median(singles), 1),
        "taint_p99_ms": round(percentile(singles, 99), 1),
        "requests_per_quarantine": round(asked / count, 1),
    }
    for size, times in BURSTS.items():
        trials.until_quiet()
        mark = plane.audit_mark()
        faults = burst_size(size)
        took = [trials.burst(faults) for _ in range(min(times, trials.left // faults))]
        if not took:
            continue
        trials.until_quiet()
        found.figures["requests_until_taint"] = round(requests_until_taint(plane, mark), 2)
        found.curves[f"burst_{size}"] = max(took, key=lambda one: one[-1])
        found.figures[f"burst_{size}_p99_s"] = round(percentile([one[-1] for one in took], 99), 2)


def growth(found: Findings) -> None:
    """One replica at 1,000 agents, then 2,500, and so on: cost against number of nodes.

    The last step is twice ``found.nodes``, or as many as one process may have open here.
    """
    top = min(found.nodes * 2, most_agents())
    steps = [step for step in GROWTH if step < top and step * 10 >= found.nodes]
    points = []
    with plane_in_memory() as (plane, folder):
        site = Site(plane, folder)
        with site.aggregator("growing", LIFTED) as aggregator, site.crowd("crowd") as crowd:
            assert aggregator.process is not None
            points.append(
                Point(
                    0, *_cost_of(aggregator.process.pid, EMPTY_SECONDS, settle=EMPTY_SECONDS), 0.0
                )
            )
            for target in [*steps, top]:
                more = plane.create_nodes(target - len(crowd), "grow", start=len(crowd))
                certify(site.place.authority, more)
                took = crowd.come(more)
                measured = _cost_of(aggregator.process.pid, GROWTH_SECONDS)
                points.append(Point(len(crowd), *measured, took / len(more) * 1000))
    found.curves["growth"] = [point.row() for point in points]
    found.figures |= slopes(points)
    # A process that takes in, answers and forgets has grown by as much for the stream's own sake.
    streams = found.curves.get("bare")
    if streams:
        own = slope([(at[0], at[1]) for at in streams])
        ours = slope([(one.nodes, one.rss_mib) for one in points if one.nodes])
        found.figures["bytes_per_node"] = round((ours - own) * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class Point:
    """One replica with so many agents. ``attach_ms``: milliseconds a node, for the last to come."""

    nodes: int
    rss_mib: float
    cpu_percent: float
    attach_ms: float

    def row(self) -> list[float]:
        return [self.nodes, self.rss_mib, self.cpu_percent, self.attach_ms]


def slopes(points: Sequence[Point]) -> Figures:
    """The cost of a thousand agents, and how straight the line is."""
    memory = [(float(one.nodes), one.rss_mib) for one in points]
    work = [(float(one.nodes), one.cpu_percent) for one in points]
    return {
        "growth_nodes": points[-1].nodes,
        "growth_base_mib": round(points[0].rss_mib, 0),
        "growth_mib_per_1000": round(slope(memory) * 1000, 1),
        "growth_rss_off_line_percent": round(straightness(memory) * 100, 1),
        "growth_cpu_percent_per_1000": round(slope(work) * 1000, 2),
        "growth_cpu_off_line_percent": round(straightness(work) * 100, 1),
    }


def _cost_of(pid: int, seconds: float, *, settle: float = SETTLE) -> tuple[float, float]:
    """Resident MiB, and per cent of one core over ``seconds``."""
    time.sleep(settle)
    before, begun = cost(pid), time.monotonic()
    time.sleep(seconds)
    after, took = cost(pid), time.monotonic() - begun
    return after.rss_mib, (after.cpu_s - before.cpu_s) / took * 100


def _steps(nodes: Sequence[str], ends: Sequence[int]) -> Iterator[Sequence[str]]:
    """The nodes in shares that end there."""
    begin = 0
    for end in ends:
        yield nodes[begin:end]
        begin = end
