"""Reconciles each node: decides, acts, reads again, until no step is left.

One task at most works on a node; nodes go beside each other.
"""

import asyncio
import logging
import random
from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Cluster,
    ClusterError,
    Conflict,
    GuardRefused,
    NotFound,
    Phase,
    Quarantine,
    Refused,
)
from aggregator.quarantine.actions.adoption import MarkAdopter
from aggregator.quarantine.actions.cordon import NodeActions
from aggregator.quarantine.actions.mark_restorer import MarkRestorer
from aggregator.quarantine.actions.release import ReleaseActions
from aggregator.quarantine.decide.intent import unsaved
from aggregator.quarantine.decide.planner import (
    RECOVERED,
    NextStep,
    Situation,
    Step,
    next_step,
)
from aggregator.quarantine.drain.drainer import Drainer
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler
from aggregator.quarantine.reconcile.evaluate import NodeEvaluator
from aggregator.quarantine.reconcile.missing_nodes import MissingNodes
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.repair.runner import RepairRunner
from aggregator.quarantine.settings import Settings
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.node_pools import NodePools
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.quarantine.state.race import while_it_stands
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.quarantine")

_BACKOFF = Backoff(first=0.2, most=15.0)
#: Steps that end a quarantine: no other step's backoff holds them up, and their own is short
#: (seconds), as a busy server's wish for a minute's pause concerns the other requests.
_WAYS_OUT = (Step.RELEASE, Step.UNDO, Step.LET_GO)
_RELEASE_WAIT = 5.0
#: A step that has failed so often is logged; most failures pass by themselves.
_SAID_FROM = 2


class Reconciler:
    """The worker of the queue."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        acts: NodeActions,
        release_actions: ReleaseActions,
        adopter: MarkAdopter,
        drain: Drainer,
        restorer: MarkRestorer,
        repairs: RepairRunner,
        settings: Settings,
        pools: NodePools,
        fleet: FleetState,
        clocks: Clocks,
        rng: random.Random,
        queue: WorkQueue,
        evaluator: NodeEvaluator,
        agent_events: AgentEventHandler,
        missing_nodes: MissingNodes,
    ) -> None:
        self._cluster = cluster
        self._acts = acts
        self._release_actions = release_actions
        self._adopter = adopter
        self._drain = drain
        self._restorer = restorer
        self._repairs = repairs
        self._settings = settings
        self._pools = pools
        self._fleet = fleet
        self._clocks = clocks
        self._rng = rng
        self._queue = queue
        self._evaluator = evaluator
        self._agent_events = agent_events
        self._missing_nodes = missing_nodes
        self._started_at = clocks.now()
        queue.deliver_to(self)

    def start(self, node_state: NodeState) -> None:
        """Reconcile the node, unless a task does so already."""
        if not node_state.work.is_running:
            task = asyncio.create_task(self.reconcile(node_state), name=f"attend {node_state.node}")
            node_state.work.start(task)

    def evaluate(self, node_state: NodeState) -> None:
        """Evaluate the node's state. No other code evaluates."""
        started = self._clocks.now()
        self._evaluator.evaluate_node(node_state, node_state.work.begin_evaluation())
        node_state.work.add_evaluation_cost(self._clocks.now() - started)

    async def reconcile(self, node_state: NodeState) -> None:
        failures, said = 0, ""
        while self._queue.may_act() and node_state.work.is_queued:
            node_state.work.again.clear()
            self._queue.evaluate_due(node_state)
            try:
                done = await self._one_step(node_state)
            except Conflict:
                failures = await self._after_failure(
                    node_state, failures, "changed in between", reread=True
                )
            except (NotFound, GuardRefused) as error:
                # A guard's inputs are known here: only NotFound needs a read.
                missing = isinstance(error, NotFound)
                failures = await self._after_failure(
                    node_state, failures, str(error), reread=missing
                )
            except Refused as error:
                # Retried for as long as it takes, and logged once.
                if str(error) != node_state.work.last_error:
                    log.warning(
                        "step of a node refused by the cluster",
                        extra={
                            "event": "step.refused",
                            "node": node_state.node,
                            "error": str(error),
                        },
                    )
                failures = await self._after_failure(node_state, failures + 5, str(error))
            except ClusterError as error:
                if failures >= _SAID_FROM and str(error) != said:
                    said = str(error)
                    log.warning(
                        "step of a node failed",
                        extra={"event": "step.failed", "node": node_state.node, "error": said},
                    )
                failures = await self._after_failure(
                    node_state, failures, str(error), at_least=error.retry_after
                )
            except Exception as error:  # the task's edge: a bug must leave no node stuck
                text = f"unexpected, and tried again: {error!r}"
                if text != node_state.work.last_error:
                    log.exception(
                        "step of a node raised an unexpected error",
                        extra={"event": "step.error", "node": node_state.node},
                    )
                failures = await self._after_failure(node_state, failures + 5, text)
            else:
                failures = 0
                node_state.work.set_error("")
                if done:
                    self._settle_waiters(node_state)
                else:
                    node_state.work.again.set()

    async def _after_failure(
        self,
        node_state: NodeState,
        failures: int,
        error: str,
        *,
        reread: bool = False,
        at_least: float | None = None,
    ) -> int:
        """Wait with full jitter, then read the present state."""
        if not reread or failures > 2:
            node_state.work.set_error(error)
        pause = _BACKOFF.pause(failures + 1, self._rng) if not reread or failures else 0.0
        await self._back_off(node_state, pause, at_least or 0.0)
        if reread:
            try:
                await self._acts.reread(node_state)
            except ClusterError as again:
                node_state.work.set_error(str(again))
        node_state.work.again.set()
        return failures + 1

    async def _back_off(self, node_state: NodeState, pause: float, at_least: float) -> None:
        """Wait; a release that is requested meanwhile ends the wait. A release's retry is soon."""
        if self._is_way_out(node_state):
            await asyncio.sleep(max(pause, min(at_least, _RELEASE_WAIT)))
            return
        needs_read = node_state.work.needs_read

        def still() -> bool:
            return not self._is_way_out(node_state) and node_state.work.needs_read == needs_read

        await while_it_stands(node_state, asyncio.sleep(max(pause, at_least)), still)

    def _is_way_out(self, node_state: NodeState) -> bool:
        return next_step(self._situation(node_state)).do in _WAYS_OUT

    async def _one_step(self, node_state: NodeState) -> bool:
        """Decide and act. Returns True when no step was left now."""
        words, requests = node_state.cluster.overruled, node_state.cluster.operator_requests
        place = self._pools.place_of(node_state.node)
        try:
            done = await self._next(node_state)
            if node_state.quarantine_view.new_marks is not None:
                await self._write_marks(node_state)  # of the same step: its failures count
                done = False
            return done
        finally:  # a step's reads count also where it failed in the end
            if node_state.cluster.node_gone:
                self._missing_nodes.follow(node_state)
            if node_state.agent.misnamed:
                self._agent_events.reject(node_state)
            if (
                node_state.cluster.overruled != words
                or node_state.cluster.operator_requests != requests
                or self._pools.place_of(node_state.node) != place
            ):
                node_state.work.request_evaluation()  # requests, or the pool, have changed
            self._queue.evaluate_due(node_state)

    async def _next(self, node_state: NodeState) -> bool:
        if (
            node_state.node_summary.quarantine is not None
            and node_state.node_summary.quarantine.foreign
        ):
            await self._release_actions.leave_foreign(node_state)
            return True
        self._drain.report_phase(node_state)
        if node_state.work.needs_read:
            await self._acts.look_at_node(node_state)
            await self._drain.explain(node_state)
            return False
        if node_state.work.begin_pods():
            await self._drain.recheck(node_state)
        quarantine = node_state.node_summary.quarantine
        if quarantine is not None and quarantine.deleting:
            going = await self._cluster.definition_is_going()
            node_state.own_quarantine_view().set_definition_going(going=going)
        if quarantine is None and node_state.quarantine_view.vanished:
            return True  # the watch tells who took it away
        if quarantine is None and node_state.quarantine_view.orphan:
            await self._adopter.sweep(node_state)
            return False
        if (
            quarantine is None
            and node_state.quarantine_view.to_adopt
            and not node_state.quarantine_view.definition_going
        ):
            await self._adopter.adopt(node_state)
            return False
        if node_state.cluster.ended_overrides and (
            quarantine is None or quarantine.status.phase is not Phase.RELEASING
        ):
            await self._release_actions.clear_overrides(node_state)
            return False
        self._acts.unhold_resumed(node_state)
        return await self._do(node_state, next_step(self._situation(node_state)))

    async def _write_marks(self, node_state: NodeState) -> None:
        """Write that the marks are set; in the same write, that the drain begins, where it is next.

        After a failure the object still is as before the marks, which then are set again.
        """
        marks = node_state.own_quarantine_view().take_new_marks()
        if marks is None:
            return
        marked = replace(marks.quarantine, status=marks.status)

        def writable() -> bool:
            known = node_state.node_summary.quarantine
            if known is None or node_state.work.needs_read or not self._queue.may_act():
                return False
            # The watch may show the phase that was written before its answer comes.
            return known.version == marked.version or known.status.phase in MARKED

        def still() -> bool:
            known = node_state.node_summary.quarantine
            if known is None or known.version != marked.version:
                return False  # the write would be refused
            return self._still_draining(node_state, marked)

        if self._drain.is_ready(marks.node) and still():
            await self._drain.begin_with_marks(node_state, marks, still, writable)
        else:
            await self._acts.write_status(node_state, marks.quarantine, marks.status)

    async def _do(self, node_state: NodeState, step: NextStep) -> bool:
        quarantine, wanted = node_state.node_summary.quarantine, self._acts.wanted_now(node_state)
        match step.do:
            case Step.NOTHING:
                if quarantine is not None and quarantine.status.phase in (
                    Phase.CORDONED,
                    Phase.DRAINING,
                ):
                    await self._drain.explain(node_state)
                return True
            case Step.HOLD | Step.UNREAD:
                self._acts.hold_standing(node_state, unread=step.do is Step.UNREAD)
                return True
            case Step.PROPOSE if wanted is not None:
                admitted = await self._acts.propose(node_state, wanted)
                if admitted:
                    node_state.work.request_evaluation()
                return not admitted
            case Step.CREATE if wanted is not None:
                await self._acts.create(node_state, wanted)
            case Step.FORCE:
                await self._acts.force(node_state)
            case Step.FORGET:
                await self._adopter.forget_node(node_state, step.because)
            case Step.UNDO:
                await self._repairs.withdraw(node_state)
                await self._release_actions.undo(node_state)
                node_state.work.request_evaluation()
            case Step.REPAIR:
                self._settle_waiters(node_state)
                await self._repairs.run(node_state)
            case Step.CORDON:
                await self._acts.cordon(node_state)
                return node_state.cluster.node_gone
            case _ if quarantine is not None:
                await self._do_with(node_state, step)
        return False

    async def _do_with(self, node_state: NodeState, step: NextStep) -> None:
        """The steps that need the quarantine to be there."""
        quarantine, wanted = node_state.node_summary.quarantine, self._acts.wanted_now(node_state)
        assert quarantine is not None
        match step.do:
            case Step.ENTER:
                await self._acts.enter(node_state, quarantine)
            case Step.VOID:
                await self._release_actions.void(node_state, quarantine)
            case Step.REFUSE:
                await self._acts.refuse(node_state, quarantine)
            case Step.UPDATE if wanted is not None:
                await self._acts.update(node_state, quarantine, wanted)
            case Step.RECORDON:
                await self._acts.recordon(node_state)
            case Step.CONDITIONS:
                await self._acts.write_conditions(node_state, quarantine)
            case Step.ABSENCE | Step.OVERRIDE | Step.TELL_CORDON:
                await self._show(node_state, quarantine, step)
            case Step.RESTART | Step.TELL_MARKS | Step.RESTORE:
                await self._do_about_marks(node_state, quarantine, step.do)
            case Step.DRAIN:
                self._settle_waiters(node_state)
                await self._drain.run(node_state, lambda: self._still_draining(node_state))
            case Step.RELEASE:
                await self._release(node_state, quarantine, step)
            case Step.UNHOLD:
                await self._release_actions.unhold(node_state, quarantine)
            case Step.LET_GO:
                await self._release_actions.drop_finalizer(node_state, quarantine)

    async def _release(self, node_state: NodeState, quarantine: Quarantine, step: NextStep) -> None:
        if step.because == RECOVERED:
            self._repairs.note_release(node_state)
        await self._release_actions.release(node_state, quarantine, step)

    async def _do_about_marks(
        self, node_state: NodeState, quarantine: Quarantine, do: Step
    ) -> None:
        """The steps for a node that has lost our marks."""
        if do is Step.RESTART:
            await self._acts.restart(node_state, quarantine)
        elif do is Step.TELL_MARKS:
            await self._restorer.report(node_state, quarantine)
        else:
            await self._restorer.restore(node_state)

    async def _show(self, node_state: NodeState, quarantine: Quarantine, step: NextStep) -> None:
        """The steps that only write to the status."""
        if step.do is Step.ABSENCE:
            await self._acts.show_absence(node_state, quarantine)
        elif step.do is Step.OVERRIDE:
            await self._acts.show_override(node_state, quarantine)
        else:
            await self._acts.show_cordon(node_state, quarantine, step.because)

    def _still_draining(self, node_state: NodeState, marked: Quarantine | None = None) -> bool:
        """Called again and again while a drain, which may last for days, is this node's step.

        ``marked``: the quarantine as it will be once its status tells of the marks.
        """
        if (
            not self._queue.may_act()
            or node_state.work.needs_read
            or node_state.cluster.ended_overrides
        ):
            return False
        situation = self._situation(node_state)
        if marked is not None:
            situation = replace(situation, quarantine=marked)
        if next_step(situation).do is not Step.DRAIN:
            return False
        self._settle_waiters(node_state)  # evidence since then calls for no other step
        return True

    def _situation(self, node_state: NodeState) -> Situation:
        self._queue.evaluate_due(node_state)  # no step is planned on evidence of before
        waited = self._clocks.now() - self._started_at >= self._settings.limits.silent_drain_after
        return node_state.situation(
            mode=self._pools.mode_of(node_state.node),
            wanted=self._acts.wanted_now(node_state),
            in_record=self._queue.in_record(node_state),
            entered_by_hand=self._queue.is_entered_by_hand(node_state),
            stopped=bool(self._fleet.stop),
            patient_enough=waited,
            absent_too_long=self._is_absent_too_long(node_state),
            uncordon=self._settings.uncordon,
            marks=self._settings.marks,
            now=self._clocks.now(),
            wall=self._clocks.earliest(),
            repair_busy=self._repairs.is_busy(node_state),
            repair_replaces=self._repairs.replaces(node_state),
            untested=self._repairs.holds_release(node_state),
            repair_due=self._repairs.is_due(node_state),
        )

    def _is_absent_too_long(self, node_state: NodeState) -> bool:
        quarantine = node_state.node_summary.quarantine
        since = quarantine.status.node_absent_since if quarantine is not None else 0.0
        return (
            since > 0 and self._clocks.earliest() - since >= self._settings.limits.absent_node_after
        )

    def _settle_waiters(self, node_state: NodeState) -> None:
        """Acknowledge evidence, unless it could not be made durable yet (a conflict, say)."""
        if not node_state.work.waiters:
            return
        self._queue.evaluate_due(node_state)
        quarantine = node_state.node_summary.quarantine
        if (
            quarantine is not None
            and not quarantine.foreign
            and unsaved(quarantine, self._acts.wanted_now(node_state))
        ):
            return
        node_state.work.acknowledge()
