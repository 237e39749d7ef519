"""Reconciles each node: decides, acts, reads again, until no step is left.

One task at most works on a node; nodes go beside each other.
"""

import asyncio
import logging
import random

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
from aggregator.quarantine.decide.planner import NextStep, Situation, Step, next_step
from aggregator.quarantine.drain.drainer import Drainer
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler
from aggregator.quarantine.reconcile.evaluate import NodeEvaluator
from aggregator.quarantine.reconcile.missing_nodes import MissingNodes
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.settings import Settings
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
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
        settings: Settings,
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
        self._settings = settings
        self._fleet = fleet
        self._clocks = clocks
        self._rng = rng
        self._queue = queue
        self._evaluator = evaluator
        self._agent_events = agent_events
        self._missing_nodes = missing_nodes
        self._started_at = clocks.now()
        queue.deliver_to(self)

    def start(self, case: NodeState) -> None:
        """Reconcile the node, unless a task does so already."""
        if case.work.task is None or case.work.task.done():
            task = asyncio.create_task(self.reconcile(case), name=f"attend {case.node}")
            case.work.start(task)

    def evaluate(self, case: NodeState) -> None:
        """Evaluate the node's evidence anew."""
        self._evaluator.evaluate_node(case)

    async def reconcile(self, case: NodeState) -> None:
        failures, said = 0, ""
        while self._queue.may_act(case) and case.work.is_queued:
            case.work.again.clear()
            try:
                done = await self._one_step(case)
            except Conflict:
                failures = await self._after_failure(
                    case, failures, "changed in between", reread=True
                )
            except (NotFound, GuardRefused) as error:
                # A guard's inputs are known here: only NotFound needs a read.
                missing = isinstance(error, NotFound)
                failures = await self._after_failure(case, failures, str(error), reread=missing)
            except Refused as error:
                # Retried for as long as it takes, and logged once.
                if str(error) != case.work.last_error:
                    log.warning("refused", extra={"node": case.node, "error": str(error)})
                failures = await self._after_failure(case, failures + 5, str(error))
            except ClusterError as error:
                if failures >= _SAID_FROM and str(error) != said:
                    said = str(error)
                    log.warning("not done yet", extra={"node": case.node, "error": said})
                failures = await self._after_failure(
                    case, failures, str(error), at_least=error.retry_after
                )
            except Exception as error:  # the task's edge: a bug must leave no node stuck
                text = f"unexpected, and tried again: {error!r}"
                if text != case.work.last_error:
                    log.exception("unexpected", extra={"node": case.node})
                failures = await self._after_failure(case, failures + 5, text)
            else:
                failures = 0
                case.work.set_error("")
                if done:
                    self._settle_waiters(case)
                else:
                    case.work.again.set()

    async def _after_failure(
        self,
        case: NodeState,
        failures: int,
        error: str,
        *,
        reread: bool = False,
        at_least: float | None = None,
    ) -> int:
        """Wait with full jitter, then read the present state."""
        if not reread or failures > 2:
            case.work.set_error(error)
        pause = _BACKOFF.pause(failures + 1, self._rng) if not reread or failures else 0.0
        await self._back_off(case, pause, at_least or 0.0)
        if reread:
            try:
                await self._acts.reread(case)
            except ClusterError as again:
                case.work.set_error(str(again))
        case.work.again.set()
        return failures + 1

    async def _back_off(self, case: NodeState, pause: float, at_least: float) -> None:
        """Wait; a release that is requested meanwhile ends the wait. A release's retry is soon."""
        if self._is_way_out(case):
            await asyncio.sleep(max(pause, min(at_least, _RELEASE_WAIT)))
            return
        suspect = case.work.suspect

        def still() -> bool:
            return not self._is_way_out(case) and case.work.suspect == suspect

        await while_it_stands(case, asyncio.sleep(max(pause, at_least)), still)

    def _is_way_out(self, case: NodeState) -> bool:
        return next_step(self._situation(case)).do in _WAYS_OUT

    async def _one_step(self, case: NodeState) -> bool:
        """Decide and act. Returns True when no step was left now."""
        words, wishes = case.cluster.overruled, case.cluster.wishes
        try:
            return await self._next(case)
        finally:  # a step's reads count also where it failed in the end
            if case.cluster.node_gone:
                self._missing_nodes.follow(case)
            if case.agent.misnamed:
                self._agent_events.reject(case)
            if case.cluster.overruled != words or case.cluster.wishes != wishes:
                self._evaluator.evaluate_node(case)  # operators' requests are other than we knew

    async def _next(self, case: NodeState) -> bool:
        if case.node_summary.quarantine is not None and case.node_summary.quarantine.foreign:
            await self._release_actions.leave_foreign(case)
            return True
        if case.work.suspect:
            await self._acts.look_at_node(case)
            await self._drain.explain(case)
            return False
        if case.work.begin_pods():
            await self._drain.recheck(case)
        quarantine = case.node_summary.quarantine
        if quarantine is not None and quarantine.deleting:
            going = await self._cluster.definition_is_going()
            case.own_quarantine_view().set_definition_going(going=going)
        if quarantine is None and case.quarantine_view.vanished:
            return True  # the watch tells who took it away
        if quarantine is None and case.quarantine_view.orphan:
            await self._adopter.sweep(case)
            return False
        if (
            quarantine is None
            and case.quarantine_view.to_adopt
            and not case.quarantine_view.definition_going
        ):
            await self._adopter.adopt(case)
            return False
        if case.cluster.over and (
            quarantine is None or quarantine.status.phase is not Phase.RELEASING
        ):
            await self._release_actions.clear_overrides(case)
            return False
        self._acts.unhold_resumed(case)
        return await self._do(case, next_step(self._situation(case)))

    async def _do(self, case: NodeState, step: NextStep) -> bool:
        quarantine, wanted = case.node_summary.quarantine, self._acts.wanted_now(case)
        match step.do:
            case Step.NOTHING:
                if quarantine is not None and quarantine.status.phase is Phase.DRAINING:
                    await self._drain.explain(case)
                return True
            case Step.HOLD:
                self._acts.hold_stopped(case)
                return True
            case Step.PROPOSE if wanted is not None:
                admitted = await self._acts.propose(case, wanted)
                if admitted:
                    self._evaluator.evaluate_node(case)
                return not admitted
            case Step.CREATE if wanted is not None:
                await self._acts.create(case, wanted)
            case Step.FORCE:
                await self._acts.force(case)
            case Step.FORGET:
                await self._adopter.forget_node(case, step.because)
            case Step.UNDO:
                await self._release_actions.undo(case)
                self._evaluator.evaluate_node(case)
            case Step.CORDON:
                await self._acts.cordon(case)
                return case.cluster.node_gone
            case _ if quarantine is not None:
                await self._do_with(case, step)
        return False

    async def _do_with(self, case: NodeState, step: NextStep) -> None:
        """The steps that need the quarantine to be there."""
        quarantine, wanted = case.node_summary.quarantine, self._acts.wanted_now(case)
        assert quarantine is not None
        match step.do:
            case Step.ENTER:
                await self._acts.enter(case, quarantine)
            case Step.VOID:
                await self._release_actions.void(case, quarantine)
            case Step.REFUSE:
                await self._acts.refuse(case, quarantine)
            case Step.UPDATE if wanted is not None:
                await self._acts.update(case, quarantine, wanted)
            case Step.RECORDON:
                await self._acts.recordon(case)
            case Step.ABSENCE | Step.OVERRIDE | Step.TELL_CORDON:
                await self._show(case, quarantine, step)
            case Step.RESTART | Step.TELL_MARKS | Step.RESTORE:
                await self._do_about_marks(case, quarantine, step.do)
            case Step.DRAIN:
                self._settle_waiters(case)
                await self._drain.run(case, lambda: self._still_draining(case))
            case Step.RELEASE:
                await self._release_actions.release(case, quarantine, step)
            case Step.UNHOLD:
                await self._release_actions.unhold(case, quarantine)
            case Step.LET_GO:
                await self._release_actions.drop_finalizer(case, quarantine)

    async def _do_about_marks(self, case: NodeState, quarantine: Quarantine, do: Step) -> None:
        """The steps for a node that has lost our marks."""
        if do is Step.RESTART:
            await self._acts.restart(case, quarantine)
        elif do is Step.TELL_MARKS:
            await self._restorer.report(case, quarantine)
        else:
            await self._restorer.restore(case)

    async def _show(self, case: NodeState, quarantine: Quarantine, step: NextStep) -> None:
        """The steps that only write to the status."""
        if step.do is Step.ABSENCE:
            await self._acts.show_absence(case, quarantine)
        elif step.do is Step.OVERRIDE:
            await self._acts.show_override(case, quarantine)
        else:
            await self._acts.show_cordon(case, quarantine, step.because)

    def _still_draining(self, case: NodeState) -> bool:
        """Called again and again while a drain, which may last for days, is this node's step."""
        if not self._queue.may_act(case) or case.work.suspect or case.cluster.over:
            return False
        if next_step(self._situation(case)).do is not Step.DRAIN:
            return False
        self._settle_waiters(case)  # evidence since then calls for no other step
        return True

    def _situation(self, case: NodeState) -> Situation:
        since = max(self._started_at, case.work.ours_since)
        waited = self._clocks.now() - since >= self._settings.limits.silent_drain_after
        return case.situation(
            mode=self._settings.mode,
            wanted=self._acts.wanted_now(case),
            in_record=self._queue.in_record(case),
            stopped=bool(self._fleet.stop),
            patient_enough=waited,
            absent_too_long=self._is_absent_too_long(case),
            uncordon=self._settings.uncordon,
            marks=self._settings.marks,
            now=self._clocks.now(),
            wall=self._clocks.earliest(),
        )

    def _is_absent_too_long(self, case: NodeState) -> bool:
        quarantine = case.node_summary.quarantine
        since = quarantine.status.node_absent_since if quarantine is not None else 0.0
        return (
            since > 0 and self._clocks.earliest() - since >= self._settings.limits.absent_node_after
        )

    def _settle_waiters(self, case: NodeState) -> None:
        """Acknowledge evidence, unless it could not be made durable yet (a conflict, say)."""
        if not case.work.waiters:
            return
        quarantine = case.node_summary.quarantine
        if (
            quarantine is not None
            and not quarantine.foreign
            and unsaved(quarantine, self._acts.wanted_now(case))
        ):
            return
        case.work.acknowledge()
