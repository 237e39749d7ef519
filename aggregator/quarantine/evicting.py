"""One drain's requests: which pods are asked to leave now, and what the answers meant.

A gang is asked as one: first, as a dry run, whether each of its pods may go, then all of them. No
API evicts several pods at once: where the budget has room for one and not for all, the others
follow as it opens.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.case import Case
from aggregator.quarantine.cluster import Blocker, Cluster, Evicted, EvictionResult, Pod
from aggregator.quarantine.decide.drainplan import (
    FINISHED,
    DrainPlan,
    DrainRules,
    kept_because,
    stays_by_nature,
)
from aggregator.quarantine.decide.gangs import Gang, Gangs, gang_of
from aggregator.quarantine.decide.maintenance import maintained_by
from aggregator.quarantine.decide.wishes import read_wishes
from aggregator.quarantine.lane import Lane
from aggregator.quarantine.ledger import Kind

log = logging.getLogger("sickbay.quarantine")

#: Requests of one node that may be in flight at once: so many may land late.
IN_FLIGHT_PER_NODE = 4
_RETRY_FIRST = 1.0
_RETRY_MOST = 15.0
_MOST_BLOCKERS = 20
_WENT = (Evicted.ACCEPTED, Evicted.GONE)


@dataclass(slots=True)
class _Blocked:
    """A pod that may not go: since when (wall), and when to ask again (monotonic)."""

    reason: str
    since: float
    retry_at: float
    wait: float


@dataclass(frozen=True, slots=True)
class _Group:
    """Pods that are asked as one; a pod of no gang is a group of its own."""

    gang: Gang | None
    pods: tuple[Pod, ...]


@dataclass(slots=True)
class Evictions:
    """``at_once``: our share of the fleet's requests in flight. ``still``: the drain stands."""

    cluster: Cluster
    acts: Acts
    clocks: Clocks
    rules: DrainRules
    at_once: Lane
    rng: random.Random
    case: Case
    still: Callable[[], bool]
    _blocked: dict[str, _Blocked] = field(default_factory=dict)
    _forced: set[str] = field(default_factory=set)
    _told: set[str] = field(default_factory=set)
    _lane: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT_PER_NODE))

    async def ask(self, plan: DrainPlan) -> bool:
        """Ask for all that is due. Returns whether anything went; raises the first error."""
        present = {pod.uid for pod in (*plan.evict, *plan.force)}
        self._blocked = {uid: one for uid, one in self._blocked.items() if uid in present}
        self._tell_kept(plan)
        asking: list[Awaitable[bool]] = []
        asking += [self._ask_group(group) for group in _groups(plan.evict) if self._is_due(group)]
        for pod in plan.force:
            if pod.uid not in self._forced:
                self._forced.add(pod.uid)
                self._blocked.pop(pod.uid, None)  # that its eviction waits is no reason any more
            if self._is_due(_Group(None, (pod,))):
                asking.append(self._request(pod, self._force))
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            raise failures[0]
        return any(outcome is True for outcome in outcomes)

    def blockers(self, plan: DrainPlan) -> tuple[Blocker, ...]:
        """Who is in the way, the longest first; what the status has said keeps its time."""
        names = {pod.uid: pod.key for pod in (*plan.evict, *plan.force)}
        found = [
            Blocker(names[uid], one.reason, one.since)
            for uid, one in self._blocked.items()
            if uid in names
        ]
        found += [Blocker(key, reason, self._since(key)) for key, reason in plan.named.items()]
        return tuple(sorted(found, key=lambda one: (one.since, one.pod))[:_MOST_BLOCKERS])

    def _is_due(self, group: _Group) -> bool:
        now = self.clocks.now()
        known = [self._blocked[pod.uid] for pod in group.pods if pod.uid in self._blocked]
        return all(one.retry_at <= now for one in known)

    async def _ask_group(self, group: _Group) -> bool:
        others: list[Pod] = []
        if group.gang is not None:
            others = await self._elsewhere(group.gang, group.pods)
            if len(group.pods) + len(others) > 1 and not await self._may_all_go(group, others):
                return False
        # Those elsewhere first: as long as one is left here, a crash forgets none of them.
        gone = await self._request_all(others, self._evict)
        return await self._request_all(group.pods, self._evict) or gone

    async def _request_all(
        self, pods: Sequence[Pod], how: Callable[[Pod], Awaitable[EvictionResult]]
    ) -> bool:
        outcomes = await asyncio.gather(
            *(self._request(pod, how) for pod in pods), return_exceptions=True
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            raise failures[0]
        return any(outcome is True for outcome in outcomes)

    async def _request(self, pod: Pod, how: Callable[[Pod], Awaitable[EvictionResult]]) -> bool:
        async with self._lane, self.at_once:
            if not self.still():
                return False
            result = await how(pod)
        if result.outcome in _WENT:
            self._blocked.pop(pod.uid, None)
            return True
        self._block(pod, _reason(result), result)
        return False

    async def _evict(self, pod: Pod) -> EvictionResult:
        result = await self.cluster.evict(pod)
        if result.outcome is Evicted.ACCEPTED:
            self.acts.note(self.case, Kind.EVICTED, f"evicted {pod.key}", {"pod": pod.key})
        return result

    async def _force(self, pod: Pod) -> EvictionResult:
        grace = max(1, round(pod.grace))
        result = await self.cluster.delete_pod(pod, grace=grace)
        if result.outcome is Evicted.ACCEPTED:
            rule = self.rules.of(pod.namespace)
            text = (
                f"{pod.key} did not leave in its time and is deleted with a grace of {grace} s, "
                f'as drain.namespaces "{rule.match}" allows'
            )
            self.acts.note(self.case, Kind.FORCED, text, {"pod": pod.key, "uid": pod.uid})
        return result

    # -- gangs -------------------------------------------------------------------------

    async def _may_all_go(self, group: _Group, others: Sequence[Pod]) -> bool:
        """Ask for each, as a dry run. Where one may not, none does, and each says why."""
        spared = await self._spared(others)
        if spared:
            for pod in group.pods:
                self._block(pod, f"goes together with its gang: {spared}", None)
            return False

        async def may_go(pod: Pod) -> EvictionResult:
            async with self._lane, self.at_once:
                return await self.cluster.evict(pod, dry_run=True)

        pods = (*group.pods, *others)
        results = await asyncio.gather(*(may_go(pod) for pod in pods), return_exceptions=True)
        refused: dict[str, EvictionResult] = {}
        for pod, result in zip(pods, results, strict=True):
            if isinstance(result, BaseException):
                raise result
            if result.outcome not in _WENT:
                refused[pod.uid] = result
        kept = {pod.uid: kept_because(pod, self.rules) for pod in others}
        held = [
            f"{pod.key}: {kept.get(pod.uid) or _reason(refused[pod.uid])}"
            for pod in pods
            if pod.uid in refused or kept.get(pod.uid)
        ]
        if not held:
            return True
        for pod in group.pods:
            mine = refused.get(pod.uid)
            text = _reason(mine) if mine else f"goes together with its gang: {held[0]}"
            self._block(pod, text, mine)
        return False

    async def _spared(self, others: Sequence[Pod]) -> str:
        """Which of them stands on a node that is to be left alone, and why; empty: none does.

        Read each time: a person exempts a node because of what runs there.
        """
        standing = {pod.node: pod for pod in others}

        async def why(name: str) -> str:
            async with self._lane:
                node = await self.cluster.read_node(name)
            if node is None:
                return ""
            capped = read_wishes(node.annotations).why_capped(self.clocks.earliest())
            return capped or maintained_by(node)

        reasons = await asyncio.gather(*map(why, standing))
        for pod, reason in zip(standing.values(), reasons, strict=True):
            if reason:
                return f"{pod.key} is on {pod.node}, which is left alone: {reason}"
        return ""

    async def _elsewhere(self, gang: Gang, here: Sequence[Pod]) -> list[Pod]:
        """Its pods on other nodes that go with it; none unless ``drain.gangs`` is "whole".

        Only those of before the drain: what is made anew on a healthy node is left alone.
        """
        quarantine = self.case.patient.quarantine
        if self.rules.gangs is not Gangs.WHOLE or not gang.label or quarantine is None:
            return []
        found = [
            pod
            for pod in await self.cluster.pods_labelled(gang.namespace, gang.label, gang.name)
            if pod.node not in ("", self.case.node)
            and not pod.deleting
            and pod.phase not in FINISHED
            and not stays_by_nature(pod)
            and pod.created_at <= quarantine.created_at
        ]
        if len(found) + len(here) > self.rules.gang_pods:
            log.warning(
                "a gang is too large to be evicted whole",
                extra={"node": self.case.node, "gang": str(gang), "pods": len(found) + len(here)},
            )
            return []
        return found

    # -- who is in the way -------------------------------------------------------------

    def _block(self, pod: Pod, reason: str, result: EvictionResult | None) -> None:
        known = self._blocked.get(pod.uid)
        wait = min(_RETRY_MOST, known.wait * 2) if known is not None else _RETRY_FIRST
        if result is not None and result.outcome is not Evicted.BLOCKED:
            wait = _RETRY_MOST  # it takes a person
        pause = max(wait * self.rng.uniform(0.7, 1.0), (result and result.retry_after) or 0.0)
        since = known.since if known is not None else self._since(pod.key)
        self._blocked[pod.uid] = _Blocked(reason, since, self.clocks.now() + pause, wait)
        self._tell(pod.key, reason)

    def _tell_kept(self, plan: DrainPlan) -> None:
        for key, reason in (plan.kept or {}).items():
            self._tell(key, reason)

    def _tell(self, key: str, reason: str) -> None:
        """Once for each pod, however often the drain is taken up again."""
        if key not in self._told and key not in self._standing():
            text = f"{key} is not evicted: {reason}"
            self.acts.note(self.case, Kind.BLOCKED, text, {"pod": key})
        self._told.add(key)

    def _since(self, key: str) -> float:
        """When the pod was first found in the way; survives us, as it stands in the status."""
        return self._standing().get(key) or round(self.clocks.wall(), 3)  # as it is stored

    def _standing(self) -> dict[str, float]:
        quarantine = self.case.patient.quarantine
        return {one.pod: one.since for one in quarantine.status.blockers} if quarantine else {}


def _groups(pods: Sequence[Pod]) -> list[_Group]:
    groups: list[_Group] = []
    gangs: dict[Gang, list[Pod]] = {}
    for pod in pods:
        gang = gang_of(pod)
        if gang is None or pod.phase in FINISHED:
            groups.append(_Group(None, (pod,)))
        else:
            gangs.setdefault(gang, []).append(pod)
    return groups + [_Group(gang, tuple(members)) for gang, members in gangs.items()]


def _reason(result: EvictionResult) -> str:
    if result.outcome is Evicted.MISCONFIGURED:
        return f"does not heal by itself, one of its budgets has to go: {result.message}"
    return result.message
