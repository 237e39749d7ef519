"""Server-sent events: the transitions as they happen, for as long as the reader stays."""

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from aggregator.web import models
from aggregator.web.event_broker import Subscription, frame
from aggregator.web.queries import FleetQueries
from aggregator.web.query_params import Form, Param, read_query

log = logging.getLogger("sickbay.web")

STREAM_PARAMS = (
    Param("node", Form.TEXT, "Only entries about this node.", ""),
    Param("brief", Form.TEXT, "1: one event `changed` instead of all news.", ""),
)

#: An event is sent at least this often (seconds): a page without one for longer reports that.
BEAT = 10.0
#: A reader that takes no data for this long (seconds) is gone.
_STUCK = 20.0
#: A browser reconnects after this long (milliseconds).
_RETRY = b"retry: 1000\n\n"
#: Seconds between two checks that a reader is still allowed to read.
RECHECK = 60.0


async def serve(
    queries: FleetQueries, request: web.Request, still_allowed: Callable[[], Awaitable[bool]]
) -> web.StreamResponse:
    """Serve until the reader goes, or may read no more, or the server goes. Raises BadQuery and
    TooManyStreams before it.
    """
    values = read_query(STREAM_PARAMS, request.query)
    node, brief = values["node"], bool(values["brief"])
    with queries.feed.subscribe(node, request.headers.get("Last-Event-ID", "")) as subscription:
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # nginx would buffer events
            }
        )
        await response.prepare(request)
        try:
            await _send_events(queries, subscription, response, still_allowed, brief=brief)
        except (ConnectionError, TimeoutError):
            log.debug("an event stream's reader is gone")
            if request.transport is not None:
                request.transport.abort()
        return response


async def _send_events(
    queries: FleetQueries,
    subscription: Subscription,
    response: web.StreamResponse,
    still_allowed: Callable[[], Awaitable[bool]],
    *,
    brief: bool,
) -> None:
    hello = models.Hello(at=_now(queries), version=queries.version, resumed=subscription.resumed)
    await _write(response, _RETRY + frame("hello", hello))
    checked = asyncio.get_running_loop().time()
    while (frames := await subscription.next(BEAT)) is not None:
        now = asyncio.get_running_loop().time()
        if now - checked >= RECHECK:
            if not await still_allowed():
                return
            checked = now
        if brief and frames:
            frames = frame("changed", models.Beat(at=_now(queries)))
        await _write(response, frames or frame("beat", models.Beat(at=_now(queries))))


def _now(queries: FleetQueries) -> dt.datetime:
    moment = queries.snapshots.moment()
    return moment.when(moment.now)


async def _write(response: web.StreamResponse, frames: bytes) -> None:
    async with asyncio.timeout(_STUCK):
        await response.write(frames)
