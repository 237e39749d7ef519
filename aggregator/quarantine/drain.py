"""Emptying one node, as kubectl drain does: gently on budgets, never twice for one pod.

Before each eviction the caller is asked whether the drain still stands (`still`): evictions stop
when the cause clears, a person says so, the stop switch is set, or the mode no longer allows them.
Those in flight at that moment, a few per node, may still land.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.case import Case
from aggregator.quarantine.cluster import (
    Blocker,
    Cluster,
    Evicted,
    EvictionResult,
    Phase,
    Pod,
    Quarantine,
    QuarantineStatus,
)
from aggregator.quarantine.decide.drainplan import DrainPlan, DrainRules, plan_drain
from aggregator.quarantine.ledger import Kind

#: Evictions of one node that may be in flight at once: so many may land late.
IN_FLIGHT_PER_NODE = 4
#: Progress is written at most so often (seconds), but for phase changes.
STATUS_EVERY = 10.0
_LOOK_FIRST = 0.1
_LOOK_MOST = 15.0
_RETRY_FIRST = 1.0
_RETRY_MOST = 15.0


@dataclass(slots=True)
class _Blocked:
    """A pod that a budget protects: since when (wall), and when to ask again (monotonic)."""

    reason: str
    since: float
    retry_at: float
    wait: float


class Drain:
    """Drains nodes; ``at_once`` bounds the evictions in flight in the whole fleet."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        acts: Acts,
        clocks: Clocks,
        rules: DrainRules,
        at_once: asyncio.Semaphore,
        deadline: float,
        rng: random.Random,
    ) -> None:
        self._cluster = cluster
        self._acts = acts
        self._clocks = clocks
        self._rules = rules
        self._at_once = at_once
        self._deadline = deadline
        self._rng = rng

    async def run(self, case: Case, still: Callable[[], bool]) -> None:
        """Drain until nothing remains or ``still`` says no. Raises `ClusterError`; run it again."""
        blocked: dict[str, _Blocked] = {}
        look = _LOOK_FIRST
        written_at = float("-inf")
        begun = await self._begin(case)
        if not begun:
            return
        while still():
            plan = plan_drain(await self._cluster.pods_on(case.node), self._rules)
            if not still():
                return
            if plan.remaining == 0:
                await self._finish(case)
                return
            moved = await self._evict(case, plan, blocked, still)
            if self._clocks.now() - written_at >= STATUS_EVERY and still():
                await self._progress(case, plan, blocked)
                written_at = self._clocks.now()
            look = _LOOK_FIRST if moved else min(_LOOK_MOST, look * 1.5)
            await self._pause(case, look)

    async def _begin(self, case: Case) -> bool:
        quarantine = case.patient.quarantine
        if quarantine is None:
            return False
        if quarantine.status.phase is Phase.DRAINING:
            return True
        now = self._clocks.wall()
        status = replace(
            quarantine.status,
            phase=Phase.DRAINING,
            message="evicting pods",
            drain_started_at=quarantine.status.drain_started_at or now,
        )
        await self._acts.write_status(case, quarantine, status)
        self._acts.note(case, Kind.DRAINING, "draining")
        return True

    async def _finish(self, case: Case) -> None:
        quarantine = case.patient.quarantine
        if quarantine is None:
            return
        status = replace(
            quarantine.status,
            phase=Phase.DRAINED,
            message="no pods are left that would go",
            drained_at=self._clocks.wall(),
            pods_remaining=0,
            blockers=(),
        )
        await self._acts.write_status(case, quarantine, status)
        self._acts.note(case, Kind.DRAINED, "drained")

    async def _evict(
        self,
        case: Case,
        plan: DrainPlan,
        blocked: dict[str, _Blocked],
        still: Callable[[], bool],
    ) -> bool:
        """Ask for every eviction that is due. Returns whether any was accepted."""
        present = {pod.uid for pod in plan.evict}
        for uid in [uid for uid in blocked if uid not in present]:
            del blocked[uid]
        now = self._clocks.now()
        due = [p for p in plan.evict if p.uid not in blocked or blocked[p.uid].retry_at <= now]
        lane = asyncio.Semaphore(IN_FLIGHT_PER_NODE)

        async def one(pod: Pod) -> bool:
            async with lane, self._at_once:
                if not still():
                    return False
                return self._note(case, pod, await self._cluster.evict(pod), blocked)

        outcomes = await asyncio.gather(*(one(pod) for pod in due), return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            raise failures[0]
        return any(outcome is True for outcome in outcomes)

    def _note(
        self, case: Case, pod: Pod, result: EvictionResult, blocked: dict[str, _Blocked]
    ) -> bool:
        if result.outcome in (Evicted.ACCEPTED, Evicted.GONE):
            blocked.pop(pod.uid, None)
            if result.outcome is Evicted.ACCEPTED:
                self._acts.note(case, Kind.EVICTED, f"evicted {pod.key}", {"pod": pod.key})
            return True
        known = blocked.get(pod.uid)
        wait = min(_RETRY_MOST, known.wait * 2) if known is not None else _RETRY_FIRST
        since = known.since if known is not None else self._clocks.wall()
        jittered = wait * self._rng.uniform(0.7, 1.0)
        blocked[pod.uid] = _Blocked(result.message, since, self._clocks.now() + jittered, wait)
        if known is None:
            text = f"{pod.key} is not evicted: {result.message}"
            self._acts.note(case, Kind.BLOCKED, text, {"pod": pod.key})
        return False

    async def _progress(self, case: Case, plan: DrainPlan, blocked: dict[str, _Blocked]) -> None:
        quarantine = case.patient.quarantine
        if quarantine is None:
            return
        status = self._status(quarantine, plan, blocked)
        if status != quarantine.status:
            await self._acts.write_status(case, quarantine, status)

    def _status(
        self, quarantine: Quarantine, plan: DrainPlan, blocked: dict[str, _Blocked]
    ) -> QuarantineStatus:
        now = self._clocks.wall()
        before = {blocker.pod: blocker.since for blocker in quarantine.status.blockers}
        names = {pod.uid: pod.key for pod in plan.evict}
        blockers = [
            Blocker(names[uid], entry.reason, entry.since)
            for uid, entry in blocked.items()
            if uid in names
        ]
        blockers += [
            Blocker(key, reason, before.get(key, now)) for key, reason in plan.kept.items()
        ]
        started = quarantine.status.drain_started_at or now
        late = now - started > self._deadline
        return replace(
            quarantine.status,
            message="past its deadline; a person must decide" if late else "evicting pods",
            pods_remaining=plan.remaining,
            blockers=tuple(sorted(blockers, key=lambda blocker: blocker.since)[:20]),
        )

    @staticmethod
    async def _pause(case: Case, seconds: float) -> None:
        """Until it is time to look again, or something about the node has changed."""
        try:
            async with asyncio.timeout(seconds):
                await case.again.wait()
        except TimeoutError:
            return
        case.again.clear()
