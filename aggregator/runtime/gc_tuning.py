"""When the interpreter collects cyclic garbage: in a quiet second, if there is one.

A collection visits all objects created since the last one, and all other work waits meanwhile: a
tenth of a second and more where thousands of agents are attached, as each of their messages creates
some of them again. Faults, and agents that attach, make hardly any such garbage; their objects
count because they stay. So a storm runs without collections, until very much has piled up.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Protocol

#: Objects that stayed. From here on a quiet second is used.
WORTH_IT = 10_000
#: From here on there is a collection, quiet or not: about 1,500 faults, or 3,000 agents that
#: attach.
TOO_MANY = 200_000
#: A second with at most this number of new objects is quiet: ten faults are more.
QUIET = 1_000
_POLL_EVERY_S = 1.0
# Collections of a younger generation until the older one is collected too.
_YOUNG, _MIDDLE = 20, 50


class Collector(Protocol):
    """The module gc."""

    def get_count(self) -> tuple[int, int, int]:
        """The number of objects that stayed, and of collections of the young and the middle-aged
        since.
        """
        ...

    def collect(self, generation: int) -> int: ...


def raise_thresholds() -> None:
    """Let no collection begin by itself before there is very much to collect.

    Thousands of streams that open at once create many objects that are no garbage: with Python's
    own thresholds the p99 of opening one is three times as long (measured, 10,000 streams).
    """
    gc.set_threshold(TOO_MANY, _YOUNG, _MIDDLE)


async def collect_when_idle(
    collector: Collector = gc, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Collect for ever. The older generations are collected as seldom as they would be without
    this.
    """
    before = 0
    while True:
        await sleep(_POLL_EVERY_S)
        young, searches, thorough = collector.get_count()
        if young >= WORTH_IT and abs(young - before) <= QUIET:
            # The oldest too: a due collection that is not done here would happen in the next storm.
            collector.collect(2 if thorough > _MIDDLE else 1 if searches > _YOUNG else 0)
        before = young
