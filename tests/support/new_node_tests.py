"""New nodes and the program that tests them, both of which outlive the aggregator's processes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.operations import is_node_test, unknown_outcome
from aggregator.cluster.port import (
    Guard,
    Node,
    Operation,
    OperationSpec,
    OperationStatus,
    RepairState,
    Taint,
)
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.new_nodes import NewNodeRules
from aggregator.quarantine.decide.node_tests import NodeTest, last_test, operation_of
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    ConfiguredRepairer,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from tests.support.invariants import Watch
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.replica import POLICY, SETTINGS, Replica, snapshot
from tests.support.virtual_replica import Running, soon

KEY = "sickbay.dev/untested"
UNTESTED = Taint(KEY, "", "NoSchedule")
POOL = Taint("nvidia.com/gpu", "present", "NoSchedule")
PASSED = RepairAnswer(AnswerState.DONE, "all steps passed", {"measurements": '[["m","",1,"GB/s"]]'})
FAILED = RepairAnswer(AnswerState.FAILED, "fio: too slow")
NOTHING = RepairAnswer(AnswerState.INCONCLUSIVE, "missing-tool: there is no dcgmi")
GOING = RepairAnswer(AnswerState.TAKEN)
TIMEOUT = 600.0


@dataclass
class TestProgram:
    """Carries out the orders; ``wrong`` lists what must never be."""

    __test__ = False

    world: World
    concurrent: int
    #: One verdict for each operation in the order of their beginning, the last for all that follow.
    verdicts: list[RepairAnswer] = field(default_factory=lambda: [PASSED])
    answer: RepairAnswer = GOING
    orders: list[RepairOrder] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    #: Whether a cancelled test is told to have ended.
    confirms: bool = True
    #: Seconds until the answer to that, how many are awaited now, and the most of them so far.
    cancel_takes: float = 0.0
    cancelling: int = 0
    most_cancelling: int = 0
    #: Why the last test that was cancelled had been ordered.
    cancelled_reason: str = ""
    ended: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    #: Called when a process asks for a verdict, before it has its answer.
    on_verdict: Callable[[], None] = lambda: None
    #: Whether it is a person who changes taints at this moment.
    by_person: bool = False

    @property
    def operations(self) -> list[str]:
        """Each operation once, in the order of their beginning."""
        return list(dict.fromkeys(one.operation for one in self.orders))

    def take(self, order: RepairOrder, *, twice: bool) -> RepairAnswer:
        node, name = self.world.nodes[order.node], order.operation
        told = last_test_of(self.world, order.node)
        running = parse_record(self.world.record.text).node_tests
        checks = {
            "is not durable": (told.get("operation"), told.get("state")) != (name, "Ordering"),
            "is not reserved": order.node not in running or running[order.node].operation != name,
            "is over the limit": len(running) > self.concurrent,
            "is after the stop": bool(self.world.stop.reason),
            "is of a node without the taint": UNTESTED not in node.taints,
            "is of a node in quarantine": is_marked(node) or order.node in self.world.quarantines,
            "is of another boot": order.boot_id != node.boot_id,
            "was sent before": name in self.operations and not twice,
        }
        self.wrong += [f"{name} {what}" for what, holds in checks.items() if holds]
        self.orders.append(order)
        return self.answer

    def verdict(self, operation: str) -> RepairAnswer:
        number = self.operations.index(operation)
        return self.verdicts[min(number, len(self.verdicts) - 1)]

    def check_removal(self, before: Node, after: Node) -> None:
        """A taint goes by a pass alone, unless a person removes it."""
        removed = UNTESTED in before.taints and UNTESTED not in after.taints
        if not removed or self.by_person:
            return
        told = last_test_of(self.world, after.name)
        if told["ends_as"] != "Succeeded" or self.verdict(told["operation"]) is not PASSED:
            self.wrong.append(f"{after.name}: the taint was removed by {told}")
        if before.boot_id != told["boot_id"]:
            self.wrong.append(f"{after.name}: it was removed in another boot")
        if is_marked(after) or after.name in self.world.quarantines:
            self.wrong.append(f"{after.name}: it was removed in a quarantine")
        if set(before.taints) - set(after.taints) != {UNTESTED}:
            self.wrong.append(f"{after.name}: {before.taints} became {after.taints}")


def own_test(number: int, boot: str = "boot-1", node: str = "n1") -> str:
    """The id of a test that began by itself."""
    return operation_of(f"uid-{node}", boot, number, installation="sickbay")


def last_test_of(world: World, name: str) -> dict[str, Any]:
    """The last test of the Node, with the fields that are not at their default; empty: none."""
    tests = [one for one in world.operations.by_name.values() if is_node_test(one)]
    mine = [one for one in tests if one.spec.node == name]
    test, _ = last_test(mine, world.nodes[name].uid)
    if test is None:
        return {}
    told = {one.name: getattr(test, one.name) for one in fields(NodeTest)}
    return {
        one.name: told[one.name].value
        if isinstance(told[one.name], RepairState)
        else told[one.name]
        for one in fields(NodeTest)
        if told[one.name] != one.default
    }


class WatchedWorld(World):
    """Has each change of a node checked."""

    check: Callable[[Node, Node], None] = staticmethod(lambda _before, _after: None)

    def set_node(self, node: Node) -> None:
        before = self.nodes.get(node.name)
        if before is not None:
            self.check(before, node)
        super().set_node(node)


class ProgramRepairer:
    """One process's way to the program. Its calls are killed with the process."""

    def __init__(
        self, program: TestProgram, cluster: MemoryCluster, *, sends_twice: bool = True
    ) -> None:
        self.sends_twice = sends_twice
        self._program, self._cluster = program, cluster

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        cluster = self._cluster
        effect = cluster.act(
            "test",
            order.node,
            lambda: self._program.take(order, twice=self.sends_twice),
            order=order,
            repeatable=self.sends_twice,
        )
        return await cluster._call("test", effect, guard)

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        def effect() -> RepairAnswer:
            self._program.on_verdict()
            return self._program.verdict(order.operation)

        return await self._cluster._call("verdict", effect)

    async def cancel(self, order: RepairOrder) -> bool:
        def effect() -> bool:
            self._program.cancelled.append(order.operation)
            self._program.cancelled_reason = order.reason
            return self._program.confirms

        program = self._program
        program.cancelling += 1
        program.most_cancelling = max(program.most_cancelling, program.cancelling)
        try:
            await asyncio.sleep(program.cancel_takes)
            return await self._cluster._call("cancel", effect)
        finally:
            program.cancelling -= 1

    def note_end(self, _node: str, operation: str) -> None:
        self._program.ended.append(operation)


class NewNodes:
    """A world of new nodes, and one replica after the other."""

    def __init__(self, *names: str, verdicts: tuple[RepairAnswer, ...] = (PASSED,)) -> None:
        self.world = WatchedWorld()
        self.names = names or ("n1",)
        for name in self.names:
            self.world.add_node(name, taints=(POOL, UNTESTED))
        self.rules: dict[str, Any] = {"taint": KEY, "profile": "quick", "concurrent": 2}
        self.program = TestProgram(self.world, 2, list(verdicts))
        self.world.check = self.program.check_removal
        self.watch = Watch(self.world, asyncio.get_running_loop().time)
        self.mode, self.twice, self.settings = RepairMode.REPAIR, True, SETTINGS
        self.policy = POLICY
        self.domain_labels: tuple[str, ...] = ()
        self.replica: Replica

    def start(self, cluster: MemoryCluster | None = None, **more: Any) -> Replica:
        cluster = cluster or MemoryCluster(self.world, **more)
        self.replica = Replica(
            self.world,
            clock=Running(),
            settings=replace(self.settings, repair=self.repair(cluster)),
            policy=self.policy,
            cluster=cluster,
        )
        for name in self.names:
            self.report(name)
        return self.replica

    def repair(self, cluster: MemoryCluster) -> RepairSettings:
        """The repairers of a process with this connection."""
        one = ProgramRepairer(self.program, cluster, sends_twice=self.twice)
        rules = RepairRules(mode=self.mode, test_pause=60.0, new_nodes=NewNodeRules(**self.rules))
        test = ConfiguredRepairer(one, TIMEOUT, note_end=one.note_end, by_agent=True)
        return RepairSettings(rules, {"test": test}, self.domain_labels)

    def report(self, name: str, *evidence: Any) -> None:
        """The node's agent attaches, in the machine's present boot."""
        boot = self.world.nodes[name].boot_id
        self.replica.agent(name, snapshot(*evidence), boot_id=boot)

    def reboot(self, name: str = "n1") -> None:
        node = self.world.nodes[name]
        self.world.set_node(replace(node, boot_id=f"{node.boot_id}x"))
        self.report(name)

    def taints(self, name: str = "n1") -> tuple[Taint, ...]:
        return self.world.nodes[name].taints

    def set_taints(self, *taints: Taint, name: str = "n1") -> None:
        self.program.by_person = True
        self.world.set_node(replace(self.world.nodes[name], taints=taints))
        self.program.by_person = False

    def set_label(self, key: str, value: str, name: str = "n1") -> None:
        node = self.world.nodes[name]
        self.world.set_node(replace(node, labels={**node.labels, key: value}))

    def is_open(self, name: str = "n1") -> bool:
        return UNTESTED not in self.taints(name)

    def last_test(self, name: str = "n1") -> dict[str, Any]:
        return last_test_of(self.world, name)

    def break_test(self, name: str = "n1") -> Operation:
        """A later version has written the node's first test: its status can't be read."""
        shelf, ident = self.world.operations, own_test(1, node=name)
        spec = OperationSpec(name, "test", requester="sickbay")
        there = shelf.by_name.get(ident) or Operation(ident, f"o-{name}", "0", spec)
        readable = OperationStatus(node_uid=f"uid-{name}")
        status = unknown_outcome(ident, spec, readable, ValueError("phase"))
        return shelf.store(replace(there, status=status))

    def is_at(self, number: int) -> bool:
        """Whether the node's last test is the one of this number."""
        return self.last_test().get("number") == number

    def condition(self, name: str = "n1") -> tuple[str, str]:
        found = self.world.test_conditions.get(name)
        return (found.status, found.reason) if found is not None else ("", "")

    def kinds(self, name: str = "n1") -> list[str]:
        return self.replica.notes.kinds(name)

    def evidence(self, name: str = "n1") -> list[str]:
        """The codes that the node's incidents rest on."""
        incidents = self.replica.fleet.node_summaries[name].decision.incidents.values()
        return [item.code for one in incidents for item in one.in_force]

    async def settles(self, what: Callable[[], object], within: float = 4 * TIMEOUT) -> None:
        await soon(what, within=within)

    async def runs_until(self, what: Callable[[], object], within: float = 4 * TIMEOUT) -> None:
        """Start a process, and wait for this."""
        self.start()
        await self.settles(what, within)

    async def ends_well(self, what: Callable[[], object]) -> None:
        """It comes to this, and nothing was wrong on the way."""
        await self.settles(what)
        self.check()

    def check(self) -> None:
        assert (self.program.wrong, self.watch.wrong) == ([], [])
