"""The web server: routes, headers, errors; started and stopped by the app.

Read only: every route is a GET, and nothing here acts. Whoever may see the page is decided by who
can reach its address: docs/status-page.md.
"""

import asyncio
import contextlib
import logging
import ssl as tls
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from aggregator.ingest.listening import why_not
from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.fleet import Fleet
from aggregator.shards.council import Alone, Shards
from aggregator.web import openapi, shapes, stream
from aggregator.web.api import ENDPOINTS, Endpoint, NotThere, respond
from aggregator.web.assets import Assets
from aggregator.web.courier import Courier, Trust
from aggregator.web.desk import Desk
from aggregator.web.feed import Feed, TooManyStreams
from aggregator.web.history import HistoryReader
from aggregator.web.lookout import Lookout
from aggregator.web.metrics import Scene, ShardScene, registry_of
from aggregator.web.pages import Pages
from aggregator.web.peers import DEADLINE, Peers
from aggregator.web.pulse import Pulse
from aggregator.web.query import BadQuery
from aggregator.web.share import NODE, PART, PAST, Share
from aggregator.web.stats import Stats
from aggregator.web.stories import Stories
from aggregator.web.survey import Findings
from aggregator.web.whole import Own, Owners, Whole

log = logging.getLogger("sickbay.web")

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
#: Requests still under way when the server closes have so long (seconds).
_GRACE = 2.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebListenError(Exception):
    """The page's address can't be listened on; says why and what to do."""

    def __init__(self, address: str) -> None:
        super().__init__(f'can\'t listen on "{address}" (listen.web): {why_not(address)}')


class Web:
    """Page, JSON API, event stream, metrics, probes.

    ``ready`` returns what is not ready, in words; empty: all is. Make it within a running loop.

    With ``shards`` that knows other replicas, all of it shows the whole fleet. ``ca_file`` is who
    signed their pages' certificates (None: the system's authorities); ``history_shared`` says that
    all write one history.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        history: HistoryReader,
        feed: Feed,
        stats: Stats,
        clocks: Clocks,
        version: str,
        ready: Callable[[], list[str]],
        shards: Shards | None = None,
        ca_file: Path | None = None,
        history_shared: bool = False,
    ) -> None:
        """Raises TrustError when ``ca_file`` can't be read."""
        shards = shards or Alone()
        me, owners = shards.council.me, Owners(shards)
        self._own = Lookout(fleet, clocks, Own(fleet, owners))
        self._courier = Courier(Trust(ca_file), deadline=DEADLINE)
        self._peers = Peers(shards, self._courier, clocks, feed, self._own.moment)

        def not_ready() -> list[str]:
            return [*ready(), *unsettled(shards)]

        whole = Whole(fleet, shards, owners, self._peers, not_ready)
        lookout = Lookout(fleet, clocks, whole)
        stories = Stories(me=me, fleet=fleet, lookout=lookout, owners=owners, peers=self._peers)
        self._desk = Desk(
            fleet,
            lookout,
            feed,
            history,
            version,
            not_ready,
            self._peers,
            stories,
            stats.alert_trouble,
            history_shared,
        )
        self._share = Share(me=me, fleet=fleet, owners=owners, lookout=lookout, desk=self._desk)
        assets = Assets()
        self._pages = Pages(self._desk, assets)
        self._pulse = Pulse(self._desk.look, stories, feed)
        self._feed = feed
        self._shards = shards
        self._stats = stats
        self._requests: Counter[tuple[str, int]] = Counter()
        self._document = msgspec.json.encode(openapi.document(version))
        self._runner = web.AppRunner(self._app(assets), access_log=None, shutdown_timeout=_GRACE)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, address: str, ssl: tls.SSLContext | None = None) -> str:
        """Listen on ``host:port``, ``[v6]:port`` or ``unix:/path``; where it does, port and all.

        Raises WebListenError.
        """
        await self._runner.setup()
        site: web.BaseSite
        path = address.removeprefix("unix:")
        host, _, port = address.rpartition(":")
        if path != address:
            site = web.UnixSite(self._runner, path, ssl_context=ssl)
        else:
            site = web.TCPSite(self._runner, host.strip("[]"), int(port), ssl_context=ssl)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise WebListenError(address) from error
        # Beside the rest: a history that hangs must not keep the aggregator from starting.
        for work, name in (
            (self._desk.prime(), "web past"),
            (self._pulse.run(), "web pulse"),
            (self._peers.run(), "web peers"),
        ):
            self._tasks.append(asyncio.create_task(work, name=name))
        if path != address:
            return address
        bound = self._runner.addresses[0][1]
        return f"{host}:{bound}"

    async def close(self) -> None:
        """End event streams and requests, then stop listening."""
        self._feed.close()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._courier.close()
        await self._runner.cleanup()

    # -- routes --------------------------------------------------------------------

    def _app(self, assets: Assets) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.on_response_prepare.append(_dress)
        get = app.router.add_get
        get("/", self._pages.fleet, name="fleet")
        get("/nodes", self._pages.nodes, name="nodes")
        get("/nodes/{name}", self._pages.node, name="node")
        for endpoint in ENDPOINTS:
            get(endpoint.path, self._answer(endpoint))
        get("/api/v1/stream", self._stream, allow_head=False)
        get("/api/v1/openapi.json", self._openapi)
        get(PART, self._share.part, allow_head=False)
        get(NODE, self._share.node, allow_head=False)
        get(PAST, self._share.past, allow_head=False)
        get("/metrics", self._metrics)
        get("/healthz", self._healthz)
        get("/readyz", self._readyz)
        get("/static/{name}", assets.serve)
        return app

    def _answer(self, endpoint: Endpoint) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await endpoint.handle(self._desk, request)

        return handle

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        return await stream.serve(self._desk, request)

    async def _openapi(self, _: web.Request) -> web.Response:
        response = web.Response(body=self._document, content_type="application/json")
        response.enable_compression()
        return response

    async def _metrics(self, request: web.Request) -> web.Response:
        alone = not self._peers.others
        look = await (self._desk.lookout if alone else self._own).look()
        scene = Scene(
            found=look.found,
            shards=self._standing(look.found),
            feed=self._feed,
            requests=self._requests,
            stats=self._stats,
            version=self._desk.version,
            ready=not self._desk.ready(),
        )
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        response = web.Response(body=encode(registry_of(scene)), headers={"Content-Type": kind})
        response.enable_compression()
        return response

    def _standing(self, found: Findings) -> ShardScene:
        council = self._shards.council
        return ShardScene(
            nodes=len(found.standings),
            members=len(council.members),
            leads=self._shards.leads(),
            frozen=bool(council.frozen),
            settled=council.settled,
            peers=self._peers.up(),
        )

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reasons = self._desk.ready()
        if not reasons:
            return web.Response(text="ready\n")
        lines = "".join(f"- {reason}\n" for reason in reasons)
        return web.Response(text=f"not ready:\n{lines}", status=503)

    # -- every request -------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Errors become answers that say what to do; every answer carries the headers."""
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = self._http_error(request, error)
        except (BadQuery, NotThere) as error:
            status = 400 if isinstance(error, BadQuery) else 404
            response = self._problem(request, status, error.error, error.hint)
        except TooManyStreams as error:
            response = self._problem(request, 503, str(error), "Close some, or try again later.")
            response.headers["Retry-After"] = "10"
        except (ConnectionError, asyncio.CancelledError):
            raise  # the one who asked is gone
        except Exception:  # the outermost edge: a mistake of ours must not end the server
            log.exception("a request failed", extra={"path": request.path})
            response = self._problem(
                request, 500, "a mistake of ours", "The aggregator's log has it. Please report it."
            )
        self._count(request, response.status)
        return response

    def _http_error(self, request: web.Request, error: web.HTTPException) -> web.StreamResponse:
        if error.status < 400:
            moved = web.Response(status=error.status)
            moved.headers["Location"] = error.headers["Location"]
            return moved
        if error.status == 405:
            allowed = self._problem(request, 405, f"{request.method} is not for here", _READ_ONLY)
            allowed.headers["Allow"] = "GET, HEAD"
            return allowed
        hint = "See / for the page, /api/v1/openapi.json for the API."
        return self._problem(request, error.status, f"{error.reason}: {request.path[:200]}", hint)

    def _problem(self, request: web.Request, status: int, error: str, hint: str) -> web.Response:
        if request.path.startswith("/api/"):
            return respond(shapes.Problem(error=error, hint=hint), status=status)
        return self._pages.trouble(status, error, hint)

    def _count(self, request: web.Request, status: int) -> None:
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "(none)"
        self._requests[route, status] += 1


def unsettled(shards: Shards) -> list[str]:
    """Why a replica can't act on its nodes, for /readyz. Alone it always can.

    A rollout waits for it, so that the next replica goes only when this one's wait is over.
    """
    council = shards.council
    if council.frozen:
        return [f"it does not know which other replicas there are: {council.frozen}"]
    if not council.settled:
        return ["it has joined a moment ago, and waits until others have let go of its nodes"]
    return []


_READ_ONLY = "This is read only. To act: kubectl, or the command sickbay with your own kubeconfig."


async def _dress(_: web.Request, response: web.StreamResponse) -> None:
    """The headers of every answer, streams too: set just before they are sent."""
    response.headers.update(_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["Server"] = "sickbay"
