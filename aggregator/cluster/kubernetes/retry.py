"""Retries a read whose answer was lost: a step, and a view of the cluster, need many reads."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aggregator.cluster.port import Unreachable

T = TypeVar("T")

TRIES = 3
_PAUSE_S = (0.05, 0.3)


async def retry_idempotent(
    request: Callable[[], Awaitable[T]], *, rng: random.Random, quick: float
) -> T:
    """Return the answer of ``request``, which must be read-only; sent at most `TRIES` times.

    No retry where the server itself requested a pause, nor where a try took longer than ``quick``
    (seconds) to fail: that is an outage, and not one lost answer. Raises what the last try raises.
    """
    for _ in range(TRIES - 1):
        began = time.monotonic()
        try:
            return await request()
        except Unreachable as error:
            if error.retry_after is not None or time.monotonic() - began > quick:
                raise
        await asyncio.sleep(rng.uniform(*_PAUSE_S))
    return await request()
