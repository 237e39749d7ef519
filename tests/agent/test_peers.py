"""Peers that the aggregator names: which are probed, and what their silence says."""

import json
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.sources.peers import MOST, Peers
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.agent_process import QUIET, AgentProcess
from tests.support.fake_aggregator import FakeAggregator
from tests.support.waiting import until


def test_only_single_other_machines_and_only_so_many() -> None:
    named = Peers()
    strange = ["", "node-7", "127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1"]
    strange += ["255.255.255.255", "fe80::1", "fe80::1%eth0", "10.0.0.1:80", "10.0.0.0/8"]
    named.named([*strange, "10.0.0.2", "10.0.0.2", "fd00::3"])
    assert named.addresses == ("10.0.0.2", "fd00::3")
    named.named([f"10.0.0.{number}" for number in range(1, 200)])
    assert len(named.addresses) == MOST
    named.named([])
    assert not named.addresses


@given(st.lists(st.text(), max_size=20))
def test_garbage_is_nobody(addresses: list[str]) -> None:
    named = Peers()
    named.named(addresses)
    assert len(named.addresses) <= MOST


# -- the whole way: an aggregator names one, the agent probes it and says so ---------------------


def own_address() -> str:
    """An address of this machine that is not the loopback's: packets to it stay inside."""
    shown = subprocess.run(
        ["ip", "-json", "-4", "address"], capture_output=True, text=True, check=False
    )
    links = json.loads(shown.stdout or "[]")
    found = [a["local"] for link in links for a in link["addr_info"] if a["scope"] == "global"]
    if not found:
        pytest.skip("this machine has no address but the loopback's")
    return str(found[0])


async def test_an_agent_probes_whom_the_aggregator_names(
    tmp_path: Path, aggregator: FakeAggregator
) -> None:
    address = own_address()
    aggregator.welcome = pb.Welcome(aggregator="fake", heartbeat_interval_ms=1000, peers=[address])
    more = QUIET.replace("[checks.peers]\non = false", '[checks.peers]\ninterval = "1s"')
    node = AgentProcess(tmp_path / "node", aggregator=aggregator.address, more=more)
    with closing(node):
        await node.start().up()
        await until(
            lambda: aggregator.streams and ("peers", address) in aggregator.latest.components,
            within=20,
            what=node.log(),
        )
        assert aggregator.latest.components["peers", address].status == pb.STATUS_OK
        # A later Welcome only names others.
        aggregator.latest.send(welcome=pb.Welcome(aggregator="fake", peers=[]))
        await until(
            lambda: ("peers", address) not in aggregator.latest.components,
            within=20,
            what=node.log(),
        )
        assert len(aggregator.streams) == 1
