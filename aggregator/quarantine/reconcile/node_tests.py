"""The reconciler of tests of nodes in no quarantine: new nodes, idle ones, and by hand.

It has its turn when no other step of the node is left, and before a drain, which may last for days:
a quarantine ends the test. The next step is decided on a fresh read of the Node.
"""

import enum
import logging
from dataclasses import replace

from attrs import define, field

from aggregator.cluster.port import (
    BUSY,
    ClusterError,
    Conflict,
    GuardRefused,
    Node,
    Quarantine,
    RepairAttempt,
    RepairState,
)
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.idle_nodes import next_idle_test
from aggregator.quarantine.decide.new_nodes import condition_of, needs_a_person, next_test
from aggregator.quarantine.decide.node_tests import (
    IDLE,
    NodeTest,
    ended,
    next_of_test,
    node_test_of,
    open_failure,
    passed_in_quarantine,
)
from aggregator.quarantine.decide.operation_step import Do, NextOperation
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.repair.node_test_case import NodeTestCase
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_reports import NodeTestReports
from aggregator.quarantine.repair.node_test_state import (
    POLL_BUSY,
    POLL_EVERY,
    NodeTestContext,
    WatchedNode,
)
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still, while_in_force

log = logging.getLogger("sickbay.quarantine")

#: Nodes whose tests advance at the same time, in addition to those under test.
AT_ONCE = 8


class NodeTestStep(enum.StrEnum):
    """The only step, as the Node has to be read before the next one is known."""

    ADVANCE = "advance its test"


ADVANCE = NextStep(NodeTestStep.ADVANCE)


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeTestReconciler:
    """Its steps have pauses of their own: a failed one delays no other step of the node."""

    is_late = True

    shared: NodeTestContext
    checks: NodeTestChecks
    reports: NodeTestReports
    _running: int = field(init=False, default=0)

    @property
    def room(self) -> int:
        """How many further nodes may advance now."""
        under_test = 0 if self.shared.ends else self.shared.rules.concurrent
        return AT_ONCE + under_test - self._running

    def plan(self, node_state: NodeState, _quarantine: Quarantine | None) -> NextStep | None:
        name, watched = node_state.node, self.shared.nodes.get(node_state.node)
        if watched is None or not (watched.is_running or self.room > 0):
            return None
        return ADVANCE if watched.is_running or self.is_due(name, watched) else None

    async def carry_out(self, node_state: NodeState, _step: NextStep, still: Still) -> bool:
        await while_in_force(node_state, self.advance(node_state.node), still)
        return False

    def is_due(self, name: str, watched: WatchedNode) -> bool:
        """Whether it is time for its next step."""
        if watched.is_running or self.shared.clocks.now() < watched.poll_at:
            return False
        return self.shared.may_act() and not self._rests(name, watched)

    async def advance(self, name: str) -> None:
        """Take its next step. A step that fails is decided anew later."""
        watched = self.shared.nodes.get(name)
        if watched is None:
            return
        now, tries, busy = self.shared.clocks.now, watched.tries, watched.busy is not None
        watched.poll_at, watched.is_running = now() + (POLL_BUSY if busy else POLL_EVERY), True
        self._running += 1
        try:
            stays = await self._take(name, watched)
        except (GuardRefused, Conflict) as error:  # decided anew at the next poll
            watched.poll_at = now() + POLL_BUSY
            log.info(
                "the test of a node is decided on anew",
                extra={"event": "node.test_redecided", "node": name, "error": str(error)},
            )
        except ClusterError as error:
            watched.try_later(now(), error.retry_after or 0.0)
            self._note_failure(name, watched, str(error))
        except Exception:  # the worker logs it
            watched.try_later(now())
            raise
        else:
            if watched.problem:
                watched.try_later(now())
            elif watched.tries == tries:
                watched.tries = 0
            self._note_failure(name, watched, watched.problem)
            is_settled = not (busy or watched.busy is not None or watched.problem)
            watched.settled_in = self.shared.quarantine_of(name) if is_settled else ""
            if not stays:
                self.reports.give_evidence(name, None)
                self.shared.nodes.pop(name, None)
                self.shared.done.add(name)
        finally:
            watched.is_running = watched.chosen = False
            self._running -= 1

    def _note_failure(self, name: str, watched: WatchedNode, error: str) -> None:
        """The page shows what the cluster refuses, or why a test can't be read, and so does
        the log.
        """
        known, watched.failure = watched.failure, error
        if error and error != known:  # once, and not at each poll
            log.warning(
                "the test of a node can't go on now",
                extra={"event": "node.test_unfinished", "node": name, "error": error},
            )

    async def _take(self, name: str, watched: WatchedNode) -> bool:
        """Returns whether it is polled again."""
        # It may have gone on since the last look, by another process or a person.
        watched.test, watched.problem = self.checks.store.last(name, watched.uid)
        await self._note_quarantine(name, watched)
        why = "" if watched.busy else self.checks.against_memory(name)
        if why and watched.tainted and not watched.problem:  # no read can change that
            watched.held = why
            await self._forget_leftover(name, watched.test)
            await self.reports.write_condition(name, watched)
            return True
        node = await self.shared.cluster.read_node(name, background=True)
        await self._end_lost(name, node.uid if node is not None else "")
        if node is None:
            await self._forget_leftover(name)
            watched.test = None
            self.shared.nodes.pop(name, None)
            return True
        self.checks.take_read(watched, node)
        if watched.problem:
            return True
        await self._take_later_pass(name, watched)
        step = self._next(node, watched)
        if step.do is not Do.END:  # which names why it has waited
            watched.held = step.because if step.do is Do.NOTHING else ""
        await self._forget_leftover(name, watched.test, step.test)
        case = NodeTestCase(self.shared, self.checks, self.reports, name, watched, node)
        self.shared.engine.report_end(case, watched.test)
        await self.shared.engine.carry_out(case, step)
        if step.do is Do.ORDER:  # it may have been refused after its reservation
            await self._forget_leftover(name, watched.test)
        await self.reports.write_condition(name, watched)
        acts = watched.tainted or watched.requested or watched.busy is not None
        return bool(acts or open_failure(watched.test)[0])

    async def _forget_leftover(self, name: str, *kept: RepairAttempt | None) -> None:
        """Take out a reservation whose test has ended, or was never begun. ``kept``: the tests that
        may have it.
        """
        known = self.shared.record_writer.record.node_tests.get(name)
        going = {one.operation for one in kept if one is not None and one.state in BUSY}
        if known is not None and known.operation not in going:
            await self.shared.record_writer.end_operation(known.operation)

    async def _end_lost(self, name: str, uid: str) -> None:
        """End the tests of another Node of this name, as of a consistent read. ``uid``: of the
        present one, empty without one.
        """
        for one in self.checks.store.lost(name, uid):
            self.checks.require_place()
            at, test = round(self.shared.clocks.wall(), 3), node_test_of(one)
            over = ended(test, RepairState.INCONCLUSIVE, "its Node is gone", at=at)
            await self.shared.engine.write(test, over)
            self.shared.engine.calls.note_end(TEST, name, test.operation)

    async def _note_quarantine(self, name: str, watched: WatchedNode) -> None:
        """The test remembers a quarantine of its node after it: that is decided on anew after it.

        Without that a node that was repaired, and released, would wait for a person or a reboot.
        """
        test = watched.test
        if test is None or test.quarantined or test.is_busy or not self.shared.quarantine_of(name):
            return
        if needs_a_person(test, watched.boot_id, self.shared.rules) or open_failure(test)[0]:
            await self._write(watched, test, replace(test, quarantined=True))

    async def _write(self, watched: WatchedNode, before: NodeTest, after: NodeTest) -> None:
        await self.shared.engine.write(before, after)
        watched.test = after

    async def _take_later_pass(self, name: str, watched: WatchedNode) -> None:
        """Write down that the failure of an idle node is over by a test in its quarantine: else it
        would be open again when the quarantine is gone.
        """
        test = watched.test
        operation = self._passed_since(name, test) if test is not None else ""
        if test is not None and not test.is_busy and operation:
            text = f"it has passed a test since, in quarantine (operation {operation})"
            at = round(self.shared.clocks.wall(), 3)
            passed = ended(test, RepairState.SUCCEEDED, text, at=at, boot_id=watched.boot_id)
            passed = replace(passed, passed=passed.message, passed_at=passed.ended_at)
            await self._write(watched, test, passed)

    def _next(self, node: Node, watched: WatchedNode) -> NextOperation:
        test, facts = watched.test, self.checks.facts(node, watched.test)
        rules, serves = self.shared.settings.rules, self.shared.settings.tests_in_service
        pause, idle, now = rules.test_pause, rules.idle_nodes, self.shared.clocks.earliest()
        in_service = watched.chosen or bool(serves and watched.requested and not watched.tainted)
        if watched.busy is not None:  # by the clock that began it
            in_service, now = watched.busy.reason == IDLE, self.shared.time_of(watched.busy)
            # With idle_nodes the configuration has such a repairer.
            if in_service and not (serves or idle is not None):
                lost = "no repairer runs tests that work preempts any more"
                return next_of_test(watched.busy, facts, now, lost)
        if in_service:
            return next_idle_test(test, facts, idle, pause=pause, now=now)
        return next_test(test, facts, self.shared.rules, pause=pause, now=now)

    def _rests(self, name: str, watched: WatchedNode) -> bool:
        """Whether the node is watched for its failed idle test alone, which is evidence, and no
        read could change that; or its quarantine leaves nothing to do, or waits for the agent that
        has to end its test.
        """
        test, quarantine = watched.test, self.shared.quarantine_of(name)
        if watched.busy is not None:
            ordered = watched.busy.state is RepairState.ORDERED and bool(quarantine)
            waits = ordered and self.shared.time_of(watched.busy) < watched.busy.deadline_at
            # A step ends the call of a hook, which may take longer than until the next step.
            longer = self.checks.is_in_hook(name) or not self.checks.is_fresh(name)
            return waits and bool(watched.held) and longer
        passed = test is not None and self._passed_since(name, test)
        if quarantine and quarantine == watched.settled_in and not passed:
            return True
        acts = watched.tainted or watched.chosen or watched.requested
        if acts or test is None or passed or not open_failure(test)[0]:
            return False
        if quarantine and not test.quarantined:
            return False
        condition = condition_of(test, tainted=False, rules=self.shared.rules)
        return condition is None or condition == watched.shown

    def _passed_since(self, name: str, test: NodeTest) -> str:
        """The operation of a test in quarantine that the node has passed since a failure that is
        open; empty: none.
        """
        node_state = self.shared.registry.known(name)
        quarantine = node_state.quarantine if node_state is not None else None
        if node_state is None or quarantine is None or not open_failure(test)[0]:
            return ""
        return passed_in_quarantine(test, boot_of(node_state), quarantine.status.repair)
