"""The next step of one node with a test, or that needs one: decided on a fresh read, and taken."""

import enum
import logging
from collections.abc import Set as AbstractSet
from dataclasses import replace

from attrs import define

from aggregator.cluster.port import ClusterError, Conflict, GuardRefused, Node, RepairState
from aggregator.quarantine.decide.idle_nodes import next_idle_test
from aggregator.quarantine.decide.new_nodes import condition_of, needs_a_person, next_test
from aggregator.quarantine.decide.node_tests import (
    IDLE,
    NextTest,
    NodeTest,
    NodeTestStep,
    ended,
    open_failure,
    passed_in_quarantine,
    under_way,
)
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_display import NodeTestDisplay
from aggregator.quarantine.repair.node_test_state import (
    POLL_BUSY,
    POLL_EVERY,
    NodeTestContext,
    WatchedNode,
    in_quarantine,
)
from aggregator.quarantine.repair.node_test_steps import NodeTestSteps

log = logging.getLogger("sickbay.quarantine")


class Look(enum.Enum):
    """The state of a node after its step."""

    STAYS = "stays"  # it is polled again
    DONE = "done"
    GONE = "gone"  # there is no such Node


@define(eq=False, slots=False, kw_only=True)
class NodeTestAdvance:
    """One node at a time."""

    _shared: NodeTestContext
    _checks: NodeTestChecks
    _steps: NodeTestSteps
    _display: NodeTestDisplay

    def keep_operations(self, operations: AbstractSet[str]) -> None:
        """Forget the tests that are under way no more."""
        self._steps.keep_operations(operations)

    async def step(self, name: str, watched: WatchedNode) -> Look:
        """Take its next step. A step that fails is decided anew later."""
        now, tries = self._shared.clocks.now, watched.tries
        watched.poll_at = now() + POLL_EVERY
        try:
            look = await self._take(name, watched)
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
            return look
        finally:
            watched.step, watched.chosen = None, False
        return Look.STAYS

    def _note_failure(self, name: str, watched: WatchedNode, error: str) -> None:
        """The page shows what the cluster refuses, or why a test can't be read, and so does
        the log.
        """
        if watched.note_failure(error):
            log.warning(
                "the test of a node can't go on now",
                extra={"event": "node.test_unfinished", "node": name, "error": error},
            )

    async def _take(self, name: str, watched: WatchedNode) -> Look:
        # It may have gone on since the last look, by another process or a person.
        watched.test, watched.problem = self._checks.store.last(name, watched.uid)
        await self._note_quarantine(name, watched)
        busy = watched.test is not None and watched.test.is_busy
        why = "" if busy else self._checks.against_memory(name)
        if why and watched.tainted and not watched.problem:  # no read can change that
            watched.held = why
            await self._steps.forget_leftover(name, watched)
            await self._display.write_condition(name, watched)
            return Look.STAYS
        node = await self._shared.cluster.read_node(name, background=True)
        await self._steps.end_lost(name, node.uid if node is not None else "")
        if node is None:
            watched.test = None
            await self._steps.forget_leftover(name, watched)
            return Look.GONE
        self._checks.take_read(watched, node)
        if watched.problem:
            return Look.STAYS
        await self._take_later_pass(name, watched)
        step = self._next(node, watched)
        watched.held = step.because if step.do is NodeTestStep.NOTHING else ""
        if step.do is not NodeTestStep.ORDER:
            await self._steps.forget_leftover(name, watched)
        await self._steps.take_step(name, watched, node, step)
        if step.do is NodeTestStep.ORDER:  # it may have been refused after its reservation
            await self._steps.forget_leftover(name, watched)
        await self._display.write_condition(name, watched)
        stays = watched.tainted or watched.requested or open_failure(watched.test)[0]
        busy = watched.test is not None and watched.test.is_busy
        return Look.STAYS if stays or busy else Look.DONE

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
        await self._steps.change(name, watched, test, replace(test, quarantined=True))

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
            await self._steps.change(name, watched, test, replace(passed, passed=passed.message))

    def _next(self, node: Node, watched: WatchedNode) -> NextTest:
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
            return under_way(test, facts, now, "no repairer runs tests that work preempts any more")
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
        return condition is None or condition == watched.said

    def _passed_since(self, name: str, test: NodeTest) -> str:
        """The operation of a test in quarantine that the node has passed since; empty: none."""
        node_state = self._shared.registry.known(name)
        quarantine = node_state.quarantine if node_state is not None else None
        if node_state is None or quarantine is None:
            return ""
        return passed_in_quarantine(test, boot_of(node_state), quarantine.status.repair)
