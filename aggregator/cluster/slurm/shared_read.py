"""Reads of single nodes that share one request: a thousand faults are no thousand lists."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)

Read = Callable[[Collection[str]], Awaitable[list[T]]]


class SharedRead(Generic[T]):
    """``read`` is called with all names that were wanted while the read before was under way.

    So no answer is older than its question, and at most one read runs.
    """

    def __init__(self, read: Read[T]) -> None:
        self._read = read
        self._wanted: dict[str, list[asyncio.Future[T | None]]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def get(self, name: str) -> T | None:
        """The node, or None where it is not there. Raises what ``read`` raises."""
        future: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._wanted.setdefault(name, []).append(future)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._answer_all())
        return await future

    async def _answer_all(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            try:
                found = {one.name: one for one in await self._read(wanted)}
            except Exception as error:  # noqa: BLE001 - each that waits raises it
                for future in (one for waiting in wanted.values() for one in waiting):
                    if not future.done():
                        future.set_exception(error)
                continue
            for name, waiting in wanted.items():
                for future in waiting:
                    if not future.done():
                        future.set_result(found.get(name))
