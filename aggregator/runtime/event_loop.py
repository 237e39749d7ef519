"""Runs the aggregator's event loop: uvloop's, whose sockets, TLS and callbacks are compiled."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop


def run(main: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
