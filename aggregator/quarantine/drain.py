"""Emptying one node, as kubectl drain does: gently on budgets, never twice for one pod.

Before each eviction the caller is asked whether the drain still stands (`still`): evictions stop
when the cause clears, a person says so, somebody else maintains the node, the stop switch is set,
or the mode no longer allows them. Those in flight at that moment, a few per node, may still land.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.case import MARKED, Case
from aggregator.quarantine.cluster import Cluster, Phase, Quarantine, QuarantineStatus
from aggregator.quarantine.decide.drainplan import DrainPlan, DrainRules, Moment, plan_drain
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.marks import exclude_change
from aggregator.quarantine.evicting import Evictions
from aggregator.quarantine.hooking import Hooking
from aggregator.quarantine.lane import Lane
from aggregator.quarantine.ledger import Kind
from aggregator.quarantine.times import span

#: Progress is written at most so often (seconds), but for phase changes.
STATUS_EVERY = 10.0
#: The node itself is read again so often while it is drained (seconds): who else is at work on it.
NODE_EVERY = 10.0
_LOOK_FIRST = 0.1
_LOOK_MOST = 15.0
_EVICTING = "evicting pods"
_UNDER_WAY = (Phase.ADMITTED, Phase.DRAINING)


class Drain:
    """Drains nodes; ``at_once`` bounds the evictions in flight: our share of the fleet's.

    ``deadline``: seconds from a drain's begin. It stands in the Quarantine from then on.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        acts: Acts,
        clocks: Clocks,
        rules: DrainRules,
        hooking: Hooking,
        at_once: Lane,
        deadline: float,
        off_balancers: bool,
        rng: random.Random,
    ) -> None:
        self._cluster = cluster
        self._acts = acts
        self._clocks = clocks
        self._rules = rules
        self._hooking = hooking
        self._at_once = at_once
        self._deadline = deadline
        self._off_balancers = off_balancers
        self._rng = rng

    async def run(self, case: Case, still: Callable[[], bool]) -> None:
        """Drain until nothing remains or ``still`` says no. Raises `ClusterError`; run it again."""
        read_at = self._clocks.now()
        if await self._begin(case, still) and await self._hooking.before_evictions(case, still):
            await self._empty(case, still, read_at)
        await self.explain(case)

    async def _empty(self, case: Case, still: Callable[[], bool], read_at: float) -> None:
        """``read_at``: when the node was read. The hook may have taken hours since."""
        evictions = Evictions(
            cluster=self._cluster,
            acts=self._acts,
            clocks=self._clocks,
            rules=self._rules,
            at_once=self._at_once,
            rng=self._rng,
            case=case,
            still=still,
        )
        look, written_at = _LOOK_FIRST, float("-inf")
        while still():
            if self._clocks.now() - read_at >= NODE_EVERY:
                read_at = self._clocks.now()
                case.take_node(await self._cluster.read_node(case.node))
                continue
            pods = await self._cluster.pods_on(case.node)
            quarantine = case.patient.quarantine
            if quarantine is None or not still():
                return
            plan = plan_drain(pods, self._rules, self._moment(quarantine.status))
            if plan.remaining == 0:
                await self._finish(case, quarantine, plan, evictions)
                return
            moved = await evictions.ask(plan)
            if self._clocks.now() - written_at >= STATUS_EVERY and still():
                await self._progress(case, plan, evictions)
                written_at = self._clocks.now()
            look = _LOOK_FIRST if moved else min(_LOOK_MOST, look * 1.5)
            await self._pause(case, look)

    def _moment(self, status: QuarantineStatus) -> Moment:
        now = self._clocks.earliest()
        began = status.drain_started_at or now
        return Moment(now, began, status.deadline_at or began + self._deadline)

    async def _begin(self, case: Case, still: Callable[[], bool]) -> bool:
        """See that the node is ours to drain, take it off the load balancers, and say so.

        The node is read in full before the Quarantine is seen to stand: the fence of every patch.
        """
        node = await self._cluster.read_node(case.node)
        quarantine = await self._acts.reread(case)
        case.take_node(node)
        if node is None or quarantine is None or not still():
            return False
        if quarantine.status.phase not in MARKED:
            return False
        change = exclude_change(node) if self._off_balancers else None
        if change is not None:
            case.take_node(await self._cluster.patch_node(node, change))
        if quarantine.status.phase is Phase.DRAINING:
            return True
        began = quarantine.status.drain_started_at or self._clocks.latest()
        status = replace(
            quarantine.status,
            phase=Phase.DRAINING,
            message=_EVICTING,
            drain_started_at=began,
            deadline_at=quarantine.status.deadline_at or began + self._deadline,
        )
        await self._acts.write_status(case, quarantine, status)
        self._acts.note(case, Kind.DRAINING, "draining")
        return True

    async def _finish(
        self, case: Case, quarantine: Quarantine, plan: DrainPlan, evictions: Evictions
    ) -> None:
        message = "no pods are left that would go"
        if plan.stuck:
            message += f"; stuck in Terminating, and not waited for: {', '.join(plan.stuck)}"
        status = replace(
            quarantine.status,
            phase=Phase.DRAINED,
            message=message[:1000],
            drained_at=self._clocks.wall(),
            pods_remaining=0,
            blockers=evictions.blockers(plan),
        )
        await self._acts.write_status(case, quarantine, status)
        self._acts.note(case, Kind.DRAINED, "drained" if not plan.stuck else f"drained: {message}")

    async def _progress(self, case: Case, plan: DrainPlan, evictions: Evictions) -> None:
        quarantine = case.patient.quarantine
        if quarantine is None:
            return
        moment = self._moment(quarantine.status)
        late = moment.now >= moment.deadline
        blockers = evictions.blockers(plan)
        status = replace(
            quarantine.status,
            message=_late(plan, moment) if late else _EVICTING,
            deadline_at=moment.deadline,
            overdue_at=(quarantine.status.overdue_at or moment.now) if late else 0.0,
            pods_remaining=plan.remaining,
            blockers=blockers,
        )
        if status == quarantine.status:
            return
        newly = late and not quarantine.status.overdue_at
        await self._acts.write_status(case, quarantine, status)
        if newly:
            named = "; ".join(f"{one.pod}: {one.reason}" for one in blockers[:3])
            text = f"{status.message}. In the way: {named or 'nobody by name'}"
            self._acts.note(case, Kind.OVERDUE, text, {"pods": str(plan.remaining)})

    async def explain(self, case: Case) -> None:
        """Why a drain does not go on now, where its object would not say so."""
        quarantine = case.patient.quarantine
        if quarantine is None or quarantine.status.phase not in _UNDER_WAY:
            return
        status = quarantine.status
        if case.node_gone:
            message = "the node is gone: nothing is left to drain"
            status = replace(status, message=message, pods_remaining=0, blockers=())
        elif case.patient.maintained and quarantine.spec.requester == OURS:
            message = f"left alone, somebody else is at work: {case.patient.maintained}"
            status = replace(status, message=message)
        if status != quarantine.status:
            await self._acts.write_status(case, quarantine, status)

    @staticmethod
    async def _pause(case: Case, seconds: float) -> None:
        """Until it is time to look again, or something about the node has changed."""
        try:
            async with asyncio.timeout(seconds):
                await case.again.wait()
        except TimeoutError:
            return
        case.again.clear()


def _late(plan: DrainPlan, moment: Moment) -> str:
    asked = span(round(moment.deadline - moment.began))
    forced = ", and are deleted" if plan.force else ", nothing is forced; a person must decide"
    return f"past its deadline: {plan.remaining} pods have not left in {asked}{forced}"
