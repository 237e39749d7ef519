"""A site's own step before the first eviction of a node, and after its release.

For example, evicting a slurmd pod kills its job, so the hook reports it to Slurm first. The hook is
called until it reports that it is done, for a limited time; its result is in the Quarantine. A
process that dies between the hook's end and that write calls it once more after its restart: the
hook must be idempotent.
"""

import asyncio
import enum
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from aggregator.cluster.port import (
    Guard,
    HookState,
    HookStatus,
    Quarantine,
    QuarantineStatus,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still, while_in_force
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.recent import Recent

_BACKOFF = Backoff(first=1.0, most=30.0, spread=0.3)
#: Changed output of a hook is written at most this often (seconds).
_STATUS_EVERY = 10.0
_MOST_TEXT = 500
_MOST_UNWRITTEN = 1000


class HookResult(enum.Enum):
    """The answer of a hook."""

    DONE = "done"
    LATER = "not yet"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """``retry_after``: seconds, where the hook named them."""

    result: HookResult
    text: str = ""
    retry_after: float | None = None


class Hook(Protocol):
    """A command or a webhook. It never raises; cancelled, it leaves no process running."""

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        """Call it once, after ``guard``; where that refuses, the answer is LATER. ``values``: hook,
        node, reason, action, kind, incident, quarantine (its uid). ``limit`` is in seconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class HookRules:
    """Timeouts in seconds. ``go_on``: evict although ``pre_evict`` was not done in its time."""

    pre_evict: Hook | None = None
    pre_evict_timeout: float = 600.0
    go_on: bool = False
    post_release: Hook | None = None
    post_release_timeout: float = 60.0
    at_once: int = 8


class HookRunner:
    """Calls the hooks; at most ``rules.at_once`` of each kind run at once: those of drains, which
    may take hours, hold up none of a release.
    """

    def __init__(self, *, acts: NodeActions, rules: HookRules, rng: random.Random) -> None:
        self._acts = acts
        self._rules = rules
        self._rng = rng
        self._pre_evict_lane = asyncio.Semaphore(rules.at_once)
        self._post_release_lane = asyncio.Semaphore(rules.at_once)
        #: Per node, the end of ``pre_evict`` that is still to be written.
        self._unwritten: Recent[str, HookStatus] = Recent(_MOST_UNWRITTEN)

    def is_due(self, status: QuarantineStatus) -> bool:
        """Whether the hook before the evictions has to be called (again)."""
        known = status.pre_evict
        unfinished = known is None or known.state is HookState.RUNNING
        return self._rules.pre_evict is not None and unfinished

    async def before_evictions(self, node_state: NodeState, still: Still) -> bool:
        """Call the hook until it has ended. False where the drain is no longer in force."""
        hook, quarantine = self._rules.pre_evict, node_state.quarantine
        if hook is None or quarantine is None or not self.is_due(quarantine.status):
            return quarantine is not None
        known = quarantine.status.pre_evict
        if known is None:
            known = HookStatus(HookState.RUNNING, started_at=round(self._acts.clocks.latest(), 3))
            message = "drain.pre_evict is called; the drain waits for it"
            await self._write(node_state, known, message)
        ended = self._unwritten.get(node_state.node)
        if ended is not None and ended.started_at == known.started_at:
            return await self._end(node_state, ended)
        return await self._until_done(node_state, hook, known, still)

    async def _until_done(
        self, node_state: NodeState, hook: Hook, known: HookStatus, still: Still
    ) -> bool:
        calls, written_at = 0, self._acts.clocks.now()
        limit = self._rules.pre_evict_timeout
        while still():
            left = max(0.0, known.started_at + limit - self._acts.clocks.earliest())
            answer = await self._call_once(node_state, hook, left, still)
            if answer is None:
                return False
            if answer.result is HookResult.DONE:
                ended = replace(known, state=HookState.DONE, message=answer.text[:_MOST_TEXT])
                return await self._end(node_state, ended)
            if not still():
                return False  # the call may have been refused: the next controller calls it
            text = f"{answer.result.value}: {answer.text}".rstrip(": ")
            late = self._acts.clocks.earliest() >= known.started_at + limit
            if late and self._rules.go_on:
                ended = replace(known, state=HookState.GIVEN_UP, message=text[:_MOST_TEXT])
                return await self._end(node_state, ended)
            newly = late and not known.ended_at  # reported once: until it is done no pod is evicted
            if newly or self._acts.clocks.now() - written_at >= _STATUS_EVERY:
                over = f" was not done in {limit:g} s; the drain waits" if late else ""
                message_text = f"drain.pre_evict{over or ' is waited for'}: {text}"
                ended_at = known.ended_at or (round(self._acts.clocks.wall(), 3) if late else 0.0)
                known = replace(known, message=text[:_MOST_TEXT], ended_at=ended_at)
                kind, details = EventKind.HOOK_FAILED if newly else None, {"hook": "pre_evict"}
                with self._acts.reporting(node_state, kind, message_text, details):
                    await self._write(node_state, known, message_text)
                written_at = self._acts.clocks.now()
            # Whether it was done in its time is reported in time. Its own time bounds a late one.
            calls, named = calls + 1, min(answer.retry_after or 0.0, limit if late else left)
            pause = max(_BACKOFF.pause(calls, self._rng), named)
            if late or not self._rules.go_on:
                left = pause
            await while_in_force(node_state, asyncio.sleep(min(pause, max(left, 0.1))), still)
        return False

    async def _call_once(
        self, node_state: NodeState, hook: Hook, left: float, still: Still
    ) -> HookAnswer | None:
        """One answer, or None where the drain is no longer in force, and the hook was ended."""
        quarantine = node_state.quarantine
        if quarantine is None:
            return None
        limit = self._rules.pre_evict_timeout
        if self._rules.go_on:
            limit = max(1.0, left)

        def over() -> str:
            return "" if still() else f"the drain of {node_state.node} is over"

        fresh = self._acts.fresh_quarantine(quarantine)
        guard = self._acts.guard(node_state, against=over, fresh=fresh)

        async def call() -> HookAnswer:
            async with self._pre_evict_lane:
                if not still():
                    return HookAnswer(HookResult.LATER)
                return await hook.call(_values("pre_evict", quarantine), limit=limit, guard=guard)

        return await while_in_force(node_state, call(), still)

    async def after_release(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """The node is released: run the site's hook. After its time this is given up, and reported.

        Only where the drain had begun; it holds up only its own node's next quarantine.
        """
        hook, status = self._rules.post_release, quarantine.status
        begun = status.drain_started_at
        if self._rules.pre_evict is not None:  # it comes first, unless a restart has brought it
            begun = status.drained_at or status.pre_evict is not None
        if hook is None or not begun:
            return
        calls, limit = 0, self._rules.post_release_timeout
        ends_at = self._acts.clocks.now() + limit
        while True:
            await self._acts.place()  # the next controller may have marked the node again
            left = max(1.0, ends_at - self._acts.clocks.now())
            answer = await self._in_time(hook, quarantine, left)
            if answer.result is HookResult.DONE:
                self._note(node_state, EventKind.HOOK, "post_release", "drain.post_release is done")
                return
            await self._acts.place()  # the call may have been refused: the next controller calls it
            calls += 1
            if self._acts.clocks.now() + _BACKOFF.longest(calls) >= ends_at:
                text = f"drain.post_release was not done in {limit:g} s: {answer.text}"
                self._note(node_state, EventKind.HOOK_FAILED, "post_release", text)
                return
            pause = max(_BACKOFF.pause(calls, self._rng), answer.retry_after or 0.0)
            await asyncio.sleep(min(pause, ends_at - self._acts.clocks.now()))

    async def _in_time(self, hook: Hook, quarantine: Quarantine, left: float) -> HookAnswer:
        """One answer to ``post_release``. The wait for its turn counts: others may take hours."""
        try:
            async with asyncio.timeout(left):
                async with self._post_release_lane:
                    # It reports a release, which is done: no stop prevents that.
                    values = _values("post_release", quarantine)
                    return await hook.call(values, limit=left, guard=self._acts.place)
        except TimeoutError:
            return HookAnswer(HookResult.FAILED, "too many hooks are at work (drain.hooks_at_once)")

    async def _end(self, node_state: NodeState, ended: HookStatus) -> bool:
        """Write and report it. Where the write fails, it is made again without a further call."""
        self._unwritten[node_state.node] = ended
        ended = replace(ended, ended_at=self._acts.clocks.wall())
        kind, text = EventKind.HOOK, "drain.pre_evict is done"
        if ended.state is not HookState.DONE:
            kind, limit = EventKind.HOOK_FAILED, self._rules.pre_evict_timeout
            over = f"drain.pre_evict was not done in {limit:g} s"
            text = f"{over}, the drain goes on: {ended.message}"
        with self._acts.reporting(node_state, kind, text, {"hook": "pre_evict"}):
            await self._write(node_state, ended, self._acts.words.draining)
        del self._unwritten[node_state.node]
        return True

    async def _write(self, node_state: NodeState, hook: HookStatus, message: str) -> None:
        quarantine = node_state.quarantine
        if quarantine is None or quarantine.status.pre_evict == hook:
            return
        status = replace(quarantine.status, pre_evict=hook, message=message[:1000])
        await self._acts.write_status(node_state, quarantine, status)

    def _note(self, node_state: NodeState, kind: EventKind, hook: str, text: str) -> None:
        self._acts.emit_event(node_state, kind, text, {"hook": hook})


def _values(hook: str, quarantine: Quarantine) -> dict[str, str]:
    spec = quarantine.spec
    return {
        "hook": hook,
        "node": quarantine.node,
        "reason": spec.reason,
        "action": spec.action.value,
        "kind": spec.kind,
        "incident": spec.incident,
        "quarantine": quarantine.uid,
    }
