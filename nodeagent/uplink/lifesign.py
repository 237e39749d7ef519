"""Whether the other side still lives, where its kernel goes on answering for it.

A process that is stopped (SIGSTOP, a host that gives its machine no time) keeps its connections:
its kernel acknowledges what nobody reads. Only an answer of its own tells. An aggregator that has
others beside it promises one to each heartbeat (`Welcome.answer_within_ms`), and says where it is
reached itself. Who is late may be busy with 10,000 others, and must not be left for that: whether
somebody lives there a new connection shows, whose handshake a kernel can't do, and gRPC's threads
do however busy the rest is.
"""

import asyncio
from collections.abc import Awaitable, Callable

#: A shorter promise than this (seconds) is not taken at its word.
SHORTEST = 1.0
#: Who is late and lives has twice the time, and twice that, up to so many times the promise.
MOST = 8


class LifeSign:
    """Of one stream. Until something was promised nothing is waited for.

    ``lives`` tries whether anybody takes a connection at an address, host:port, in bounded time.
    """

    def __init__(self, lives: Callable[[str], Awaitable[bool]]) -> None:
        self._lives = lives
        self._within = 0.0
        self._address = ""
        self._times = 1
        self._timer: asyncio.TimerHandle | None = None
        self._late = asyncio.Event()

    def promised(self, within: float, address: str) -> None:
        """From the next heartbeat on something comes within so many seconds from whoever is
        reached at ``address``. 0, or no address: nothing is promised (any more).
        """
        self._within = max(SHORTEST, within) if within and address else 0.0
        self._address = address
        if not self._within:
            self.heard()

    def asked(self) -> None:
        """A heartbeat goes out."""
        self._start()

    def sends(self) -> bool:
        """A message goes out that need not be answered; but whoever lives takes it from us in that
        time. Whether that is to be told, as `heard`: else an answer is awaited already.
        """
        return self._start()

    def heard(self) -> None:
        """Something came."""
        self._times = 1
        self._late.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def gone(self) -> str:
        """Wait until it is late, and nobody lives there; what to say of that."""
        while True:
            await self._late.wait()
            lives = await self._lives(self._address)
            if not self._late.is_set():
                continue  # it was we who were stopped, or it came just now
            if not lives:
                return (
                    f"a heartbeat was not answered within {self._within * self._times:g} s, "
                    f"and nobody takes a connection at {self._address}"
                )
            self._late.clear()
            self._times = min(2 * self._times, MOST)
            self._timer = None
            self._start()

    def _start(self) -> bool:
        if self._timer is not None or not self._within:
            return False
        after = self._within * self._times
        self._timer = asyncio.get_running_loop().call_later(after, self._late.set)
        return True
