"""The end of a connection of `sickbay` through the API server."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from aggregator.cli.kube_session import KubeSession
from aggregator.cli.tunnel import Tunnel
from tests.support.tasks import end_tasks


class Wire:
    """A pod's connection. As with aiohttp, a close ends the reading first, and a close that is
    cancelled after that has closed the connection.
    """

    trouble = ""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self.closed = False

    async def send(self, data: bytes) -> None:
        """Nothing is sent here."""

    async def received(self) -> AsyncIterator[bytes]:
        await self.ending.wait()
        for data in tuple[bytes, ...]():
            yield data

    async def close(self) -> None:
        if not self.ending.is_set():
            self.ending.set()
            await asyncio.sleep(0)
        try:
            await asyncio.sleep(0)
        finally:
            self.closed = True


@pytest.mark.parametrize("steps", range(1, 16))
async def test_a_session_that_closes_at_any_step_leaves_no_connection_open(steps: int) -> None:
    ours, theirs = socket.socketpair()
    wire, tunnel = Wire(), Tunnel(cast("KubeSession", None), "sickbay")
    carrying = asyncio.create_task(tunnel._carry(cast("Any", wire), theirs))
    for step in range(steps):
        if step == 5:
            ours.close()  # the command has its answer
        await asyncio.sleep(0)
    await end_tasks(carrying)
    ours.close()
    assert wire.closed
