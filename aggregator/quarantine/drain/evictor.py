"""One drain's requests: which pods are evicted now, and the meaning of the answers.

A gang is evicted as one: first a dry run for each of its pods, then the requests for all of them.
No API evicts several pods at once: where the budget has room for one and not for all, the others
follow as it opens. Where admission alone refuses dry runs, and that for long, the refused pods get
their real request. The others follow once these have gone (`_rejected_for_long`).

A first request goes before all retries. Whether the drain is still in force is checked once more
when a request has its turn. The requests of a drain that ends stay in the queue, unsent.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Blocker,
    Cluster,
    Evicted,
    EvictionResult,
    Guard,
    GuardRefused,
    Pod,
)
from aggregator.events import EventKind
from aggregator.jobs.gangs import Gang, Gangs, gang_of
from aggregator.jobs.hit import evicted_details
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.drain_plan import DrainPlan, DrainRules, kept_because, work_of
from aggregator.quarantine.decide.operator_requests import read_operator_requests
from aggregator.quarantine.decide.returned_pods import slot_of
from aggregator.quarantine.state.drain_memory import BlockedPod, DrainMemory
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still
from aggregator.rfc3339 import span

log = logging.getLogger("sickbay.quarantine")

#: Requests of one node that may be in flight at once: this number may land late.
IN_FLIGHT_PER_NODE = 4
MOST_BLOCKERS = 20
_WENT = (Evicted.ACCEPTED, Evicted.GONE)
#: Refusals of admission, by which nobody's budget is spent.
_BY_ADMISSION = (Evicted.REJECTED, Evicted.FAILING)
_KEY = "drain.gang_request_after"
_T = TypeVar("_T")


class _Request(Protocol):
    """Requests the eviction of one pod; ``background`` for a retry."""

    def __call__(
        self, pod: Pod, guard: Guard, *, background: bool
    ) -> Awaitable[EvictionResult]: ...


@dataclass(slots=True)
class EvictionLanes:
    """Our share of the fleet's requests in flight. Retries have a part of it, and no more.

    ``drains``: how many drains run now. ``landing`` keeps the requests that were sent when their
    drain ended: no caller waits for them.
    """

    at_once: asyncio.Semaphore
    retries: asyncio.Semaphore
    drains: int = 0
    landing: set[asyncio.Task[bool]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Group:
    """Pods that are evicted as one; a pod of no gang is a group of its own."""

    gang: Gang | None
    pods: tuple[Pod, ...]


@dataclass(slots=True)
class Evictor:
    """``still``: the drain is in force."""

    cluster: Cluster
    acts: NodeActions
    clocks: Clocks
    rules: DrainRules
    lanes: EvictionLanes
    rng: random.Random
    node_state: NodeState
    still: Still
    memory: DrainMemory
    _lane: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT_PER_NODE))

    async def evict(self, plan: DrainPlan) -> bool:
        """Request the eviction of all pods that are due. Returns whether any pod went; raises the
        first error.
        """
        now, memory = self.clocks.now(), self.memory
        going = (*plan.evict, *plan.force, *plan.returned)
        memory.keep_only({pod.uid: pod.version for pod in going}, now, self.rng)
        self._report_kept(plan)
        requests: list[Awaitable[bool]] = []
        for due_at, group in self._groups(plan):
            if due_at <= now:
                memory.note_retried({slot_of(pod) for pod in group.pods}, now, self.rng)
                requests.append(self._evict_group(group))
        for pod in plan.force:
            if pod.uid not in memory.forced:
                memory.forced.add(pod.uid)
                memory.blocked.pop(pod.uid, None)  # a blocked eviction must not delay this
            if memory.due_at((pod,)) <= now:
                requests.append(self._request(pod, self._force))
        return any(await _all_of(requests))

    def next_due(self, plan: DrainPlan) -> float:
        """When the next request is due (monotonic seconds); infinite without one."""
        times = [due_at for due_at, _ in self._groups(plan)]
        times += [
            self.memory.due_at((pod,)) if pod.uid in self.memory.forced else float("-inf")
            for pod in plan.force
        ]
        return min(times, default=float("inf"))

    def blockers(self, plan: DrainPlan) -> tuple[Blocker, ...]:
        """The pods that block the drain, the longest first; a blocker in the status keeps its
        time.
        """
        names = {pod.uid: pod.key for pod in (*plan.evict, *plan.force)}
        found = [
            Blocker(names[uid], one.reason, one.since)
            for uid, one in self.memory.blocked.items()
            if uid in names and one.named
        ]
        found += [Blocker(key, reason, self._since(key)) for key, reason in plan.named.items()]
        return tuple(sorted(found, key=lambda one: (one.since, one.pod))[:MOST_BLOCKERS])

    def _groups(self, plan: DrainPlan) -> list[tuple[float, _Group]]:
        """The pods that are evicted as one, with their due time: minus infinity at first."""
        now, memory = self.clocks.now(), self.memory
        found = [(memory.due_at(group.pods), group) for group in self._grouped(plan.evict)]
        for pod in plan.returned:
            memory.note_return(slot_of(pod), now, self.rng)
        for group in self._grouped(plan.returned):
            later = max(memory.returns[slot_of(pod)].retry_at for pod in group.pods)
            found.append((max(later, memory.due_at(group.pods)), group))
        return found

    def _grouped(self, pods: Sequence[Pod]) -> list[_Group]:
        groups: list[_Group] = []
        gangs: dict[Gang, list[Pod]] = {}
        for pod in pods:
            gang = gang_of(pod, self.rules.gang_keys)
            if gang is None:
                groups.append(_Group(None, (pod,)))
            else:
                gangs.setdefault(gang, []).append(pod)
        return groups + [_Group(gang, tuple(members)) for gang, members in gangs.items()]

    async def _evict_group(self, group: _Group) -> bool:
        here, others, first = list(group.pods), list[Pod](), list[Pod]()
        if group.gang is not None:
            others = await self._pods_on_other_nodes(group.gang, group.pods)
            if len(group.pods) + len(others) > 1:
                found = await self._first_of_gang(group, others)
                if found is None or (found and not await self._all_went(group, found)):
                    return False
                first = found
                here = [pod for pod in here if pod not in first]
                others = [pod for pod in others if pod not in first]
        # Pods elsewhere first: as long as one is left here, a crash forgets none of them.
        gone = await _all_of([self._request(pod, self._evict) for pod in others])
        went = await _all_of([self._request(pod, self._evict) for pod in here])
        return any((*gone, *went, *first))

    # -- one request -------------------------------------------------------------------

    async def _request(self, pod: Pod, how: _Request) -> bool:
        """Cancelled, it sends no more; a request that is sent lands without being waited for."""
        sent = asyncio.Event()
        guard = self.acts.guard(self.node_state, against=self._why_over)

        async def check() -> None:
            await guard()
            sent.set()

        task = asyncio.create_task(self._in_turn(pod, how, Guard(check, guard.lost)))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if sent.is_set():
                self.lanes.landing.add(task)
                task.add_done_callback(self._landed)
            else:
                task.cancel()
            raise

    async def _in_turn(self, pod: Pod, how: _Request, guard: Guard) -> bool:
        background = pod.uid in self.memory.blocked
        try:
            async with self._turn(background=background):
                self._refuse_if_over()
                result = await how(pod, guard, background=background)
        except GuardRefused:
            if self.still():
                raise
            return False
        if result.outcome in _WENT:
            self.memory.blocked.pop(pod.uid, None)
            return True
        self._block(pod, _reason(result), (result,))
        return False

    @contextlib.asynccontextmanager
    async def _turn(self, *, background: bool) -> AsyncIterator[None]:
        """Our places among all that is in flight. Retries leave most of them to first requests."""
        async with contextlib.AsyncExitStack() as places:
            if background:
                await places.enter_async_context(self.lanes.retries)
            await places.enter_async_context(self._lane)
            await places.enter_async_context(self.lanes.at_once)
            yield

    def _why_over(self) -> str:
        return "" if self.still() else f"the drain of {self.node_state.node} is no longer in force"

    def _refuse_if_over(self) -> None:
        if why := self._why_over():
            raise GuardRefused(why)

    def _landed(self, task: asyncio.Task[bool]) -> None:
        self.lanes.landing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("eviction that was in flight failed", extra={"error": str(error)})

    async def _evict(self, pod: Pod, guard: Guard, *, background: bool) -> EvictionResult:
        result = await self.cluster.evict(pod, background=background, guard=guard)
        if result.outcome is Evicted.ACCEPTED:
            quarantine = self.node_state.quarantine
            why = f": {quarantine.spec.reason}" if quarantine is not None else ""
            text = f"{self.cluster.words.moved.format(one=pod.key)}{why}"
            self._note_gone(pod, EventKind.MOVED, text, {"grace": f"{pod.grace:g}"})
        return result

    async def _force(self, pod: Pod, guard: Guard, *, background: bool) -> EvictionResult:
        grace = max(1, round(pod.grace))
        result = await self.cluster.delete_pod(pod, grace=grace, background=background, guard=guard)
        if result.outcome is Evicted.ACCEPTED:
            rule = self.rules.of(pod.namespace, pod.labels)
            text = (
                f"{pod.key} did not leave in its time and is deleted with a grace of {grace} s, "
                f"as {rule} allows"
            )
            details = {"uid": pod.uid, "grace": str(grace)}
            self._note_gone(pod, EventKind.FORCED, text, details)
        return result

    def _note_gone(self, pod: Pod, kind: EventKind, text: str, more: dict[str, str]) -> None:
        self.memory.evicted[slot_of(pod)] += 1
        details = {"pod": pod.key, **more, **evicted_details(pod, self.rules.gang_keys)}
        self.acts.emit_event(self.node_state, kind, text, details)

    # -- gangs -------------------------------------------------------------------------

    async def _first_of_gang(self, group: _Group, others: Sequence[Pod]) -> list[Pod] | None:
        """Send a dry run for each pod. Where one may not go, none does (None), and each has the
        reason.

        Returns the pods that go before the others; mostly none, as all go at once.
        """
        spared = await self._spared(others)
        if spared:
            for pod in group.pods:
                self._block(pod, f"goes together with its gang: {spared}", ())
            return None
        kept = {pod.uid: kept_because(pod, self.rules) for pod in others}
        pods = (*group.pods, *others)
        blocked = self.memory.blocked
        before = tuple(pod for pod in pods if pod.uid in blocked and blocked[pod.uid].own)
        refused = await self._refused(before) if before else {}  # these decide it, mostly
        if not refused:
            refused = await self._refused(pods)
        rejected = not any(kept.values()) and _by_admission_alone(refused)
        if rejected and self._rejected_for_long(group):
            rest = [pod for pod in pods if pod.uid not in refused and pod not in before]
            refused |= await self._refused(rest)
            rejected = _by_admission_alone(refused)
            if rejected:
                return [pod for pod in pods if pod.uid in refused]
        held = [
            f"{pod.key}: {kept.get(pod.uid) or self._reason_of_dry_run(refused[pod.uid])}"
            for pod in pods
            if pod.uid in refused or kept.get(pod.uid)
        ]
        for pod in group.pods if held else ():
            mine = refused.get(pod.uid)
            together = f"goes together with its gang: {held[0]}"
            text = self._reason_of_dry_run(mine) if mine else together
            self._block(pod, text, (mine,) if mine else tuple(refused.values()), own=bool(mine))
        if rejected:
            after = self.rules.gang_request_after
            self.memory.note_rejected((pod.uid for pod in group.pods), self.clocks.now(), after)
        else:
            self.memory.forget_rejected(pod.uid for pod in group.pods)
        return None if held else []

    def _rejected_for_long(self, group: _Group) -> bool:
        """Whether admission has refused the gang's dry runs for ``gang_request_after``.

        A webhook may answer a dry run otherwise than the real request, by which some start to move
        the work themselves.
        """
        after = self.rules.gang_request_after
        since = self.memory.rejected_since(pod.uid for pod in group.pods)
        return after > 0 and since is not None and self.clocks.now() >= since + after

    async def _all_went(self, group: _Group, first: Sequence[Pod]) -> bool:
        """Send the real requests for these pods. Where one is refused, the others of the gang wait.

        Raises the first error.
        """
        outcomes = await _all_of([self._request(pod, self._evict) for pod in first])
        blocked = self.memory.blocked
        answers = zip(first, outcomes, strict=True)
        refused = [pod for pod, went in answers if not went and pod.uid in blocked]
        for pod in group.pods if refused else ():
            if pod not in first:
                why = f"{refused[0].key}: {blocked[refused[0].uid].reason}"
                text, answer = f"goes together with its gang: {why}", Evicted.REJECTED
                self._block(pod, text, (EvictionResult(answer),), own=False)
        return all(outcomes)

    def _reason_of_dry_run(self, refusal: EvictionResult) -> str:
        """The refusal, and by which setting its real request follows."""
        if refusal.outcome not in _BY_ADMISSION:
            return _reason(refusal)
        after = self.rules.gang_request_after
        if not after:
            return f"{_reason(refusal)}; this was a dry run, and no real request follows ({_KEY})"
        follows = f"the real request follows this dry run after {span(after)}"
        return f"{_reason(refusal)}; {follows} ({_KEY})"

    async def _refused(self, pods: Sequence[Pod]) -> dict[str, EvictionResult]:
        """By uid, what a dry run of each eviction refused. Raises the first error."""

        async def check() -> None:
            self._refuse_if_over()

        async def may_go(pod: Pod) -> EvictionResult:
            background = pod.uid in self.memory.blocked
            async with self._turn(background=background):
                return await self.cluster.evict(
                    pod, dry_run=True, background=background, guard=Guard(check)
                )

        results = await _all_of([may_go(pod) for pod in pods])
        found = zip(pods, results, strict=True)
        return {pod.uid: result for pod, result in found if result.outcome not in _WENT}

    async def _spared(self, others: Sequence[Pod]) -> str:
        """Which of them is on a node that is to be left alone, and why; empty if no pod is.

        Read each time: a person exempts a node because of what runs there.
        """
        by_node = {pod.node: pod for pod in others}

        async def why(name: str) -> str:
            async with self._lane:
                node = await self.cluster.read_node(name, background=True)
            if node is None:
                return ""
            capped = read_operator_requests(node.annotations).why_capped(self.clocks.earliest())
            by_all, by_evictions = self.node_state.others.forbidden(node)
            return capped or by_all or by_evictions or self.acts.why_not_drained(name)

        reasons = await asyncio.gather(*map(why, by_node))
        for pod, reason in zip(by_node.values(), reasons, strict=True):
            if reason:
                return f"{pod.key} is on {pod.node}, which is left alone: {reason}"
        return ""

    async def _pods_on_other_nodes(self, gang: Gang, here: Sequence[Pod]) -> list[Pod]:
        """Its pods on other nodes that go with it; empty unless ``drain.gangs`` is "whole".

        Only those from before the drain: a pod that is made anew on a healthy node is left alone.
        """
        quarantine = self.node_state.quarantine
        if self.rules.gangs is not Gangs.WHOLE or not gang.label or quarantine is None:
            return []
        found = [
            pod
            for pod in work_of(
                await self.cluster.pods_labelled(
                    gang.namespace,
                    gang.label,
                    gang.name,
                    background=any(pod.uid in self.memory.blocked for pod in here),
                ),
                self.rules.node_owner_kinds,
            )
            if pod.node not in ("", self.node_state.node)
            and not pod.deleting
            and pod.created_at <= quarantine.created_at
        ]
        if len(found) + len(here) > self.rules.gang_pods:
            log.warning(
                "a gang is too large to be evicted whole",
                extra={
                    "node": self.node_state.node,
                    "gang": str(gang),
                    "pods": len(found) + len(here),
                },
            )
            return []
        return found

    # -- blockers -------------------------------------------------------------

    def _block(
        self, pod: Pod, reason: str, refusals: Sequence[EvictionResult], *, own: bool = True
    ) -> None:
        """``refusals``: the answers; several where a gang blocks the drain, none where a rule does.

        ``own``: the pod's own eviction was refused.
        """
        outcomes = {one.outcome for one in refusals}
        block = self.memory.block(
            pod.uid,
            BlockedPod(
                reason=reason,
                since=self._since(pod.key),
                version=pod.version,
                own=own and bool(refusals),
            ),
            now=self.clocks.now(),
            rng=self.rng,
            at_least=max((one.retry_after or 0.0 for one in refusals), default=0.0),
            drains=self.lanes.drains,
            hopeless=bool(outcomes) and not outcomes & {Evicted.BLOCKED, Evicted.FAILING},
            passing=outcomes == {Evicted.FAILING},
        )
        if block.named:
            self.emit_evictions(pod.key, reason)

    def _report_kept(self, plan: DrainPlan) -> None:
        for key, reason in (plan.kept or {}).items():
            self.emit_evictions(key, reason)
        for pod in plan.returned:
            self._report_returned(pod, plan.named[pod.key])

    def _report_returned(self, pod: Pod, reason: str) -> None:
        """Report once for all that come back in one place, whatever their names are."""
        place = slot_of(pod)
        known = {one.partition("/")[0] for one, why in self._reasons().items() if why == reason}
        if place not in self.memory.reported and pod.namespace not in known:
            text = f"{pod.key} is back, and stays for now: {reason}"
            self.acts.emit_event(self.node_state, EventKind.BLOCKED, text, {"pod": pod.key})
        self.memory.reported.add(place)

    def emit_evictions(self, key: str, reason: str) -> None:
        """Report once for each pod, however often the drain is taken up again."""
        if key not in self.memory.reported and key not in self._reasons():
            text = self.cluster.words.not_moved.format(one=key, reason=reason)
            self.acts.emit_event(self.node_state, EventKind.BLOCKED, text, {"pod": key})
        self.memory.reported.add(key)

    def _since(self, key: str) -> float:
        """When the pod was first found blocking the drain; survives a restart in the status."""
        since = {one.pod: one.since for one in self._known_blockers()}
        return since.get(key) or round(self.clocks.wall(), 3)  # as it is stored

    def _reasons(self) -> dict[str, str]:
        return {one.pod: one.reason for one in self._known_blockers()}

    def _known_blockers(self) -> tuple[Blocker, ...]:
        quarantine = self.node_state.quarantine
        return quarantine.status.blockers if quarantine else ()


def _by_admission_alone(refused: Mapping[str, EvictionResult]) -> bool:
    return bool(refused) and all(one.outcome in _BY_ADMISSION for one in refused.values())


def _reason(result: EvictionResult) -> str:
    if result.outcome is Evicted.MISCONFIGURED:
        return f"does not heal by itself, one of its budgets has to go: {result.message}"
    return result.message


async def _all_of(requests: Sequence[Awaitable[_T]]) -> list[_T]:
    """Their results. All end before the first error is raised."""
    results = await asyncio.gather(*requests, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
