"""One fault drill: its nodes and their pods, its aggregators, and the outcome of the faults."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.figures import percentile
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.replica_processes import TRUSTING_TLS, Replicas
from tests.support.simulator import Simulator
from tests.support.stack import TAINT, Stack, remove_quarantines

FAULT = "xid:79"
#: Seconds after the end of an outage until a fault without a taint counts as lost.
PATIENCE = 60.0
PODS = "drills"
#: Evict bare pods as well, which kubectl drain by default leaves alone.
EVERY_POD: dict[str, Any] = {"drain": {"evict_unmanaged": True}}
#: Simulated agents are trusted without credentials, on loopback.
TRUSTING: dict[str, Any] = {"listen": {"tls": None}, "identity": {"kind": "insecure-trust-hello"}}


class Drill:
    """One drill's nodes, its aggregator, and the outcome of the faults."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str, ends: ExitStack) -> None:
        self.plane = plane
        self.folder = folder
        self.name = name
        self.lost = 0
        self.faulty: list[str] = []
        #: Further figures of the drill, by key.
        self.figures: dict[str, float] = {}
        #: Seconds from the end of the outage to each taint that came after it.
        self.recoveries: list[float] = []
        self._ends = ends
        ends.callback(remove_quarantines, plane, name)
        # Without its node each would be collected by five requests of the controller manager.
        ends.callback(plane.delete_from_storage, f"pods/{PODS}/{name}")
        self.nodes: list[str] = []

    def made(self, nodes: int) -> list[str]:
        """So many nodes, each with a running pod on it."""
        self.nodes = self.plane.create_nodes(nodes, self.name)
        self.plane.create_pods(PODS, self.nodes)
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

    def replicas(
        self,
        nodes: int,
        more: dict[str, Any] | None = None,
        *,
        count: int = 3,
        cuttable: bool = False,
    ) -> tuple[Replicas, Simulator]:
        """The same with several replicas, of which the controller has all agents' evidence."""
        names = self.folder / "names"
        names.write_text("\n".join(self.made(nodes)))
        settings = TRUSTING_TLS | EVERY_POD | (more or {})
        replicas = Replicas(
            self.plane, self.folder / "replicas", count=count, more=settings, cuttable=cuttable
        )
        self._ends.enter_context(replicas)
        replicas.start()
        simulator = replicas.simulator(["--names", names], log=self.folder / "simulator.log")
        self._ends.callback(simulator.close)
        simulator.until_streaming(nodes, timeout_s=120)
        wait_until(
            lambda: replicas.attached() == nodes,
            what=lambda: f"all agents' evidence at the controller: {replicas.standings()}",
            timeout_s=120,
        )
        return replicas, simulator

    def tainted(self) -> set[str]:
        """This drill's nodes with our taint."""
        # The label comes with the taint; the plane may have thousands of other nodes.
        path = "/api/v1/nodes?labelSelector=sickbay.dev%2Fquarantined"
        items = self.plane.call("GET", path)["items"]
        return {
            item["metadata"]["name"]
            for item in items
            if item["metadata"]["name"] in self.nodes
            and any(taint["key"] == TAINT for taint in item["spec"].get("taints", []))
        }

    def under_way(self, few: int) -> None:
        """Wait until the burst has begun. Raises AssertionError when it is over already."""
        wait_until(lambda: len(self.tainted()) >= few, what="the burst", every_s=0.01, timeout_s=60)
        assert len(self.tainted()) < len(self.nodes), "the burst was over before the drill"

    def settle(self, faulty: list[str], *, since: float) -> None:
        """Count the lost faults of ``faulty``, and time taints ``since`` the outage's end."""
        self.faulty += faulty
        waiting = set(faulty) - self.tainted()
        while waiting and time.monotonic() - since < PATIENCE:
            time.sleep(0.05)
            come = waiting & self.tainted()
            self.recoveries += [time.monotonic() - since] * len(come)
            waiting -= come
        self.lost += len(waiting)

    def until_drained(self, nodes: list[str]) -> None:
        """Wait until no node has a pod left to evict: a second eviction would have come by then."""

        def left() -> list[str]:
            pods = self.plane.call("GET", f"/api/v1/namespaces/{PODS}/pods")["items"]
            return [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"] in nodes]

        wait_until(lambda: not left(), what=f"the pods of {self.name} to go", timeout_s=180)


def one_by_one(simulator: Simulator, nodes: list[str], *, seconds: float) -> None:
    """A fault on each of the nodes, over so many seconds, the first at once."""
    end = time.monotonic() + seconds
    for node in nodes:
        simulator.inject(node=node, fault=FAULT)
        time.sleep(seconds / len(nodes))
    time.sleep(max(0.0, end - time.monotonic()))


def p99(times: list[float]) -> float:
    """In seconds; 0 where there are none."""
    return round(percentile(times, 99), 1) if times else 0.0
