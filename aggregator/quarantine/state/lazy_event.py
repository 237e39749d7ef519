"""Signals a change of a node to the one task that works on it."""

import asyncio


class LazyEvent:
    """An `asyncio.Event` that is allocated only when a task waits for it.

    An event has a deque, of 800 bytes in all: too much for each of 10,000 nodes, of which a dozen
    are ever waited for.
    """

    __slots__ = ("_event", "_told")

    def __init__(self) -> None:
        self._told = False
        self._event: asyncio.Event | None = None

    def is_set(self) -> bool:
        return self._told

    def set(self) -> None:
        self._told = True
        if self._event is not None:
            self._event.set()

    def clear(self) -> None:
        self._told = False
        if self._event is not None:
            self._event.clear()

    async def wait(self) -> None:
        """Return once it is set; at once where it is."""
        if self._told:
            return
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()
