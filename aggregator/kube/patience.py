"""Asking again, where one answer is lost: a step, and a view of the cluster, are made of many."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aggregator.quarantine.cluster import Unreachable

T = TypeVar("T")

TRIES = 3
_PAUSE_S = (0.05, 0.3)


async def patiently(ask: Callable[[], Awaitable[T]], *, rng: random.Random, quick: float) -> T:
    """What ``ask`` gives, which must change nothing; asked at most `TRIES` times.

    Not where the server asked for patience itself, and not where a try took longer than ``quick``
    (seconds) to fail: that is an outage, and no single loss. Raises what the last try raises.
    """
    for _ in range(TRIES - 1):
        began = time.monotonic()
        try:
            return await ask()
        except Unreachable as error:
            if error.retry_after is not None or time.monotonic() - began > quick:
                raise
        await asyncio.sleep(rng.uniform(*_PAUSE_S))
    return await ask()
