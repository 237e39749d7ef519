"""Whether the other side still lives, where its kernel still answers for it.

A process that is stopped (SIGSTOP, a host that gives its machine no time) keeps its connections:
its kernel acknowledges bytes that no process reads. Only an answer of the process itself shows that
it lives. An aggregator that is one of several promises one to each heartbeat
(`Welcome.answer_within_ms`), and sends its own address. A late aggregator may be busy with 10,000
other agents, and must not be left for that: a new connection shows whether it lives, because a
kernel can't do the handshake, while gRPC's threads do it however busy the rest is.
"""

import asyncio
from collections.abc import Awaitable, Callable

#: A shorter promise than this (seconds) counts as this.
SHORTEST = 1.0
#: A late aggregator that lives gets twice the time, then twice that, up to this multiple of the
#: promise.
MOST = 8
#: Turns of our own event loop before a late aggregator is tried. On a busy machine its answer may
#: have come, and wait for the loop.
TURNS = 10


class PeerLiveness:
    """The liveness of one stream's peer. No answer is awaited until one was promised.

    ``lives`` tries whether a process takes a connection at an address, host:port, in bounded time.
    """

    def __init__(self, lives: Callable[[str], Awaitable[bool]]) -> None:
        self._lives = lives
        self._within = 0.0
        self._address = ""
        self._times = 1
        self._timer: asyncio.TimerHandle | None = None
        self._late = asyncio.Event()

    def promised(self, within: float, address: str) -> None:
        """From the next heartbeat on a message comes within ``within`` seconds from the aggregator
        at ``address``. 0, or no address, means that no answer is promised (any more).
        """
        self._within = max(SHORTEST, within) if within and address else 0.0
        self._address = address
        if not self._within:
            self.on_peer_message()

    def heartbeat_sent(self) -> None:
        """A heartbeat goes out."""
        self._start()

    def sends(self) -> bool:
        """A message goes out that need not be answered; a live peer takes it from us in that time.
        Returns whether the caller must report by `on_peer_message` that it was taken: if not, an
        answer is awaited already.
        """
        return self._start()

    def on_peer_message(self) -> None:
        """A message came."""
        self._times = 1
        self._late.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def gone(self) -> str:
        """Wait until the answer is late and no process lives there; the reason, for people."""
        while True:
            await self._late.wait()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if not self._late.is_set():
                continue
            lives = await self._lives(self._address)
            if not self._late.is_set():
                continue  # we were stopped ourselves, or it came just now
            if not lives:
                return (
                    f"a heartbeat was not answered within {self._within * self._times:g} s, "
                    f"and no process takes a connection at {self._address}"
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
