"""What a gateway has read ahead is renewed where the Lease can't be taken for long."""

import asyncio
from typing import Any

from aggregator.cluster.kubernetes.read_ahead import RENEW_AFTER, ClusterReadAhead, EventView
from aggregator.cluster.port import NodeMeta, WatchSynced
from tests.support.virtual_time import in_virtual_time


class Informer:
    def __init__(self) -> None:
        self.ended = False

    async def follow(self, tell: Any) -> None:
        try:
            tell(WatchSynced(frozenset()))
            await asyncio.Event().wait()
        finally:
            self.ended = True


class Source:
    def __init__(self) -> None:
        self.informers: list[Any] = []
        self.listed_at: list[float] = []

    def new_view(self) -> EventView:
        self.informers.append(Informer())
        return EventView(self.informers[-1])

    async def read_nodes(self) -> list[NodeMeta]:
        self.listed_at.append(asyncio.get_running_loop().time())
        return []


@in_virtual_time
async def test_old_lists_and_events_are_read_anew() -> None:
    source = Source()
    ahead = ClusterReadAhead(source)
    for _ in range(int(10 * RENEW_AFTER)):  # as where each write of the Lease is refused
        ahead.begin()
        await asyncio.sleep(1.0)
    assert len(source.informers) == len(source.listed_at) == 10
    assert [one.ended for one in source.informers] == [True] * 9 + [False]
    assert await ahead.take_nodes() == []
    assert asyncio.get_running_loop().time() - source.listed_at[-1] <= RENEW_AFTER
    await ahead.close()
    assert source.informers[-1].ended
