"""Agents and several aggregators: found by DNS, followed by redirect, remembered."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodeagent.local.explain import table
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.agent_process import AgentProcess, Make
from tests.support.fake_aggregator import FakeAggregator
from tests.support.nameserver import NameServer
from tests.support.pki import Authority
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
SERVICE = "aggregator.sickbay.test"


def home(aggregator: FakeAggregator) -> None:
    """The aggregator accepts every agent."""
    aggregator.on_hello = lambda _: None
    aggregator.welcome = pb.Welcome(aggregator=aggregator.address, heartbeat_interval_ms=1000)


def sends_to(aggregator: FakeAggregator, address: str) -> None:
    """The aggregator redirects every agent, as a replica does that does not own the node."""
    aggregator.welcome = None
    aggregator.on_hello = lambda stream: stream.send(redirect=pb.Redirect(address=address))


async def uplink_of(agent: AgentProcess) -> dict[str, Any]:
    uplink: dict[str, Any] = json.loads((await agent.ask("/v1/results"))[1])["agent"]["uplink"]
    return uplink


async def streaming_at(agent: AgentProcess, address: str) -> dict[str, Any]:
    """The agent's uplink state, once it has a stream there."""
    async with asyncio.timeout(60):
        while True:
            found = await uplink_of(agent)
            if (found["state"], found["address"]) == ("streaming", address):
                return found
            await asyncio.sleep(0.02)


async def sent_on(make: Make, aggregator: FakeAggregator, other: FakeAggregator) -> AgentProcess:
    """An agent that ``aggregator`` has sent to ``other``, where it has its stream."""
    home(other)
    sends_to(aggregator, other.address)
    agent = await make(aggregator=aggregator.address).start().up()
    await streaming_at(agent, other.address)
    return agent


async def came_back(aggregator: FakeAggregator, times: int) -> None:
    """The agent has attached so often after its first stream, and was welcomed."""
    await until(
        lambda: len(aggregator.streams) == times + 1 and "snapshot" in aggregator.latest.kinds(),
        what="its return",
    )


@pytest.fixture
async def other() -> AsyncIterator[FakeAggregator]:
    aggregator = await FakeAggregator().start()
    yield aggregator
    await aggregator.stop()


# -- found by DNS ---------------------------------------------------------------------------------


@pytest.mark.root
def test_connections_spread_over_all_addresses_of_a_name_and_a_dead_one_costs_little() -> None:
    line = ["unshare", "--mount", "--net", sys.executable, "-m", "tests.agent.many_addresses"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(found["all.test"]["went"].values()) == 300
    # 100 each are expected, with a deviation of 8: fewer than 60 is no chance.
    assert min(found["all.test"]["went"].values()) >= 60, found
    assert len(found["all.test"]["went"]) == 3
    for name in ("refuses.test", "vanishes.test"):
        assert set(found[name]["went"]) == {"127.0.0.2", "127.0.0.3"}, found
    # 0.25 s by themselves: the wait for the second address. The rest is a slow machine's.
    assert found["vanishes.test"]["slowest"] < 5.0


@dataclass
class Replicas:
    """A StatefulSet's pods behind a headless Service: by name, each on an address of its own."""

    port: int = 0
    aggregators: dict[str, FakeAggregator] = field(default_factory=dict)

    def address(self, pod: str) -> str:
        return f"{pod}.{SERVICE}:{self.port}"

    async def start(self, pod: str, ip: str, certificate: tuple[Path, Path]) -> None:
        aggregator = FakeAggregator()
        await aggregator.start(f"{ip}:{self.port}", certificate=certificate)
        self.port = int(aggregator.address.rpartition(":")[2])
        self.aggregators[pod] = aggregator

    def owned_by(self, pod: str) -> None:
        for name, aggregator in self.aggregators.items():
            if name == pod:
                home(aggregator)
                aggregator.welcome = pb.Welcome(aggregator=pod, heartbeat_interval_ms=1000)
            else:
                sends_to(aggregator, self.address(pod))


@pytest.mark.root
async def test_over_tls_by_the_services_name_to_its_own_pod_and_on_when_that_is_gone(
    make: Make, tmp_path: Path
) -> None:
    """Name resolution is real: the agent's own, asked of a name server that the test changes."""
    (tmp_path / "pki").mkdir()
    authority = Authority.create(tmp_path / "pki")
    pair = authority.server(
        "aggregator", [SERVICE, *(f"aggregator-{n}.{SERVICE}" for n in range(3))]
    )
    stranger = authority.server("stranger", ["stranger.sickbay.test"])
    pods = {"aggregator-0": "127.0.0.2", "aggregator-1": "127.0.0.3", "aggregator-2": "127.0.0.4"}
    names = {f"{pod}.{SERVICE}": [ip] for pod, ip in pods.items()}
    # The address that no process has any more is the one that DNS still has of a dead replica.
    names[SERVICE] = [*pods.values(), "127.0.0.9"]
    names["stranger.sickbay.test"] = ["127.0.0.5"]
    names[f"lost.{SERVICE}"] = ["127.0.0.5"]
    replicas = Replicas()
    async with AsyncExitStack() as ending:
        server = await ending.enter_async_context(NameServer(names))
        for pod, ip in pods.items():
            await replicas.start(pod, ip, (pair.certificate, pair.key))
            ending.push_async_callback(replicas.aggregators[pod].stop)
        replicas.owned_by("aggregator-1")
        agent = make(aggregator=f"{SERVICE}:{replicas.port}")
        agent.uplink = f'ca_file = "{authority.certificate}"\n'
        agent.prefix = server.resolving(tmp_path)
        await agent.start().up()
        found = await streaming_at_any(
            agent, [replicas.address("aggregator-1"), f"{SERVICE}:{replicas.port}"]
        )
        assert found["aggregator"] == "aggregator-1"
        agent.xid(79)
        await until(lambda: replicas.aggregators["aggregator-1"].latest.faults, what="the fault")

        # Its replica dies; the others learn of it, and DNS does.
        del server.names[f"aggregator-1.{SERVICE}"]
        server.names[SERVICE] = ["127.0.0.2", "127.0.0.4"]
        aggregator = replicas.aggregators.pop("aggregator-1")
        await aggregator.stop()
        replicas.owned_by("aggregator-2")
        await until(lambda: replicas.aggregators["aggregator-2"].streams, what="its heir")
        await until(
            lambda: replicas.aggregators["aggregator-2"].latest.faults, what="all that it knew"
        )

        # An agent sends no evidence to a replica at a name that its certificate does not cover.
        fraud = await FakeAggregator().start(
            f"127.0.0.5:{replicas.port}", certificate=(stranger.certificate, stranger.key)
        )
        ending.push_async_callback(fraud.stop)
        lost = replicas.address("lost")
        sends_to(replicas.aggregators["aggregator-0"], lost)
        sends_to(replicas.aggregators["aggregator-2"], lost)
        replicas.aggregators["aggregator-2"].latest.send(redirect=pb.Redirect(address=lost))
        await until(lambda: "Hostname Verification" in agent.log(), what=agent.log)
        assert fraud.streams == []
        replicas.owned_by("aggregator-0")
        count = len(replicas.aggregators["aggregator-0"].streams)
        await until(
            lambda: (
                len(replicas.aggregators["aggregator-0"].streams) > count
                and replicas.aggregators["aggregator-0"].latest.faults
            ),
            what="the shard that owns it now",
        )


async def streaming_at_any(agent: AgentProcess, addresses: list[str]) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found = await uplink_of(agent)
            if found["state"] == "streaming" and found["address"] in addresses:
                return found
            await asyncio.sleep(0.02)


# -- sent, and remembered -------------------------------------------------------------------------


async def test_who_was_sent_somewhere_says_so_and_goes_back_there_first(
    aggregator: FakeAggregator, other: FakeAggregator, make: Make
) -> None:
    home(other)
    sends_to(aggregator, other.address)
    agent = await make(aggregator=aggregator.address).start().up()
    found = await streaming_at(agent, other.address)
    assert (found["sent_by"], found["aggregator"]) == (aggregator.address, other.address)
    told = table(json.loads((await agent.ask("/v1/explain"))[1]))
    said = f"connected to {other.address} at {other.address} (sent there by {aggregator.address})"
    assert said in told
    for returns in (1, 2):
        other.latest.end()
        await came_back(other, returns)
    assert len(aggregator.streams) == 1, "the configured address was not asked again"


async def test_when_its_shard_is_gone_it_asks_the_configured_address_again(
    aggregator: FakeAggregator, other: FakeAggregator, make: Make
) -> None:
    agent = await sent_on(make, aggregator, other)
    home(aggregator)
    await other.stop()
    found = await streaming_at(agent, aggregator.address)
    assert found["sent_by"] == ""


async def test_a_shard_that_sends_it_away_in_the_middle_is_left_at_once_and_forgotten(
    aggregator: FakeAggregator, other: FakeAggregator, make: Make
) -> None:
    home(aggregator)
    home(other)
    agent = await make(aggregator=aggregator.address).start().up()
    await until(
        lambda: aggregator.streams and "snapshot" in aggregator.latest.kinds(), what="its stream"
    )
    aggregator.latest.send(redirect=pb.Redirect(address=other.address))
    found = await streaming_at(agent, other.address)
    assert found["sent_by"] == aggregator.address
    agent.xid(79)
    await until(lambda: other.latest.faults, what="the fault")
    other.latest.end()
    await came_back(other, 1)
    assert len(aggregator.streams) == 1


async def test_a_shard_that_does_not_answer_any_more_is_left_for_whom_the_name_has(
    aggregator: FakeAggregator, other: FakeAggregator, make: Make
) -> None:
    agent = await sent_on(make, aggregator, other)

    def promise(address: str) -> int:
        """Promises an answer time that it doesn't keep; returns how many heartbeats have come."""
        welcome = pb.Welcome(aggregator="other", answer_within_ms=1000, address=address)
        other.latest.send(welcome=welcome)
        return len(other.latest.digests)

    beats = promise(other.address)
    await until(lambda: len(other.latest.digests) >= beats + 3, within=30, what="heartbeats")
    assert len(other.streams) == 1, "who is late but takes connections is only busy"
    home(aggregator)
    # A kernel takes connections for a stopped process, as for this one, which accepts none.
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        promise(address)
        found = await streaming_at(agent, aggregator.address)
    assert found["sent_by"] == ""
    assert len(other.streams) == 1, "it was not gone back to"
    assert f"and no process takes a connection at {address}" in agent.log()
