"""A webhook of ``drain.notice`` that is called again after a failure.

Each attempt carries the same body and the same `X-Sickbay-Delivery`, by which a receiver knows a
call that it has had. An answer ends the attempts: 200 is ready, 202 "the annotation follows".
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.cluster.port import Guard
from aggregator.quarantine.drain.hooks import Hook, HookAnswer, HookResult
from aggregator.runtime.backoff import Backoff

_BACKOFF = Backoff(first=2.0, most=60.0, spread=0.5)
#: Attempts for one notice, the first included.
MOST_CALLS = 8
#: Seconds; a receiver may name a delay, but not one that outlasts the notice.
_MOST_DELAY = 300.0


@dataclass(frozen=True, slots=True)
class RetriedHook:
    """Implements `Hook`. ``limit`` of a call is the time for all attempts."""

    hook: Hook
    rng: random.Random

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + limit
        for calls in range(1, MOST_CALLS + 1):
            left = ends_at - loop.time()
            answer = await self.hook.call(values, limit=max(left, 1.0), guard=guard)
            delay = min(answer.retry_after or 0.0, _MOST_DELAY)
            pause = max(_BACKOFF.pause(calls, self.rng), delay)
            over = calls == MOST_CALLS or loop.time() + pause >= ends_at
            if answer.result is not HookResult.FAILED or over:
                return answer
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns")
