"""Page and API of a gateway: the controller's, passed on, streams and actions included.

The controller authenticates each reader; `forwarded_client` has what a gateway adds for that. Each
replica has its own probes and metrics. Without a controller the page reports that, and why.
"""

import asyncio
import json
import logging
import ssl as tls
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from aggregator.access.identity import AccessRefused
from aggregator.configfile.values import is_loopback
from aggregator.leader.lease import Candidate
from aggregator.tls.client_context import CaFileError, FollowedAuthorities
from aggregator.web import forwarded_client, probes
from aggregator.web.access_guard import AccessGuard, PageAccess
from aggregator.web.connections import ConnectionTable, listen, runner_of
from aggregator.web.event_broker import MOST_STREAMS
from aggregator.web.gateway_metrics import GatewayScrape, gateway_families
from aggregator.web.response_headers import dress

log = logging.getLogger("sickbay.web")

#: Seconds to connect to the controller.
_CONNECT_WITHIN = 5.0
#: Seconds for the beginning of the controller's answer.
_BEGINS_WITHIN = 30.0
#: Seconds between two pieces of an answer, and until a reader has taken one. An event stream has
#: one each 10 s.
_PAUSE = 30.0
#: Bytes of a request's body.
_LONGEST_BODY = 1024 * 1024
#: Headers of one connection, which are not passed on (RFC 9110, 7.6.1).
_HOP_HEADERS = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
#: Headers that aiohttp's client adds by itself.
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class NoController(Exception):
    """No controller answers; the text states why. ``sent``: it may have the request."""

    def __init__(self, text: str, *, sent: bool = False) -> None:
        super().__init__(text)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class GatewayState:
    """A gateway's view of itself and of the controller.

    ``controller``: the other replica that the Lease names. ``renewed_ago``: how many seconds ago
    its last renewal was seen, or None. ``problems``: why this replica is not ready.
    ``certificates``: when each ends, wall clock seconds, by its purpose.
    ``token`` reads the token that proves this replica to the others; it raises an exception of
    ``token_errors``.
    """

    name: str
    version: str
    controller: Callable[[], Candidate | None]
    renewed_ago: Callable[[], float | None]
    problems: Callable[[], Sequence[str]]
    relayed: Callable[[], bool]
    dropped: Callable[[], int]
    connected: Callable[[], int]
    certificates: Callable[[], Mapping[str, float]]
    token: Callable[[], str]
    token_errors: tuple[type[Exception], ...] = ()


class GatewayPage:
    """``authorities`` verify the controller's certificate. ``access`` guards this replica's own
    metrics. ``now`` is monotonic seconds.
    """

    def __init__(
        self,
        state: GatewayState,
        *,
        authorities: FollowedAuthorities,
        access: PageAccess,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._authorities = authorities
        self._guard = AccessGuard(access, now=now)
        self._now = now
        self._began = now()
        self._connections = ConnectionTable(now)
        self._client: aiohttp.ClientSession | None = None
        #: The answers that are passed on now, and whose they are.
        self._open: dict[asyncio.Timeout, Candidate] = {}
        self._closed = False
        app = web.Application(middlewares=[self._each], client_max_size=_LONGEST_BODY)
        app.on_response_prepare.append(dress)
        app.router.add_get("/healthz", probes.healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = runner_of(app)

    async def start(self, address: str, ssl: tls.SSLContext | None = None) -> str:
        """Listen on ``host:port`` or ``unix:/path``; returns the address with its port.

        Raises WebListenError.
        """
        return await listen(self._runner, self._connections, address, ssl)

    async def close(self) -> None:
        """End what is passed on, and stop listening."""
        self._closed = True
        self.end_superseded()
        await self._runner.cleanup()
        if self._client is not None:
            await self._client.close()

    def end_superseded(self) -> None:
        """End the answers of a replica that is the controller no more: a page's stream then
        begins anew at the present one. Call it whenever the Lease's holder has changed.
        """
        current = None if self._closed else self._state.controller()
        for limit, controller in self._open.items():
            if controller != current and not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

    @web.middleware
    async def _each(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._connections.begin(request.protocol)
        try:
            return await handler(request)
        finally:
            self._connections.end(request.protocol)

    # -- this replica's own --------------------------------------------------------

    async def _readyz(self, _: web.Request) -> web.Response:
        return probes.readyz(self._state.problems())

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            await self._guard.admit(request)
        except AccessRefused as refused:
            return probes.refusal(refused)
        state = self._state
        scrape = GatewayScrape(
            version=state.version,
            ready=not state.problems(),
            relayed=state.relayed(),
            dropped=state.dropped(),
            agents=state.connected(),
            certificates=state.certificates(),
            connections=self._connections.count,
            connections_ended=self._connections.ended,
        )
        return probes.metrics(request, lambda: gateway_families(scrape))

    # -- the controller's ----------------------------------------------------------

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        try:
            controller = self._controller(request)
            url, headers = self._url(request, controller), self._headers(request)
            body = await request.read() if request.can_read_body else None
            return await self._answer(request, controller, url, headers, body)
        except NoController as error:
            return self._without_controller(request, error)

    def _controller(self, request: web.Request) -> Candidate:
        if forwarded_client.REPLICA in request.headers:
            # Two gateways that take each other for the controller must not pass it on for ever.
            raise NoController(f"{self._state.name} is not the controller")
        controller = self._state.controller()
        if controller is None:
            raise NoController("no holder of the Lease is known here")
        if not controller.page:
            raise NoController(
                f"{controller.name} is the controller, and its configuration has no section "
                "replicas with an address for other replicas"
            )
        return controller

    def _url(self, request: web.Request, controller: Candidate) -> URL:
        page, where = URL(controller.page), request.rel_url
        if page.scheme != "https" and not is_loopback(f"{page.host}:{page.port}"):
            raise NoController(
                f"{controller.name} serves its page without TLS, and is not on this machine; "
                "expected listen.tls"
            )
        if where.absolute or not where.raw_path.startswith("/"):
            raise web.HTTPBadRequest(text="expected a path that begins with /\n")
        return URL(controller.page + where.raw_path_qs, encoded=True)

    def _headers(self, request: web.Request) -> CIMultiDict[str]:
        left_out = _HOP_HEADERS | forwarded_client.HEADERS | {"content-length"}  # the client counts
        headers = CIMultiDict(
            (key, value) for key, value in request.headers.items() if key.lower() not in left_out
        )
        try:
            token = self._state.token()
        except self._state.token_errors as error:
            raise NoController(f"this replica can't prove its identity: {error}") from error
        headers.update(forwarded_client.added_headers(request, token))
        return headers

    async def _answer(
        self,
        request: web.Request,
        controller: Candidate,
        url: URL,
        headers: CIMultiDict[str],
        body: bytes | None,
    ) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            async with asyncio.timeout(_BEGINS_WITHIN) as limit:
                self._open[limit] = controller
                try:
                    async with self._session().request(
                        request.method,
                        url,
                        headers=headers,
                        data=body,
                        allow_redirects=False,
                        ssl=self._authorities.context() if url.scheme == "https" else True,
                    ) as answer:
                        if controller == self._state.controller() and not self._closed:
                            limit.reschedule(None)
                        response = self._begin(request, answer)
                        await response.prepare(request)
                        async for piece in answer.content.iter_any():
                            async with asyncio.timeout(_PAUSE):
                                await response.write(piece)
                        await response.write_eof()
                        return response
                finally:
                    del self._open[limit]
        except (aiohttp.ClientError, CaFileError, TimeoutError, OSError) as error:
            if response is not None and response.prepared:
                # An end in the middle must not look like the answer's end.
                if request.transport is not None:
                    request.transport.abort()
                return response
            why = str(error) or "no answer in time"
            raise NoController(
                f"{controller.name} is the controller, and does not answer: {why}",
                sent=not isinstance(error, aiohttp.ClientConnectorError | CaFileError),
            ) from error

    def _begin(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for key, value in answer.headers.items():
            if key.lower() not in _HOP_HEADERS:
                response.headers.add(key, value)
        if answer.content_type == "text/event-stream":
            self._connections.begin_stream(request.protocol, MOST_STREAMS)
        return response

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                # One reader's cookie must not go along with another's request.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=_NOT_ADDED,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=_CONNECT_WITHIN, sock_read=_PAUSE
                ),
            )
        return self._client

    # -- without one ---------------------------------------------------------------

    def _without_controller(self, request: web.Request, why: NoController) -> web.Response:
        state = self._state
        ago, controller = state.renewed_ago(), state.controller()
        if controller is not None and ago is not None:
            renewed = f"{controller.name} renewed the Lease last, {ago:.0f} s ago."
        elif ago is not None:
            renewed = f"The last renewal of the Lease was seen {ago:.0f} s ago."
        else:
            seen = self._now() - self._began
            renewed = f"{state.name} has seen no renewal of the Lease in {seen:.0f} s."
        if controller is None:
            acts = "Nothing is acted on without one"
        else:
            acts = f"Whether {controller.name} acts is not known here"
        text = (
            f"No controller can be reached: {why}. {renewed} {acts}, and agents keep their "
            f"streams: {state.connected()} are connected to {state.name}."
        )
        if why.sent and request.method not in {"GET", "HEAD"}:
            text += " This request may have been carried out: check before you repeat it."
        headers = {"Retry-After": "2", "Cache-Control": "no-store"}
        if request.path.startswith("/api/"):
            return web.Response(
                text=json.dumps({"error": "no controller", "hint": text}),
                content_type="application/json",
                status=503,
                headers=headers,
            )
        items = "".join(f"<li>{escape(reason)}</li>" for reason in state.problems())
        body = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta http-equiv="refresh" content="5"><title>sickbay: no controller</title></head>'
            f"<body><h1>No controller</h1><p>{escape(text)}</p><ul>{items}</ul></body></html>"
        )
        return web.Response(text=body, status=503, content_type="text/html", headers=headers)
