"""What a stream sends after a snapshot that was requested: in virtual time, without a server."""

import asyncio
from typing import Any

from nodeagent.clock import SystemClock
from nodeagent.simulate.node import SimulatedNode
from nodeagent.uplink.dialer import TokenFile
from nodeagent.uplink.reconnect import ReconnectPolicy
from nodeagent.uplink.stream import Stream
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.simulated import simulated_node
from tests.support.tasks import end_tasks
from tests.support.virtual_time import in_virtual_time

INTERVAL = 10.0


class PlayedCall:
    """The call of a stream: what was written, and when."""

    def __init__(self) -> None:
        self.written: list[tuple[float, str]] = []
        self.incoming: asyncio.Queue[pb.AggregatorMessage] = asyncio.Queue()

    async def write(self, message: pb.AgentMessage) -> None:
        now = asyncio.get_running_loop().time()
        self.written.append((now, message.WhichOneof("body") or ""))

    async def read(self) -> pb.AggregatorMessage:
        return await self.incoming.get()

    def cancel(self) -> None:
        """Its task is cancelled, too."""

    def times(self, kind: str, since: float) -> list[float]:
        """When messages of this kind were written, in seconds after ``since``."""
        return [at - since for at, what in self.written if what == kind and at > since]


def _stream(call: Any) -> Stream:
    async def lives(_: str) -> bool:
        return True

    return Stream(
        call,
        host=simulated_node("localhost:1", SimulatedNode),
        clock=SystemClock(),
        random=lambda: 0.5,
        token=TokenFile(None),
        on_welcome=lambda _: None,
        lives=lives,
        connected=lambda: True,
        patience=ReconnectPolicy(lambda: 0.5).patience,
    )


@in_virtual_time
async def test_a_requested_snapshot_takes_the_place_of_a_heartbeat_and_delays_measurements() -> (
    None
):
    call, loop = PlayedCall(), asyncio.get_running_loop()
    running = asyncio.create_task(_stream(call).run_stream(pb.AgentMessage(hello=pb.Hello())))
    welcome = pb.Welcome(aggregator="a", heartbeat_interval_ms=int(INTERVAL * 1000))
    call.incoming.put_nowait(pb.AggregatorMessage(welcome=welcome))
    await asyncio.sleep(28.0)
    assert call.times("heartbeat", 0.0)
    assert not call.times("measurements", 0.0), "the first is due after 30 s"
    resynced = loop.time()
    call.incoming.put_nowait(pb.AggregatorMessage(resync=pb.Resync(reason="another")))
    await asyncio.sleep(45.0)
    assert len(call.times("snapshot", resynced - 0.1)) == 1
    assert call.times("heartbeat", resynced)[0] >= INTERVAL
    assert 30.0 <= call.times("measurements", resynced)[0] <= 40.0
    await end_tasks(running)
