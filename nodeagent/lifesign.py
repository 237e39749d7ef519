"""Whether the other side still lives, where its machine answers for it.

A process that is stopped (SIGSTOP, a host that gives it no time) keeps its connections: its kernel
goes on acknowledging what nobody reads. Only an answer of its own tells. An aggregator that has
others beside it promises one to each heartbeat (`Welcome.answer_within_ms`); who stays away longer
is left for them.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

#: A shorter promise than this (seconds) is not taken at its word.
SHORTEST = 1.0
#: Of the time that was promised, so many seconds come after a first look that found nothing: if it
#: was we who were stopped, the answer lies here and is read meanwhile.
LAST_LOOK = 1.0


class LifeSign:
    """Of one stream. Nothing is promised before `promised`, and then nothing is waited for."""

    def __init__(self) -> None:
        self._within = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()

    def promised(self, within: float) -> None:
        """From the next heartbeat on something comes within so many seconds; 0: not any more."""
        self._within = max(SHORTEST, within) if within else 0.0
        if not within:
            self.heard()

    def asked(self) -> None:
        """A heartbeat goes out."""
        self._start()

    @contextmanager
    def sending(self) -> Iterator[None]:
        """A message that need not be answered; but whoever lives takes it from us in that time."""
        ours = self._start()
        yield
        if ours:
            self.heard()

    def heard(self) -> None:
        """Something came."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def gone(self) -> str:
        """Wait until it has been silent for too long; what to say of that."""
        await self._gone.wait()
        return f"a heartbeat was not answered within {self._within:g} s"

    def _start(self) -> bool:
        if self._timer is not None or not self._within:
            return False
        loop = asyncio.get_running_loop()
        first = max(self._within - LAST_LOOK, self._within / 2)
        self._timer = loop.call_later(first, self._look)
        return True

    def _look(self) -> None:
        left = min(LAST_LOOK, self._within / 2)
        self._timer = asyncio.get_running_loop().call_later(left, self._gone.set)
