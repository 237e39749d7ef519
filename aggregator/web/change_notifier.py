"""Publishes a tick on the event stream when the view of its subscribers has changed."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from aggregator.web import models, node_view
from aggregator.web.event_broker import EventBroker
from aggregator.web.snapshot_cache import TICK, FleetSnapshot
from aggregator.web.summary import headline

#: A change without a transition (a component turns, pods leave) is noticed within this.
ROUND = 1.0


class ChangeNotifier:
    """Ticks on the event stream whenever the view of its subscribers has changed."""

    def __init__(
        self,
        snapshot: Callable[[], Awaitable[FleetSnapshot]],
        detail: Callable[[str], models.Node | None],
        feed: EventBroker,
        troubles: Callable[[], Sequence[object]] = tuple,
    ) -> None:
        """``detail`` of a node, by its name; ``troubles``: those of this replica itself."""
        self._snapshot = snapshot
        self._detail = detail
        self._feed = feed
        self._troubles = troubles
        #: The view of each stream, by its node.
        self._views: dict[str, object] = {}

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
        found = snapshot.found
        notices = (
            *(found.stop, found.view_lost, found.waiting_for_quorum, found.cooling),
            *(found.clock_doubt, found.lease_lost),
            *self._troubles(),
        )
        views: dict[str, object] = {"": (snapshot.revision, notices)}
        for name in self._feed.nodes:
            # Heartbeats come all the time, and are no change.
            one = self._detail(name)
            views[name] = (one and node_view.steady(one), notices)
        for name, view in views.items():
            # A new subscriber is notified at once, because the view may have changed since the page
            # was rendered.
            if self._views.get(name) != view:
                self._feed.tick(tick, node=name)
        self._views = views
