"""Several tasks that are meant to run for ever: the end of one ends them all."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

#: Seconds after an unexpected error, until the work begins anew.
AGAIN_AFTER = 10.0


async def run_until_first_exit(**works: Coroutine[Any, Any, None]) -> None:
    """Run all, as tasks of these names, until the first ends; raises its error.

    No TaskGroup: Python 3.11's loses a cancellation that comes just when a task of it fails.
    """
    tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()


async def repeat(every: float, step: Callable[[], Awaitable[object]]) -> None:
    """For ever, with a pause (seconds) before each."""
    while True:
        await asyncio.sleep(every)
        await step()


async def keep_up(
    what: str, work: Callable[[], Awaitable[None]], note: Callable[[str], object] = str
) -> None:
    """Until it ends in order. After an unexpected error, which is logged, it begins anew: no bug in
    a report must end the controller. ``note`` takes the problem until then, and "" after it.
    """
    while True:
        note("")
        try:
            return await work()
        except Exception:
            log.exception("%s met an unexpected error, and begins anew", what)
            note(f"{what} has failed; report it")
            await asyncio.sleep(AGAIN_AFTER)


async def once(work: Awaitable[object]) -> None:
    """Do it, and wait for ever: its end must not be that of the others."""
    await work
    await asyncio.Event().wait()
