"""The test of a node in no quarantine: of a new node, of an idle one, or by hand."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from attrs import define

from aggregator.cluster.operations import OURS
from aggregator.cluster.port import (
    Conflict,
    Guard,
    Node,
    NodeChange,
    Operation,
    OperationSpec,
    OperationStatus,
    RepairAttempt,
    RepairState,
)
from aggregator.policy.repairs import TEST
from aggregator.quarantine.actions.act_guard import NEVER, FreshRead
from aggregator.quarantine.decide.idle_nodes import refused, why_refused
from aggregator.quarantine.decide.new_nodes import is_tainted, without_taint
from aggregator.quarantine.decide.node_tests import (
    IDLE,
    NodeTest,
    begun_status,
    ended,
    reserved_kind,
)
from aggregator.quarantine.decide.operation_step import NextOperation
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.decide.reservation import OperationLimits
from aggregator.quarantine.repair.case import AttemptOutcome, OperationCase
from aggregator.quarantine.repair.engine import ending
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_reports import NodeTestReports, node_kind
from aggregator.quarantine.repair.node_test_state import NodeTestContext, WatchedNode
from aggregator.quarantine.repair.protocol import RepairAnswer, RepairOrder
from aggregator.quarantine.repair.repairer_calls import end_state

#: The pod of an idle node's test must have begun this long after the order (seconds): work has
#: come.
_BEGINS_WITHIN = 600.0
_TRIES = 5


@define(eq=False, repr=False, slots=False)
class NodeTestCase(OperationCase):
    """``_read``: the Node as it was read for the step."""

    _shared: NodeTestContext
    _checks: NodeTestChecks
    _reports: NodeTestReports
    node: str
    _watched: WatchedNode
    _read: Node

    @property
    def busy(self) -> RepairAttempt | None:
        return self._watched.busy

    @property
    def held(self) -> str:
        return self._watched.held

    # -- its data ---------------------------------------------------------------------------

    def order(self, attempt: RepairAttempt) -> RepairOrder:
        test = _test(attempt)
        rules, taint = self._shared.settings.rules, self._shared.rules.taint
        new = f"a new node (taint {taint})" if taint else "a new node"
        return RepairOrder(
            operation=test.operation,
            repair=TEST,
            node=self.node,
            node_uid=test.node_uid,
            boot_id=test.boot_id,
            quarantine="",
            reason=f"the {node_kind(test)}" if test.reason else new,
            lasts=max(1.0, test.deadline_at - self._shared.time_of(test)),
            profile=test.profile,
            tolerates="" if test.reason else taint,
            idle_class=rules.in_service.priority_class if test.reason == IDLE else "",
            began_at=test.began_at,
        )

    def limits(self, attempt: RepairAttempt) -> tuple[str, OperationLimits]:
        test, shared = _test(attempt), self._shared
        idle = test.reason == IDLE
        return reserved_kind(test), shared.settings.rules.in_service if idle else shared.rules

    def spec(self, attempt: RepairAttempt, because: str) -> OperationSpec:
        return OperationSpec(
            node=self.node,
            kind=TEST,
            profile=attempt.profile,
            requester=OURS,
            reason=because,
            installation=self._shared.cluster.installation,
        )

    def begun_status(self, attempt: RepairAttempt) -> OperationStatus:
        whose = self._shared.cluster.installation if attempt.request else ""
        return replace(begun_status(_test(attempt)), installation=whose)

    def is_request(self, there: Operation, attempt: RepairAttempt) -> bool:
        pending = there.status.phase is RepairState.PENDING
        return pending and f"-{there.uid[:8]}-" in attempt.operation

    # -- reads, and the guards of its acts --------------------------------------------------

    async def make(self, step: NextOperation) -> RepairAttempt | None:
        shared, test = self._shared, _test(step.test)
        held = await self._against(test)
        self._watched.held = held or ""
        if held is None or held:
            return None
        now = round(shared.clocks.latest(), 3)
        until = now + shared.settings.repairers[TEST].timeout
        domains = self._watched.domains if test.reason == IDLE else ()
        return replace(test, began_at=now, deadline_at=until, domains=domains)

    async def _against(self, test: NodeTest) -> str | None:
        """Why it does not begin, or waits. Without a text it was refused."""
        shared = self._shared
        if shared.settings.rules.mode is RepairMode.OBSERVE:
            return "repair.mode is observe: no test begins"
        if test.reason and test.request and await self._is_refused(test):
            return None
        why = await self._checks.others_work(self.node, test) if test.reason else ""
        if why:
            return why
        if TEST not in shared.settings.repairers:
            return "no repairer of kind test is configured"
        return "" if test.reason else await self._checks.pods_in_the_way(self._read)

    async def _is_refused(self, test: NodeTest) -> bool:
        """Whether a person's request is refused, as the node has work: a test that begins hours
        later, when the work has ended, is none that the person waits for.
        """
        shared, checks = self._shared, self._checks
        pods = await shared.cluster.pods_on(self.node, background=True)
        profiles, kinds = shared.settings.test_profiles, shared.settings.node_owner_kinds
        how = shared.registry.fleet.how
        why = why_refused(self.node, pods, test.profile, profiles, how=how, owner_kinds=kinds)
        if not why:
            return False
        over = refused(test, why, at=round(shared.clocks.wall(), 3))
        there = await shared.cluster.operations.read(test.request)
        checks.require_place()
        if there is None or there.deleting or not self.is_request(there, test):
            raise Conflict(f"operation {test.request} is gone, or has begun")
        await shared.cluster.operations.write_status(there, self.begun_status(over))
        self._watched.test, self._watched.requested = over, ""
        self._reports.emit_refused(self.node, over)
        return True

    def beginning_guard(self, attempt: RepairAttempt) -> Guard:
        read = partial(self._why_not_begun, _test(attempt))
        fresh = FreshRead(read, clocks=self._shared.clocks, began=NEVER)
        return self._checks.beginning_guard(self.node, fresh)

    async def _why_not_begun(self, test: NodeTest) -> str:
        """Why the test does not begin after all: its reservation and its object took their time."""
        node = await self._shared.cluster.read_node(self.node)
        if node is None or node.uid != test.node_uid:
            return "the Node is another one now"
        others = await self._checks.others_work(self.node, test) if test.reason else ""
        return others or self._checks.why_not_begun(node, test)

    async def may_resend(self, attempt: RepairAttempt) -> bool:
        test, checks = _test(attempt), self._checks
        if not test.reason:
            self._watched.held = await checks.pods_in_the_way(self._read)
            return not self._watched.held
        self._watched.held = checks.facts(self._read, test).against
        if self._watched.held:
            return False
        why = await checks.others_work(self.node, test)
        if why:
            await self._shared.engine.cancel(self, test, why)
        return not why

    def order_guard(self, attempt: RepairAttempt, read_at: float) -> Guard:
        return self._checks.order_guard(self.node, _test(attempt), read_at)

    async def lost(self, attempt: RepairAttempt, answer: RepairAnswer) -> AttemptOutcome | None:
        """The pod of an idle node's test waits behind work."""
        test = _test(attempt)
        late = self._shared.time_of(test) >= test.began_at + _BEGINS_WITHIN
        if not (test.reason and answer.text and late):
            return None
        await self._shared.engine.calls.cancel(self.order(test))
        text = f"it has not begun within {_BEGINS_WITHIN:g} s: {answer.text}"
        return AttemptOutcome(RepairState.INCONCLUSIVE, text)

    async def take_back(self, attempt: RepairAttempt) -> str:
        """A test that its agent has not ended may still run, and keeps its reservation."""
        calls, order = self._shared.engine.calls, self.order(attempt)
        if not self._ends_by_agent(_test(attempt)):
            await calls.cancel(order)
            return ""
        if not self._checks.is_fresh(self.node):  # its next stream gets the cancellation
            return "its agent is awaited, which is to end the test"
        if await calls.cancel(order):
            return ""
        # A test that has ended before can't be taken back either.
        if end_state(TEST, await calls.outcome(order)) is not None:
            return ""
        self._watched.try_later(self._shared.clocks.now())
        return "its agent has not confirmed the end of the test"

    def _ends_by_agent(self, test: NodeTest) -> bool:
        """Whether its agent alone can end the test: not beyond its deadline or a boot of the node,
        which it does not survive.
        """
        entry = self._shared.settings.repairers.get(TEST)
        if entry is None or not entry.by_agent or not test.is_of_boot(self._watched.boot_id):
            return False
        return self._shared.time_of(test) < test.deadline_at

    def cancelled_as(self, attempt: RepairAttempt) -> RepairState:
        same = _test(attempt).is_of_boot(self._watched.boot_id)
        return RepairState.CANCELLED if same else RepairState.INCONCLUSIVE

    # -- what follows -----------------------------------------------------------------------

    def poll_in(self, seconds: float) -> None:
        at = self._shared.clocks.now() + seconds
        self._watched.poll_at = min(self._watched.poll_at, at)

    async def hold(self, why: str, _step: NextOperation | None = None) -> None:
        self._watched.held = why

    def begun(self, attempt: RepairAttempt, because: str) -> None:
        self._watched.test, self._watched.requested = _test(attempt), ""
        self._reports.emit_ordered(self.node, _test(attempt), because)

    async def changed(self, _before: RepairAttempt, after: RepairAttempt) -> None:
        self._watched.test = _test(after)

    async def not_taken_back(self, _attempt: RepairAttempt, because: str, awaited: str) -> None:
        self._watched.held = f"{because}; {awaited}"

    async def end_of(
        self, attempt: RepairAttempt, outcome: AttemptOutcome, *, late: bool
    ) -> RepairAttempt | None:
        """A pass is durable before the taint goes, and its end after that: where a process dies in
        between, the next one goes on. The taint goes against the version of the read that it was
        decided on: another party's that came meanwhile makes the patch fail, and is kept.
        """
        shared, checks, test = self._shared, self._checks, _test(attempt)
        passed = outcome.state is RepairState.SUCCEEDED
        if passed and not late and not checks.is_fresh(self.node):
            await self._note(test, outcome)
            self._watched.held = "its agent is awaited"  # its evidence comes before the taint goes
            return None
        for attempts_left in reversed(range(_TRIES)):
            node = await shared.cluster.read_node(self.node)
            if node is None or node.uid != test.node_uid:
                return None  # the next step ends it
            tainted = is_tainted(node, shared.rules.taint)
            end = outcome
            if tainted or test.reason or test.ends_as is None:  # else the taint went by this pass
                end = self._end_now(node, test, outcome)
            opens = shared.rules.remove_taint and not test.reason
            if end.state is RepairState.SUCCEEDED and tainted and opens:
                test = await self._note(test, end)
                change = NodeChange(taints=without_taint(node, shared.rules.taint))
                guard = checks.removal_guard(node)
                try:
                    node = await shared.cluster.patch_node(node, change, guard=guard)
                except Conflict:  # the kubelet writes its node too
                    if not attempts_left:
                        raise
                    continue
            checks.take_read(self._watched, node)
            at = round(shared.clocks.wall(), 3)
            return ended(test, *end, at=at, boot_id=node.boot_id)
        raise AssertionError("unreachable")

    async def _note(self, test: NodeTest, outcome: AttemptOutcome) -> NodeTest:
        if test.ends_as is not None:
            return test
        return _test(await self._shared.engine.change(self, test, ending(test, outcome)))

    def _end_now(self, node: Node, test: NodeTest, outcome: AttemptOutcome) -> AttemptOutcome:
        """The end and its text, by the node as it is now."""
        if not test.is_of_boot(node.boot_id):
            why = f"the node is in another boot than the test was for; {outcome.text}"
            return AttemptOutcome(RepairState.INCONCLUSIVE, why.rstrip("; "))
        against = self._checks.against_removal(node)
        if outcome.state is RepairState.SUCCEEDED and against:
            text = f"it passed, and does not count: {against}"
            return AttemptOutcome(RepairState.CANCELLED, text)
        return outcome

    def ended(self, ended: RepairAttempt, _text: str, details: Mapping[str, str]) -> None:
        self._reports.emit_end(self.node, self._watched, _test(ended), details)


def _test(attempt: RepairAttempt | None) -> NodeTest:
    assert isinstance(attempt, NodeTest)
    return attempt
