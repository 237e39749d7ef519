"""Alerts under faults, and messages for a rack that dies. Part of `make bench-page`.

Both go through the real outbox and sender to a real HTTP server on loopback.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable
from functools import partial
from itertools import cycle
from pathlib import Path

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from aggregator.alerts.notifier import Notifier
from aggregator.alerts.receivers.slack import SlackOptions
from aggregator.alerts.routes import NodeContext
from aggregator.alerts.settings import AlertSettings, ReceiverConfig, RouteConfig
from aggregator.alerts.store import FileStore
from aggregator.events import EventKind, Transition
from tests.bench.small import small_or
from tests.support.receiver import Answer, Received, Receiver, hang, status, taken
from tests.support.waiting import CLOCKS, until

#: Shares of the alerts after whose delivery the process is killed with -9, and started again.
_KILLED_AT = small_or((0.5,), (0.2, 0.5, 0.8))
_RACK = 64
#: The rack's five minutes, and the waits of its route, are this many times as fast as in service.
_FASTER = small_or(400.0, 20.0)
_WITHIN = 300.0


async def lost(folder: Path, count: int) -> int:
    """How many of ``count`` alerts a receiver that fails two times in three never takes."""
    secret = folder / "secret"
    secret.write_text("s")
    failing = _FailingReceiver()
    async with Receiver(answer=failing) as receiver:
        for share in (0.0, *_KILLED_AT):
            recorded = 0 if share else count
            process = await _started(folder / "outbox.db", receiver.url(), secret, recorded)
            end = next((one for one in _KILLED_AT if one > share), 1.0)
            try:
                await until(partial(failing.has, count * end), within=_WITHIN)
            except AssertionError:
                break
            finally:
                process.kill()
                await process.wait()
    return count - len(failing.delivered)


class _Cut(web.Response):
    """An answer of which no byte comes: the connection ends."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        assert request.transport is not None
        request.transport.abort()
        return await super().prepare(request)


class _FailingReceiver:
    """An error, a cut connection, an answer after the sender's patience, a refusal for now."""

    def __init__(self) -> None:
        self.delivered: set[str] = set()
        later = status(429, Retry_After="0")
        takes, takes_and_cuts = self._takes, self._takes_and_cuts
        faults: list[Answer] = [status(500), takes, _cuts, takes_and_cuts, later, takes, hang]
        self._answers = cycle([*faults, status(503)])

    def __call__(self, received: Received) -> Awaitable[web.StreamResponse] | web.StreamResponse:
        return next(self._answers)(received)

    def has(self, count: float) -> bool:
        """Whether so many alerts were taken, each counted once."""
        return len(self.delivered) >= count

    def _takes(self, received: Received) -> web.Response:
        self.delivered.update(received.ids)
        return taken(received)

    def _takes_and_cuts(self, received: Received) -> web.Response:
        self._takes(received)
        return _Cut()


def _cuts(_: Received) -> web.Response:
    return _Cut()


async def _started(outbox: Path, url: str, secret: Path, count: int) -> asyncio.subprocess.Process:
    arguments = ("-m", "tests.aggregator.outbox_process", outbox, url, secret, count, "1")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *map(str, arguments), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert (await process.stdout.readline()).strip() == b"kept"
    return process


async def rack_messages(folder: Path) -> int:
    """Messages to a chat about a rack whose agents fall silent, and whose nodes are lost later."""
    names = [f"rack-{number:02}" for number in range(_RACK)]
    context = NodeContext({}, "h100", "r7")
    url_file = folder / "url"
    async with Receiver(answer=lambda _: web.Response(text="ok")) as receiver:
        url_file.write_text(receiver.url())
        settings = AlertSettings(
            receivers=(ReceiverConfig("chat", slack=SlackOptions(url_file)),),
            routes=(
                RouteConfig(
                    name="room",
                    receiver="chat",
                    group_wait=15 / _FASTER,
                    group_interval=60 / _FASTER,
                ),
            ),
        )
        notifier = Notifier(
            FileStore(folder / "rack.db"),
            settings,
            clocks=CLOCKS,
            rng=random.Random(1),
            context=lambda _: context,
        )
        notifier.start()
        for name in names:
            _record(notifier, EventKind.AGENT_SILENT, name)
            await asyncio.sleep(10 / _FASTER / _RACK)
        blamed = {"blamed": "rack", "nodes": ", ".join(names[:10])}
        _record(notifier, EventKind.NETWORK_BLAMED, "", **blamed)
        await asyncio.sleep(300 / _FASTER)
        for name in names:
            _record(notifier, EventKind.NODE_LOST, name)
        await until(lambda: _are_delivered(notifier, 2 * _RACK + 1), within=60)
        await notifier.close()
        return len(receiver.requests)


def _record(notifier: Notifier, kind: EventKind, node: str, **details: str) -> None:
    summary = f"{node}: {kind.value}"
    notifier.record_event(Transition(time.time(), kind, node, summary, "", details))


def _are_delivered(notifier: Notifier, count: int) -> bool:
    """Whether all of them were delivered."""
    return sum(route.delivered for route in notifier.overview().routes) == count
