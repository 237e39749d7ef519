"""When the interpreter searches for garbage that holds itself: in a quiet second, if there is one.

To search is to visit all that was made since the last search, and nothing else is done meanwhile: a
tenth of a second and more where thousands of agents are attached, as each of their messages makes
some of it anew. Faults, and agents that attach, make hardly any such garbage; what counts as theirs
is what they leave for good. So a storm is left in peace, until it has left very much.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Protocol

#: Objects that came to stay. From here on a quiet second is used.
WORTH_IT = 10_000
#: From here on there is a search, quiet or not: about 1,500 faults, or 3,000 agents that attach.
TOO_MANY = 200_000
#: As many in a second at most, and it is quiet: ten faults are more.
QUIET = 1_000
_LOOK_EVERY_S = 1.0
# Searches among the younger until the older are searched too.
_YOUNG, _MIDDLE = 20, 50


class Collector(Protocol):
    """The module gc."""

    def get_count(self) -> tuple[int, int, int]:
        """What has come to stay, and the searches among the young and the middle-aged since."""
        ...

    def collect(self, generation: int) -> int: ...


def seldom() -> None:
    """Let no search begin by itself before there is very much to be searched.

    Thousands of streams that open at once make garbage that is none: with Python's own thresholds
    the p99 of opening one is three times as long (measured, 10,000 streams).
    """
    gc.set_threshold(TOO_MANY, _YOUNG, _MIDDLE)


async def search_when_quiet(
    collector: Collector = gc, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """For ever. The older are searched as seldom as they would be without this."""
    before = 0
    while True:
        await sleep(_LOOK_EVERY_S)
        young, searches, thorough = collector.get_count()
        if young >= WORTH_IT and abs(young - before) <= QUIET:
            # Among the oldest too: what is due and was not done here is done in the next storm.
            collector.collect(2 if thorough > _MIDDLE else 1 if searches > _YOUNG else 0)
        before = young
