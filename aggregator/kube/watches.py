"""A list, and a watch from where it ended: what the API server has of one kind of object.

A watch that ends in order, or falls silent, is asked for anew from the last version that was
seen, and nothing is missed. Where that can't be done the view is lost: the error says why, and
the caller lists again.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from aggregator.kube.errors import Status
from aggregator.kube.limiter import Lane
from aggregator.kube.objects import Bare, RawList, WatchEvent, decode
from aggregator.kube.transport import JSON, Transport
from aggregator.quarantine.cluster import Refused, Unreachable

_PAGE = 500
#: The server ends a watch after this long; spread, so that those of all replicas don't meet.
_WATCH_S = (240.0, 480.0)
_EVENT = msgspec.json.Decoder(WatchEvent)


@dataclass(frozen=True, slots=True)
class Kind:
    """What is listed and watched. ``selector`` is query parameters of both."""

    name: str
    path: str
    selector: Mapping[str, str] = field(default_factory=dict)
    list_accept: str = JSON
    watch_accept: str = JSON


@dataclass(frozen=True, slots=True)
class Change:
    """ADDED, MODIFIED or DELETED, and the object as JSON."""

    type: str
    object: msgspec.Raw


class Watch:
    """One kind of object. ``rng`` spreads; ``sleep`` and ``clock`` belong together.

    ``silence`` is how long, in seconds, a watch may say nothing before it is asked for anew:
    bookmarks come about every minute, and a dead peer sends none. ``before_open`` runs before
    each watch is opened; what it raises ends the changes.
    """

    def __init__(
        self,
        transport: Transport,
        kind: Kind,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        silence: float,
        before_open: Callable[[], Awaitable[None]] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = transport
        self._kind = kind
        self._clock = clock
        self._rng = rng
        self._silence = silence
        self._before_open = before_open
        self._sleep = sleep
        self._version = ""

    async def read_all(self) -> list[msgspec.Raw]:
        """All of them, from etcd and not from a cache. Raises ClusterError."""
        found: list[msgspec.Raw] = []
        token = ""
        while True:
            query = {**self._kind.selector, "limit": str(_PAGE)}
            if token:
                query["continue"] = token
            body = await self._transport.request(
                "GET",
                self._kind.path,
                kind=self._kind.name,
                lane=Lane.RECORD,
                query=query,
                accept=self._kind.list_accept,
            )
            page = decode(body, RawList)
            found += page.items or []
            self._version = page.metadata.resource_version
            token = page.metadata.next
            if not token:
                return found

    async def changes(self) -> AsyncGenerator[list[Change]]:
        """What changes after `read_all`, in the batches that it comes in; for ever.

        Raises ClusterError when the changes can't be followed without a gap.
        """
        while True:
            began = self._clock()
            if self._before_open is not None:
                await self._before_open()
            async with contextlib.aclosing(self._follow()) as batches:
                async for batch in batches:
                    yield batch
            if self._clock() - began < 1.0:
                # A server (or a proxy before it) that closes at once must not be hammered.
                await self._sleep(self._rng.uniform(0.5, 1.0))

    async def _follow(self) -> AsyncGenerator[list[Change]]:
        query = {
            **self._kind.selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(self._rng.uniform(*_WATCH_S))),
        }
        async with self._transport.stream(
            self._kind.path, kind=self._kind.name, query=query, accept=self._kind.watch_accept
        ) as stream:
            rest = b""
            while chunk := await self._more(stream):
                *lines, rest = (rest + chunk).split(b"\n")
                changes = [change for line in lines if line and (change := self._read(line))]
                if changes:
                    yield changes

    def _read(self, line: bytes) -> Change | None:
        try:
            event = _EVENT.decode(line)
        except msgspec.DecodeError as error:
            raise Refused(f"a watch of {self._kind.name} sent what is no event: {error}") from error
        if event.type == "ERROR":
            status = decode(event.object, Status)
            raise Unreachable(
                f"the watch of {self._kind.name} ended: {status.code} {status.message}",
                status=status.code,
            )
        self._version = decode(event.object, Bare).metadata.resource_version or self._version
        if event.type == "BOOKMARK":
            return None
        return Change(event.type, event.object)

    async def _more(self, stream: aiohttp.StreamReader) -> bytes:
        """What came; nothing when the watch has ended, broke off, or is silent for too long."""
        try:
            async with asyncio.timeout(self._silence):
                return await stream.readany()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return b""
