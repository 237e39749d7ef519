"""A way to the API server on which answers get lost: 500s, 429s, connections that are reset.

One request may also be held on the way, for as long as a test wants, and then go on.

Stands between the aggregator and the real server, over TLS, with the aggregator's own token. It
runs on a loop of its own, so that tests may block.
"""

import asyncio
import base64
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web

from tests.controlplane.plane import ControlPlane
from tests.support.pki import Authority
from tests.support.tasks import end_tasks
from tests.support.text_files import text_file

_HOP = {"connection", "content-length", "transfer-encoding", "host", "keep-alive"}


@dataclass
class ApiFaults:
    """How often each thing happens to a request (0 to 1), and how long a watch lives (seconds)."""

    fails: float = 0.0
    resets: float = 0.0
    loses_answers: float = 0.0
    busy: float = 0.0
    retry_after: int = 1
    watches_live: float = 1e9


@dataclass
class Happened:
    """One fault and its request: the moment (monotonic), the fault, and the request."""

    at: float
    what: str
    request: str
    status: int = 0


class Hold:
    """The first request of this kind is held before it reaches the server, until `let_go`.

    ``then`` is called when it has come, from the proxy's thread.
    """

    def __init__(self, method: str, ends: str, then: Callable[[], object]) -> None:
        self._method, self._ends, self._then = method, ends, then
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone_on = asyncio.Event()
        self.happened: Happened | None = None

    def wants(self, happened: Happened, request: web.BaseRequest) -> bool:
        matches = request.method == self._method and request.path.endswith(self._ends)
        if self.happened is not None or not matches:
            return False
        self.happened = happened
        return True

    async def keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._then()
        await self._gone_on.wait()

    def let_go(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._gone_on.set)


@dataclass
class FaultyProxy:
    """``faults`` may change while it runs; ``log`` has every request in the order they came."""

    plane: ControlPlane
    folder: Path
    faults: ApiFaults
    log: list[Happened] = field(default_factory=list)
    port: int = 0
    hold: Hold | None = None
    #: The next request whose path ends so is answered 429, with ``faults.retry_after``.
    busy_once: str = ""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._rng = random.Random(7)
        self._authority = Authority.create(self.folder / "pki")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(300)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(300)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(300)
        self._loop.close()

    def kubeconfig(self, direct: Path) -> Path:
        """A kubeconfig with the identity of ``direct``, through this proxy."""
        config = json.loads(direct.read_text())
        authority = base64.b64encode(self._authority.certificate.read_bytes()).decode()
        cluster = config["clusters"][0]["cluster"]
        cluster["server"] = f"https://127.0.0.1:{self.port}"
        cluster["certificate-authority-data"] = authority
        path = text_file(self.folder / "kubeconfig", json.dumps(config))
        path.chmod(0o600)
        return path

    def _run(self) -> None:
        self._loop.run_forever()
        # It went on until it was stopped, and a handshake's end makes a task and a transport.
        self._loop.run_until_complete(self._end_connections())

    async def _start(self) -> None:
        pair = self._authority.server("proxy", ["127.0.0.1", "localhost"])
        inward = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        inward.load_cert_chain(pair.certificate, pair.key)
        outward = ssl.create_default_context(cafile=str(self.plane.ca_file))
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=outward, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(web.Server(self._pass_on), shutdown_timeout=1)
        await self._runner.setup()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        await web.SockSite(self._runner, self._listening, ssl_context=inward).start()

    async def _stop(self) -> None:
        # asyncio leaves the socket of a connection open whose task begins after the server's end:
        # those that were just accepted begin before.
        self._loop.remove_reader(self._listening)
        await asyncio.sleep(0)
        for site in list(self._runner.sites):
            await site.stop()
        # TLS would wait for the other end, and the runner does not know those in a handshake.
        self._abort_connections()
        await self._runner.cleanup()
        await self._client.close()

    async def _end_connections(self) -> None:
        """Streams whose other end was reset, or stopped, and what was accepted at the last moment.

        Until none is left: a task that was never begun would leave its socket open.
        """
        await asyncio.sleep(0)
        me = asyncio.current_task()
        while (left := asyncio.all_tasks() - {me}) or self._connections():
            await end_tasks(*left)
            self._abort_connections()
            await asyncio.sleep(0)

    def _connections(self) -> list[Any]:
        known = list(self._loop._transports.values())  # type: ignore[attr-defined]
        return [one for one in known if one._sock is not None]

    def _abort_connections(self) -> None:
        for transport in self._connections():
            transport.abort()

    async def _pass_on(self, request: web.BaseRequest) -> web.StreamResponse:
        watching = "watch" in request.query
        what = "watched" if watching else self._fate()
        if self.busy_once and request.path.endswith(self.busy_once):
            what, self.busy_once = "busy", ""
        happened = Happened(time.monotonic(), what, f"{request.method} {request.path}")
        self.log.append(happened)
        if what == "reset":
            return self._reset(request)
        if what == "failed":
            return web.json_response({"kind": "Status", "message": "made to fail"}, status=500)
        if what == "busy":
            wait = {"Retry-After": str(self.faults.retry_after)}
            said = {"kind": "Status", "message": "too many requests", "code": 429}
            return web.json_response(said, status=429, headers=wait)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        url = f"{self.plane.url}{request.path_qs}"
        body = await request.read()
        if self.hold is not None and self.hold.wants(happened, request):
            await self.hold.keep()
        async with self._client.request(request.method, url, data=body, headers=headers) as answer:
            if watching:
                return await self._stream(request, answer)
            content = await answer.read()
            happened.status = answer.status
            if what == "answer lost":
                return self._reset(request)
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
            return web.Response(body=content, status=answer.status, headers=kept)

    def _fate(self) -> str:
        draw, faults = self._rng.random(), self.faults
        for what, share in (
            ("failed", faults.fails),
            ("reset", faults.resets),
            ("answer lost", faults.loses_answers),
            ("busy", faults.busy),
        ):
            if draw < share:
                return what
            draw -= share
        return "passed"

    async def _stream(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        try:
            async with asyncio.timeout(self.faults.watches_live * self._rng.uniform(0.5, 1.0)):
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        except (TimeoutError, ConnectionError):
            return self._reset(request)
        return response

    @staticmethod
    def _reset(request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=502)
