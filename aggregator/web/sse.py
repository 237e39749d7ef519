"""Server-sent events: the transitions as they happen, for as long as the reader stays."""

import asyncio
import datetime as dt
import logging

from aiohttp import web

from aggregator.web import models
from aggregator.web.event_broker import Subscription, frame
from aggregator.web.openapi import STREAM_PARAMS
from aggregator.web.queries import FleetQueries
from aggregator.web.query_params import read_query

log = logging.getLogger("sickbay.web")

#: An event is sent at least so often (seconds): a page without one for longer reports that.
BEAT = 10.0
#: A reader that takes no data for so long (seconds) is gone.
_STUCK = 20.0
#: A browser reconnects after so long (milliseconds).
_RETRY = b"retry: 1000\n\n"


async def serve(queries: FleetQueries, request: web.Request) -> web.StreamResponse:
    """Serve until the reader goes or the server does. Raises BadQuery and TooManyStreams
    before it.
    """
    node = read_query(STREAM_PARAMS, request.query)["node"]
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
            await _speak(queries, subscription, response)
        except (ConnectionError, TimeoutError):
            log.debug("an event stream's reader is gone")
            if request.transport is not None:
                request.transport.abort()
        return response


async def _speak(
    queries: FleetQueries, subscription: Subscription, response: web.StreamResponse
) -> None:
    hello = models.Hello(at=_now(queries), version=queries.version, resumed=subscription.resumed)
    await _write(response, _RETRY + frame("hello", hello))
    while (frames := await subscription.next(BEAT)) is not None:
        await _write(response, frames or frame("beat", models.Beat(at=_now(queries))))


def _now(queries: FleetQueries) -> dt.datetime:
    moment = queries.snapshots.moment()
    return moment.when(moment.now)


async def _write(response: web.StreamResponse, frames: bytes) -> None:
    async with asyncio.timeout(_STUCK):
        await response.write(frames)
