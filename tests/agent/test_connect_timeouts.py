"""Connect timeouts: a real uplink to a server that is slow, and to servers that never answer."""

import asyncio
import socket
import time
from collections.abc import Iterator

import grpc
import pytest

from nodeagent.simulate.node import SimulatedNode
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.simulated import simulated_node
from tests.support.fake_aggregator import FakeAggregator
from tests.support.present import present
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _seconds_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.uplink.reconnect.GREETING", 1.0)


@pytest.fixture
def paused() -> Iterator[str]:
    """The address of a process that is stopped: the kernel takes connections in its place."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_where_a_connection_stands_and_nobody_lives_it_leaves_soon(paused: str) -> None:
    node = simulated_node(paused, SimulatedNode)
    node.start()
    await until(lambda: node.trouble == "no greeting in 1 s", within=30)
    await _gone(node)


async def test_who_lives_and_is_slow_is_waited_for_and_does_the_work_once(
    aggregator: FakeAggregator,
) -> None:
    welcome, aggregator.welcome = aggregator.welcome, None
    assert welcome is not None
    node = simulated_node(aggregator.address, SimulatedNode)
    node.start()
    await until(lambda: len(aggregator.streams) == 1, within=30)
    await asyncio.sleep(2.5)  # far longer than it waits for a sign of life
    assert (node.trouble, len(aggregator.streams), aggregator.latest.ended) == ("", 1, False)
    aggregator.latest.send(welcome=pb.Welcome(aggregator="slow"))
    await until(lambda: node.streaming, within=30)
    assert len(aggregator.streams) == 1
    await _gone(node)


async def test_who_lives_and_never_greets_is_left_too(
    aggregator: FakeAggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.uplink.reconnect.LIVING", 1.5)
    aggregator.welcome = None
    node = simulated_node(aggregator.address, SimulatedNode)
    node.start()
    await until(lambda: "though the address answers" in node.trouble, within=30)
    await until(lambda: len(aggregator.streams) == 2, within=30)
    await _gone(node)


async def test_who_lives_is_not_left_because_our_own_loop_stood_still(
    aggregator: FakeAggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.uplink.uplink.HANDSHAKE_WITHIN", 0.1)
    opened: list[grpc.aio.Channel] = []
    node = simulated_node(aggregator.address, SimulatedNode)
    uplink = node._uplink
    open_channel = uplink._dialer.open

    def opens(address: str, **how: bool) -> grpc.aio.Channel:
        opened.append(open_channel(address, **how))
        return opened[-1]

    monkeypatch.setattr(uplink._dialer, "open", opens)
    trying = asyncio.create_task(uplink._lives(aggregator.address))
    await asyncio.sleep(0)
    stands_until = time.monotonic() + 0.2
    while (
        opened[0].get_state() is not grpc.ChannelConnectivity.READY
        or time.monotonic() < stands_until
    ):
        time.sleep(0.01)  # noqa: ASYNC251 - the loop stands still
    assert await trying


async def _gone(node: SimulatedNode) -> None:
    task = present(node.cut())
    await asyncio.wait([task])
