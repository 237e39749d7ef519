"""Agents and several aggregators behind one name: found by DNS, left when they die or stop."""

import json
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nodeagent.local.explain import table
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.agent_process import Make
from tests.support.fake_aggregator import FakeAggregator
from tests.support.nameserver import NameServer
from tests.support.pki import Authority
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
SERVICE = "aggregator.sickbay.test"


@pytest.mark.root
def test_connections_spread_over_all_addresses_of_a_name_and_a_dead_one_costs_little() -> None:
    line = ["unshare", "--mount", "--net", sys.executable, "-m", "tests.agent.many_addresses"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(found["all.test"]["went"].values()) == 300
    # 100 each are expected, with a deviation of 8: fewer than 60 is no chance.
    assert min(found["all.test"]["went"].values()) >= 60, found
    assert len(found["all.test"]["went"]) == 3
    for name in ("refuses.test", "stopped.test", "vanishes.test"):
        assert set(found[name]["went"]) == {"127.0.0.2", "127.0.0.3"}, found
    # 0.25 s by themselves: the wait for the second address. The rest is a slow machine's.
    assert found["stopped.test"]["third_slowest"] < 5.0
    assert found["vanishes.test"]["third_slowest"] < 5.0


@dataclass
class Replicas:
    """A StatefulSet's pods behind a headless Service, each on an address of its own."""

    port: int = 0
    aggregators: dict[str, FakeAggregator] = field(default_factory=dict)

    async def start(self, ip: str, certificate: tuple[Path, Path]) -> FakeAggregator:
        aggregator = FakeAggregator()
        await aggregator.start(f"{ip}:{self.port}", certificate=certificate)
        self.port = int(aggregator.address.rpartition(":")[2])
        aggregator.welcome = pb.Welcome(aggregator=ip, heartbeat_interval_ms=1000)
        self.aggregators[ip] = aggregator
        return aggregator

    def with_the_fault(self) -> str:
        """The address of a replica that has the agent's fault; empty: none has."""
        for ip, aggregator in self.aggregators.items():
            if aggregator.streams and not aggregator.latest.ended and aggregator.latest.faults:
                return ip
        return ""


@pytest.mark.root
async def test_over_tls_to_a_replica_of_the_services_name_and_on_when_that_is_gone(
    make: Make, tmp_path: Path
) -> None:
    """Name resolution is real: the agent's own, asked of a name server that the test changes."""
    (tmp_path / "pki").mkdir()
    authority = Authority.create(tmp_path / "pki")
    pair = authority.server("aggregator", [SERVICE])
    stranger = authority.server("stranger", ["stranger.sickbay.test"])
    replicas = Replicas()
    async with AsyncExitStack() as ending:
        for ip in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
            aggregator = await replicas.start(ip, (pair.certificate, pair.key))
            ending.push_async_callback(aggregator.stop)
        fraud = await FakeAggregator().start(
            f"127.0.0.5:{replicas.port}", certificate=(stranger.certificate, stranger.key)
        )
        ending.push_async_callback(fraud.stop)
        # The address that no process has any more is the one that DNS still has of a dead replica.
        server = await ending.enter_async_context(
            NameServer({SERVICE: [*replicas.aggregators, "127.0.0.9"]})
        )
        agent = make(aggregator=f"{SERVICE}:{replicas.port}")
        agent.uplink = f'ca_file = "{authority.certificate}"\n'
        agent.prefix = server.resolving(tmp_path)
        await agent.start().up()
        agent.xid(79)
        await until(replicas.with_the_fault, what="the fault")
        first = replicas.with_the_fault()
        said = table(json.loads((await agent.ask("/v1/explain"))[1]))
        assert f"connected to {first} at {SERVICE}:{replicas.port} for" in said

        # Its replica dies, and for a time the name has only an address of somebody else: an agent
        # sends no evidence to a server of a certificate that does not cover the name.
        server.names[SERVICE] = ["127.0.0.5"]
        await replicas.aggregators.pop(first).stop()
        await until(lambda: "Hostname Verification" in agent.log(), what=agent.log)
        assert fraud.streams == []
        server.names[SERVICE] = list(replicas.aggregators)
        await until(replicas.with_the_fault, within=30, what="all that it knew")


async def test_an_aggregator_that_does_not_answer_any_more_is_left(
    aggregator: FakeAggregator, make: Make
) -> None:
    agent = await make(aggregator=aggregator.address).start().up()
    await until(
        lambda: aggregator.streams and "snapshot" in aggregator.latest.kinds(), what="its stream"
    )
    stream = aggregator.latest

    def promise(address: str) -> int:
        """Promises an answer time that it doesn't keep; returns how many heartbeats have come."""
        welcome = pb.Welcome(aggregator="other", answer_within_ms=1000, address=address)
        stream.send(welcome=welcome)
        return len(stream.digests)

    beats = promise(aggregator.address)
    await until(lambda: len(stream.digests) >= beats + 3, within=30, what="heartbeats")
    assert len(aggregator.streams) == 1, "who is late but takes connections is only busy"
    # A kernel takes connections for a stopped process, as for this one, which accepts none.
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        promise(address)
        await until(
            lambda: len(aggregator.streams) == 2 and "snapshot" in aggregator.latest.kinds(),
            within=60,
            what="its return to the configured address",
        )
    assert f"and no process takes a connection at {address}" in agent.log()
