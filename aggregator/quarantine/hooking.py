"""A site's own step before the first eviction of a node, and after its release.

Evicting a slurmd pod kills its job, so Slurm is told first, say. The hook is asked until it says
that it is done, for a limited time; what came of it stands in the Quarantine. Who dies between the
hook's end and that write asks once more: it must not mind.
"""

import asyncio
import enum
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.case import Case
from aggregator.quarantine.cluster import HookState, HookStatus, Quarantine
from aggregator.quarantine.ledger import Kind

T = TypeVar("T")

_AGAIN_FIRST = 1.0
_AGAIN_MOST = 30.0
#: What has changed in a hook's words is written at most so often (seconds).
_STATUS_EVERY = 10.0
_MOST_TEXT = 500


class Said(enum.Enum):
    """What a hook answered."""

    DONE = "done"
    LATER = "not yet"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """``retry_after``: seconds, where the hook named them."""

    said: Said
    text: str = ""
    retry_after: float | None = None


class Hook(Protocol):
    """A command or a webhook. It raises nothing; cancelled, it leaves nothing running."""

    async def ask(self, values: Mapping[str, str], *, limit: float) -> HookAnswer:
        """Ask once. ``values``: hook, node, reason, action, kind, incident, quarantine (its uid).
        ``limit`` is in seconds.
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


class Hooking:
    """Asks the hooks; at most ``rules.at_once`` of them run at once."""

    def __init__(self, *, acts: Acts, clocks: Clocks, rules: HookRules, rng: random.Random) -> None:
        self._acts = acts
        self._clocks = clocks
        self._rules = rules
        self._rng = rng
        self._lane = asyncio.Semaphore(rules.at_once)

    async def before_evictions(self, case: Case, still: Callable[[], bool]) -> bool:
        """See the hook through. False where the drain no longer stands."""
        hook, quarantine = self._rules.pre_evict, case.patient.quarantine
        if hook is None or quarantine is None:
            return quarantine is not None
        known = quarantine.status.pre_evict
        if known is not None and known.state is not HookState.ASKING:
            return True
        if known is None:
            known = HookStatus(HookState.ASKING, asked_at=round(self._clocks.latest(), 3))
            await self._write(case, known, "drain.pre_evict is asked; nothing is evicted before")
        return await self._until_done(case, hook, known, still)

    async def _until_done(
        self, case: Case, hook: Hook, known: HookStatus, still: Callable[[], bool]
    ) -> bool:
        wait, written_at = _AGAIN_FIRST, self._clocks.now()
        limit = self._rules.pre_evict_timeout
        while still():
            left = max(0.0, known.asked_at + limit - self._clocks.earliest())
            answer = await self._asked(case, hook, left, still)
            if answer is None:
                return False
            if answer.said is Said.DONE:
                await self._end(case, HookState.DONE, known, answer.text, "evicting pods")
                self._note(case, Kind.HOOK, "pre_evict", "drain.pre_evict is done")
                return True
            text = f"{answer.said.value}: {answer.text}".rstrip(": ")
            late = self._clocks.earliest() >= known.asked_at + limit
            if late and self._rules.go_on:
                await self._end(case, HookState.GIVEN_UP, known, text, "evicting pods")
                said = f"drain.pre_evict was not done in {limit:g} s, the drain goes on: {text}"
                self._note(case, Kind.HOOK_FAILED, "pre_evict", said)
                return True
            newly = late and not known.ended_at  # said once: until it is done nothing is evicted
            if newly or self._clocks.now() - written_at >= _STATUS_EVERY:
                over = f" was not done in {limit:g} s; nothing is evicted" if late else ""
                said = f"drain.pre_evict{over or ' is waited for'}: {text}"
                ended_at = known.ended_at or (round(self._clocks.wall(), 3) if late else 0.0)
                known = replace(known, message=text[:_MOST_TEXT], ended_at=ended_at)
                await self._write(case, known, said)
                written_at = self._clocks.now()
                if newly:
                    self._note(case, Kind.HOOK_FAILED, "pre_evict", said)
            pause = max(wait * self._rng.uniform(0.7, 1.0), answer.retry_after or 0.0)
            if late or not self._rules.go_on:
                left = pause
            await self._or_no_more(case, asyncio.sleep(min(pause, max(left, 0.1))), still)
            wait = min(_AGAIN_MOST, wait * 2)
        return False

    async def _asked(
        self, case: Case, hook: Hook, left: float, still: Callable[[], bool]
    ) -> HookAnswer | None:
        """One answer; None where the drain no longer stands, and the hook was ended."""
        quarantine = case.patient.quarantine
        if quarantine is None:
            return None
        limit = self._rules.pre_evict_timeout
        if self._rules.go_on:
            limit = max(1.0, left)

        async def ask() -> HookAnswer:
            async with self._lane:
                if not still():
                    return HookAnswer(Said.LATER)
                return await hook.ask(_values("pre_evict", quarantine), limit=limit)

        return await self._or_no_more(case, ask(), still)

    async def after_release(self, case: Case, quarantine: Quarantine) -> None:
        """The node is given back: let the site do its part. Given up after its time, and said.

        Only where the drain had begun; and it holds up no more than its own node's next quarantine.
        """
        hook, status = self._rules.post_release, quarantine.status
        begun = status.pre_evict is not None if self._rules.pre_evict else status.drain_started_at
        if hook is None or not begun:
            return
        wait, limit = _AGAIN_FIRST, self._rules.post_release_timeout
        ends_at = self._clocks.now() + limit
        while True:
            left = max(1.0, ends_at - self._clocks.now())
            answer = await self._in_time(hook, quarantine, left)
            if answer.said is Said.DONE:
                self._note(case, Kind.HOOK, "post_release", "drain.post_release is done")
                return
            if self._clocks.now() + wait >= ends_at:
                said = f"drain.post_release was not done in {limit:g} s: {answer.text}"
                self._note(case, Kind.HOOK_FAILED, "post_release", said)
                return
            pause = max(wait * self._rng.uniform(0.7, 1.0), answer.retry_after or 0.0)
            await asyncio.sleep(min(pause, ends_at - self._clocks.now()))
            wait = min(_AGAIN_MOST, wait * 2)

    async def _in_time(self, hook: Hook, quarantine: Quarantine, left: float) -> HookAnswer:
        """One answer to ``post_release``. The wait for its turn counts: others may take hours."""
        try:
            async with asyncio.timeout(left):
                async with self._lane:
                    return await hook.ask(_values("post_release", quarantine), limit=left)
        except TimeoutError:
            return HookAnswer(Said.FAILED, "too many hooks are at work (drain.hooks_at_once)")

    @staticmethod
    async def _or_no_more(
        case: Case, what: Coroutine[Any, Any, T], still: Callable[[], bool]
    ) -> T | None:
        """Await it, but no longer than the drain stands: None then, and it is cancelled."""
        task = asyncio.ensure_future(what)
        news = asyncio.ensure_future(case.again.wait())
        try:
            while not task.done():
                await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
                if news.done() and not task.done():
                    if not still():
                        return None  # what was news is for whoever comes next
                    case.again.clear()
                    news = asyncio.ensure_future(case.again.wait())
            return task.result()
        finally:
            for one in (task, news):
                one.cancel()
            await asyncio.gather(task, news, return_exceptions=True)

    async def _end(
        self, case: Case, state: HookState, known: HookStatus, text: str, message: str
    ) -> None:
        ended = replace(known, state=state, ended_at=self._clocks.wall(), message=text[:_MOST_TEXT])
        await self._write(case, ended, message)

    async def _write(self, case: Case, hook: HookStatus, message: str) -> None:
        quarantine = case.patient.quarantine
        if quarantine is None or quarantine.status.pre_evict == hook:
            return
        status = replace(quarantine.status, pre_evict=hook, message=message[:1000])
        await self._acts.write_status(case, quarantine, status)

    def _note(self, case: Case, kind: Kind, hook: str, text: str) -> None:
        self._acts.note(case, kind, text, {"hook": hook})


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
