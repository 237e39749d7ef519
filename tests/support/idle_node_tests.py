"""Nodes without work and the program that tests them, both of which outlive the processes."""

from dataclasses import dataclass, replace
from typing import Any

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Action, Unreachable
from aggregator.quarantine.decide.admission_record import (
    IDLE_TEST,
    RunningOperation,
    parse_record,
)
from aggregator.quarantine.decide.idle_nodes import IdleNodeRules
from aggregator.quarantine.decide.new_nodes import NewNodeRules
from aggregator.quarantine.decide.operator_requests import EXEMPT
from aggregator.quarantine.decide.repair import RepairRules
from aggregator.quarantine.repair.protocol import (
    ConfiguredRepairer,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from aggregator.repairers.gpu_use import GpuUseRequests, UnlessGpuInUse
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.new_node_tests import (
    PASSED,
    POOL,
    TIMEOUT,
    NewNodes,
    ProgramRepairer,
    TestProgram,
    last_test_of,
)

RACK = "example.com/rack"
HOUR = 3600.0


@dataclass
class IdleProgram(TestProgram):
    """The same for idle nodes; tests of new nodes and in quarantines have their own checks."""

    __test__ = False

    def take(self, order: RepairOrder, *, twice: bool) -> RepairAnswer:
        if order.idle_class:
            self.wrong += [f"{order.operation} {what}" for what in self._mistakes(order, twice)]
        self.orders.append(order)
        return self.answer

    def _mistakes(self, order: RepairOrder, twice: bool) -> list[str]:  # noqa: FBT001
        node, name = self.world.nodes[order.node], order.operation
        told = last_test_of(self.world, order.node)
        found = parse_record(self.world.record.text).node_tests
        idle = {key: one for key, one in found.items() if one.kind == IDLE_TEST}
        mine: RunningOperation | None = idle.pop(order.node, None)
        racks = [domain for one in idle.values() for domain in one.domains]
        checks = {
            "is not durable": (told.get("operation"), told.get("state")) != (name, "Ordering"),
            "is not reserved": mine is None or mine.operation != name,
            "is over the limit": len(idle) >= self.concurrent,
            "has a neighbour": f"{RACK}={node.labels.get(RACK)}" in racks,
            "is after the stop": bool(self.world.stop.reason),
            "is of a node in use": any(
                pod.node == order.node and pod.owner_kind != "DaemonSet"
                for pod in self.world.pods.values()
            ),
            "is of a node in quarantine": is_marked(node) or order.node in self.world.quarantines,
            "is of another boot": order.boot_id != node.boot_id,
            "tolerates a taint": bool(order.tolerates),
            "was sent before": name in self.operations and not twice,
        }
        return [what for what, holds in checks.items() if holds]


class IdleNodes(NewNodes):
    """A world of idle nodes, each in a rack of its own unless ``racks`` names it."""

    def __init__(
        self,
        *names: str,
        verdicts: tuple[RepairAnswer, ...] = (PASSED,),
        racks: dict[str, str] | None = None,
    ) -> None:
        super().__init__(*names, verdicts=verdicts)
        for name in self.names:
            labels = {RACK: (racks or {}).get(name, f"rack-of-{name}")}
            self.world.add_node(name, taints=(POOL,), labels=labels)
        self.program = IdleProgram(self.world, 2, list(verdicts))
        self.world.check = self.program.check_removal
        self.idle: dict[str, Any] | None = {
            "every": 6 * HOUR,
            "profile": "quick",
            "concurrent": 2,
            "concurrent_percent": 100.0,
        }
        self.rules, self.domain_labels = {}, (RACK,)
        self.timeout = TIMEOUT
        self.pause = 60.0
        self.profiles, self.gives_way = frozenset({"quick", "standard"}), True
        #: The reports of the nodes' agents before each test; None: nobody requests them.
        self.gpu_use: GpuUseRequests | None = None

    def repair(self, cluster: MemoryCluster) -> RepairSettings:
        one = ProgramRepairer(self.program, cluster, sends_twice=self.twice)
        rules = RepairRules(
            mode=self.mode,
            test_pause=self.pause,
            new_nodes=NewNodeRules(**self.rules),
            idle_nodes=IdleNodeRules(**self.idle) if self.idle is not None else None,
        )
        entry = ConfiguredRepairer(
            one,
            self.timeout,
            note_end=one.note_end,
            profiles=self.profiles,
            gives_way=self.gives_way,
            by_agent=True,
        )
        if self.gpu_use is not None:
            entry = replace(entry, repairer=UnlessGpuInUse(one, self.gpu_use))
        return RepairSettings(rules, {"test": entry}, self.domain_labels)


def dying_before_the_order(world: World) -> MemoryCluster:
    """The cluster of a process that dies when the test is in the annotation, before its order."""
    cluster = MemoryCluster(world)

    def dies(name: str) -> Unreachable | None:
        if name == "test":
            cluster.crashed.set()
            return Unreachable("the process is dead")
        return None

    cluster._fails = dies
    return cluster


def prevent(site: IdleNodes, against: str) -> None:
    """Make so of the site what speaks against the test of its node."""
    match against:
        case "stop":
            site.world.person_stops("maintenance")
        case "exempt":
            site.world.person_annotates("n1", EXEMPT, "until 2026-12-01T00:00:00Z ours")
        case "observe":
            site.settings = replace(site.settings, mode=Action.OBSERVE)
        case "cordon":
            site.world.person_cordons("n1")
        case "silent":
            site.names = ()
        case _:
            site.settings = replace(
                site.settings, limits=replace(site.settings.limits, quorum_percent=100)
            )
            site.world.add_node("silent")
