"""Awaits a coroutine only as long as its purpose is in force."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aggregator.quarantine.state.node import NodeState

#: Whether a step is still the node's next one.
Still = Callable[[], bool]

T = TypeVar("T")


async def while_in_force(
    node_state: NodeState, what: Coroutine[Any, Any, T], still: Still
) -> T | None:
    """Return the coroutine's result; cancel it and return None as soon as ``still`` returns false.

    ``still`` is called at each change of the node.
    """
    task = asyncio.ensure_future(what)
    news = asyncio.ensure_future(node_state.work.wait_queued())
    try:
        while not task.done():
            await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
            if news.done() and not task.done():
                if not still():
                    return None  # the change is left to the next step
                node_state.work.take_queued()
                news = asyncio.ensure_future(node_state.work.wait_queued())
        return task.result()
    finally:
        for one in (task, news):
            one.cancel()
        await asyncio.gather(task, news, return_exceptions=True)
