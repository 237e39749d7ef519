"""In a storm acknowledgements are sent after the code that acts on the evidence has run.

No agent waits for one: it keeps unacknowledged evidence, and sends it again only on its next
stream. Sending one costs about as much as evaluating the evidence that it is for.
"""

import asyncio
from collections import deque
from typing import Protocol

#: The acknowledgements of this number of agents in a second are sent at once; an agent that sends a
#: lot delays no other's.
AT_ONCE = 32
#: The others are sent this much later (seconds): a large storm's nodes are marked by then, and most
#: acknowledgements have gone with the answer to a heartbeat.
LATER = 10.0
#: Then this number at a time, a few milliseconds' work, and then a pause (seconds).
_SOME = 16
_PAUSE = 0.005


class PendingAck(Protocol):
    """A stream with an acknowledgement to send."""

    def flush_ack(self) -> None: ...


class AckPacer:
    """Paces the acknowledgements of all streams together."""

    def __init__(self) -> None:
        self._until = float("-inf")
        #: Streams acknowledged at once in this second; by id, so that no ended stream is held here.
        self._paid: set[int] = set()
        #: The streams to acknowledge, and when, by the loop's clock, in order.
        self._owing: deque[tuple[float, PendingAck]] = deque()

    def schedule_ack(self, owing: PendingAck) -> None:
        """Acknowledge now, or later."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._until:
            self._until = now + 1.0
            self._paid.clear()
        if id(owing) in self._paid or len(self._paid) < AT_ONCE:
            self._paid.add(id(owing))
            owing.flush_ack()
            return
        if not self._owing:
            loop.call_at(now + LATER, self._pay_some)
        self._owing.append((now + LATER, owing))

    def _pay_some(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for _ in range(_SOME):
            if not self._owing or self._owing[0][0] > now:
                break
            self._owing.popleft()[1].flush_ack()
        if self._owing:
            loop.call_at(max(self._owing[0][0], now + _PAUSE), self._pay_some)
