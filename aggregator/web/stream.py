"""Server-sent events: what happens, written to whoever listens for as long as they do."""

import asyncio
import datetime as dt
import logging

from aiohttp import web

from aggregator.web import shapes
from aggregator.web.desk import Desk
from aggregator.web.feed import Subscription, frame
from aggregator.web.openapi import STREAM_PARAMS
from aggregator.web.query import read_query

log = logging.getLogger("sickbay.web")

#: Something is sent at least so often (seconds): a page that hears nothing for longer says so.
BEAT = 10.0
#: Somebody who takes nothing for so long (seconds) is gone.
_STUCK = 20.0
#: A browser comes back after so long (milliseconds).
_RETRY = b"retry: 1000\n\n"


async def serve(desk: Desk, request: web.Request) -> web.StreamResponse:
    """Until the reader goes or the server does. Raises BadQuery and TooManyStreams before it."""
    node = read_query(STREAM_PARAMS, request.query)["node"]
    with desk.feed.subscribe(node, request.headers.get("Last-Event-ID", "")) as subscription:
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # nginx would keep events back
            }
        )
        await response.prepare(request)
        try:
            await _speak(desk, subscription, response)
        except (ConnectionError, TimeoutError):
            log.debug("an event stream's reader is gone")
            if request.transport is not None:
                request.transport.abort()
        return response


async def _speak(desk: Desk, subscription: Subscription, response: web.StreamResponse) -> None:
    hello = shapes.Hello(at=_now(desk), version=desk.version, resumed=subscription.resumed)
    await _write(response, _RETRY + frame("hello", hello))
    while (frames := await subscription.next(BEAT)) is not None:
        await _write(response, frames or frame("beat", shapes.Beat(at=_now(desk))))


def _now(desk: Desk) -> dt.datetime:
    moment = desk.lookout.moment()
    return moment.when(moment.now)


async def _write(response: web.StreamResponse, frames: bytes) -> None:
    async with asyncio.timeout(_STUCK):
        await response.write(frames)
