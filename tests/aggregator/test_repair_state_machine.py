"""The controller's state machine with repairs: no order twice, none past a limit or onto work.

All events of the machine without repairs happen here too: faults, reboots, replaced machines,
people, failures of the cluster, and the death of the aggregator between any two calls.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from aggregator.cluster.port import Action, Phase, Quarantine, RepairState
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, PIN
from aggregator.quarantine.decide.plans.release import RECOVERED
from aggregator.quarantine.reconcile.rounds import REFRESH
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.gpu_use import GpuUse, GpuUseRequests
from tests.aggregator.controller_world import HOW, QUIET, nodes
from tests.aggregator.test_controller_state_machine import ControllerMachine
from tests.support.memory_cluster import MemoryCluster
from tests.support.repair_shop import (
    TIMEOUT,
    Shop,
    ShopRepairer,
    repair_settings,
    unless_in_use,
)

pytestmark = pytest.mark.timeout(900)

#: Repairs at once, of four nodes, two of which are in one rack.
AT_ONCE = 2
RACK = {"n1": "7", "n2": "7"}
KINDS = {"gpu-reset": True, "reboot": False, "replace": True, "ticket": True, "test": True}
CODES = st.sampled_from(("xid:79", "xid:46"))
#: The process dies at so many calls from now, before or after the call; None: it lives.
DEATHS = st.none() | st.tuples(st.integers(1, 20), st.booleans())
ANSWERS = (
    AnswerState.TAKEN,
    AnswerState.TAKEN,
    AnswerState.DONE,
    AnswerState.FAILED,
    AnswerState.NOT_SENT,
    AnswerState.UNSURE,
)
PROFILE = "standard"
#: How tests end.
ENDS = st.sampled_from(
    (AnswerState.TAKEN, AnswerState.DONE, AnswerState.FAILED, AnswerState.INCONCLUSIVE)
)


class CheckedShop(Shop):
    """Knows what the machine did a moment ago, which no process can know yet."""

    machine: "RepairMachine"

    def take(self, order: RepairOrder) -> RepairAnswer:
        answer = super().take(order)
        if order.repair == "test":
            self.machine.note_test(order)
        quarantine = self.world.quarantines.get(order.node)
        repair = quarantine.status.repair if quarantine is not None else None
        for one in repair.attempts if repair is not None else ():
            if one.operation == order.operation and one.request:
                self.machine.note_request(order, one.node_uid, one.request)
        return answer


class GpuReport:
    """The stream of a node's agent, which answers at once."""

    def __init__(self, machine: "RepairMachine", node: str) -> None:
        self._machine, self._node = machine, node

    def request_gpu_use(self, request: str, *, pods: bool) -> None:
        opened = self._node in self._machine.world.facts.gpus_open
        use = GpuUse(("a process of the test",) if opened else ())
        self._machine._gpu_use.on_answer(self._node, request, use)


class RepairMachine(ControllerMachine):
    """``requests``: the operation by which each person's request on each Node was followed."""

    quiet = TIMEOUT + QUIET

    def __init__(self) -> None:
        self.shop: CheckedShop | None = None
        #: Releases that were looked at, and nodes that people left alone until then.
        self.evaluated: set[str] = set()
        self.freed: dict[str, float] = {}
        self.requests: dict[tuple[str, str], str] = {}
        self._gpu_use = GpuUseRequests(self._line_of)
        super().__init__()

    def own_labels(self, name: str) -> Mapping[str, str]:
        return {"rack": RACK[name]} if name in RACK else {}

    def more_settings(self, cluster: MemoryCluster) -> Mapping[str, Any]:
        if self.shop is None:
            self.shop = CheckedShop(self.world, boots=False)
            self.shop.machine = self
        made = [(k, ShopRepairer(self.shop, cluster, sends_twice=t)) for k, t in KINDS.items()]
        rules: Any = {"concurrent": AT_ONCE, "concurrent_percent": 100.0, "attempts": 20}
        rules |= {"verify": PROFILE, "test_pause": 30.0, "verify_within": 600.0}
        checked = unless_in_use(repair_settings(*made, **rules), self._gpu_use)
        return {"repair": checked}

    def _line_of(self, name: str) -> "GpuReport":
        return GpuReport(self, name)

    def note_test(self, order: RepairOrder) -> None:
        """The orders of a test come one after the other on a node."""
        assert self.shop is not None
        if order.profile != PROFILE:
            self.wrong.append(f"{order.operation} has profile {order.profile!r}")

    def note_request(self, order: RepairOrder, node_uid: str, request: str) -> None:
        before = self.requests.setdefault((node_uid, request), order.operation)
        if before != order.operation:
            self.wrong.append(f"{request} on {order.node} was followed by {before} and {order}")

    @invariant()
    def no_recovered_node_is_released_without_a_pass(self) -> None:
        """In mode repair a drained node leaves by recovery after its pass alone: it began
        after the last evidence, and neither a failed test nor a repair came since.
        """
        for name, one in self.world.quarantines.items():
            status, repair = one.status, one.status.repair
            leaves = status.phase is Phase.RELEASING and status.released_because == RECOVERED
            if not leaves or one.uid in self.evaluated or status.drained_at == 0.0:
                continue
            self.evaluated.add(one.uid)
            if one.spec.action is Action.CORDON or self.loop.time() <= self.freed.get(name, -1.0):
                continue
            last = next(
                (
                    a
                    for a in reversed(repair.attempts)
                    if a.repair != "ticket" and a.state is not RepairState.INCONCLUSIVE
                ),
                None,
            )
            assert last is not None, one
            assert (last.repair, last.state) == ("test", RepairState.SUCCEEDED), one
            assert last.began_at > repair.evidence_at, one

    @rule(state=st.sampled_from(ANSWERS), cancels=st.booleans())
    def repairers_answer(self, state: AnswerState, *, cancels: bool) -> None:
        assert self.shop is not None
        self.shop.answer, self.shop.cancels = RepairAnswer(state, "a test"), cancels

    @rule(state=st.sampled_from((AnswerState.TAKEN, AnswerState.DONE, AnswerState.FAILED)))
    def repairers_tell_how_far_they_are(self, state: AnswerState) -> None:
        assert self.shop is not None
        self.shop.look = RepairAnswer(state, "a test")

    @rule(ends=st.lists(ENDS, min_size=1, max_size=4))
    def tests_end_so(self, ends: list[AnswerState]) -> None:
        assert self.shop is not None
        tests = len({one.operation for one in self.shop.orders if one.repair == "test"})
        known = [self.shop.verdicts[min(n, len(self.shop.verdicts) - 1)] for n in range(tests)]
        self.shop.verdicts = known + [RepairAnswer(one, "a test") for one in ends]
        self._go(20)

    @rule(name=nodes, code=CODES, ends=st.lists(ENDS, min_size=1, max_size=3), death=DEATHS)
    def a_node_fails_recovers_and_is_tested(
        self,
        name: str,
        code: str,
        ends: list[AnswerState],
        death: tuple[int, bool] | None,
    ) -> None:
        self._nothing_is_in_the_way(name)
        self.a_fault(name, code, "GPU-1")
        self._is_repaired(AnswerState.TAKEN, None)
        self.tests_end_so(ends)
        self.what_was_ordered_happens(name)
        self._is_repaired(AnswerState.TAKEN, death)
        self._go(120)

    @rule(name=nodes, code=CODES, answer=st.sampled_from(ANSWERS), death=DEATHS)
    def a_node_fails_and_is_to_be_repaired(
        self, name: str, code: str, answer: AnswerState, death: tuple[int, bool] | None
    ) -> None:
        self._nothing_is_in_the_way(name)
        self.a_fault(name, code, "GPU-1")
        self._is_repaired(answer, death)

    @rule(name=nodes, code=CODES, answer=st.sampled_from(ANSWERS), death=DEATHS)
    def two_nodes_of_a_rack_are_to_be_repaired(
        self, name: str, code: str, answer: AnswerState, death: tuple[int, bool] | None
    ) -> None:
        for other in (*RACK, name):
            self._nothing_is_in_the_way(other)
            self.a_fault(other, code, "GPU-1")
        self._is_repaired(answer, death)

    @rule(
        name=nodes,
        what=st.sampled_from(("gpu-reset", "reboot", "replace", "cancel")),
        ident=st.sampled_from(("a", "b", "c")),
        answer=st.sampled_from(ANSWERS),
        death=DEATHS,
    )
    def a_person_has_a_node_repaired(
        self,
        name: str,
        what: str,
        ident: str,
        answer: AnswerState,
        death: tuple[int, bool] | None,
    ) -> None:
        self._nothing_is_in_the_way(name)
        self.world.person_annotates(name, FORCE, "drain fan 3")
        self._asks(name, what, ident)
        self._go(REFRESH + 1)
        self._is_repaired(answer, death)

    @rule(
        name=nodes,
        what=st.sampled_from(("gpu-reset", "reboot", "replace", "cancel")),
        ident=st.sampled_from(("a", "b", "c")),
    )
    def a_person_asks_for_a_repair(self, name: str, what: str, ident: str) -> None:
        self._asks(name, what, ident)
        self._go(20)

    def _asks(self, name: str, what: str, ident: str) -> None:
        if what == "cancel":
            self.world.operations.person_cancels(name)
        else:
            self.world.operations.person_requests(name, what, f"{name}-{what}-{ident}")

    @rule(name=nodes)
    def a_process_opens_a_gpu_or_ends(self, name: str) -> None:
        self.world.note_change(name)
        self.world.facts.gpus_open ^= {name}
        self._go(20)

    def _nothing_is_in_the_way(self, name: str) -> None:
        """Neither a stop nor a person nor a pod that stays: the node can be drained."""
        self.errors.clear()
        self.stopped_at = None
        self.world.facts.gpus_open.discard(name)
        self.world.person_stops("")
        self.exempt.pop(name, None)
        for key in (EXEMPT, PIN):
            self.world.person_annotates(name, key, None)
        self.world.rejections.clear()
        self.world.budget_blocks.clear()
        self.world.come_back.clear()
        for key, pod in list(self.world.pods.items()):
            if pod.owner_kind == "StatefulSet":
                del self.world.pods[key]
        for agent in self.agents.values():
            if agent.line is None or agent.line.closed:
                self._attach(agent)
        self._go(1)

    def _is_repaired(self, answer: AnswerState, death: tuple[int, bool] | None) -> None:
        """Drain what is to be drained; then the next order meets this answer, and a death."""
        assert self.shop is not None
        self.shop.answer = RepairAnswer(answer, "a test")
        for _ in range(4):
            self._go(4)
            self.kubelets_finish()
        if death is not None:
            calls, after = death
            self.replica.cluster.crash_in(calls, after=after)
        self._go(60)

    @rule(name=nodes)
    def what_was_ordered_happens(self, name: str) -> None:
        """The machine boots, or another one comes in its place."""
        assert self.shop is not None
        ordered = [one for one in self.shop.orders if one.node == name]
        if not ordered or ordered[-1].node_uid != self.world.nodes[name].uid:
            return
        if ordered[-1].repair == "reboot":
            self.a_reboot(name, 90.0)
        elif ordered[-1].repair == "replace":
            self.a_machine_is_replaced(name, old_token=False)
        self._go(20)

    def is_a_persons(self, quarantine: Quarantine) -> bool:
        """As before; and a node whose repairs or tests are exhausted."""
        return bool(quarantine.status.repair.exhausted) or super().is_a_persons(quarantine)

    def _settles(self) -> None:
        assert self.shop is not None
        self.shop.answer = self.shop.look = RepairAnswer(AnswerState.TAKEN)
        self.shop.verdicts = [RepairAnswer(AnswerState.DONE, "passed")]
        self.world.facts.gpus_open.clear()
        for one in list(self.world.operations.by_name.values()):
            if one.status.phase is RepairState.PENDING:
                self.world.operations.person_deletes(one.name)
        super()._settles()
        self._check_requests()

    @invariant()
    def _check_requests(self) -> None:
        """Each request of a person began at most once, and is the attempt that it began."""
        begun = [one for one in self.world.operations.by_name.values() if one.status.operation]
        idents = [one.status.operation for one in begun]
        assert len(idents) == len(set(idents))
        assert all(one.held for one in begun)


RepairMachine.TestCase.settings = settings(HOW, max_examples=60)
TestRepairMachine = RepairMachine.TestCase


def test_the_order_of_a_quarantine_that_was_taken_by_force_leaves_nothing_behind() -> None:
    play = RepairMachine()
    play.a_node_fails_and_is_to_be_repaired(
        answer=AnswerState.TAKEN, code="xid:79", death=(17, True), name="n4"
    )
    play.a_person_removes_by_force(name="n4")
    play.teardown()
    assert play.shop is not None
    assert play.shop.cleaned
    assert not play.watch.wrong
