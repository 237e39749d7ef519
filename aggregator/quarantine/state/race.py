"""Awaits a coroutine only as long as its purpose is in force."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from aggregator.cluster.port import ClusterError
from aggregator.quarantine.state.node import NodeState

#: Whether a step is still the node's next one.
Still = Callable[[], bool]

T = TypeVar("T")


class NodeReader(Protocol):
    """`NodeActions`, as far as it is used here."""

    async def read_node(self, node_state: NodeState) -> None:
        """Read the node. Raises `ClusterError`."""


async def while_in_force(
    node_state: NodeState, what: Awaitable[T], still: Still, reader: NodeReader | None = None
) -> T | None:
    """Return the result; cancel it and return None as soon as ``still`` returns false.

    ``still`` is called at each change of the node. ``reader`` reads the node before that, where an
    event only hints at a change of it; else the read waits for the result.
    """
    task, work = asyncio.ensure_future(what), node_state.work
    try:
        while not task.done():
            news = work.until_queued()
            both: tuple[asyncio.Future[Any], ...] = (task, news)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if reader is not None and work.needs_read and not task.done():
                with contextlib.suppress(ClusterError):  # the next step reads it again
                    await reader.read_node(node_state)
            if news.done() and not task.done():
                if not still():
                    return None  # the change is left to the next step
                work.take_queued()
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
