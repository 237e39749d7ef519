"""Three replicas with all agents attached, the controller killed: when another acts.

There is a controller again (``reowned_s``) when another replica may act. Evidence is complete
(``complete_s``) when that one has the snapshot of every node's agent.
"""

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Self

from tests.bench import watcher
from tests.bench.parts import LIFTED, WARM, Findings, plane_in_memory
from tests.bench.processes import cost
from tests.bench.simulated_agents import Crowd
from tests.bench.small import small_or
from tests.bench.watcher import Watcher
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.present import present
from tests.support.replica_processes import SNAPSHOTS, TRUSTING_TLS, Replicas

#: Seconds: shown of the time before the kill, after the end, and waited for the end at most.
BEFORE, AFTER, PATIENCE = (*small_or((0.5, 0.5), (10.0, 10.0)), 240.0)
EVERY = 1.0
#: Between two answers, while snapshots come and many are missing: each answer of the controller
#: takes a tenth of a second's work, next to which Prometheus' own requests are few.
SELDOM = 3.0
#: Pairs of faults by which the relay's share is measured: single taints differ by milliseconds,
#: medians of 200 pairs still by two.
HOPS = small_or(1, 800)
#: Faults at the kill.
FAULTS = small_or(2, 50)
#: Seconds after the evidence is complete until a fault without a taint counts as lost.
LOST_AFTER = 60.0


class Diary:
    """Second by second: agents with a stream, controllers, agents that the controller has heard.

    In a thread: replicas that are busy with thousands of agents answer late.
    """

    def __init__(self, replicas: Replicas, crowd: Crowd, names: Sequence[str]) -> None:
        self.rows: list[tuple[float, int, int, int]] = []
        self.names = list(names)
        self._replicas = replicas
        self._crowd = crowd
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def since(self, moment: float, what: int, count: int) -> float | None:
        """Seconds after ``moment`` from which column ``what`` says ``count``, or None if never."""
        found = None
        for row in self.rows:
            if row[0] > moment:
                whole = row[what] == count
                found = (row[0] if found is None else found) if whole else None
        return None if found is None else found - moment

    def _write(self) -> None:
        every = EVERY
        while not self._over.wait(every):
            told = self._replicas.standings(self.names)
            controllers = sum(one.get("controller", 0.0) for one in told.values())
            heard = sum(_complete(one) for one in told.values())
            at = time.monotonic()  # when they had answered, not when they were asked
            self.rows.append((at, self._crowd.streaming, int(controllers), int(heard)))
            every = SELDOM if 0 < heard < 0.7 * len(self._crowd) else EVERY


def _complete(standing: Mapping[str, float]) -> float:
    """The agents whose snapshot this replica has as the controller. Exact at any moment, while the
    fleet's own count is as old as the page's last view of all nodes.
    """
    snapshots = standing.get(SNAPSHOTS.removeprefix("sickbay_"), 0.0)
    return min(standing.get("ingest_streams", 0.0), snapshots) if standing.get("controller") else 0


class _Fleet:
    """Three replicas that run, and the crowds of agents at them."""

    def __init__(self, plane: ControlPlane, replicas: Replicas) -> None:
        self.plane = plane
        self.replicas = replicas
        self.taints = Watcher(plane, watcher.NODES, watcher.marked)

    def crowd(self, folder: Path, address: str) -> Crowd:
        folder.mkdir(parents=True)
        where: list[str | Path] = ["--aggregator", address]
        where += ["--ca-file", self.replicas.authority.certificate]
        return Crowd(folder, where, before=self.replicas.before)

    def hop_ms(self, folder: Path, nodes: Sequence[str]) -> float:
        """How much later the taint comes where a gateway forwards the fault: median of the pairs.

        Half of the nodes have their agents at the controller, and half at a gateway. By turns, each
        in front as often as the other: what follows a taint slows the next one.
        """
        controller = self.replicas.controller()
        gateway = next(name for name in self.replicas.names if name != controller)
        taken: dict[str, list[float]] = {controller: [], gateway: []}
        with ExitStack() as ends:
            crowds = {}
            for number, name in enumerate(taken):
                address = self.replicas.replicas[name].address
                crowds[name] = ends.enter_context(self.crowd(folder / name, address))
                crowds[name].come(nodes[number::2])
            for turn in range(len(nodes) // 2):
                pair = list(enumerate(taken.items()))
                for number, (name, took) in pair if turn % 2 else reversed(pair):
                    node = nodes[2 * turn + number]
                    begun = time.monotonic()
                    crowds[name].fall_ill([node])
                    took.append(self.taints.when(node, within=60) - begun)
        pairs = zip(taken[gateway][WARM:], taken[controller][WARM:], strict=True)
        return round(1000 * median(there - here for there, here in pairs), 2)

    def lost(self, nodes: Sequence[str], *, until: float) -> list[str]:
        """Those of the nodes that have no taint by then."""

        def tainted(node: str) -> bool:
            try:
                self.taints.when(node, within=max(0.0, until - time.monotonic()))
            except TimeoutError:
                return False
            return True

        return [node for node in nodes if not tainted(node)]


def failover(found: Findings) -> None:
    """Kill one of three, and see the rest take over."""
    with (
        plane_in_memory() as (plane, folder),
        tempfile.TemporaryDirectory(prefix="sickbay-bench-") as disk,
    ):
        nodes = plane.create_nodes(found.nodes, "failover")
        more = {**LIFTED, **TRUSTING_TLS}
        with Replicas(plane, Path(disk) / "replicas", more=more) as replicas:
            replicas.start()
            fleet = _Fleet(plane, replicas)
            tried = plane.create_nodes(2 * (HOPS + WARM), "hop")
            found.figures["hop_p50_ms"] = fleet.hop_ms(folder / "hops", tried)
            with fleet.crowd(folder / "crowd", replicas.address) as crowd:
                # Two processes: an event loop that is behind with 10,000 agents takes replicas for
                # stopped ones, and tries each by a handshake.
                crowd.come(nodes[::2])
                crowd.come(nodes[1::2])
                _kill(found, fleet, crowd, nodes)


def _kill(found: Findings, fleet: _Fleet, crowd: Crowd, nodes: Sequence[str]) -> None:
    replicas = fleet.replicas
    with Diary(replicas, crowd, replicas.names) as diary:
        _until(diary, 3, len(nodes))
        dead = replicas.controller()
        gateways = [name for name in replicas.names if name != dead]
        before = [cost(_pid(replicas, name)).cpu_s for name in replicas.names]
        time.sleep(BEFORE)
        spent = [
            100 * (cost(_pid(replicas, name)).cpu_s - then) / BEFORE
            for name, then in zip(replicas.names, before, strict=True)
        ]
        diary.names = gateways
        faulty = nodes[:FAULTS]
        replicas.replicas[dead].kill()
        killed = time.monotonic()
        crowd.fall_ill(faulty)
        _until(diary, 2, 1, since=killed)
        _until(diary, 3, len(nodes), since=killed)
        lost = fleet.lost(faulty, until=time.monotonic() + LOST_AFTER)
        time.sleep(AFTER)
        # An agent that changes its gateway at last has no stream, or two, for a moment.
        while (complete := diary.since(killed, 3, len(nodes))) is None:
            _until(diary, 3, len(nodes), since=killed)
        rss = cost(_pid(replicas, replicas.controller())).rss_mib
    reowned = present(diary.since(killed, 2, 1))
    acted = [fleet.taints.seen[one] for one in faulty if one not in lost]
    assert acted, "no fault at the kill became a taint"
    percent = dict(zip(replicas.names, spent, strict=True))
    found.figures |= {
        "reowned_s": round(reowned, 1),
        "complete_s": round(complete, 1),
        "first_act_s": round(min(acted) - killed, 1),
        "lost": len(lost),
        "gateway_cpu_percent": round(max(percent[name] for name in gateways), 1),
        "controller_cpu_percent": round(percent[dead], 1),
        "controller_rss_mib": round(rss),
    }
    found.curves["failover"] = [
        [round(at - killed, 1), streaming, heard]
        for at, streaming, _, heard in diary.rows
        if at > killed - BEFORE
    ]


def _pid(replicas: Replicas, name: str) -> int:
    process = present(replicas.replicas[name].process)
    return process.pid


def _until(diary: Diary, what: int, count: int, *, since: float = 0.0) -> None:
    def whole() -> bool:
        last = diary.rows[-1] if diary.rows else None
        return last is not None and last[0] > since and last[what] == count

    wait_until(
        whole,
        what=lambda: f"all {count} nodes in column {what}: {diary.rows[-1:]}",
        timeout_s=PATIENCE,
        every_s=EVERY / 2,
    )
