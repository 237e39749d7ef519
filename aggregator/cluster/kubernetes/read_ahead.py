"""Events of one listener from when the view is made, and the view that is made ahead of use.

A gateway that may soon be the controller begins the lists and watches (`leader.standby`). The
events wait here until they are taken.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from aggregator.cluster.kubernetes.informer import ClusterInformer
from aggregator.cluster.port import ClusterError, ClusterEvent, NodeMeta, WatchLost, WatchSynced

#: A Lease without renewals is taken within seconds; one that can't be written may stay for hours.
#: Then all is read anew after this number of seconds: neither age nor events grow without an end.
RENEW_AFTER = 60.0


class EventView:
    """The events of one informer, which runs until `close`."""

    def __init__(self, informer: ClusterInformer) -> None:
        self._events: asyncio.Queue[ClusterEvent | None] = asyncio.Queue()
        self._following = asyncio.create_task(informer.follow(self._take), name="kube-news")
        self._following.add_done_callback(lambda _: self._events.put_nowait(None))
        #: The first lists are complete.
        self.synced = asyncio.Event()

    def _take(self, event: ClusterEvent) -> None:
        self._events.put_nowait(event)
        if isinstance(event, WatchSynced):
            self.synced.set()

    async def events(self) -> AsyncIterator[ClusterEvent]:
        """Those that wait, as one state of the cluster, and then each as it comes; for ever."""
        waiting: list[ClusterEvent | None] = []
        while not self._events.empty():
            waiting.append(self._events.get_nowait())
        for news in as_one_state([event for event in waiting if event is not None]):
            yield news
        while None not in waiting and (event := await self._events.get()) is not None:
            yield event
        self._following.result()  # it never ends by itself: this raises its error

    async def close(self) -> None:
        self._following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._following


def as_one_state(events: Sequence[ClusterEvent]) -> list[ClusterEvent]:
    """The same events, with one `WatchSynced` at most, after all others: changes that came while
    nobody read them are known before the first act. A view that was lost since has none.
    """
    whole: list[ClusterEvent] = []
    for event in events:
        match event:
            case WatchSynced():
                whole = [event]
            case WatchLost():
                whole = []
    return [*(event for event in events if not isinstance(event, WatchSynced)), *whole]


class AheadSource(Protocol):
    """The cluster that is read ahead."""

    def new_view(self) -> EventView: ...

    async def read_nodes(self) -> list[NodeMeta]: ...


class ClusterReadAhead:
    """Implements `leader.standby.ReadAhead`. Each read is used once."""

    def __init__(self, source: AheadSource) -> None:
        self._source = source
        self._view: EventView | None = None
        self._nodes: asyncio.Task[list[NodeMeta]] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._began = 0.0

    def begin(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._began >= RENEW_AFTER:
            self.end()
        if self._view is None and self._nodes is None:
            self._began = now
            self._view = self._source.new_view()
            self._nodes = asyncio.create_task(self._list(self._view), name="nodes ahead")

    def end(self) -> None:
        view, self._view = self._view, None
        nodes, self._nodes = self._nodes, None
        if nodes is not None:
            nodes.cancel()
        if view is not None:
            closing = asyncio.create_task(view.close(), name="view ahead")
            self._ending.add(closing)
            closing.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End it, and wait for that."""
        self.end()
        await asyncio.gather(*self._ending)

    async def _list(self, view: EventView) -> list[NodeMeta]:
        await view.synced.wait()  # the list must not be older than the view
        return await self._source.read_nodes()

    def take_view(self) -> EventView | None:
        """The view that was begun, for the caller alone; it stays open until it is closed."""
        view, self._view = self._view, None
        return view

    async def take_nodes(self) -> list[NodeMeta] | None:
        """The nodes that were listed after that view; None where that failed or was not begun."""
        listing, self._nodes = self._nodes, None
        if listing is None:
            return None
        try:
            return await listing
        except ClusterError:
            return None
