"""The next step of one node with a test, or that needs one: decided on a fresh read, and taken."""

import enum
import logging
from dataclasses import replace

from attrs import define

from aggregator.cluster.port import (
    BUSY,
    ClusterError,
    Conflict,
    GuardRefused,
    Node,
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
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.repair.node_test_case import NodeTestCase, NodeTestParts
from aggregator.quarantine.repair.node_test_display import NodeTestDisplay
from aggregator.quarantine.repair.node_test_state import (
    POLL_BUSY,
    POLL_EVERY,
    WatchedNode,
    in_quarantine,
)

log = logging.getLogger("sickbay.quarantine")


class StepOutcome(enum.Enum):
    """The state of a node after its step."""

    STAYS = "stays"  # it is polled again
    DONE = "done"
    GONE = "gone"  # there is no such Node


@define(eq=False, slots=False, kw_only=True)
class NodeTestAdvance:
    """One node at a time."""

    _parts: NodeTestParts
    _display: NodeTestDisplay

    def __attrs_post_init__(self) -> None:
        self._shared, self._checks = self._parts.shared, self._parts.checks
        self._engine = self._parts.engine

    async def step(self, name: str, watched: WatchedNode) -> StepOutcome:
        """Take its next step. A step that fails is decided anew later."""
        now, tries = self._shared.clocks.now, watched.tries
        busy = watched.test is not None and watched.test.is_busy
        watched.poll_at = now() + (POLL_BUSY if busy else POLL_EVERY)
        try:
            outcome = await self._take(name, watched)
        except (GuardRefused, Conflict) as error:  # decided anew at the next poll
            watched.poll_at = now() + POLL_BUSY
            log.info(
                "the test of a node is decided on anew",
                extra={"event": "node.test_redecided", "node": name, "error": str(error)},
            )
        except ClusterError as error:
            watched.try_later(now(), error.retry_after or 0.0)
            self._note_failure(name, watched, str(error))
        else:
            if watched.problem:
                watched.try_later(now())
            elif watched.tries == tries:
                watched.tries = 0
            self._note_failure(name, watched, watched.problem)
            return outcome
        finally:
            watched.step, watched.chosen = None, False
        return StepOutcome.STAYS

    def _note_failure(self, name: str, watched: WatchedNode, error: str) -> None:
        """The page shows what the cluster refuses, or why a test can't be read, and so does
        the log.
        """
        if watched.note_failure(error):
            log.warning(
                "the test of a node can't go on now",
                extra={"event": "node.test_unfinished", "node": name, "error": error},
            )

    async def _take(self, name: str, watched: WatchedNode) -> StepOutcome:
        # It may have gone on since the last look, by another process or a person.
        watched.test, watched.problem = self._checks.store.last(name, watched.uid)
        await self._note_quarantine(name, watched)
        busy = watched.test is not None and watched.test.is_busy
        why = "" if busy else self._checks.against_memory(name)
        if why and watched.tainted and not watched.problem:  # no read can change that
            watched.held = why
            await self._forget_leftover(name, watched.test)
            await self._display.write_condition(name, watched)
            return StepOutcome.STAYS
        node = await self._shared.cluster.read_node(name, background=True)
        await self._end_lost(name, node.uid if node is not None else "")
        if node is None:
            watched.test = None
            await self._forget_leftover(name, watched.test)
            return StepOutcome.GONE
        self._checks.take_read(watched, node)
        if watched.problem:
            return StepOutcome.STAYS
        await self._take_later_pass(name, watched)
        step = self._next(node, watched)
        if step.do is not Do.END:  # which names why it has waited
            watched.held = step.because if step.do is Do.NOTHING else ""
        await self._forget_leftover(name, watched.test, step.test)
        await self._engine.carry_out(NodeTestCase(self._parts, name, watched, node), step)
        if step.do is Do.ORDER:  # it may have been refused after its reservation
            await self._forget_leftover(name, watched.test)
        await self._display.write_condition(name, watched)
        stays = watched.tainted or watched.requested or open_failure(watched.test)[0]
        busy = watched.test is not None and watched.test.is_busy
        return StepOutcome.STAYS if stays or busy else StepOutcome.DONE

    async def _forget_leftover(self, name: str, *kept: RepairAttempt | None) -> None:
        """Take out a reservation whose test has ended, or was never begun. ``kept``: the tests that
        may have it.
        """
        known = self._shared.record_writer.record.node_tests.get(name)
        going = {one.operation for one in kept if one is not None and one.state in BUSY}
        if known is not None and known.operation not in going:
            await self._shared.record_writer.end_operation(known.operation)

    async def _end_lost(self, name: str, uid: str) -> None:
        """End the tests of another Node of this name, as of a consistent read. ``uid``: of the
        present one, empty without one.
        """
        for one in self._checks.store.lost(name, uid):
            self._checks.require_place()
            at, test = round(self._shared.clocks.wall(), 3), node_test_of(one)
            over = ended(test, RepairState.INCONCLUSIVE, "its Node is gone", at=at)
            await self._engine.write(test, over)
            self._engine.calls.note_end(TEST, name, test.operation)

    async def _note_quarantine(self, name: str, watched: WatchedNode) -> None:
        """The test remembers a quarantine of its node after it: that is decided on anew after it.

        Without that a node that was repaired, and released, would wait for a person or a reboot.
        """
        test = watched.test
        if (
            test is None
            or test.quarantined
            or test.is_busy
            or not in_quarantine(self._shared.registry.known(name))
        ):
            return
        if not (needs_a_person(test, watched.boot_id, self._shared.rules) or open_failure(test)[0]):
            return
        await self._write(watched, test, replace(test, quarantined=True))

    async def _write(self, watched: WatchedNode, before: NodeTest, after: NodeTest) -> None:
        await self._engine.write(before, after)
        watched.test = after

    async def _take_later_pass(self, name: str, watched: WatchedNode) -> None:
        """Write down that the failure of an idle node is over by a test in its quarantine: else it
        would be open again when the quarantine is gone.
        """
        test = watched.test
        if test is None or test.is_busy or not open_failure(test)[0]:
            return
        operation = self._passed_since(name, test)
        if operation:
            text = f"it has passed a test since, in quarantine (operation {operation})"
            at = round(self._shared.clocks.wall(), 3)
            passed = ended(test, RepairState.SUCCEEDED, text, at=at, boot_id=watched.boot_id)
            passed = replace(passed, passed=passed.message, passed_at=passed.ended_at)
            await self._write(watched, test, passed)

    def _next(self, node: Node, watched: WatchedNode) -> NextOperation:
        test, facts = watched.test, self._checks.facts(node, watched.test)
        pause, now = self._shared.settings.rules.test_pause, self._shared.clocks.earliest()
        requested = (
            watched.requested and not watched.tainted and self._shared.settings.tests_in_service
        )
        busy = test is not None and test.is_busy
        if test is not None and busy:  # by the clock that began it
            now = self._shared.record_writer.times.time_of(test.operation, test.began_at)
        # With idle_nodes the configuration has such a repairer.
        kept = (
            self._shared.settings.tests_in_service
            or self._shared.settings.rules.idle_nodes is not None
        )
        if test is not None and busy and test.reason == IDLE and not kept:
            return next_of_test(
                test, facts, now, "no repairer runs tests that work preempts any more"
            )
        if (test.reason == IDLE) if test is not None and busy else (requested or watched.chosen):
            idle = self._shared.settings.rules.idle_nodes
            return next_idle_test(test, facts, idle, pause=pause, now=now)
        return next_test(test, facts, self._shared.rules, pause=pause, now=now)

    def rests(self, name: str, watched: WatchedNode) -> bool:
        """Whether the node is watched for its failed idle test alone, which is evidence, and no
        read could change that.
        """
        test = watched.test
        acts = watched.tainted or watched.chosen or watched.requested
        if acts or test is None or test.is_busy:
            return False
        if not open_failure(test)[0] or self._passed_since(name, test):
            return False
        if in_quarantine(self._shared.registry.known(name)) and not test.quarantined:
            return False
        condition = condition_of(test, tainted=False, rules=self._shared.rules)
        return condition is None or condition == watched.shown

    def _passed_since(self, name: str, test: NodeTest) -> str:
        """The operation of a test in quarantine that the node has passed since; empty: none."""
        node_state = self._shared.registry.known(name)
        quarantine = node_state.quarantine if node_state is not None else None
        if node_state is None or quarantine is None:
            return ""
        return passed_in_quarantine(test, boot_of(node_state), quarantine.status.repair)
