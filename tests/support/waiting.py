"""Waiting for a thing instead of for a while, and the clocks that go with it."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aggregator.clock import Clocks

CLOCKS = Clocks(time.monotonic, time.time)


async def until(
    happened: Callable[[], object],
    what: str | Callable[[], object] = "",
    *,
    within: float = 60.0,
) -> None:
    """Wait for it to happen, looking often; an AssertionError that says ``what`` when it does not.

    ``within`` is in seconds of the loop's own clock, which may be a virtual one.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not happened():
        if loop.time() > deadline:
            told = what() if callable(what) else what
            raise AssertionError(f"not within {within:g} s: {told or happened}")
        await asyncio.sleep(0.005)


@contextmanager
def no_collection() -> Iterator[None]:
    """Reference counts alone free memory, as between two collections of the aggregator."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
