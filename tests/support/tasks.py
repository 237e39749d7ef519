"""Tasks that a test has started."""

import asyncio
from typing import Any


async def end_tasks(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel them, and wait for their ends, whatever these are."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
