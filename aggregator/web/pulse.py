"""Says on the feed when what its subscribers look at has changed."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from aggregator.web import shapes, view
from aggregator.web.feed import Feed
from aggregator.web.glance import headline
from aggregator.web.lookout import TICK, Look
from aggregator.web.stories import Stories

#: What changes without a transition (a component turns, pods leave) is noticed within this.
ROUND = 1.0


class Pulse:
    """Ticks on the feed whenever what its subscribers look at has changed."""

    def __init__(self, look: Callable[[], Awaitable[Look]], stories: Stories, feed: Feed) -> None:
        self._look = look
        self._stories = stories
        self._feed = feed
        self._revision = 0
        self._nodes: dict[str, shapes.Node] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND if self._feed.streams else None):
                    await self._feed.noted()
            if self._feed.streams:
                await self.beat()
                await asyncio.sleep(TICK)

    async def beat(self) -> None:
        """Look once, and tell those whose view has changed."""
        look = await self._look()
        tick = shapes.Tick(
            at=look.moment.when(look.moment.now),
            revision=look.revision,
            counts=look.found.counts,
            headline=headline(look.found),
        )
        if look.revision != self._revision:
            self._revision = look.revision
            self._feed.tick(tick)
        watched = sorted(self._feed.nodes)
        told = await asyncio.gather(*(self._stories.of(name) for name in watched))
        nodes = {one.node: view.steady(one) for one in told if one is not None}
        for name, one in nodes.items():
            # Heartbeats come all the time, and are no change. Who has just come is told at once:
            # something may have changed since the page was rendered.
            if self._nodes.get(name) != one:
                self._feed.tick(tick, node=name)
        self._nodes = nodes
