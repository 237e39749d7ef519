"""A list, and a watch from the list's version: the API server's state of one kind of object.

A watch that ends in order, or falls silent, reconnects from the last version that was seen, and no
change is missed. Where that can't be done the view is lost: the error states why, and the caller
lists again.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import aiohttp
import msgspec
from attrs import define

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.errors import StatusBody
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import (
    PartialObjectMetadata,
    RawList,
    RawWatchEvent,
    decode,
)
from aggregator.cluster.kubernetes.transport import JSON, Transport, WatchStream
from aggregator.cluster.port import ClusterError, Refused, Unreachable, is_older
from aggregator.runtime.backoff import Backoff

T = TypeVar("T")

_PAGE = 500
#: The server ends a watch after this long; spread, so that those of all replicas don't meet.
_WATCH_S = (240.0, 480.0)
_EVENT = msgspec.json.Decoder(RawWatchEvent)


@dataclass(frozen=True, slots=True)
class Resource:
    """The objects that are listed and watched. ``selector`` is query parameters of both."""

    path: str
    selector: Mapping[str, str] = field(default_factory=dict)
    list_accept: str = JSON
    watch_accept: str = JSON
    #: Of the list, and the objects in one page of it.
    lane: Priority = Priority.RECORD
    page: int = _PAGE

    @property
    def name(self) -> str:
        return paths.kind_of(self.path)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """ADDED, MODIFIED or DELETED, and the object as JSON."""

    type: str
    object: msgspec.Raw


async def list_pages(transport: Transport, kind: Resource) -> AsyncGenerator[RawList]:
    """All objects of the kind, a page at a time, from etcd and not from a cache. Raises
    ClusterError.
    """
    token = ""
    while True:
        query = {**kind.selector, "limit": str(kind.page)}
        if token:
            query["continue"] = token
        body = await transport.get(kind.path, kind.lane, query=query, accept=kind.list_accept)
        page = decode(body, RawList)
        yield page
        token = page.metadata.next
        if not token:
            return


async def read_objects(
    transport: Transport, kind: Resource, read: Callable[[msgspec.Raw], T | None]
) -> list[T]:
    """What ``read`` makes of each object, without those of which it makes None. Others run between
    two pages. Raises ClusterError.
    """
    found: list[T] = []
    async with contextlib.aclosing(list_pages(transport, kind)) as pages:
        async for page in pages:
            found += [one for raw in page.items or () if (one := read(raw)) is not None]
            await asyncio.sleep(0)
    return found


@define(eq=False, repr=False, slots=False)
class Watch:
    """One kind of object. ``rng`` spreads; ``sleep`` and ``clock`` belong together.

    ``silence`` is how long, in seconds, a watch may stay silent before it reconnects: bookmarks
    come about every minute, and a dead peer sends none. ``before_open`` runs before each watch is
    opened; an error that it raises ends the changes.
    """

    _transport: Transport
    _kind: Resource
    _clock: Callable[[], float]
    _rng: random.Random
    _silence: float
    _before_open: Callable[[], Awaitable[None]] | None = None
    _sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __attrs_post_init__(self) -> None:
        self._version = ""

    async def read_all(self) -> list[msgspec.Raw]:
        """All of them, from etcd and not from a cache. Raises ClusterError."""
        found: list[msgspec.Raw] = []
        async with contextlib.aclosing(self.pages()) as pages:
            async for page in pages:
                found += page
        return found

    async def pages(self) -> AsyncGenerator[list[msgspec.Raw]]:
        """The answer of `read_all`, a page at a time: one state of the server, in parts."""
        async with contextlib.aclosing(list_pages(self._transport, self._kind)) as pages:
            async for page in pages:
                self._version = page.metadata.resource_version
                yield page.items or []

    async def begin_now(self) -> None:
        """Let `changes` begin with the present state, of which nothing is read."""
        self._version = await self._read_version()

    async def changes(self) -> AsyncGenerator[list[WatchEvent]]:
        """Changes after `read_all` or `begin_now`, in batches as they arrive; for ever.

        Raises ClusterError when the changes can't be followed without a gap.
        """
        again = False
        while True:
            began = self._clock()
            if self._before_open is not None:
                await self._before_open()
            if again:
                await self._check_version()
            again = True
            async with contextlib.aclosing(self._follow()) as batches:
                async for batch in batches:
                    yield batch
            if self._clock() - began < 1.0:
                # A server (or a proxy before it) that closes at once must not be hammered.
                await self._sleep(self._rng.uniform(0.5, 1.0))

    async def each(self, take: Callable[[WatchEvent], None]) -> None:
        """Give each of the `changes` to ``take``; for ever."""
        async with contextlib.aclosing(self.changes()) as batches:
            async for batch in batches:
                for change in batch:
                    take(change)

    async def _check_version(self) -> None:
        """Raises Unreachable where the server has not reached our version: etcd was restored.

        A watch from a version of the future is accepted, and sends no change until that is reached.
        """
        version = await self._read_version()
        if is_older(version, self._version):
            raise Unreachable(
                f"versions of {self._kind.name} went back from {self._version} to {version}, as "
                "when etcd is restored: listing anew"
            )

    async def _read_version(self) -> str:
        body = await self._transport.get(
            self._kind.path,
            Priority.RECORD,
            query={**self._kind.selector, "limit": "1"},
            accept=self._kind.list_accept,
        )
        return decode(body, RawList).metadata.resource_version

    async def _follow(self) -> AsyncGenerator[list[WatchEvent]]:
        query = {
            **self._kind.selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(self._rng.uniform(*_WATCH_S))),
        }
        async with self._transport.stream(
            self._kind.path, query=query, accept=self._kind.watch_accept
        ) as stream:
            rest = b""
            while chunk := await self._more(stream):
                *lines, rest = (rest + chunk).split(b"\n")
                changes = [change for line in lines if line and (change := self._read(line))]
                if changes:
                    yield changes

    def _read(self, line: bytes) -> WatchEvent | None:
        try:
            event = _EVENT.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Refused(
                f"a watch of {self._kind.name} sent a line that is not an event: {error}"
            ) from error
        if event.type == "ERROR":
            status = decode(event.object, StatusBody)
            raise Unreachable(
                f"the watch of {self._kind.name} ended: {status.code} {status.message}",
                status=status.code,
            )
        self._version = (
            decode(event.object, PartialObjectMetadata).metadata.resource_version or self._version
        )
        if event.type == "BOOKMARK":
            return None
        return WatchEvent(event.type, event.object)

    async def _more(self, stream: WatchStream) -> bytes:
        """The bytes that came; empty when the watch has ended, broke off, or is silent too long."""
        try:
            async with asyncio.timeout(self._silence):
                return await stream.readany()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return b""


@dataclass(frozen=True, slots=True)
class Watches:
    """Makes the watches of one cluster. ``clock`` and ``silence`` as for `Watch`."""

    transport: Transport
    clock: Callable[[], float]
    rng: random.Random
    silence: float

    def of(self, kind: Resource, before_open: Callable[[], Awaitable[None]] | None = None) -> Watch:
        return Watch(self.transport, kind, self.clock, self.rng, self.silence, before_open)


class Follower:
    """Follows objects next to the cluster's view, which no failure here concerns."""

    _BACKOFF: ClassVar[Backoff]

    def __init__(self, watches: Watches, kind: Resource) -> None:
        self._clock, self._rng = watches.clock, watches.rng
        self._watch = watches.of(kind)

    async def follow(self) -> None:
        """Begin and follow, for ever. Raises only its cancellation."""
        trouble, failures = "", 0
        while True:
            try:
                await self._begin()
                if trouble:
                    self._report(None)
                trouble, failures = "", 0
                await self._follow()
            except ClusterError as error:
                failures += 1
                if str(error) != trouble:
                    trouble = str(error)
                    self._report(error)
                await self._pause(failures)

    async def _begin(self) -> None:
        """Report what there is."""
        await self._watch.begin_now()

    async def _follow(self) -> None:
        await self._watch.each(self._take)

    def _take(self, change: WatchEvent) -> None:
        raise NotImplementedError

    def _report(self, error: ClusterError | None) -> None:
        """Each other error once, and None once it is over."""
        raise NotImplementedError

    async def _pause(self, failures: int) -> None:
        """``failures``: how many in a row."""
        await asyncio.sleep(self._BACKOFF.pause(failures, self._rng))
