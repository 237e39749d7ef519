"""Waiting for a thing instead of for a while, and the clocks that go with it."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aggregator.clock import Clocks
from tests.controlplane import waiting
from tests.support.virtual_time import VirtualTimeLoop

#: Seconds between two looks, at least and at most, and the part of the wait so far that a pause
#: takes. Tests on an API server take larger ones.
_SHORT, LONG, PART = 0.01, 0.1, 0.05
#: The same in virtual time, where hours are waited for.
_VIRTUAL = (0.005, 1.0, 0.02)
#: Seconds that a wait in real time lasts at least before it fails.
PATIENCE = waiting.PATIENCE
CLOCKS = Clocks(time.monotonic, time.time)


async def until(
    happened: Callable[[], object],
    what: str | Callable[[], object] = "",
    *,
    within: float = 60.0,
) -> None:
    """Wait for it to happen, looking often; an AssertionError that says ``what`` when it does not.

    ``within`` is in seconds of the loop's own clock. It is exact in virtual time, and at least
    `PATIENCE` in real time.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    virtual = isinstance(loop, VirtualTimeLoop)
    within = within if virtual else max(within, PATIENCE)
    while not happened():
        waited = loop.time() - began
        if waited > within:
            told = what() if callable(what) else what
            raise AssertionError(f"not within {within:g} s: {told or happened}")
        await asyncio.sleep(pause_after(waited, *(_VIRTUAL if virtual else (_SHORT, LONG, PART))))


def pause_after(waited: float, least: float, most: float, part: float) -> float:
    """Seconds until the next look, after so many seconds of waiting.

    A look at an API server costs it, etcd and the test 4 ms of a processor: one each 5 ms took
    half of a processor for as long as the test waited. In virtual time, looks took more than
    what was waited for.
    """
    return min(max(least, waited * part), most)


def patiently() -> Iterator[int]:
    """For a loop that tries until it breaks or returns: the number of each try, for `PATIENCE`."""
    ends, number = time.monotonic() + PATIENCE, 0
    while time.monotonic() < ends:
        yield number
        number += 1


@contextmanager
def no_collection() -> Iterator[None]:
    """Reference counts alone free memory, as between two collections of the aggregator.

    `gc.get_objects` lists what is made in it, and not the hundreds of thousands of before.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
