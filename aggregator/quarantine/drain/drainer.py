"""Drains one node, as kubectl drain does: within the budgets, never twice for one pod.

Before each eviction the caller's `still` decides whether the drain is still in force: evictions
stop when the cause clears, a person stops them, another party maintains the node, the stop switch
is set, or the mode no longer allows them. Those in flight at that moment, a few per node, may still
land; those that wait in a queue are dropped, and no caller waits for them.

A drain that is blocked sends requests ever less often. All of a replica's blocked drains together
make a few requests a second, however many they are, and these go after all new requests.
"""

import asyncio
import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from attrs import define

from aggregator.cluster.port import (
    Action,
    Blocker,
    ClusterError,
    Conflict,
    Node,
    Phase,
    Pod,
    Quarantine,
    QuarantineStatus,
    Taint,
)
from aggregator.cluster.words import ClusterWords
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.drain_plan import (
    DrainMoment,
    DrainPlan,
    DrainRules,
    NotReady,
    plan_drain,
)
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.maintenance import STALE
from aggregator.quarantine.decide.node_marks import (
    PLAIN,
    applied_taint,
    exclude_change,
    read_applied,
)
from aggregator.quarantine.decide.own_pods import without_own
from aggregator.quarantine.decide.returned_pods import find_returned, is_return
from aggregator.quarantine.drain.evictor import MOST_BLOCKERS, EvictionLanes, Evictor
from aggregator.quarantine.drain.hooks import HookRunner
from aggregator.quarantine.drain.pod_waits import DrainRound, PodWaits
from aggregator.quarantine.state.drain_memory import DrainMemory, blocked_backoff
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED, NewMarks
from aggregator.quarantine.state.race import Still, while_in_force
from aggregator.rfc3339 import span
from aggregator.runtime.interning import EMPTY
from aggregator.runtime.recent import Recent

#: Progress is written at most this often (seconds), except phase changes.
STATUS_EVERY = 10.0
#: Unchanged progress is written this often (seconds), with the time of the last read.
UNCHANGED_EVERY = 300.0
#: No evictions begin to be sent after a read of the node that is older than this (seconds).
NODE_EVERY = 10.0
#: The node is read this often (seconds) while pods are in Terminating: without a kubelet they stay.
READY_EVERY = 30.0
#: A node is empty once two reads find it so that are this far apart (seconds). A pod may come back,
#: and a scheduler that has not seen the taint may still place one. The last read has to begin this
#: long after the taint in any case. So one read is enough where it begins that late and nothing can
#: be on its way back; see `Drainer._is_proof`.
EMPTY_FOR = 5.0
_POLL_FIRST = 0.1
#: The pods of a drain that is blocked are read this often (seconds) ...
_POLL_MOST = 30.0
#: ... unless such drains are too many, so that this would be more reads a second than these.
POLLS_A_SECOND = 3.0
_UNDER_WAY = (Phase.ADMITTED, Phase.DRAINING)
_PLACED = "it was placed here after the drain"
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Read:
    """One read of the node's pods, and when it was made (wall clock seconds).

    ``began``: when its request began (monotonic seconds).
    """

    plan: DrainPlan
    moment: DrainMoment
    at: float
    began: float


@define(eq=False, repr=False, slots=False, kw_only=True)
class Drainer:
    """Drains nodes; ``lanes`` bound the evictions in flight: our share of the fleet's.

    ``waits``: why else a pod may wait. ``test_namespace``: that of the pods of active tests, which
    are no work.
    """

    _acts: NodeActions
    _rules: DrainRules
    _hook_runner: HookRunner
    _lanes: EvictionLanes
    _waits: PodWaits
    _rng: random.Random
    _test_namespace: str = ""

    def __attrs_post_init__(self) -> None:
        self._cluster = cluster = self._acts.cluster
        self._words = cluster.words
        #: Seconds from a drain's begin. It is in the Quarantine from then on.
        self._deadline = self._rules.deadline
        self._off_balancers = self._rules.off_load_balancers
        self._memories: Recent[str, DrainMemory] = Recent()

    async def run(self, node_state: NodeState, still: Still) -> None:
        """Drain until no pod remains or ``still`` returns false. Raises `ClusterError`; run it
        again.
        """
        self._lanes.drains += 1
        try:
            node_at = await self._begin(node_state, still)
            if node_at is not None and await self._hook_runner.before_evictions(node_state, still):
                evictions = self._evictions(node_state, still)
                rounds = self._until_empty(node_state, evictions, node_at)
                read = await while_in_force(node_state, rounds, still)
                if read is not None and still():
                    await self._finish(node_state, read, evictions)
        finally:
            self._lanes.drains -= 1
        await self.explain(node_state)

    def _evictions(self, node_state: NodeState, still: Still) -> Evictor:
        return Evictor(
            cluster=self._cluster,
            acts=self._acts,
            clocks=self._acts.clocks,
            rules=self._rules,
            lanes=self._lanes,
            rng=self._rng,
            node_state=node_state,
            still=still,
            memory=self._memory(node_state),
        )

    def _memory(self, node_state: NodeState) -> DrainMemory:
        """The memory of this drain, also where it is taken up again after an error."""
        uid = node_state.quarantine.uid if node_state.quarantine is not None else ""
        known = self._memories.get(node_state.node)
        if known is None or known.uid != uid:
            known = self._memories[node_state.node] = DrainMemory(uid)
        known.found_empty = False
        return known

    # -- its rounds --------------------------------------------------------------------

    async def _until_empty(
        self, node_state: NodeState, evictions: Evictor, node_at: float
    ) -> _Read | None:
        """The read that proves the node empty, or None if the drain is over.

        ``node_at``: when the node was read (monotonic seconds); minus infinity: it was only marked.
        """
        memory, still = evictions.memory, evictions.still
        wait, before = _POLL_FIRST, frozenset[tuple[str, bool]]()
        while still():
            began, is_first = self._acts.clocks.now(), memory.first_seen is None
            pods = await self._cluster.pods_on(node_state.node, background=not is_first)
            read = self._read(node_state, pods, memory, began)
            if read is None or not still():
                return None
            if read.plan.remaining == 0 and (
                memory.found_empty or (is_first and self._is_proof(node_state, read, memory))
            ):
                return read
            memory.found_empty = read.plan.remaining == 0
            now = self._acts.clocks.now()
            if self._is_node_due(read.plan, evictions, now - node_at):
                node_at = now
                node = await self._cluster.read_node(node_state.node, background=True)
                node_state.take_node(node)
                memory.not_ready = NotReady.of(node)
            read = await self._read_waits(node_state, pods, memory, began, still)
            if read is None or not still():
                return None
            moved = await self._evict(node_state, read, evictions)
            pods_now = frozenset((pod.uid, pod.deleting) for pod in pods)
            if moved or pods_now != before:
                quick = moved or read.plan.leaving
                wait = _POLL_FIRST if quick else blocked_backoff(self._lanes.drains).first
            else:
                wait = self._longer(wait)
            before = pods_now
            await self._rest(node_state, read, evictions, wait)
        return None

    def _is_node_due(self, plan: DrainPlan, evictions: Evictor, age: float) -> bool:
        """Whether a read of the node of this age (seconds) is too old for the next step."""
        if age < NODE_EVERY:
            return False
        evicts = evictions.next_due(plan) <= self._acts.clocks.now()
        return evicts or (bool(plan.leaving) and age >= READY_EVERY)

    def _is_proof(self, node_state: NodeState, read: _Read, memory: DrainMemory) -> bool:
        """Whether the first read of a drain, which found no pod that would go, needs no second one.

        The second read of a drain finds two kinds of pods. Those that a scheduler placed before it
        saw the taint are found by the first one as well, where that began `EMPTY_FOR` after the
        taint. Those that their controller makes again were evicted before. No pod was evicted where
        this process began the quarantine and its drain, no hook was called, and no pod is stuck in
        Terminating. The time of the taint is by our own monotonic clock, because another replica's
        wall clock may be ahead or behind. So it is unknown after a take-over.
        """
        view, quarantine = node_state.quarantine_view, node_state.quarantine
        if quarantine is None or quarantine.status.pre_evict is not None or read.plan.stuck:
            return False
        return memory.is_new and read.began - view.begun_at(quarantine.uid) >= EMPTY_FOR

    async def _evict(self, node_state: NodeState, read: _Read, evictions: Evictor) -> bool:
        """Send the evictions that are due, and write the progress: also where sending failed."""
        try:
            moved = await evictions.evict(read.plan)
        except ClusterError:
            if evictions.still():
                with contextlib.suppress(ClusterError):
                    await self._progress(node_state, read, evictions)
            raise
        if evictions.still():
            await self._progress(node_state, read, evictions)
        return moved

    async def _rest(
        self, node_state: NodeState, read: _Read, evictions: Evictor, wait: float
    ) -> None:
        """Until the pods are read again: for a request that is due, a second empty read, or so."""
        memory, now = evictions.memory, self._acts.clocks.now()
        until = now + wait
        due = evictions.next_due(read.plan)
        if memory.found_empty:
            until = now + EMPTY_FOR
        elif due > now:  # a request due by now was just sent, and waits for its pod to go
            until = min(until, due)
        written = memory.written_at + STATUS_EVERY
        if now < written < until:
            await asyncio.sleep(written - now)
            await self._progress(node_state, read, evictions)
            now = written
        await asyncio.sleep(until - now)

    def _longer(self, wait: float) -> float:
        """The wait after one of ``wait``: with jitter, as thousands of drains wait alike."""
        most = max(_POLL_MOST, self._lanes.drains / POLLS_A_SECOND)
        return min(most, wait * 1.5) * self._rng.uniform(0.85, 1.0)

    async def _read_waits(
        self,
        node_state: NodeState,
        pods: list[Pod],
        memory: DrainMemory,
        began: float,
        still: Still,
    ) -> _Read | None:
        """The read, with the pods that wait for more than the drain's own rules."""
        read, quarantine = self._read(node_state, pods, memory, began), None
        if read is not None and (read.plan.evict or read.plan.force):
            quarantine = node_state.quarantine
        if read is None or quarantine is None:
            return read
        work = without_own(pods, quarantine.status.repair, self._test_namespace)
        reasons = await self._waits.reasons(
            DrainRound(node_state, quarantine, work, read.plan, read.moment, self._acts, still)
        )
        return self._read(node_state, pods, memory, began, reasons) if reasons else read

    def _read(
        self,
        node_state: NodeState,
        pods: list[Pod],
        memory: DrainMemory,
        began: float,
        waits: Mapping[str, str] = EMPTY,
    ) -> _Read | None:
        quarantine = node_state.quarantine
        if quarantine is None:
            return None
        moment = replace(self._moment(quarantine.status), not_ready=memory.not_ready)
        pods = without_own(pods, quarantine.status.repair, self._test_namespace)
        came_back = find_returned(
            pods,
            taint=_taint(quarantine),
            began=moment.began,
            first_seen=memory.first_seen,
            evicted=memory.evicted,
            blocking={one.pod for one in quarantine.status.blockers if is_return(one.reason)},
        )
        if memory.first_seen is None:
            memory.first_seen = frozenset(pod.uid for pod in pods)
        plan = plan_drain(pods, self._rules, moment, came_back, waits)
        return _Read(plan, moment, round(self._acts.clocks.wall(), 3), began)

    def _moment(self, status: QuarantineStatus) -> DrainMoment:
        now = self._acts.clocks.earliest()
        began = status.drain_started_at or now
        return DrainMoment(now, began, status.deadline_at or began + self._deadline)

    # -- begin and end -----------------------------------------------------------------

    def is_ready(self, node: Node) -> bool:
        """Whether a node that was just marked needs no other change before its drain begins."""
        return not self._off_balancers or exclude_change(node) is None

    async def begin_with_marks(
        self, node_state: NodeState, marks: NewMarks, writable: Still
    ) -> None:
        """Write phase Draining instead of Cordoned, for a node whose very next step is its drain.

        The patch that marked the node came before this compare-and-set, and the node was then as
        decided on: that is what the read of a drain that begins later shows. Before the first
        eviction the node is read in any case. Where ``writable`` returns false, a write that waits
        for its turn is given up: a release waits for it.
        """
        write = self._write_begin(node_state, marks.quarantine, marks.status)
        if not await while_in_force(node_state, write, writable):
            raise Conflict(f"the quarantine of {node_state.node} is decided on anew")
        self._memory(node_state).begun_at = self._acts.clocks.now()
        node_state.work.polled_at = marks.at  # a poll at once would show no more

    async def _begin(self, node_state: NodeState, still: Still) -> float | None:
        """Check that we may drain the node, take it off the load balancers, and write the phase.

        Returns when the node was read (monotonic seconds), or None where it may not be drained. The
        node is read in full before the Quarantine is seen in force: the fence of every patch. Where
        the phase is all that is written, its compare-and-set is that proof, without a read.
        """
        if self._has_begun(node_state):
            return float("-inf") if still() else None
        requested_at = self._acts.clocks.now()
        node = await self._cluster.read_node(node_state.node, background=True)
        node_state.take_node(node)
        node_state.work.polled_at = requested_at  # it shows all that a poll at once would show
        change = exclude_change(node) if node is not None and self._off_balancers else None
        quarantine = node_state.quarantine
        if change is not None or quarantine is None or quarantine.status.phase is Phase.DRAINING:
            quarantine = await self._acts.reread(node_state)
        if node is None or quarantine is None or quarantine.deleting or not still():
            return None
        self.report_phase(node_state)
        if quarantine.status.phase not in MARKED or quarantine.status.phase is Phase.DRAINED:
            return None
        if change is not None:
            over = f"the drain of {node.name} is no longer in force"
            guard = self._acts.guard(node_state, against=lambda: "" if still() else over)
            node = await self._cluster.patch_node(node, change, guard=guard)
            node_state.take_node(node)
        self._memory(node_state).not_ready = NotReady.of(node)
        if quarantine.status.phase is Phase.DRAINING:
            return requested_at
        applied = read_applied(node) or quarantine.status.applied
        await self._write_begin(node_state, quarantine, replace(quarantine.status, applied=applied))
        return requested_at

    def _has_begun(self, node_state: NodeState) -> bool:
        """Whether the begin was just written with the marks; a second run reads the node first."""
        memory, quarantine = self._memories.get(node_state.node), node_state.quarantine
        if memory is None or quarantine is None:
            return False
        age, memory.begun_at = self._acts.clocks.now() - memory.begun_at, float("-inf")
        if age >= NODE_EVERY or self._hook_runner.is_due(quarantine.status):
            return False  # the hook may end jobs: it is called after a read, as evictions are
        return quarantine.status.phase is Phase.DRAINING and quarantine.uid == memory.uid

    async def _write_begin(
        self, node_state: NodeState, quarantine: Quarantine, status: QuarantineStatus
    ) -> bool:
        """Write phase Draining, and the time of its first begin, over ``status``."""
        began = status.drain_started_at or self._acts.clocks.latest()
        draining = replace(
            status,
            phase=Phase.DRAINING,
            message=self._words.draining,
            drain_started_at=began,
            deadline_at=status.deadline_at or began + self._deadline,
        )
        await self._enter_phase(node_state, quarantine, draining, EventKind.DRAINING, "draining")
        # Evictions come after this phase, so none was sent before its first compare-and-set.
        self._memory(node_state).is_new = not status.drain_started_at
        return True

    async def _finish(self, node_state: NodeState, read: _Read, evictions: Evictor) -> None:
        quarantine, plan = node_state.quarantine, read.plan
        if quarantine is None:
            return
        message = self._words.empty
        if plan.stuck:
            message += f"; stuck in Terminating, and not waited for: {', '.join(plan.stuck)}"
            if read.moment.not_ready is not None:
                message += f"; the node is {read.moment.not_ready}"
        status = replace(
            quarantine.status,
            phase=Phase.DRAINED,
            message=message[:1000],
            drained_at=self._acts.clocks.wall(),
            pods_remaining=0,
            pods_read_at=read.at,
            blockers=evictions.blockers(plan),
        )
        # After one read alone, a repair reads the pods once more.
        if evictions.memory.found_empty and not plan.stuck:
            node_state.quarantine_view.empty_at = read.began
        text = "drained" if not plan.stuck else f"drained: {message}"
        await self._enter_phase(node_state, quarantine, status, EventKind.DRAINED, text)

    async def _enter_phase(
        self,
        node_state: NodeState,
        quarantine: Quarantine,
        status: QuarantineStatus,
        kind: EventKind,
        text: str,
    ) -> None:
        """Write a phase and emit its event, also where the answer to the write is lost."""
        self._memory(node_state).unreported_phase = status.phase, kind, text
        await self._acts.write_status(node_state, quarantine, status)
        self.report_phase(node_state)

    def report_phase(self, node_state: NodeState) -> None:
        """Emit the event of a phase that we wrote, once the Quarantine shows that phase."""
        quarantine = node_state.quarantine
        memory = self._memories.get(node_state.node)
        if quarantine is None or quarantine.status.phase is Phase.RELEASING:
            self._memories.pop(node_state.node, None)
            return
        if memory is None or memory.unreported_phase is None:
            return
        phase, kind, text = memory.unreported_phase
        if quarantine.uid != memory.uid or quarantine.status.phase is not phase:
            return
        memory.unreported_phase = None
        self._acts.emit_event(node_state, kind, text)
        if phase is Phase.DRAINED:
            status = quarantine.status
            self._acts.stages.note_drained(status.cordoned_at, status.drained_at)
            self._memories.pop(node_state.node, None)

    # -- progress ------------------------------------------------------------

    async def _progress(self, node_state: NodeState, read: _Read, evictions: Evictor) -> None:
        """Write its progress, if that has changed, at most once in `STATUS_EVERY`."""
        quarantine, plan, moment = node_state.quarantine, read.plan, read.moment
        memory = evictions.memory
        if quarantine is None or self._acts.clocks.now() - memory.written_at < STATUS_EVERY:
            return
        late = moment.now >= moment.deadline
        blockers = evictions.blockers(plan)
        unread = quarantine.status.pods_remaining is None
        if unread and memory.found_empty and not (late or blockers):
            return  # it was empty from the start: the second empty read writes the end
        status = replace(
            quarantine.status,
            message=_late(plan, moment, self._words) if late else self._words.draining,
            deadline_at=moment.deadline,
            overdue_at=(quarantine.status.overdue_at or moment.now) if late else 0.0,
            pods_remaining=plan.remaining,
            pods_read_at=read.at,
            blockers=blockers,
        )
        if not _is_news(status, quarantine.status):
            return
        kind = EventKind.OVERDUE if late and not quarantine.status.overdue_at else None
        named = "; ".join(f"{one.pod}: {one.reason}" for one in blockers[:3])
        text = f"{status.message}. In the way: {named or f'no {self._words.one} by name'}"
        with self._acts.reporting(node_state, kind, text, {"pods": str(plan.remaining)}):
            await self._acts.write_status(node_state, quarantine, status)
        memory.written_at = self._acts.clocks.now()

    async def explain(self, node_state: NodeState) -> None:
        """Write why a drain does not continue now, where its object would not show that."""
        quarantine = node_state.quarantine
        if quarantine is None or not _may_be_explained(node_state, quarantine):
            return
        status = quarantine.status
        if node_state.cluster.node_gone and status.node_uid:  # else it was never there
            status = replace(status, message=self._words.gone, pods_remaining=0, blockers=())
        elif quarantine.spec.requester == OURS and (why := self._left_alone(node_state)):
            status = replace(status, message=self._words.left_alone.format(why=why)[:1000])
        if status == quarantine.status:
            return
        # A mark of another tool, which is no longer valid, keeps the pods: that is reported once.
        stale = STALE in status.message and STALE not in quarantine.status.message
        kind, details = EventKind.HELD, {"limit": "stale-mark", "value": "others"}
        with self._acts.reporting(node_state, kind if stale else None, status.message, details):
            await self._acts.write_status(node_state, quarantine, status)

    def _left_alone(self, node_state: NodeState) -> str:
        if node_state.cluster.maintained:
            return f"another tool or person is at work: {node_state.cluster.maintained}"
        if node_state.cluster.evictions_forbidden:
            return node_state.cluster.evictions_forbidden
        return node_state.cluster.operator_requests.why_capped(self._acts.clocks.earliest())

    async def recheck(self, node_state: NodeState) -> None:
        """Read the pods of a node that was drained, and report where some are there again.

        No pod is evicted any more: a person who repairs the node may have put them there.
        """
        quarantine = node_state.quarantine
        if quarantine is None or quarantine.status.phase is not Phase.DRAINED:
            return
        if quarantine.deleting:  # its release comes first
            return
        began = self._acts.clocks.now()
        memory = DrainMemory(quarantine.uid)
        pods = await self._cluster.pods_on(node_state.node, background=True)
        if any(pod.deleting for pod in pods):
            node = await self._cluster.read_node(node_state.node, cached=True, background=True)
            memory.not_ready = NotReady.of(node)
        read = self._read(node_state, pods, memory, began)
        if read is None or quarantine is not node_state.quarantine:
            return
        before = quarantine.status
        status = replace(
            before,
            message=_after_the_drain(read.plan, before, self._words),
            pods_remaining=read.plan.remaining,
            pods_read_at=read.at,
            blockers=_found_again(read, before),
        )
        if not _is_news(status, before):
            return
        newly = status.pods_remaining and not before.pods_remaining
        kind, details = EventKind.BLOCKED, {"pod": status.blockers[0].pod} if newly else None
        with self._acts.reporting(node_state, kind if newly else None, status.message, details):
            await self._acts.write_status(node_state, quarantine, status)


def _may_be_explained(node_state: NodeState, quarantine: Quarantine) -> bool:
    """Whether a drain is under way, or may not begin because evictions are forbidden. No such write
    holds up a person's release.
    """
    if quarantine.deleting:
        return False
    if quarantine.status.phase is Phase.CORDONED and node_state.evictions_are_forbidden:
        return quarantine.spec.action is Action.DRAIN
    return quarantine.status.phase in _UNDER_WAY


def _after_the_drain(plan: DrainPlan, before: QuarantineStatus, words: ClusterWords) -> str:
    if not plan.remaining:
        return words.empty_again if before.pods_remaining else before.message
    keys = [pod.key for pod in (*plan.evict, *plan.force, *plan.returned, *plan.leaving)]
    keys += [*(plan.kept or ()), *(plan.waiting or ())]
    named = ", ".join(keys[:_MOST_NAMED])
    return words.returned.format(count=words.count(plan.remaining), named=named)


def _found_again(read: _Read, before: QuarantineStatus) -> tuple[Blocker, ...]:
    """The pods that are there after the drain, and those that were stuck at its end."""
    since = {one.pod: one.since for one in before.blockers}
    reasons = {pod.key: _PLACED for pod in (*read.plan.evict, *read.plan.force)}
    reasons |= read.plan.named
    found = [Blocker(key, why, since.get(key, read.at)) for key, why in reasons.items()]
    return tuple(sorted(found, key=lambda one: (one.since, one.pod))[:MOST_BLOCKERS])


def _taint(quarantine: Quarantine) -> Taint:
    """The one that we set on its node."""
    applied, kind = quarantine.status.applied, quarantine.spec.kind
    return applied_taint(applied, kind) if applied is not None else PLAIN.taint.of(kind)


def _is_news(now: QuarantineStatus, before: QuarantineStatus) -> bool:
    """Whether more has changed than the time of the last read, or that is old."""
    if replace(now, pods_read_at=before.pods_read_at) != before:
        return True
    return now.pods_read_at - before.pods_read_at >= UNCHANGED_EVERY


def _late(plan: DrainPlan, moment: DrainMoment, words: ClusterWords) -> str:
    time = span(round(moment.deadline - moment.began))
    late = words.late.format(count=words.count(plan.remaining), span=time)
    return f"{late}{words.late_forced if plan.force else words.late_kept}"
