"""Reconciles each node: plans, acts, reads again, until no step is left.

One task at most works on a node; the tasks of several nodes run at the same time.
"""

import asyncio
import contextlib
import enum
import logging
import random
from collections.abc import Sequence
from functools import partial

from attrs import define

from aggregator.cluster.port import (
    ClusterError,
    Conflict,
    GuardRefused,
    NotFound,
    Phase,
    Quarantine,
    Refused,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions.adoption import MarkAdopter
from aggregator.quarantine.actions.holds import NodeHolds
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.actions.release import ReleaseActions
from aggregator.quarantine.decide.admission import AdmissionStep
from aggregator.quarantine.decide.plans.release import RECOVERED, ReleaseStep
from aggregator.quarantine.decide.plans.step import WAIT, NextStep, Pause
from aggregator.quarantine.drain.drainer import Drainer
from aggregator.quarantine.reconcile.admission import AdmissionReconciler
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler
from aggregator.quarantine.reconcile.missing_nodes import MissingNodes
from aggregator.quarantine.reconcile.new_marks import NewMarksWriter
from aggregator.quarantine.reconcile.node_tests import ADVANCE, NodeTestReconciler
from aggregator.quarantine.reconcile.plan_inputs import PlanInputs
from aggregator.quarantine.reconcile.reconciler import Reconciler
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import while_in_force
from aggregator.runtime.backoff import Backoff


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeReads:
    """Requested reads, another installation's objects, marks without one: before any plan."""

    acts: NodeActions
    _holds: NodeHolds
    _release_actions: ReleaseActions
    _adopter: MarkAdopter
    _drain: Drainer
    _missing_nodes: MissingNodes
    _agent_events: AgentEventHandler

    def known(self, node_state: NodeState) -> object:
        """The inputs of an evaluation besides evidence: people's requests, and the pool."""
        cluster = node_state.cluster
        place = self.acts.pools.place_of(node_state.node)
        return cluster.overruled, cluster.operator_requests, place

    def take(self, node_state: NodeState, before: object) -> None:
        """The results of a step's reads count also where the step failed in the end. ``before``:
        what was known when it began.
        """
        if node_state.cluster.node_gone:
            self._missing_nodes.follow(node_state)
        if node_state.agent.misnamed:
            self._agent_events.reject(node_state)
        if self.known(node_state) != before:
            node_state.work.request_evaluation()

    async def begin(self, node_state: NodeState) -> bool | None:
        """What comes before the plans. Returns None where nothing does; True: no step is left."""
        quarantine = node_state.quarantine
        if quarantine is not None:
            if quarantine.foreign:
                await self._holds.leave_foreign(node_state)
                return True
            self._drain.report_phase(node_state)
        if node_state.work.needs_read:
            await self.acts.read_node(node_state)
            await self._drain.explain(node_state)
            return False
        if node_state.work.begin_pods():
            # A busy server may answer in minutes.
            reads = self._drain.recheck(node_state)
            await while_in_force(node_state, reads, partial(_stays, node_state))
            return False
        if quarantine is not None and quarantine.deleting:
            going = await self.acts.cluster.definition_is_going()
            node_state.quarantine_view.definition_going = going
        view = node_state.quarantine_view
        if quarantine is None and view.vanished:
            return True  # the watch reports who took it away
        if quarantine is None and view.orphan:
            await self._adopter.sweep(node_state)
            return False
        if quarantine is None and view.to_adopt and not view.definition_going:
            await self._adopter.adopt(node_state)
            return False
        if _has_ended_overrides(node_state):
            await self._release_actions.clear_overrides(node_state)
            return False
        self._holds.unhold_resumed(node_state)
        return None

    def are_due(self, node_state: NodeState, *, with_pods: bool = True) -> bool:
        """Whether a read, or a change of a node without an object, comes before the plans.

        ``with_pods``: also the read of a drained node's pods, which comes every few minutes. A step
        of a test goes on until its end: its call may take longer, and would never end.
        """
        quarantine, view, work = node_state.quarantine, node_state.quarantine_view, node_state.work
        if quarantine is not None and quarantine.foreign:
            return False
        if work.needs_read or (with_pods and work.recheck_pods):
            return True
        if quarantine is None and view.vanished:
            return False
        adopts = bool(view.to_adopt) and not view.definition_going
        alone = quarantine is None and (bool(view.orphan) or adopts)
        return alone or _has_ended_overrides(node_state)

    async def rest(self, node_state: NodeState, step: NextStep) -> None:
        """Report why no step is left now: the stop switch, or what a drain waits for."""
        quarantine = node_state.quarantine
        if step.do is Pause.HOLD:
            self._holds.hold_stopped(node_state)
        elif quarantine is not None and quarantine.status.phase in (Phase.CORDONED, Phase.DRAINING):
            await self._drain.explain(node_state)


def _stays(node_state: NodeState) -> bool:
    """Whether no person has ended its quarantine."""
    quarantine = node_state.quarantine
    return quarantine is not None and not quarantine.deleting


def _has_ended_overrides(node_state: NodeState) -> bool:
    """Whether the node is to forget overrides that have ended; a release does so itself."""
    quarantine = node_state.quarantine
    ends = quarantine is not None and (
        quarantine.deleting or quarantine.status.phase is Phase.RELEASING
    )
    return bool(node_state.cluster.ended_overrides) and not ends


log = logging.getLogger("sickbay.quarantine")

_BACKOFF = Backoff(first=0.2, most=15.0)
#: No other step's backoff holds up a step that ends a quarantine, and its own is short (seconds):
#: the server's Retry-After applies to other requests.
_RELEASE_WAIT = 5.0
#: A step that has failed that often is logged; most failures pass by themselves.
_LOGGED_FROM = 2
#: A cordon or a release that has failed for so long (seconds) is an event.
_REPORTED_AFTER = 60.0
_BEGINS = (AdmissionStep.FORCE, AdmissionStep.PROPOSE, AdmissionStep.CREATE)


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeWorker:
    """The worker of the queue: runs the reconcilers for one node at a time.

    ``admission`` is that of a node without a Quarantine; ``reconcilers``, in their order, are those
    of a node with one. ``node_tests`` has its turn also when no other step is left.
    """

    _admission: AdmissionReconciler
    _reconcilers: Sequence[Reconciler]
    _node_tests: NodeTestReconciler
    _reads: NodeReads
    _new_marks: NewMarksWriter
    _inputs: PlanInputs
    _queue: WorkQueue
    _rng: random.Random

    def start(self, node_state: NodeState) -> None:
        """Reconcile the node, unless a task does so already."""
        if not node_state.work.is_running:
            task = asyncio.create_task(self.reconcile(node_state), name=f"attend {node_state.node}")
            node_state.work.task = task

    async def reconcile(self, node_state: NodeState) -> None:
        failures, report_at, clock = 0, 0.0, asyncio.get_running_loop().time
        while self._queue.may_act() and node_state.work.is_queued:
            node_state.work.take_queued()
            try:
                self._evaluate(node_state)
                done = await self._one_step(node_state)
                if done:
                    self._settle_waiters(node_state)
            except Exception as error:  # noqa: BLE001 - the task's edge: no bug leaves a node stuck
                report_at = report_at or clock() + _REPORTED_AFTER
                if clock() >= report_at:
                    report_at = float("inf")  # once, until a step succeeds
                    self._report_failing(node_state, error)
                failures = await self._after_failure(node_state, failures, error)
            else:
                failures, report_at = 0, 0.0
                node_state.work.last_error = ""
                if not done:
                    node_state.work.queue()

    def _report_failing(self, node_state: NodeState, error: Exception) -> None:
        """Report to people a node that a failing step keeps in service, or out of it. Where
        planning fails, it is the step that people miss.
        """
        quarantine, step = node_state.quarantine, self._planned(node_state)
        begins = quarantine is None or quarantine.status.phase is Phase.ADMITTED
        ends = isinstance(step.do, ReleaseStep) if step is not None else not begins
        if ends:
            kind, what = EventKind.RELEASE_HELD, "its release"
        elif quarantine is None and node_state.quarantine_view.to_adopt:
            kind, what = EventKind.ADOPTED, "its Quarantine is gone: the step that makes it again"
        elif step is None or step.do in _BEGINS or (quarantine and begins):
            kind, what = EventKind.MARKS_MISSING, "the step that takes it out of service"
        else:
            return  # a drain that does not go on has reports of its own
        text = f"{what} fails, and is tried again: {error}"
        self._reads.acts.emit_event(node_state, kind, text)

    def _planned(self, node_state: NodeState) -> NextStep | None:
        """The node's next step. It raises nothing: None where planning fails."""
        if node_state.quarantine is None and node_state.quarantine_view.orphan:
            return NextStep(ReleaseStep.UNDO)
        try:
            return self._plan(node_state, node_state.quarantine)[1]
        except Exception:  # noqa: BLE001 - the same bug has made the step fail, and is logged
            return None

    async def _after_failure(self, node_state: NodeState, failures: int, error: Exception) -> int:
        """Wait with full jitter, then read the present state; a guard's inputs are known here."""
        reread, text = isinstance(error, Conflict | NotFound), str(error)
        node, at_least = node_state.node, 0.0
        if not isinstance(error, ClusterError):
            failures, text = failures + 5, f"unexpected, and tried again: {error!r}"
            if text != node_state.work.last_error:
                log.error(
                    "step of a node raised an unexpected error",
                    exc_info=error,
                    extra={"event": "step.error", "node": node},
                )
        elif isinstance(error, Conflict):
            text = "changed in between"
        elif not isinstance(error, NotFound | GuardRefused):
            failures += 5 * isinstance(error, Refused)  # retried for as long as it takes
            at_least, is_other = error.retry_after or 0.0, text != node_state.work.last_error
            if failures == _LOGGED_FROM or (failures > _LOGGED_FROM and is_other):
                log.warning(
                    "step of a node failed",
                    extra={"event": "step.failed", "node": node, "error": text},
                )
        if not reread or failures > 2:
            node_state.work.last_error = text
        pause = _BACKOFF.pause(failures + 1, self._rng) if not reread or failures else 0.0
        await self._back_off(node_state, pause, at_least)
        if reread:
            try:
                await self._reads.acts.reread(node_state)
            except Exception as again:  # noqa: BLE001 - the task's edge, too
                node_state.work.last_error = str(again)
        node_state.work.queue()
        return failures + 1

    async def _back_off(self, node_state: NodeState, pause: float, at_least: float) -> None:
        """Wait. A release that is requested meanwhile, or by another cause, ends the wait; a
        release's retry is soon.
        """
        release, needs_read = self._way_out(node_state), node_state.work.needs_read
        if release is not None:
            at_least = min(at_least, _RELEASE_WAIT)

        def still() -> bool:
            same = self._way_out(node_state) == release
            return same and node_state.work.needs_read == needs_read

        await while_in_force(node_state, asyncio.sleep(max(pause, at_least)), still)

    def _way_out(self, node_state: NodeState) -> NextStep | None:
        """Its next step, where that is one of a release."""
        step = self._planned(node_state)
        return step if step is not None and isinstance(step.do, ReleaseStep) else None

    async def _one_step(self, node_state: NodeState) -> bool:
        """Plan and act. Returns True when no step was left now."""
        before = self._reads.known(node_state)
        try:
            done = await self._next(node_state)
            if node_state.quarantine_view.new_marks is not None:
                # Of the same step: its failures count.
                await self._new_marks.write(node_state, partial(self._is_next, node_state))
                done = False
            if done:
                await self._advance_test(node_state)
            return done
        finally:
            self._reads.take(node_state, before)
            self._evaluate(node_state)

    async def _next(self, node_state: NodeState) -> bool:
        done = await self._reads.begin(node_state)
        if done is not None:
            return done
        reconciler, step = self._plan(node_state, node_state.quarantine)
        if reconciler is None or isinstance(step.do, Pause):
            await self._reads.rest(node_state, step)
            return True
        if reconciler.is_late:
            self._settle_waiters(node_state)
        still = partial(self._is_next, node_state, step.do)
        begins = reconciler is self._admission
        with self._queue.marking() if begins else contextlib.nullcontext():
            return await reconciler.carry_out(node_state, step, still)

    async def _advance_test(self, node_state: NodeState) -> None:
        """Take a step of the node's test, if one is due."""
        if self._node_tests.plan(node_state, node_state.quarantine) is not None:
            self._settle_waiters(node_state)
            still = partial(self._leaves_time, node_state)
            await self._node_tests.carry_out(node_state, ADVANCE, still)

    def _leaves_time(self, node_state: NodeState) -> bool:
        """Whether the step of a test may go on: no read, no change of marks without an object is
        next, and no step except a held one.
        """
        if self._reads.are_due(node_state, with_pods=False):
            return False
        reconciler, step = self._plan(node_state, node_state.quarantine)
        at_admission = reconciler is self._admission
        held = at_admission and self._admission.stays_held(node_state, step)
        if not (held or step is ADVANCE or isinstance(step.do, Pause)) or not self._queue.may_act():
            return False
        self._settle_waiters(node_state)
        return True

    def _plan(
        self, node_state: NodeState, quarantine: Quarantine | None
    ) -> tuple[AdmissionReconciler | Reconciler | None, NextStep]:
        """The first reconciler that has a step, and the step; None: no step is left now."""
        self._evaluate(node_state)  # no step is planned on earlier evidence
        return self._plan_as_known(node_state, quarantine)

    def _evaluate(self, node_state: NodeState) -> None:
        """Evaluate it where that is due. A bug there holds up no release except by recovery."""
        try:
            self._queue.evaluate_due(node_state)
        except Exception:
            if node_state.quarantine is None and node_state.quarantine_view.orphan:
                return
            _, step = self._plan_as_known(node_state, node_state.quarantine)
            if not isinstance(step.do, ReleaseStep) or step.because == RECOVERED:
                raise

    def _plan_as_known(
        self, node_state: NodeState, quarantine: Quarantine | None
    ) -> tuple[AdmissionReconciler | Reconciler | None, NextStep]:
        if quarantine is None:
            step = self._admission.plan(node_state)
            return (None, WAIT) if step is None else (self._admission, step)
        for reconciler in self._reconcilers:
            step = reconciler.plan(node_state, quarantine)
            if step is not None:
                return reconciler, step
        return None, WAIT

    def _is_next(
        self, node_state: NodeState, do: enum.StrEnum, quarantine: Quarantine | None = None
    ) -> bool:
        """Whether this is the node's next step. A drain, which may last for days, checks it often.

        ``quarantine``: as it will be; None: as it is known.
        """
        with_pods = do is not ADVANCE.do
        if not self._queue.may_act() or self._reads.are_due(node_state, with_pods=with_pods):
            return False
        _, step = self._plan(node_state, quarantine or node_state.quarantine)
        if step.do is not do:
            return False
        self._settle_waiters(node_state)  # evidence since then calls for no other step
        return True

    def _settle_waiters(self, node_state: NodeState) -> None:
        """Acknowledge evidence, unless it could not be made durable yet (for example by a
        conflict).
        """
        if not node_state.work.waiters:
            return
        self._queue.evaluate_due(node_state)
        if not self._inputs.is_unsaved(node_state):
            node_state.work.acknowledge()
