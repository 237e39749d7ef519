"""In a storm acknowledgements go out behind what acts on the evidence.

No agent waits for one: it keeps what was not acknowledged, and says it again only on its next
stream. To send one costs about as much as to judge what it is for.
"""

import asyncio
from collections import deque
from typing import Protocol

#: Those of as many agents in a second go out at once; one that says much delays no other's.
AT_ONCE = 32
#: The others so much later (seconds): as long as it takes to mark the nodes of a large storm.
LATER = 5.0
#: So many at a time then, a few milliseconds' work, and then a pause (seconds).
_SOME = 16
_PAUSE = 0.005


class Owing(Protocol):
    """Whoever owes an acknowledgement."""

    def pay(self) -> None: ...


class Storm:
    """Of all streams together."""

    def __init__(self) -> None:
        self._until = float("-inf")
        #: Who has paid at once in this second; by id, so that no stream that ends is held here.
        self._paid: set[int] = set()
        #: Who pays when, by the loop's clock, in order.
        self._owing: deque[tuple[float, Owing]] = deque()

    def let(self, owing: Owing) -> None:
        """Pay now, or later."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._until:
            self._until = now + 1.0
            self._paid.clear()
        if id(owing) in self._paid or len(self._paid) < AT_ONCE:
            self._paid.add(id(owing))
            owing.pay()
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
            self._owing.popleft()[1].pay()
        if self._owing:
            loop.call_at(max(self._owing[0][0], now + _PAUSE), self._pay_some)
