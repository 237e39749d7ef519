"""Tasks that end with the part that started them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any


def spawn(
    work: Coroutine[Any, Any, None], name: str, ending: AsyncExitStack
) -> "asyncio.Task[None]":
    """Run it until ``ending`` is closed."""
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        await asyncio.wait({task})

    ending.push_async_callback(end)
    return task


async def repeat(every: float, step: Callable[[], Awaitable[object]]) -> None:
    """For ever, with a pause (seconds) before each."""
    while True:
        await asyncio.sleep(every)
        await step()
