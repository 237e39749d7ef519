"""Sees each node's steps through: decides, does, looks again, until there is nothing to do.

One task at most works on a node; nodes go beside each other.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.case import Case
from aggregator.quarantine.cluster import Cluster, ClusterError, Conflict, NotFound, Phase, Refused
from aggregator.quarantine.decide.intent import unsaved
from aggregator.quarantine.decide.steps import Do, Situation, Step, next_step
from aggregator.quarantine.drain import Drain
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.registrar import Registrar
from aggregator.quarantine.releasing import Releasing
from aggregator.quarantine.settings import Settings
from aggregator.shards.council import Shards

log = logging.getLogger("sickbay.quarantine")

_BACKOFF_FIRST = 0.2
_BACKOFF_MOST = 15.0
#: A step that has failed so often is told of in the log; most failures pass by themselves.
_SAID_FROM = 2


class Attending:
    """``judge`` is called where a step has changed what the judgement stands on, ``shut_out`` where
    the node proved to be another one than its agent's.

    ``view``: the cluster's news are whole. Without them nothing is begun; nor for a node that is
    another shard's.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        acts: Acts,
        releasing: Releasing,
        drain: Drain,
        registrar: Registrar,
        settings: Settings,
        fleet: Fleet,
        clocks: Clocks,
        rng: random.Random,
        shards: Shards,
        judge: Callable[[Case], None],
        shut_out: Callable[[Case], None],
    ) -> None:
        self._cluster = cluster
        self._acts = acts
        self._releasing = releasing
        self._drain = drain
        self._registrar = registrar
        self._settings = settings
        self._fleet = fleet
        self._clocks = clocks
        self._rng = rng
        self._shards = shards
        self._judge = judge
        self._shut_out = shut_out
        self._started_at = clocks.now()
        self.view = False

    def busy(self, case: Case) -> bool:
        """Whether there may be something to do for the node."""
        return (
            case.wanted is not None
            or case.patient.quarantine is not None
            or case.patient.hold is not None
            or case.wishes.force is not None
            or case.suspect
            or bool(case.orphan or case.over or case.waiters)
            or self.in_record(case)
        )

    def kick(self, case: Case) -> None:
        """See to the node now, or once more when its task is at work already.

        What may not be done now, for the node is another shard's or our place among the shards is
        not certain, waits for `resume`.
        """
        case.again.set()
        if self._may(case) and (case.task is None or case.task.done()):
            case.task = asyncio.create_task(self._attend(case), name=f"attend {case.node}")

    def resume(self, case: Case) -> None:
        """See to the node where something has waited for our leave to act."""
        if case.again.is_set() and self.busy(case):
            self.kick(case)

    def _may(self, case: Case) -> bool:
        return self.view and self._shards.may_act(case.node)

    def kick_if_busy(self, case: Case) -> None:
        if self.busy(case):
            self.kick(case)

    async def _attend(self, case: Case) -> None:
        failures, said = 0, ""
        while self._may(case) and case.again.is_set():
            case.again.clear()
            try:
                done = await self._one_step(case)
            except Conflict:
                failures = await self._after_failure(
                    case, failures, "changed in between", reread=True
                )
            except NotFound as error:
                failures = await self._after_failure(case, failures, str(error), reread=True)
            except Refused as error:
                # Asked again for as long as it takes, and said once.
                if str(error) != case.patient.last_error:
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
                if text != case.patient.last_error:
                    log.exception("unexpected", extra={"node": case.node})
                failures = await self._after_failure(case, failures + 5, text)
            else:
                failures = 0
                case.patient.last_error = ""
                if done:
                    self._settle_waiters(case)
                else:
                    case.again.set()

    async def _after_failure(
        self,
        case: Case,
        failures: int,
        error: str,
        *,
        reread: bool = False,
        at_least: float | None = None,
    ) -> int:
        """Wait with full jitter, then look at what is there now."""
        if not reread or failures > 2:
            case.patient.last_error = error
        most = min(_BACKOFF_MOST, _BACKOFF_FIRST * 2.0 ** min(failures, 10))
        pause = self._rng.uniform(0, most) if not reread or failures else 0.0
        await asyncio.sleep(max(pause, at_least or 0.0))
        if reread:
            try:
                await self._acts.reread(case)
            except ClusterError as again:
                case.patient.last_error = str(again)
        case.again.set()
        return failures + 1

    async def _one_step(self, case: Case) -> bool:
        """Decide and do. True when there was nothing (more) to do now."""
        words, wishes = case.patient.overruled, case.wishes
        try:
            return await self._next(case)
        finally:  # what a step has learned counts also where it failed in the end
            if case.misnamed:
                self._shut_out(case)
            if case.patient.overruled != words or case.wishes != wishes:
                self._judge(case)  # people have said other things than we knew of

    async def _next(self, case: Case) -> bool:
        if case.suspect:
            await self._acts.look_at_node(case)
            await self._drain.explain(case)
            return False
        quarantine = case.patient.quarantine
        if quarantine is not None and quarantine.deleting:
            case.definition_going = await self._cluster.definition_is_going()
        if quarantine is None and case.orphan:
            await self._releasing.sweep(case)
            return False
        if case.over and (quarantine is None or quarantine.status.phase is not Phase.RELEASING):
            await self._releasing.forgive(case)
            return False
        return await self._do(case, next_step(self._situation(case)))

    async def _do(self, case: Case, step: Step) -> bool:
        quarantine, wanted = case.patient.quarantine, self._acts.wanted_now(case)
        match step.do:
            case Do.NOTHING:
                return True
            case Do.PROPOSE if wanted is not None:
                admitted = await self._acts.propose(case, wanted)
                if admitted:
                    self._judge(case)
                return not admitted
            case Do.CREATE if wanted is not None:
                await self._acts.create(case, wanted)
            case Do.FORCE:
                await self._acts.force(case)
            case Do.FORGET:
                await self._releasing.forget(case, step.because)
            case Do.UNDO:
                await self._releasing.undo(case)
                self._judge(case)
            case Do.CORDON:
                await self._acts.cordon(case)
                return case.node_gone
            case _ if quarantine is not None:
                await self._do_with(case, step)
        return False

    async def _do_with(self, case: Case, step: Step) -> None:
        """The steps that need the quarantine to be there."""
        quarantine, wanted = case.patient.quarantine, self._acts.wanted_now(case)
        assert quarantine is not None
        match step.do:
            case Do.ENTER:
                await self._acts.enter(case, quarantine)
            case Do.VOID:
                await self._releasing.void(case, quarantine)
            case Do.REFUSE:
                await self._acts.refuse(case, quarantine)
            case Do.UPDATE if wanted is not None:
                await self._acts.update(case, quarantine, wanted)
            case Do.DRAIN:
                self._settle_waiters(case)
                await self._drain.run(case, lambda: self._still_draining(case))
            case Do.RELEASE:
                await self._releasing.release(case, quarantine, step)
            case Do.UNHOLD:
                await self._releasing.unhold(case, quarantine)
            case Do.LET_GO:
                await self._releasing.let_go(case, quarantine)

    def _still_draining(self, case: Case) -> bool:
        """Asked all the time while a drain, which may last for days, is this node's step."""
        if not self._may(case) or case.suspect or case.over:
            return False
        if next_step(self._situation(case)).do is not Do.DRAIN:
            return False
        self._settle_waiters(case)  # what was heard meanwhile calls for no other step
        return True

    def _situation(self, case: Case) -> Situation:
        since = max(self._started_at, case.ours_since)
        waited = self._clocks.now() - since >= self._settings.silent_drain_after
        return case.situation(
            mode=self._settings.mode,
            wanted=self._acts.wanted_now(case),
            in_record=self.in_record(case),
            stopped=bool(self._fleet.stop),
            patient_enough=waited,
            now=self._clocks.now(),
            wall=self._clocks.earliest(),
        )

    def in_record(self, case: Case) -> bool:
        """Whether the record, as last seen, has an entry of the node."""
        case.patient.in_record = case.node in self._registrar.record.entries
        return case.patient.in_record

    def _settle_waiters(self, case: Case) -> None:
        """Acknowledge what was heard, unless it could not be made durable yet (a conflict, say)."""
        if not case.waiters:
            return
        quarantine = case.patient.quarantine
        if quarantine is not None and unsaved(quarantine, self._acts.wanted_now(case)):
            return
        for waiter in case.waiters:
            if not waiter.done():
                waiter.set_result(None)
        case.waiters = ()
