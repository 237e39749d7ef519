"""The nodes' BMCs and agents in the simulation of replicas, and a replica's way to them."""

import math
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Guard, GuardUnreadable, Taint, Unreachable
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.decide.repair_permission import permission_refusal
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    ConfiguredRepairer,
    PermissionRequest,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from aggregator.quarantine.settings import Settings
from sickbay.v1.limits import PERMISSION_SECONDS
from tests.support.invariants import parse_record

if TYPE_CHECKING:
    from tests.aggregator.replica_simulator import ClusterAt, Simulation

#: An order has so long until its deadline (seconds).
ORDER_TIMEOUT = 300.0
#: The startup taint of new nodes.
UNTESTED = Taint("sickbay.dev/untested", "", "NoSchedule")


class Workshop:
    """The nodes' BMCs and agents: an order is carried out later, whatever became of its sender."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        #: The tests of new nodes that have begun: the uid of the Node, and when it ends.
        self._tests: dict[str, tuple[str, float]] = {}
        #: Those that are not to begin any more, and the Nodes, by uid, that had the startup taint,
        #: and that have passed.
        self._over: set[str] = set()
        self._tainted: set[str] = set()
        self._passed: set[str] = set()

    def equip(self, settings: Settings, cluster: "ClusterAt") -> Settings:
        """The settings with repairers of a process with this connection."""
        rules = settings.repair.rules
        if rules.mode is RepairMode.OFF:
            return settings
        made = {
            kind: ConfiguredRepairer(Messenger(self, cluster, sends_twice=twice), ORDER_TIMEOUT)
            for kind, twice in (("gpu-reset", True), ("reboot", False))
        }
        if rules.new_nodes.taint:
            tests = Messenger(self, cluster, sends_twice=True)
            made["test"] = ConfiguredRepairer(tests, ORDER_TIMEOUT, by_agent=True)
        return replace(settings, repair=RepairSettings(rules, made, ("rack",)))

    def take(self, order: RepairOrder) -> RepairAnswer:
        sim, facts = self._sim, self._sim.world.facts
        later = sim.rng.uniform(5, 200)
        if order.repair == "test":
            sim.time.after(sim.rng.uniform(0, 30), lambda: self._test_asks(order))
        elif order.repair == "gpu-reset":
            sim.time.after(later, lambda: self._agent_begins(order))
        elif order.operation not in facts.under_way:
            running = parse_record(sim.world.record.text).repairs.get(order.node)
            domains = running.domains if running is not None else ()
            facts.under_way[order.operation] = (order.node, domains)
            sim.time.after(later, lambda: self._boots(order))
        return RepairAnswer(AnswerState.TAKEN)

    def _agent_begins(self, order: RepairOrder) -> None:
        """It requests permission first, which the controller gives from a fresh read."""
        sim, facts = self._sim, self._sim.world.facts
        acting = [one for one in sim.hosts.values() if one.name in sim.acting()]
        if not acting or permission_refusal(
            sim.world.quarantines.get(order.node),
            sim.world.nodes.get(order.node),
            order.operation,
            order.repair,
            acting[0].wall(),
        ):
            return
        if order.operation in facts.cancelled:
            sim.wrong.append(
                f"{sim.time.now:.2f} a_cancellation_ends_the_order: {order.operation} begins"
            )
        sim.agents[order.node].is_mended()

    def _boots(self, order: RepairOrder) -> None:
        """A BMC has no such question."""
        sim = self._sim
        del sim.world.facts.under_way[order.operation]
        node = sim.world.nodes.get(order.node)
        if node is not None and node.uid == order.node_uid:
            sim.agents[order.node].boots()
            sim.world.set_node(replace(node, boot_id=sim.agents[order.node].boot_id))

    # -- tests of new nodes, by their agents ---------------------------------------------------

    def _test_asks(self, order: RepairOrder) -> None:
        """The agent requests permission of the controller, whose answer counts for a while."""
        sim, since = self._sim, self._sim.time.now
        host = next((one for one in sim.hosts.values() if one.name in sim.acting()), None)
        controller = host.controller if host is not None else None
        if host is None or controller is None or order.operation in self._tests:
            return
        request = PermissionRequest(order.operation, "test", order.node_uid)

        async def ask() -> None:
            refusal = await controller.repair_permissions.refusal(order.node, request)
            sim.time.after(0.01, lambda: self._test_begins(order, refusal, since))

        process = host.process
        process.call_soon(lambda: process.begin(ask(), "permission"))

    def _test_begins(self, order: RepairOrder, refusal: str, since: float) -> None:
        sim, now = self._sim, self._sim.time.now
        late = now - since > PERMISSION_SECONDS
        if refusal or late or order.operation in self._over or order.operation in self._tests:
            return
        there = {one.uid for one in sim.world.nodes.values()}
        others = [uid for uid, ends in self._tests.values() if ends > now and uid in there]
        node, wrong = sim.world.nodes.get(order.node), list[str]()
        if len(others) >= sim.settings.repair.rules.new_nodes.concurrent:
            wrong.append("is over the limit of tests")
        known = sim.world.facts.changed_at.get(order.node, -math.inf) < since
        if known and (node is None or node.uid != order.node_uid or UNTESTED not in node.taints):
            wrong.append("is of no new node")
        if known and node is not None and is_marked(node):
            wrong.append("is of a node in quarantine")
        sim.wrong += [f"{now:.2f} limits_hold: {order.operation} {one}" for one in wrong]
        self._tests[order.operation] = order.node_uid, now + sim.rng.uniform(5, 60)

    def verdict(self, order: RepairOrder) -> RepairAnswer:
        _, ends = self._tests.get(order.operation, ("", math.inf))
        if self._sim.time.now < ends:
            return RepairAnswer(AnswerState.TAKEN)
        if zlib.crc32(order.operation.encode()) % 4 == 0:
            return RepairAnswer(AnswerState.FAILED, "too slow")
        self._passed.add(order.node_uid)
        return RepairAnswer(AnswerState.DONE, "passed")

    def ends(self, order: RepairOrder) -> bool:
        """A test is cancelled: it ends, or does not begin."""
        self._over.add(order.operation)
        if order.operation in self._tests:
            self._tests[order.operation] = order.node_uid, self._sim.time.now
        return True

    def untested_without_taint(self) -> Iterator[str]:
        """The nodes that have lost their startup taint without a pass."""
        for node in self._sim.world.nodes.values():
            if UNTESTED in node.taints:
                self._tainted.add(node.uid)
            elif node.uid in self._tainted and node.uid not in self._passed:
                yield f"{node.name} has lost its startup taint without a pass"


class Messenger:
    """One process's way to the workshop: a `Repairer`."""

    def __init__(self, workshop: Workshop, cluster: "ClusterAt", *, sends_twice: bool) -> None:
        self.sends_twice = sends_twice
        self._workshop, self._cluster = workshop, cluster

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        effect = self._cluster.act(
            "repair",
            order.node,
            lambda: self._workshop.take(order),
            order=order,
            repeatable=self.sends_twice,
        )
        try:
            return await self._cluster._call("repair", effect, guard)
        except GuardUnreadable:
            raise
        except Unreachable as error:
            return RepairAnswer(AnswerState.UNSURE, str(error))

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        taken = RepairAnswer(AnswerState.TAKEN)
        return self._workshop.verdict(order) if order.repair == "test" else taken

    async def cancel(self, order: RepairOrder) -> bool:
        return order.repair == "test" and self._workshop.ends(order)
