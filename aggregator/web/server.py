"""The web server: routes, headers, errors; started and stopped by the app.

A GET has no effect. docs/security.md has the identities that a request needs.
"""

import asyncio
import contextlib
import logging
import ssl as tls
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.resources import files

from aiohttp import web

from aggregator.access.identity import AccessRefused
from aggregator.clock import Clocks
from aggregator.configfile.values import is_loopback
from aggregator.ingest.os_limits import WEB_CONNECTIONS
from aggregator.quarantine.state.fleet import FleetState
from aggregator.runtime.histogram import PAGE, Histogram
from aggregator.web import models, probes, sse
from aggregator.web.access_guard import AccessGuard, PageAccess
from aggregator.web.action_endpoints import ACCESS, ActionEndpoints, ActionSetup
from aggregator.web.api import ENDPOINTS, respond
from aggregator.web.assets import Assets
from aggregator.web.change_notifier import ChangeNotifier
from aggregator.web.connections import ConnectionTable, listen, runner_of
from aggregator.web.event_broker import EventBroker, TooManyStreams
from aggregator.web.history_interface import HistoryReader
from aggregator.web.hosts import AllowedHosts, name_of
from aggregator.web.job_view import remembered_reports
from aggregator.web.login import LogIn
from aggregator.web.metrics import ScrapeContent, families
from aggregator.web.mode_effect import Preview
from aggregator.web.node_detail import node_detail
from aggregator.web.oidc_routes import OidcRoutes
from aggregator.web.pages import Pages
from aggregator.web.person_actions import ACTIONS
from aggregator.web.queries import FleetQueries
from aggregator.web.query_params import RequestProblem
from aggregator.web.response_headers import dress
from aggregator.web.snapshot_cache import SnapshotCache
from aggregator.web.stats_interface import Stats
from aggregator.web.trend_recorder import TrendRecorder
from aggregator.web.zero_first import ZeroFirst

log = logging.getLogger("sickbay.web")

_STREAM = "/api/v1/stream"


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Web:
    """Page, JSON API, event stream, metrics, probes.

    ``ready`` returns the problems, in words; empty: there are none. Create it within a running
    loop.

    ``replicas`` are those of the aggregator, none where it is alone; ``lease_lost``: why this
    replica may not act although it is the controller.
    """

    def __init__(
        self,
        *,
        fleet: FleetState,
        history: HistoryReader,
        feed: EventBroker,
        stats: Stats,
        clocks: Clocks,
        version: str,
        ready: Callable[[], list[str]],
        replicas: Callable[[], Sequence[models.Replica]] = tuple,
        lease_lost: Callable[[], str] = str,
        connections: int = WEB_CONNECTIONS,
        hosts: Sequence[str] = (),
        access: PageAccess | None = None,
        actions: ActionSetup | None = None,
        preview: Preview | None = None,
    ) -> None:
        """``connections`` may be open at once.

        ``hosts`` are names by which the page may be requested where it is plain on loopback.
        ``access`` None: all may read. ``actions``: how people act; None: not at all.
        ``preview`` computes by admission what mode drain would do; None: the page does not show it.
        """
        access = access or PageAccess()
        snapshots = SnapshotCache(fleet, clocks, replicas, lease_lost)
        self._queries = FleetQueries(
            fleet,
            snapshots,
            feed,
            history,
            version,
            ready,
            stats.alert_trouble,
            remembered_reports(clocks.now),
            stats.alerts,
            preview=preview,
        )
        assets = Assets()
        self._pages = Pages(
            self._queries,
            assets,
            access=access.gate is not None,
            actions=actions is not None and access.actions,
            oidc=access.oidc.label if access.oidc is not None else "",
            tokens=access.tokens,
        )
        self._guard_access = AccessGuard(access, now=clocks.now, words=fleet.words)
        self._log_in = LogIn(access, self._guard_access, self._pages.log_in)
        self._oidc = None
        if access.oidc is not None:
            self._oidc = OidcRoutes(
                access.oidc, self._guard_access, self._log_in.refuse, self._pages.logged_in
            )
        self._actions = ActionEndpoints(access, self._guard_access, actions)
        self._change_notifier = ChangeNotifier(
            self._queries.current_snapshot,
            partial(node_detail, fleet, snapshots),
            feed,
            self._queries.troubles,
        )
        self._feed, self._fleet = feed, fleet
        self._stats = stats
        self._requests: Counter[tuple[str, int]] = Counter()
        #: Seconds for an answer, by route; event streams last as long as their page is open.
        self._durations: dict[str, Histogram] = {}
        self._zero_first = ZeroFirst()
        self._now = clocks.now
        self._connections = ConnectionTable(clocks.now, most=connections)
        self._names = AllowedHosts(hosts)
        #: Without it any name is allowed, because a certificate or the network identifies the
        #: server.
        self._allowed: AllowedHosts | None = None
        self._runner = runner_of(self._app(assets))
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, address: str, ssl: tls.SSLContext | None = None) -> str:
        """Listen on ``host:port``, ``[v6]:port`` or ``unix:/path``; returns the address with its
        port.

        Raises WebListenError.
        """
        if ssl is None and not address.startswith("unix:") and is_loopback(address):
            self._allowed = self._names
        bound = await listen(self._runner, self._connections, address, ssl)
        # Concurrently with the rest: a history that hangs must not keep the aggregator from
        # starting.
        for work, name in (
            (self._queries.prime(), "web past"),
            (self._change_notifier.run(), "web change notifier"),
            (TrendRecorder(self._queries).run(), "web trend"),
        ):
            self._tasks.append(asyncio.create_task(work, name=name))
        return bound

    async def close(self) -> None:
        """End event streams and requests, then stop listening."""
        self._feed.close()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._runner.cleanup()
        self._connections.close_idle()

    # -- routes --------------------------------------------------------------------

    def _app(self, assets: Assets) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.on_response_prepare.append(dress)
        get = app.router.add_get
        get("/", self._pages.fleet, name="fleet")
        get("/nodes", self._pages.nodes, name="nodes")
        get("/nodes/{name}", partial(self._pages.about_node, "node.html"), name="node")
        get("/incidents/{id}", self._pages.incident)
        get("/quarantines/{node}", partial(self._pages.about_node, "quarantine.html"))
        get("/jobs", self._pages.jobs)
        for endpoint in ENDPOINTS:
            get(endpoint.path, partial(endpoint.handle, self._queries))
        get("/api/v1/stream", self._stream, allow_head=False)
        get("/api/v1/openapi.json", self._openapi)
        get(ACCESS, self._actions.reader)
        get("/metrics", self._metrics)
        get("/healthz", probes.healthz)
        get("/readyz", self._readyz)
        get("/static/{name}", assets.serve)
        get("/login", self._log_in.form)
        if self._oidc is not None:
            get("/login/oidc", self._oidc.begin, allow_head=False)
            get("/login/oidc/callback", self._oidc.finish, allow_head=False)
        post = app.router.add_post
        for action in ACTIONS.values():
            post(action.path, partial(self._actions.act, action))
        post("/login", self._log_in.log_in)
        post("/logout", self._log_in.log_out)
        return app

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        feed = self._feed
        taken = not self._connections.begin_stream(request.protocol, feed.most)
        if taken and feed.streams < feed.most:  # otherwise the broker refuses it
            raise TooManyStreams("as many event streams as one address may have are open")
        return await sse.serve(
            self._queries, request, lambda: self._guard_access.still_allowed(request)
        )

    async def _openapi(self, _: web.Request) -> web.Response:
        document = files("aggregator.web") / "openapi.json"  # made by make docs-reference
        response = web.Response(body=document.read_bytes(), content_type="application/json")
        response.enable_compression()
        return response

    async def _metrics(self, request: web.Request) -> web.Response:
        snapshot = await self._queries.snapshots.current_snapshot()
        scrape = ScrapeContent(
            found=snapshot.found,
            feed=self._feed,
            requests=self._requests,
            durations=self._durations,
            stages=self._fleet.stages,
            stats=self._stats,
            connections=self._connections.count,
            connections_ended=self._connections.ended,
            version=self._queries.version,
            ready=not self._queries.ready(),
            zero_first=self._zero_first,
        )
        return probes.metrics(request, lambda: families(scrape))

    async def _readyz(self, _: web.Request) -> web.Response:
        return probes.readyz(self._queries.ready())

    # -- every request -------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Errors become answers with the next step; every answer carries the headers."""
        self._connections.begin(request.protocol)
        began = self._now()
        try:
            host = request.headers.get("Host")
            if self._allowed is None or self._allowed.allows(host):
                await self._guard_access.admit(request)
                response = await handler(request)
            else:
                response = self._misdirected(request, name_of(host or ""))
        except web.HTTPException as error:
            response = self._http_error(request, error)
        except RequestProblem as error:
            response = self._problem(request, error.status, error.error, error.hint)
        except AccessRefused as refused:
            response = self._refused(request, refused)
        except TooManyStreams as error:
            response = self._problem(request, 503, str(error), "Close some, or try again later.")
            response.headers["Retry-After"] = "10"
        except (ConnectionError, asyncio.CancelledError):
            raise  # the client is gone
        except Exception:  # the outermost edge: a defect of ours must not end the server
            log.exception(
                "a request failed", extra={"event": "page.request_failed", "path": request.path}
            )
            response = self._problem(
                request, 500, "a mistake of ours", "The aggregator's log has it. Please report it."
            )
        finally:
            self._connections.end(request.protocol)
        self._count(request, response.status, self._now() - began)
        return response

    def _refused(self, request: web.Request, refused: AccessRefused) -> web.StreamResponse:
        if request.path == "/metrics":
            return probes.refusal(refused)
        if refused.status == 401 and not request.path.startswith("/api/"):
            return self._log_in.challenge(request, refused)
        problem = self._problem(request, refused.status, refused.error, refused.hint)
        return probes.mark_refusal(problem)

    def _http_error(self, request: web.Request, error: web.HTTPException) -> web.StreamResponse:
        if error.status < 400:
            moved = web.Response(status=error.status)
            moved.headers["Location"] = error.headers["Location"]
            return moved
        if error.status == 405:
            assert isinstance(error, web.HTTPMethodNotAllowed)
            methods = sorted(error.allowed_methods)
            act = self._fleet.words.read_only
            hint = _ACTION if "POST" in methods else f"This is read only. To act: {act}."
            allowed = self._problem(request, 405, f"{request.method} is not for here", hint)
            allowed.headers["Allow"] = ", ".join(methods)
            return allowed
        hint = "See / for the page, /api/v1/openapi.json for the API."
        return self._problem(request, error.status, f"{error.reason}: {request.path[:200]}", hint)

    def _misdirected(self, request: web.Request, name: str) -> web.Response:
        text = f'"{name[:100]}" is no name of this page, which is for this machine alone'
        hint = (
            "Open it by an address or as localhost. If people come by another name, through a "
            "proxy for example, put that name into listen.hosts of the aggregator's configuration."
        )
        return self._problem(request, 421, text, hint)

    def _problem(self, request: web.Request, status: int, error: str, hint: str) -> web.Response:
        if request.path.startswith("/api/"):
            return respond(models.Problem(error=error, hint=hint), status=status)
        return self._pages.trouble(status, error, hint)

    def _count(self, request: web.Request, status: int, seconds: float) -> None:
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "(none)"
        self._requests[route, status] += 1
        if route != _STREAM:
            self._durations.setdefault(route, Histogram(PAGE)).observe(seconds)


_ACTION = "Expected POST: docs/api.md#actions."
