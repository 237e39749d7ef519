"""Requests to the API server: raw bodies in and out, a deadline, counted, errors typed.

A request is retried here only where its credentials had been rotated: whether to try again is a
decision of the caller, and a late write must fail.
"""

import asyncio
import contextlib
import errno
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol, Required, TypedDict, Unpack
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec
from aiohttp import hdrs
from attrs import define, field

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.credentials import ApiCredentials, CredentialSources, load
from aggregator.cluster.kubernetes.errors import Failure, parse_failure
from aggregator.cluster.kubernetes.http_session import CONNECT_S, HttpSession
from aggregator.cluster.kubernetes.limiter import Limiter, Priority
from aggregator.cluster.kubernetes.retry import retry_idempotent
from aggregator.cluster.port import UNGUARDED, ClusterError, Guard, Refused, Unreachable
from aggregator.runtime.histogram import REQUEST, Histogram

_LOG = logging.getLogger(__name__)

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
#: Metadata without spec and status.
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

#: Credentials that the server refused are read again at most this often.
_RELOAD_EVERY_S = 10.0
#: Connections that were replaced are closed after this: watches on old credentials then reconnect,
#: and dead connections have waited longer than any request lasts.
_RETIRED_AFTER_S, _DEAD_AFTER_S = 30.0, 150.0
#: For refused websockets, whose answers the library does not read.
_NO_BODY, _NO_KUBELET = b"refused", b"refused; the kubelet of the pod's node may be out of reach"
#: Watches are opened anew because of a dead connection at most this often.
_REOPEN_EVERY_S = 30.0
_DEAD = {errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH}
#: A read that failed sooner than this (seconds) is repeated.
_QUICK_S = 2.0


class RequestCounters:
    """Requests and how they ended, for metrics. Read by others, written by `Transport`."""

    def __init__(self) -> None:
        #: By (method or "WATCH", kind of object, HTTP status); status 0: no answer came.
        self.answers: Counter[tuple[str, str, int]] = Counter()
        #: 429 because the server is busy; and 429 of a pod's disruption budget, which is not that.
        self.throttled = 0
        self.blocked = 0
        #: Seconds from the sending to the whole answer, by (method, kind of object). A request
        #: without an answer counts with the time that was waited; watches do not count.
        self.durations: dict[tuple[str, str], Histogram] = {}

    def note_duration(self, method: str, kind: str, seconds: float) -> None:
        found = self.durations.get((method, kind))
        if found is None:
            found = self.durations[method, kind] = Histogram(REQUEST)
        found.observe(seconds)


class _Call(NamedTuple):
    """One request as it is sent; ``target`` is path and query."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None = None
    deadline: float = 0.0  # seconds, for the answer as a whole
    is_lease: bool = False
    sink: "BodySink | None" = None
    guard: Guard = UNGUARDED

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def kind(self) -> str:
        """The key of the counters."""
        return paths.kind_of(self.path)


class BodySink(Protocol):
    """Takes a body piece by piece."""

    def begin(self) -> None:
        """A new answer: a request may be sent again."""

    def take(self, piece: bytes) -> None: ...


class ReadOptions(TypedDict, total=False):
    """``deadline``: seconds for the answer. ``node`` and ``is_list``: see `Limiter.acquire`.
    ``sink`` takes the body of a 2xx answer as it arrives, and the body that is returned is empty.
    """

    query: Mapping[str, str] | None
    accept: str
    deadline: float
    node: str
    is_list: bool
    sink: BodySink


class RequestOptions(ReadOptions, total=False):
    """``guard`` is awaited once the limiter's turn and the connection are there. ``content_type``:
    a merge patch without it, JSON for the other methods.
    """

    guard: Required[Guard]
    body: bytes | None
    content_type: str


class WatchStream:
    """A watch's bytes. ``received_at``: when some came last, or it was opened (monotonic)."""

    def __init__(self, response: aiohttp.ClientResponse, clock: Callable[[], float]) -> None:
        self._response = response
        self._clock = clock
        self.received_at = clock()

    async def readany(self) -> bytes:
        """The bytes that came; empty once the watch has ended. Raises as aiohttp does."""
        found = await self._response.content.readany()
        self.received_at = self._clock()
        return found

    def close(self) -> None:
        """A reader that waits is woken."""
        self._response.close()


async def _pour(response: aiohttp.ClientResponse, sink: BodySink) -> bytes:
    sink.begin()
    async for piece in response.content.iter_any():
        sink.take(piece)
        await asyncio.sleep(0)  # the next piece may be there already
    return b""


@define(eq=False, repr=False, slots=False)
class Transport:
    """Speaks to one API server. ``deadline`` is in seconds, for a request's answer as a whole."""

    _sources: CredentialSources
    _limiter: Limiter
    _clock: Callable[[], float] = field(kw_only=True)
    _rng: random.Random = field(kw_only=True)
    _deadline: float = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.counters = RequestCounters()
        self._wire: HttpSession | None = None
        self._reload = asyncio.Lock()
        self._reloaded_at = float("-inf")
        self._retired: dict[asyncio.Task[None], HttpSession] = {}
        self._streams: set[WatchStream] = set()
        self._reopened_at = float("-inf")

    async def open(self) -> None:
        """Read the credentials. Raises Refused where they can't be read."""
        async with self._reload:
            if self._wire is None:
                self._wire = HttpSession(await load(self._sources))

    async def close(self) -> None:
        """End every request. The transport can't be opened again."""
        self._limiter.close()
        retired = dict(self._retired)
        for task in retired:
            task.cancel()
        await asyncio.gather(*retired, return_exceptions=True)
        for wire in retired.values():
            await wire.close()  # a task that is cancelled before its first step has closed nothing
        if self._wire is not None:
            await self._wire.close()
            self._wire = None

    async def get(self, path: str, lane: Priority, **options: Unpack[ReadOptions]) -> bytes:
        """The body of a 2xx answer; any other raises its typed error.

        ``path`` begins with "/"; see paths.py. It is retried where one answer is lost.
        """
        quick = min(_QUICK_S, options.get("deadline", self._deadline) / 2)
        once = partial(self.request, "GET", path, lane, guard=UNGUARDED, **options)
        return await retry_idempotent(once, rng=self._rng, quick=quick)

    async def request(
        self, method: str, path: str, lane: Priority, **options: Unpack[RequestOptions]
    ) -> bytes:
        """As `get`, and never retried."""
        answer = await self.try_request(method, path, lane, **options)
        if isinstance(answer, Failure):
            raise answer.error()
        return answer

    async def try_request(
        self, method: str, path: str, lane: Priority, **options: Unpack[RequestOptions]
    ) -> bytes | Failure:
        """As `request`, but a refusal is returned. Raises Unreachable where no answer came."""
        body, query = options.get("body"), options.get("query")
        headers: dict[str, str] = {hdrs.ACCEPT: options.get("accept", JSON)}
        if body is not None:
            kind = MERGE_PATCH if method == "PATCH" else JSON
            headers[hdrs.CONTENT_TYPE] = options.get("content_type", kind)
        request = _Call(
            method,
            f"{path}?{urlencode(query)}" if query else path,
            headers,
            body,
            options.get("deadline", self._deadline),
            is_lease=lane is Priority.LEASE,
            sink=options.get("sink"),
            guard=options["guard"],
        )
        node, is_list = options.get("node", ""), options.get("is_list", False)
        async with self._limiter.turn(lane, node, is_list=is_list):
            wire = self._current()
            answer = await self._once(wire, request)
            if isinstance(answer, Failure) and answer.code == 401 and await self._renewed(wire):
                answer = await self._once(self._current(), request)
            return answer

    @property
    def credentials(self) -> ApiCredentials:
        """Those of our requests."""
        return self._current().credentials

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], accept: str
    ) -> AsyncIterator[WatchStream]:
        """A watch's bytes as they come. Raises as `request` while it is opened."""
        async with self._limiter.turn(Priority.RECORD):
            pass  # it is under way for hours: only its beginning is rationed
        target = f"{path}?{urlencode(query)}"
        request = _Call("WATCH", target, {hdrs.ACCEPT: accept}, deadline=self._deadline)
        response = await self._open_stream(self._current(), request)
        stream = WatchStream(response, self._clock)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            stream.close()  # a watch never ends in order; its connection is of no more use

    async def websocket(
        self, path: str, *, query: Mapping[str, str], protocol: str
    ) -> aiohttp.ClientWebSocketResponse:
        """An open websocket, which the caller closes. Raises as `request`; the API server's own
        words for a refusal can't be read from a websocket's handshake.
        """
        request = _Call("CONNECT", f"{path}?{urlencode(query)}", {}, deadline=self._deadline)
        wire = self._current()
        try:
            async with asyncio.timeout(request.deadline):
                return await wire.websocket(request.target, protocol)
        except aiohttp.WSServerHandshakeError as error:
            body = _NO_BODY if error.status in {401, 403, 404} else _NO_KUBELET
            failure = parse_failure(request.name, error.status, error.headers or {}, body)
            raise failure.error() from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise await self._no_answer(wire, request, error) from error

    async def _open_stream(self, wire: HttpSession, request: _Call) -> aiohttp.ClientResponse:
        endless = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
        try:
            # The server sends a watch's head at once, even if no change follows.
            async with asyncio.timeout(request.deadline):
                response = await wire.send(
                    "GET", request.target, request.headers, None, endless, guard=request.guard
                )
                if response.status != 200:
                    async with response:
                        refusal = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise await self._no_answer(wire, request, error) from error
        self.counters.answers[request.method, request.kind, response.status] += 1
        if response.status == 200:
            return response
        failure = self._failure(request, response, refusal)
        if failure.code == 401 and await self._renewed(wire):
            raise Unreachable("the credentials had been rotated, and were read again", status=401)
        raise failure.error()

    async def _once(self, wire: HttpSession, request: _Call) -> bytes | Failure:
        method, target, headers, body, deadline, is_lease, sink, guard = request
        timeout = aiohttp.ClientTimeout(total=deadline, connect=min(CONNECT_S, deadline))
        began = self._clock()
        try:
            async with await wire.send(
                method, target, headers, body, timeout, is_lease=is_lease, guard=guard
            ) as response:
                if sink is not None and 200 <= response.status < 300:
                    answer = await _pour(response, sink)
                else:
                    answer = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.counters.note_duration(method, request.kind, self._clock() - began)
            if _is_dead(error):
                self._reopen(wire, request, began)
            raise await self._no_answer(wire, request, error) from error
        self.counters.note_duration(method, request.kind, self._clock() - began)
        self.counters.answers[method, request.kind, response.status] += 1
        if 200 <= response.status < 300:
            return answer
        return self._failure(request, response, answer)

    def _failure(self, request: _Call, response: aiohttp.ClientResponse, body: bytes) -> Failure:
        failure = parse_failure(request.name, response.status, response.headers, body)
        if failure.of_a_budget:
            self.counters.blocked += 1
            return failure  # that pod's own state: it slows no other request
        if failure.of_admission:
            return failure  # a webhook's own answer: it is not about the API server
        if failure.code == 429:
            self.counters.throttled += 1
        if failure.retry_after is not None and failure.code in {429, 503}:
            # Jitter, as every client that was refused got the same pause.
            pause = failure.retry_after * self._rng.uniform(1.0, 1.25)
            self._limiter.pause(pause)
            _LOG.warning(
                "the API server is busy, pausing %.1f s: %s",
                pause,
                failure.message,
                extra={"event": "api.busy"},
            )
        return failure

    def _reopen(self, wire: HttpSession, request: _Call, began: float) -> None:
        """A request found its connection dead: open the watches anew that were silent meanwhile.

        A load balancer that fails over drops all connections without an error. A watch alone would
        notice that by its silence, a minute and a half later. A server that is only slow costs a
        few watches, and no more often than `_REOPEN_EVERY_S`. Bytes that were read in the first
        half of the wait prove no life: they may have been on their way before.
        """
        now = self._clock()
        if now < self._reopened_at + _REOPEN_EVERY_S:
            return
        self._reopened_at = now
        if self._wire is wire:  # requests that wait for a connection may get a dead one as well
            self._replace(wire, wire.credentials, _DEAD_AFTER_S)
        silent = [one for one in self._streams if one.received_at <= (began + now) / 2]
        for stream in silent:
            stream.close()
        _LOG.warning(
            "a request found its connection to the API server dead: %d watches are opened anew",
            len(silent),
            extra={"event": "api.dead_connection", "request": request.name},
        )

    async def _no_answer(self, wire: HttpSession, request: _Call, error: Exception) -> Unreachable:
        self.counters.answers[request.method, request.kind, 0] += 1
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            await self._renewed(wire)  # the cluster's CA may be a new one
        why = f"no answer in {request.deadline:g} s" if isinstance(error, TimeoutError) else error
        host = urlsplit(wire.url).netloc
        return Unreachable(f"{request.name}: the API server at {host} is out of reach: {why}")

    async def _renewed(self, refused: HttpSession) -> bool:
        """Read the credentials again, as they may have been rotated; whether they were read."""
        async with self._reload:
            if self._wire is not refused:
                return True  # done for another request while we waited
            if self._clock() - self._reloaded_at < _RELOAD_EVERY_S:
                return False
            self._reloaded_at = self._clock()
            try:
                renewed = await load(self._sources)
            except Refused as error:
                _LOG.warning("the credentials were refused and can't be read again: %s", error)
                return False
            self._replace(refused, renewed, _RETIRED_AFTER_S)
            return True

    def _replace(self, wire: HttpSession, renewed: ApiCredentials, after_s: float) -> None:
        """Send later requests over new connections; those under way have until then (seconds)."""
        self._wire = HttpSession(renewed)
        task = asyncio.create_task(wire.close(after_s=after_s))
        self._retired[task] = wire
        task.add_done_callback(self._retired.pop)

    def _current(self) -> HttpSession:
        if self._wire is None:
            raise ClusterError("the connection is not open: start() comes first")
        return self._wire


def _is_dead(error: Exception) -> bool:
    """Whether a connection that was open is dead; a server that can't be connected to is away."""
    if isinstance(error, aiohttp.ConnectionTimeoutError | aiohttp.ClientConnectorError):
        return False
    return isinstance(error, TimeoutError | ConnectionResetError) or (
        isinstance(error, OSError) and error.errno in _DEAD
    )


def encode(value: object) -> bytes:
    """JSON of plain values."""
    return msgspec.json.encode(value)
