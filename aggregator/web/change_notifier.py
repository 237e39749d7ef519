"""Publishes a tick on the event stream when the view of its subscribers has changed."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from aggregator.web import models, node_view
from aggregator.web.event_broker import EventBroker
from aggregator.web.node_detail import NodeDetails
from aggregator.web.snapshot_cache import TICK, FleetSnapshot
from aggregator.web.summary import headline

#: A change without a transition (a component turns, pods leave) is noticed within this.
ROUND = 1.0


class ChangeNotifier:
    """Ticks on the event stream whenever the view of its subscribers has changed."""

    def __init__(
        self,
        snapshot: Callable[[], Awaitable[FleetSnapshot]],
        details: NodeDetails,
        feed: EventBroker,
    ) -> None:
        self._snapshot = snapshot
        self._details = details
        self._feed = feed
        self._revision = 0
        self._nodes: dict[str, models.Node] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND if self._feed.streams else None):
                    await self._feed.noted()
            if self._feed.streams:
                await self.publish_tick()
                await asyncio.sleep(TICK)

    async def publish_tick(self) -> None:
        """Check once, and notify the subscribers whose view has changed."""
        snapshot = await self._snapshot()
        tick = models.Tick(
            at=snapshot.moment.when(snapshot.moment.now),
            revision=snapshot.revision,
            counts=snapshot.found.counts,
            headline=headline(snapshot.found),
        )
        if snapshot.revision != self._revision:
            self._revision = snapshot.revision
            self._feed.tick(tick)
        watched = sorted(self._feed.nodes)
        nodes_shown = map(self._details.of, watched)
        nodes = {one.node: node_view.steady(one) for one in nodes_shown if one is not None}
        for name, one in nodes.items():
            # Heartbeats come all the time, and are no change. A new subscriber is notified at once,
            # because the view may have changed since the page was rendered.
            if self._nodes.get(name) != one:
                self._feed.tick(tick, node=name)
        self._nodes = nodes
