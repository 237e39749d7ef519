"""Waiting for a thing instead of for a while, and the clocks that go with it."""

import asyncio
import time
from collections.abc import Callable

from aggregator.quarantine.acts import Clocks

CLOCKS = Clocks(time.monotonic, time.time)


async def until(
    what: Callable[[], object], *, within: float = 10.0, hint: Callable[[], object] = str
) -> None:
    """Wait for ``what`` to be true, looking often; fail with ``hint`` when it doesn't come."""
    deadline = time.monotonic() + within
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {hint()}")
        await asyncio.sleep(0.005)
