"""Asking again where one lost answer would cost much: a view of the cluster is made of many."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aggregator.quarantine.cluster import Unreachable

T = TypeVar("T")

TRIES = 3
_PAUSE_S = (0.05, 0.3)
#: An answer that took so long to fail was waited for: that is an outage, and no single loss.
_QUICK_S = 2.0


async def patiently(ask: Callable[[], Awaitable[T]], *, rng: random.Random) -> T:
    """What ``ask`` gives, which must change nothing; asked at most `TRIES` times.

    Not where the server asked for patience itself, and not where it does not answer at all. Raises
    what the last try raises.
    """
    for _ in range(TRIES - 1):
        began = time.monotonic()
        try:
            return await ask()
        except Unreachable as error:
            if error.retry_after is not None or time.monotonic() - began > _QUICK_S:
                raise
        await asyncio.sleep(rng.uniform(*_PAUSE_S))
    return await ask()
