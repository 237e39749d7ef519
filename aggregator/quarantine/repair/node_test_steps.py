"""The steps of one test of a new or an idle node: it begins, is sent, is proven, and ends.

Order, as for repairs in a quarantine: the reservation in the admission record, the Operation
(compare-and-set), the order; then the verdict, the removal of the taint, the end of the Operation,
and the reservation out of the record. So a process that dies between any two of them leaves behind
at least as much as it has done.
"""

import math
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from attrs import define, field

from aggregator.cluster.port import Conflict, Guard, Node, NodeChange, RepairState
from aggregator.policy.repairs import TEST
from aggregator.quarantine.actions.act_guard import FreshRead
from aggregator.quarantine.decide.admission_record import RunningOperation
from aggregator.quarantine.decide.idle_nodes import in_use, refused, why_refused
from aggregator.quarantine.decide.new_nodes import is_tainted, without_taint
from aggregator.quarantine.decide.node_test_limits import NodeTestLimits
from aggregator.quarantine.decide.node_tests import (
    IDLE,
    NextTest,
    NodeTest,
    NodeTestStep,
    ended,
    reserved_kind,
    running_of,
)
from aggregator.quarantine.decide.own_pods import without_tests
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.decide.reservation import OperationProposal
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_events import NodeTestEvents, node_kind
from aggregator.quarantine.repair.node_test_state import (
    POLL_BUSY,
    NodeTestContext,
    WatchedNode,
)
from aggregator.quarantine.repair.protocol import AnswerState, RepairOrder
from aggregator.quarantine.repair.repairer_calls import (
    REMOVE_WITHIN,
    SEND_WITHIN,
    RepairerCalls,
    end_state,
)
from aggregator.runtime.text import truncate

#: The pod of an idle node's test must have begun this long after the order (seconds): work has
#: come.
_BEGINS_WITHIN = 600.0
_TRIES = 5


@define(eq=False, slots=False, kw_only=True)
class NodeTestSteps:
    """Carries out what was decided about one node's test, and remembers what no object has."""

    _shared: NodeTestContext
    _checks: NodeTestChecks
    _events: NodeTestEvents
    #: How tests end whose leftovers are being removed: afterwards no object has it.
    _ends: dict[str, tuple[RepairState, str]] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._calls = RepairerCalls(self._shared.settings.repairers)
        self._store = self._checks.store

    def keep_operations(self, operations: AbstractSet[str]) -> None:
        """Forget the tests that are under way no more."""
        self._ends = {key: one for key, one in self._ends.items() if key in operations}
        self._calls.forget_all_but(operations)

    async def take_step(self, name: str, watched: WatchedNode, node: Node, step: NextTest) -> None:
        test = watched.test
        if test is not None and test.is_busy and step.do is not NodeTestStep.SEND:
            await self._shared.record_writer.restore_operation(
                self._running_of(name, watched, test)
            )
        match step.do:
            case NodeTestStep.ORDER if step.test is not None and step.test.reason == IDLE:
                begin = self._begin_by_hand if step.test.request else self._begin_idle
                await begin(name, watched, node, step)
            case NodeTestStep.ORDER if self._shared.settings.rules.mode is RepairMode.OBSERVE:
                watched.held = "repair.mode is observe: no test begins"
                self._events.emit_suppressed(name, node.uid)
            case NodeTestStep.ORDER:
                await self._begin(name, watched, node, step)
            case NodeTestStep.SEND if test is not None:
                await self._send_again(name, watched, node, test)
            case NodeTestStep.PROVE if test is not None:
                await self._prove(name, watched, test)
            case NodeTestStep.STOP if test is not None:
                await self._stop(name, watched, test, step.because)
            case NodeTestStep.END if test is not None:
                await self._give_up(name, watched, test)
            case _:
                pass

    def _running_of(self, name: str, watched: WatchedNode, test: NodeTest) -> RunningOperation:
        at = self._shared.clocks.trusted_wall()
        return running_of(name, test, at=at, domains=watched.domains)

    async def _reserve(self, name: str, watched: WatchedNode, test: NodeTest, lasts: float) -> bool:
        """Whether the limits count the test now; else it is held. ``lasts``: seconds until its
        deadline.
        """
        kind = reserved_kind(test)
        domains = watched.domains if test.reason == IDLE else ()
        proposal = OperationProposal(name, test.operation, kind, lasts, domains=domains)
        rules = (
            self._shared.settings.rules.in_service if test.reason == IDLE else self._shared.rules
        )
        held = await self._shared.record_writer.reserve(proposal, NodeTestLimits(rules))
        if held is not None:
            watched.held = held.text
        return held is None

    async def forget_leftover(self, name: str, watched: WatchedNode) -> None:
        """Take out a reservation whose test has ended, or was never begun."""
        known, test = self._shared.record_writer.record.node_tests.get(name), watched.test
        busy = test is not None and test.is_busy
        if known is not None and not (busy and test and test.operation == known.operation):
            await self._shared.record_writer.end_operation(known.operation)

    async def change(
        self, name: str, watched: WatchedNode, before: NodeTest, after: NodeTest
    ) -> None:
        """Write the test, unless another process has changed it."""
        await self._store.change(name, before, after)
        watched.test = after

    async def end_lost(self, name: str, uid: str) -> None:
        """End the tests of another Node of this name, as of a consistent read. ``uid``: of the
        present one, empty without one.
        """
        for one in self._store.lost(name, uid):
            self._checks.require_place()
            over = await self._store.end_lost(one, round(self._shared.clocks.wall(), 3))
            self._calls.note_end(TEST, name, over.operation)
            self._ends.pop(over.operation, None)

    # -- a test begins ----------------------------------------------------------------------

    async def _begin_by_hand(
        self, name: str, watched: WatchedNode, node: Node, step: NextTest
    ) -> None:
        """The same for a person's request, which is refused where the node has work: a test that
        begins hours later, when the work has ended, is none that the person waits for.
        """
        if step.test is None or self._shared.settings.rules.mode is RepairMode.OBSERVE:
            watched.held = "repair.mode is observe: no test begins"
            return
        pods = await self._shared.cluster.pods_on(name, background=True)
        profiles, how = self._shared.settings.test_profiles, self._shared.fleet.how
        kinds = self._shared.settings.node_owner_kinds
        why = why_refused(name, pods, step.test.profile, profiles, how=how, owner_kinds=kinds)
        if not why:
            await self._begin(name, watched, node, step)
            return
        self._checks.require_place()
        test = refused(step.test, why, at=round(self._shared.clocks.wall(), 3))
        await self._store.refuse(test, node.uid)
        watched.test, watched.requested = test, ""
        self._events.emit_refused(name, test)

    async def _begin_idle(
        self, name: str, watched: WatchedNode, node: Node, step: NextTest
    ) -> None:
        """The same as for a new node, on one that has no work at this moment. Work that comes
        later preempts the test.
        """
        pods = await self._shared.cluster.pods_on(name, background=True)
        why = in_use(pods, self._shared.settings.node_owner_kinds)
        if why or step.test is None:
            watched.held = why
        elif self._shared.settings.rules.mode is not RepairMode.OBSERVE:
            await self._begin(name, watched, node, step)
        else:
            self._events.emit_idle_suppressed(name, step.test.profile)

    async def _begin(self, name: str, watched: WatchedNode, node: Node, step: NextTest) -> None:
        """Reserve the test, make it durable, and send the order."""
        entry, test = self._shared.settings.repairers.get(TEST), step.test
        if entry is None or test is None:
            watched.held = "no repairer of kind test is configured"
            return
        now = round(self._shared.clocks.latest(), 3)
        watched.held = "" if test.reason else await self._checks.pods_in_the_way(node)
        if watched.held:
            return
        test = replace(test, began_at=now, deadline_at=now + entry.timeout)
        if not await self._reserve(name, watched, test, entry.timeout):
            return
        there = await self._store.open(name, node.uid, test, step.because)
        begun_at = self._shared.clocks.now()
        fresh = FreshRead(
            partial(self._why_not_begun, name, node.uid, test),
            clocks=self._shared.clocks,
            began=-math.inf,
        )
        await self._checks.beginning_guard(name, fresh)()
        domains = watched.domains if test.reason == IDLE else ()
        await self._store.write(there, test, node.uid, domains)
        watched.test, watched.requested = test, ""
        self._events.emit_ordered(name, test, step.because)
        # Else the process was paused in between.
        if self._shared.clocks.now() - begun_at <= SEND_WITHIN:
            await self._send(name, watched, test, begun_at)

    async def _why_not_begun(self, name: str, uid: str, test: NodeTest) -> str:
        """Why the test does not begin after all: its reservation and its object took their time."""
        node = await self._shared.cluster.read_node(name)
        if node is None or node.uid != uid:
            return "the Node is another one now"
        others = await self._others_work(name, test) if test.reason == IDLE else ""
        return others or self._checks.why_not_begun(node, test)

    async def _send_again(
        self, name: str, watched: WatchedNode, node: Node, test: NodeTest
    ) -> None:
        """Send an order that perhaps was not sent: minutes may have passed since it was decided."""
        watched.held = ""
        if self._shared.settings.rules.mode is not RepairMode.REPAIR:
            watched.held = "repair.mode is observe: no order is sent"
        elif test.reason == IDLE:
            watched.held = self._checks.facts(node, test).against
        if watched.held:
            return
        if test.reason == IDLE:
            why = await self._others_work(name, test)
            if why:
                await self._stop(name, watched, test, why)
                return
        await self._send(name, watched, test)

    async def _send(
        self,
        name: str,
        watched: WatchedNode,
        test: NodeTest,
        begun_at: float | None = None,
    ) -> None:
        """Send the order. Only one that its repairer carries out once is sent again. ``begun_at``:
        when the node was last read for its beginning, if it is the first time (monotonic).
        """
        entry = self._shared.settings.repairers.get(TEST)
        if entry is None or (begun_at is None and not entry.repairer.sends_twice):
            return
        if test.operation in self._ends:
            await self._end(name, watched, test, *self._ends[test.operation])
            return
        if not self._shared.record_writer.has_operation(name, test.operation):
            left = max(0.0, test.deadline_at - self._time_of(test))
            if not await self._reserve(name, watched, test, left):
                return
        await self._checks.order_guard(name, test)()
        watched.poll_at = self._shared.clocks.now() + POLL_BUSY
        read_at = begun_at if begun_at is not None else self._shared.clocks.now()
        guard = self._order_guard(name, watched.uid, test, read_at)
        answer = await self._calls.order(self._order(name, watched.uid, test), guard)
        end = end_state(TEST, answer)
        if end is not None:
            await self._end(name, watched, test, end, answer.text)
        elif answer.state is AnswerState.TAKEN:
            taken = replace(test, state=RepairState.ORDERED, message=answer.text[:500])
            await self.change(name, watched, test, taken)
        elif answer.state is AnswerState.NOT_SENT and not entry.repairer.sends_twice:
            state = RepairState.INCONCLUSIVE
            await self._end(name, watched, test, state, answer.text)
        else:
            watched.held = answer.text

    async def _others_work(self, name: str, test: NodeTest) -> str:
        """Which pod, other than the test's own, makes the node one with work; empty: it is idle."""
        pods = await self._shared.cluster.pods_on(name, background=True)
        others = without_tests(pods, {test.operation}, self._shared.settings.test_namespace)
        return in_use(others, self._shared.settings.node_owner_kinds)

    def _order_guard(self, name: str, uid: str, test: NodeTest, read_at: float) -> Guard:
        async def read() -> str:
            node = await self._shared.cluster.read_node(name)
            if node is None or node.uid != uid:
                return "the Node is another one now"
            others = await self._others_work(name, test) if test.reason == IDLE else ""
            known = await self._store.read(test)
            if known is None or not known.is_busy:
                return "the test was ended by another process"
            return others or await self._store.why_ended_now(test)

        fresh = FreshRead(read, clocks=self._shared.clocks, began=read_at)
        return self._checks.order_guard(name, test, fresh)

    def _time_of(self, test: NodeTest) -> float:
        """The time by the clock that began the test."""
        return self._shared.record_writer.times.time_of(test.operation, test.began_at)

    def _order(self, name: str, uid: str, test: NodeTest) -> RepairOrder:
        in_service = self._shared.settings.rules.in_service if test.reason == IDLE else None
        taint = self._shared.rules.taint
        new = f"a new node (taint {taint})" if taint else "a new node"
        return RepairOrder(
            operation=test.operation,
            repair=TEST,
            node=name,
            node_uid=uid,
            boot_id=test.boot_id,
            quarantine="",
            reason=f"the {node_kind(test)}" if test.reason else new,
            lasts=max(1.0, test.deadline_at - self._time_of(test)),
            profile=test.profile,
            tolerates="" if test.reason else self._shared.rules.taint,
            idle_class=in_service.priority_class if in_service is not None else "",
            began_at=test.began_at,
        )

    # -- and ends ---------------------------------------------------------------------------

    async def _prove(self, name: str, watched: WatchedNode, test: NodeTest) -> bool:
        """End the test where its end is known. Returns whether it is."""
        watched.poll_at = self._shared.clocks.now() + POLL_BUSY
        known = self._ends.get(test.operation)
        if known is None and test.ends_as is not None:
            known = test.ends_as, test.message
        if known is not None:
            await self._end(name, watched, test, *known)
            return True
        if test.state is not RepairState.ORDERED:
            return False
        answer = await self._calls.outcome(self._order(name, watched.uid, test))
        end = end_state(TEST, answer)
        if end is None:
            late = self._time_of(test) >= test.began_at + _BEGINS_WITHIN
            if test.reason == IDLE and answer.text and late:  # its pod waits behind work
                text = f"it has not begun within {_BEGINS_WITHIN:g} s: {answer.text}"
                await self._calls.cancel(self._order(name, watched.uid, test))
                await self._end(name, watched, test, RepairState.INCONCLUSIVE, text)
                return True
            return False
        await self._end(name, watched, test, end, answer.text)
        return True

    async def _stop(self, name: str, watched: WatchedNode, test: NodeTest, why: str) -> None:
        """The test has lost its purpose: it is no evidence about the node any more."""
        if test.operation not in self._ends:
            awaited = await self._take_back(name, watched, test)
            if awaited:
                watched.held = f"{why}; {awaited}"
                return
        same = test.is_of_boot(watched.boot_id)
        state = RepairState.CANCELLED if same else RepairState.INCONCLUSIVE
        await self._end(name, watched, test, state, why)

    async def _take_back(self, name: str, watched: WatchedNode, test: NodeTest) -> str:
        """Take its order back. Returns what is awaited before it is over; empty: it is.

        A test that its agent has not ended may still run, and keeps its reservation.
        """
        order = self._order(name, watched.uid, test)
        if not self._ends_by_agent(watched, test):
            await self._calls.cancel(order)
            return ""
        if not self._checks.is_fresh(name):  # its next stream gets the cancellation at once
            return "its agent is awaited, which is to end the test"
        if await self._calls.cancel(order):
            return ""
        # A test that has ended before can't be taken back either.
        if end_state(TEST, await self._calls.outcome(order)) is not None:
            return ""
        watched.try_later(self._shared.clocks.now())
        return "its agent has not confirmed the end of the test"

    def _ends_by_agent(self, watched: WatchedNode, test: NodeTest) -> bool:
        """Whether its agent alone can end the test: not beyond its deadline or a boot of the node,
        which it does not survive.
        """
        entry = self._shared.settings.repairers.get(TEST)
        if entry is None or not entry.by_agent or not test.is_of_boot(watched.boot_id):
            return False
        return self._time_of(test) < test.deadline_at

    async def _give_up(self, name: str, watched: WatchedNode, test: NodeTest) -> None:
        """Its time is over. One last look: a verdict that has come counts."""
        if await self._prove(name, watched, test):
            return
        await self._calls.cancel(self._order(name, watched.uid, test))
        if await self._prove(name, watched, test):
            return
        text = watched.held or "it gave no verdict in its time"
        await self._end(name, watched, test, RepairState.INCONCLUSIVE, text)

    async def _end(
        self,
        name: str,
        watched: WatchedNode,
        test: NodeTest,
        state: RepairState,
        text: str,
    ) -> None:
        """Write the test's end, and remove what the order left; then its reservation goes.

        A verdict is written first: its program has ended, and after the removal no process would
        know of it. A test without one may still run, so that it is removed first.
        """
        self._ends[test.operation] = state, text
        entry = self._shared.settings.repairers.get(TEST)
        in_time = self._time_of(test) < test.deadline_at + REMOVE_WITHIN
        verdict = state in (RepairState.SUCCEEDED, RepairState.FAILED)
        order = self._order(name, watched.uid, test)
        if entry is not None and entry.clean_up is not None and not verdict:
            left = await entry.clean_up(order)
            if left.state is AnswerState.NOT_SENT and in_time:
                watched.held, watched.poll_at = left.text, self._shared.clocks.now() + POLL_BUSY
                return
        passed = state is RepairState.SUCCEEDED
        if passed and in_time and not self._checks.is_fresh(name):
            # It has passed: its agent's evidence comes before the taint goes.
            watched.held, watched.poll_at = (
                "its agent is awaited",
                self._shared.clocks.now() + POLL_BUSY,
            )
            return
        written = await self._write_end(name, watched, test, state, text)
        del self._ends[test.operation]
        if entry is not None and entry.clean_up is not None and verdict:
            await entry.clean_up(order)  # leftovers are deleted by the cluster: job_manifest.py
        details = self._calls.note_end(TEST, name, test.operation)
        if written is not None:
            self._events.emit_end(name, watched, written, details)
        await self._shared.record_writer.end_operation(test.operation)

    async def _write_end(
        self,
        name: str,
        watched: WatchedNode,
        test: NodeTest,
        state: RepairState,
        text: str,
    ) -> NodeTest | None:
        """The test with its end, as written; None where the Node is another one by now.

        A pass is durable before the taint goes, and its end after that: where a process dies in
        between, the next one goes on. The taint goes against the version of the read that it was
        decided on: another party's that came meanwhile makes the patch fail, and is kept.
        """
        for attempt in range(1, _TRIES + 1):
            node = await self._shared.cluster.read_node(name)
            if node is None or node.uid != watched.uid:
                return None
            tainted = is_tainted(node, self._shared.rules.taint)
            end, why = state, text
            if tainted or test.ends_as is None:  # else the taint went by this pass
                end, why = self._end_now(node, test, state, text)
            if end is RepairState.SUCCEEDED and tainted and self._opens(test):
                test = await self._note_pass(name, watched, test, why)
                change = NodeChange(taints=without_taint(node, self._shared.rules.taint))
                guard = self._checks.removal_guard(node)
                try:
                    node = await self._shared.cluster.patch_node(node, change, guard=guard)
                except Conflict:  # the kubelet writes its node too
                    if attempt == _TRIES:
                        raise
                    continue
            at = round(self._shared.clocks.wall(), 3)
            written = ended(test, end, why, at=at, boot_id=node.boot_id)
            await self.change(name, watched, test, written)
            self._checks.take_read(watched, node)
            return written
        raise AssertionError("unreachable")

    def _opens(self, test: NodeTest) -> bool:
        """Whether a pass removes the startup taint."""
        return self._shared.rules.remove_taint and not test.reason

    def _end_now(
        self, node: Node, test: NodeTest, state: RepairState, text: str
    ) -> tuple[RepairState, str]:
        """The end and its text, by the node as it is now."""
        if not test.is_of_boot(node.boot_id):
            why = f"the node is in another boot than the test was for; {text}".rstrip("; ")
            return RepairState.INCONCLUSIVE, why
        against = self._checks.against_removal(node)
        if state is RepairState.SUCCEEDED and against:
            return RepairState.CANCELLED, f"it passed, and does not count: {against}"
        return state, text

    async def _note_pass(
        self, name: str, watched: WatchedNode, test: NodeTest, text: str
    ) -> NodeTest:
        if test.ends_as is not None:
            return test
        passed = replace(test, ends_as=RepairState.SUCCEEDED, message=truncate(text, 500))
        await self.change(name, watched, test, passed)
        return passed
