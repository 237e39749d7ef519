"""A webhook's receiver: a real HTTP server on loopback that answers as a test wants."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from typing import Any, Self

from aiohttp import web

from aggregator.alerts.receivers.webhook import WebhookOptions
from aggregator.alerts.settings import AlertSettings, ReceiverConfig, RouteConfig
from aggregator.events import EventKind

Answer = Callable[["Received"], Awaitable[web.StreamResponse] | web.StreamResponse]


@dataclass
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def ids(self) -> list[str]:
        return [alert["id"] for alert in self.json["alerts"]]

    @property
    def nodes(self) -> list[str]:
        return [node for alert in self.json["alerts"] for node in alert["nodes"]]


@dataclass(frozen=True)
class Hook:
    """A webhook of a configuration, with a route of its own."""

    url: str
    secret_file: Path
    kinds: tuple[EventKind, ...] | None = None
    timeout: float = 10.0
    name: str = "hook"


def webhook_settings(*hooks: Hook) -> AlertSettings:
    return AlertSettings(
        receivers=tuple(
            ReceiverConfig(
                one.name, webhook=WebhookOptions(one.url, one.secret_file), timeout=one.timeout
            )
            for one in hooks
        ),
        routes=tuple(RouteConfig(one.kinds, name=one.name, receiver=one.name) for one in hooks),
    )


def taken(_: Received) -> web.Response:
    return web.Response(status=204)


def status(code: int, **headers: str) -> Answer:
    """Always this status; underscores in header names are dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: web.Response(status=code, headers=named, text="the receiver's own words")


async def hang(_: Received) -> web.Response:
    await asyncio.sleep(3600)
    return web.Response()


@dataclass
class Receiver:
    """``requests`` holds all that came. ``answers`` are used up first, then ``answer`` for ever."""

    answer: Answer = taken
    answers: list[Answer] = field(default_factory=list)
    requests: list[Received] = field(default_factory=list)
    port: int = 0
    tls: SSLContext | None = None
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def url(self, path: str = "/hook") -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}{path}"

    async def _take(self, request: web.Request) -> web.StreamResponse:
        received = Received(
            request.path,
            dict(request.headers),
            await request.read(),
            asyncio.get_running_loop().time(),
        )
        self.requests.append(received)
        answer = (self.answers.pop(0) if self.answers else self.answer)(received)
        return answer if isinstance(answer, web.StreamResponse) else await answer
