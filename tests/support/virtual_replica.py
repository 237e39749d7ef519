"""A replica in virtual time: hours pass in milliseconds, with every timer and round in between."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.present import of_type
from tests.support.replica import Turned
from tests.support.virtual_time import VirtualTimeLoop


class LoopClock(Turned):
    """A clock that no test turns: this loop's own, also for code outside of it."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def __call__(self) -> float:
        return self._loop._now


#: Between two looks, in a long wait: a round of a replica.
_LONGEST_PAUSE = 5.0


@dataclass
class Running(Turned):
    """The loop's own (virtual) time, on both clocks; ``time`` is how far it is set ahead."""

    time: float = 0.0
    _loop: VirtualTimeLoop | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(self) -> float:
        """A controller reads it a dozen times in each round: the loop is looked up once."""
        loop = self._loop
        if loop is None:
            running = of_type(asyncio.get_running_loop(), VirtualTimeLoop)
            loop = self._loop = running
        return loop._now + self.time


async def later(seconds: float) -> None:
    """Let so much time pass."""
    await asyncio.sleep(seconds)


async def soon(what: Callable[[], object], *, within: float = 1500.0) -> None:
    """Wait in virtual time: longer than the longest round, and than the time of a rule."""
    for _ in range(20):  # most things need no time at all
        if what():
            return
        await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(within):
        while not what():  # noqa: ASYNC110 - in virtual time to poll costs little
            await asyncio.sleep(min(max(1.0, (loop.time() - began) / 50), _LONGEST_PAUSE))
