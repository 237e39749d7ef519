"""Awaits a coroutine only as long as its purpose is in force."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aggregator.quarantine.state.node import NodeState

#: Whether a step is still the node's next one.
Still = Callable[[], bool]

T = TypeVar("T")


async def while_in_force(node_state: NodeState, what: Awaitable[T], still: Still) -> T | None:
    """Return the result; cancel it and return None as soon as ``still`` returns false.

    ``still`` is called at each change of the node.
    """
    task, work = asyncio.ensure_future(what), node_state.work
    try:
        while not task.done():
            news = work.until_queued()
            both: tuple[asyncio.Future[Any], ...] = (task, news)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if news.done() and not task.done():
                if not still():
                    return None  # the change is left to the next step
                work.take_queued()
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
