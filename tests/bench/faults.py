"""Fault drills: what is killed, paused or taken away in the middle of a burst, and what was lost.

Real processes on the real API server. Each drill has nodes of its own, with a pod each, and counts
the faults that did not become a taint within a minute of the end of its outage; one fault a node.
Run by `make bench-faults`. Needs root: one drill freezes a filesystem, one fills one.
"""

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.agent import real_disks
from tests.bench.figures import percentile, table, write
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.evictions import accepted_evictions
from tests.support.simulator import Simulator
from tests.support.stack import TAINT, Stack, remove_quarantines

FAULT = "xid:79"
#: Seconds after the end of an outage until a fault without a taint counts as lost.
PATIENCE = 60.0
PODS = "drills"
#: Bare pods, which kubectl drain leaves alone unless it is told.
EVERY_POD: dict[str, Any] = {"drain": {"evict_unmanaged": True}}
#: Simulated agents are let in by their word, on loopback.
TRUSTING: dict[str, Any] = {"listen": {"tls": None}, "identity": {"kind": "insecure-trust-hello"}}
#: One fault each, and each a drain of its own accord.
FATAL = (46, 48, 62, 64, 79, 95, 110, 119, 120, 136)


class Drill:
    """One drill's nodes, its aggregator, and what came of the faults."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str, ends: ExitStack) -> None:
        self.plane = plane
        self.folder = folder
        self.name = name
        self.lost = 0
        #: Seconds from the end of the outage to each taint that came after it.
        self.recoveries: list[float] = []
        self._ends = ends
        ends.callback(remove_quarantines, plane, name)
        self.nodes: list[str] = []

    def made(self, nodes: int) -> list[str]:
        """So many nodes, each with a running pod on it."""
        self.nodes = self.plane.create_nodes(nodes, self.name)
        for node in self.nodes:
            self.plane.create_pod(PODS, node, node=node)
        self.plane.wait_pod_running(PODS, self.nodes[-1], timeout_s=60)
        return self.nodes

    def stack(self, more: dict[str, Any]) -> Stack:
        """An aggregator that is up, alone."""
        stack = self._ends.enter_context(Stack(self.plane, self.folder, more=EVERY_POD | more))
        stack.aggregator.start().ready()
        return stack

    def fleet(self, nodes: int, more: dict[str, Any] | None = None) -> tuple[Stack, Simulator]:
        """So many nodes with simulated agents, all attached to an aggregator."""
        names = self.folder / "names"
        names.write_text("\n".join(self.made(nodes)))
        stack = self.stack(TRUSTING | (more or {}))
        where: list[str | Path] = ["--names", names, "--aggregator", stack.aggregator.address]
        simulator = Simulator(where, log=self.folder / "simulator.log")
        self._ends.callback(simulator.close)
        simulator.until_streaming(nodes, timeout_s=120)
        return stack, simulator

    def tainted(self) -> set[str]:
        """This drill's nodes with our taint."""
        items = self.plane.call("GET", "/api/v1/nodes")["items"]
        return {
            item["metadata"]["name"]
            for item in items
            if item["metadata"]["name"] in self.nodes
            and any(taint["key"] == TAINT for taint in item["spec"].get("taints", []))
        }

    def under_way(self, few: int) -> None:
        """Until the burst has begun. Raises AssertionError when it is over already."""
        wait_until(lambda: len(self.tainted()) >= few, what="the burst", every_s=0.01, timeout_s=60)
        assert len(self.tainted()) < len(self.nodes), "the burst was over before the drill"

    def settle(self, faulty: list[str], *, since: float) -> None:
        """Count what is lost of ``faulty``, and time what came ``since`` the outage's end."""
        waiting = set(faulty) - self.tainted()
        while waiting and time.monotonic() - since < PATIENCE:
            time.sleep(0.05)
            come = waiting & self.tainted()
            self.recoveries += [time.monotonic() - since] * len(come)
            waiting -= come
        self.lost += len(waiting)

    def until_drained(self, nodes: list[str]) -> None:
        """Until nobody has a pod left to evict, so that a second eviction would have come."""

        def left() -> list[str]:
            pods = self.plane.call("GET", f"/api/v1/namespaces/{PODS}/pods")["items"]
            return [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"] in nodes]

        wait_until(lambda: not left(), what=f"the pods of {self.name} to go", timeout_s=180)


def kill_9_in_a_burst_of_200(drill: Drill) -> None:
    stack, simulator = drill.fleet(200)
    simulator.inject(nodes="all", fault=FAULT)
    drill.under_way(20)
    stack.aggregator.kill()
    stack.aggregator.start()
    drill.settle(drill.nodes, since=time.monotonic())


def sigterm_in_a_burst_of_100(drill: Drill) -> None:
    stack, simulator = drill.fleet(100)
    simulator.inject(nodes="all", fault=FAULT)
    drill.under_way(10)
    stack.aggregator.stop()
    stack.aggregator.start()
    drill.settle(drill.nodes, since=time.monotonic())


def database_hangs_for_30_s(drill: Drill) -> None:
    """History and the alerts' outbox lie on a disk that hangs; 20 faults meanwhile."""
    disk = drill.folder / "database"
    with real_disks.ext4(disk, size=64 << 20):
        more = {
            "history": {"database": f"sqlite:///{disk / 'history.db'}"},
            "alerts": {"outbox": str(disk / "outbox.db")},
        }
        stack, simulator = drill.fleet(20, more)
        with real_disks.frozen(disk):
            _one_by_one(simulator, drill.nodes, seconds=30)
        drill.settle(drill.nodes, since=time.monotonic())
        drill.until_drained(drill.nodes)
        stack.aggregator.stop()


def api_server_away_for_60_s(drill: Drill) -> None:
    _, simulator = drill.fleet(20)
    drill.plane.kill_apiserver()
    _one_by_one(simulator, drill.nodes, seconds=60)
    drill.plane.restart_apiserver()
    drill.settle(drill.nodes, since=time.monotonic())


def aggregator_paused_for_40_s(drill: Drill) -> None:
    stack, simulator = drill.fleet(20)
    process = stack.aggregator.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        _one_by_one(simulator, drill.nodes, seconds=40)
    finally:
        process.send_signal(signal.SIGCONT)
    drill.settle(drill.nodes, since=time.monotonic())


def agent_killed_between_line_and_ack(drill: Drill) -> None:
    """Ten nodes, each killed a little later after the line; the kernel log can be read again."""
    stack = drill.stack({})
    for at, (node, code) in enumerate(zip(drill.made(len(FATAL)), FATAL, strict=True)):
        agent = stack.agent(node, replayable=True)
        agent.xid(code)
        time.sleep(at * 0.005)
        agent.kill()
        agent.start()
        drill.settle([node], since=time.monotonic())


def agent_whose_disks_are_full(drill: Drill) -> None:
    """Neither the state in /run nor its copy on disk can be written when the fault comes."""
    stack = drill.stack({})
    for node in drill.made(5):
        with real_disks.tmpfs(drill.folder / f"run-{node}", "size=1m") as full:
            agent = stack.agent(node, start=False)
            agent.run_dir, agent.state_dir = full / "run", full / "state"
            agent.socket = agent.run_dir / "agent.sock"
            agent.start()
            stack.attached(agent)
            with (full / "filler").open("wb") as file:
                _fill(file.fileno())
            agent.xid(79)
            drill.settle([node], since=time.monotonic())
            agent.close()
            stack.agents.remove(agent)


def _fill(descriptor: int) -> None:
    for size in (1 << 16, 1):
        try:
            while True:
                os.write(descriptor, bytes(size))
        except OSError:
            continue


def _one_by_one(simulator: Simulator, nodes: list[str], *, seconds: float) -> None:
    """A fault on each of the nodes, over so many seconds, the first at once."""
    end = time.monotonic() + seconds
    for node in nodes:
        simulator.inject(node=node, fault=FAULT)
        time.sleep(seconds / len(nodes))
    time.sleep(max(0.0, end - time.monotonic()))


#: By the key of the figure. The API server goes last: its controllers take a while to come back.
DRILLS: dict[str, Callable[[Drill], None]] = {
    "lost_kill9_burst_200": kill_9_in_a_burst_of_200,
    "lost_sigterm_burst_100": sigterm_in_a_burst_of_100,
    "lost_database_down_30s": database_hangs_for_30_s,
    "lost_agent_kill9": agent_killed_between_line_and_ack,
    "lost_paused_replica": aggregator_paused_for_40_s,
    "lost_disk_full_agent": agent_whose_disks_are_full,
    "lost_apiserver_down_60s": api_server_away_for_60_s,
}


@contextmanager
def _drill(plane: ControlPlane, folder: Path, name: str) -> Iterator[Drill]:
    folder.mkdir()
    with ExitStack() as ends:
        drill = Drill(plane, folder, name, ends)
        yield drill
        drill.until_drained(drill.nodes)


def _double(plane: ControlPlane) -> int:
    """Pods whose eviction was accepted more than once; each has a name that no other ever had."""
    return sum(times > 1 for times in Counter(accepted_evictions(plane, 0)).values())


def main() -> None:
    figures: dict[str, float | int | str] = {}
    recoveries: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="sickbay-bench-", ignore_cleanup_errors=True) as folder,
        ControlPlane() as plane,
    ):
        plane.create_namespace(PODS)
        for number, (key, run) in enumerate(DRILLS.items()):
            name = key.removeprefix("lost_").replace("_", "-")
            print(f"{_words(run)} ...", flush=True)
            # A number, for a socket's path has 107 bytes.
            with _drill(plane, Path(folder) / str(number), name) as drill:
                run(drill)
            figures[key] = drill.lost
            recoveries[key] = drill.recoveries
            plane.delete_nodes(drill.nodes)
        figures["double_evictions"] = _double(plane)
    # The worst of the drills: all together, the 200 of one burst would hide the 20 of another.
    figures["recovery_p99_s"] = max(_p99(times) for times in recoveries.values())
    path = write("faults", figures)
    rows = [(_words(run), str(figures[key]), "0") for key, run in DRILLS.items()]
    rows += [("pods that were evicted twice", str(figures["double_evictions"]), "0")]
    rows += [
        (
            f"end of the outage to the taints, p99: {_words(run)}",
            f"{_p99(recoveries[key])} s",
            "10 s",
        )
        for key, run in DRILLS.items()
    ]
    print(table(f"bench-faults, lost: {path}", rows))


def _p99(times: list[float]) -> float:
    return round(percentile(times, 99), 1) if times else 0.0


def _words(run: Callable[[Drill], None]) -> str:
    return run.__name__.replace("_", " ")


if __name__ == "__main__":
    main()
