"""Bursts in which processes are killed: no fault is lost.

The nodes of the bursts are simulated, through the real uplink and real gRPC, in plaintext and
trusted by their word (identity insecure-trust-hello): these tests prove that no fault is lost;
tests/kube/test_agent_tokens and tests/aggregator prove that no stranger can claim a node.
"""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.servers import FRUGAL
from tests.controlplane.waiting import wait_until
from tests.support.present import present
from tests.support.simulator import Simulator
from tests.support.stack import TAINT, Stack, remove_quarantines

pytestmark = pytest.mark.cluster

#: The settings that let agents in by their word, on loopback.
TRUSTING: dict[str, Any] = {"listen": {"tls": None}, "identity": {"kind": "insecure-trust-hello"}}

Begin = Callable[[ControlPlane, list[str]], tuple[Stack, Simulator]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts an aggregator and simulated agents for these nodes, all attached."""
    ends: list[Callable[[], object]] = []

    def start(plane: ControlPlane, nodes: list[str]) -> tuple[Stack, Simulator]:
        prefix = nodes[0].rpartition("-")[0]
        ends.append(lambda: remove_quarantines(plane, prefix))
        stack = Stack(plane, tmp_path, more=TRUSTING)
        ends.append(lambda: stack.__exit__(None, None, None))
        stack.aggregator.start().ready()
        names = tmp_path / "names"
        names.write_text("\n".join(nodes))
        line: list[str | Path] = [
            "--names",
            names,
            "--aggregator",
            stack.aggregator.address,
            "--seed",
            "1",
        ]
        simulator = Simulator(line, log=tmp_path / "simulator.log")
        ends.append(simulator.close)
        simulator.until_streaming(len(nodes))
        return stack, simulator

    yield start
    for end in reversed(ends):
        end()


def tainted(plane: ControlPlane, nodes: list[str]) -> list[str]:
    """Those of the nodes that carry our taint."""
    # The label comes with the taint; the plane may have thousands of other nodes.
    items = plane.call("GET", "/api/v1/nodes?labelSelector=sickbay.dev%2Fquarantined")["items"]
    names = {
        item["metadata"]["name"]
        for item in items
        if any(taint["key"] == TAINT for taint in item["spec"].get("taints", []))
    }
    return sorted(names.intersection(nodes))


def quarantined(plane: ControlPlane, prefix: str) -> dict[str, str]:
    """Nodes of the prefix with a Quarantine, and its phase."""
    items = plane.call("GET", "/apis/sickbay.dev/v1alpha1/quarantines")["items"]
    return {
        item["metadata"]["name"]: item.get("status", {}).get("phase", "")
        for item in items
        if item["metadata"]["name"].startswith(prefix)
    }


def test_kill_9_of_the_aggregator_in_the_middle_of_a_burst_of_100_faults_loses_none(
    cluster_space: Space, begin: Begin
) -> None:
    plane, prefix = cluster_space.plane, cluster_space.node_prefix
    nodes = cluster_space.create_nodes(100)
    stack, simulator = begin(plane, nodes)
    simulator.inject(nodes="all", fault="xid:79")
    wait_until(lambda: len(quarantined(plane, prefix)) >= 20, what="the burst", every_s=0.01)
    stack.aggregator.kill()
    begun = tainted(plane, nodes)
    assert len(begun) < 100, "the burst was over before the kill"
    stack.aggregator.start().ready()
    wait_until(lambda: len(tainted(plane, nodes)) == 100, what="all 100 taints", timeout_s=120)
    stack.until(
        lambda: list(quarantined(plane, prefix).values()).count("Drained") == 100,
        "all 100 to be drained",
        timeout_s=120,
    )
    assert len(quarantined(plane, prefix)) == 100


@pytest.fixture
def breakable_space(control_plane_programs: Mapping[str, Path]) -> Iterator[Space]:
    """One of a plane that the test may break."""
    with ControlPlane(controller_manager=False, scheduler=False, go=FRUGAL) as plane:
        yield Space(plane, "default", "gpu")


#: How long it is away.
AWAY = 30.0


def test_the_api_server_away_while_20_faults_come_in_loses_none(
    breakable_space: Space, begin: Begin
) -> None:
    """One that hangs is in test_etcd_stopped."""
    plane, prefix = breakable_space.plane, breakable_space.node_prefix
    nodes = breakable_space.create_nodes(40)
    stack, simulator = begin(plane, nodes)
    since = time.monotonic()
    plane.kill_apiserver()
    sick = nodes[:20]
    for node in sick:  # over the whole time, the first at once
        simulator.inject(node=node, fault="xid:79")
        time.sleep(AWAY / 30)
    simulator.until_streaming(40)
    time.sleep(max(0.0, since + AWAY - time.monotonic()))
    plane.restart_apiserver()
    wait_until(lambda: tainted(plane, nodes) == sick, what="all 20 taints", timeout_s=60)
    stack.until(
        lambda: list(quarantined(plane, prefix).values()).count("Drained") == 20,
        "all 20 to be drained",
        timeout_s=60,
    )
    assert tainted(plane, nodes) == sick


def codes(stack: Stack, node: str) -> set[str]:
    """The faults that the node's Quarantine names."""
    quarantine = stack.quarantine(node)
    return {item["code"] for item in quarantine["spec"]["evidence"]} if quarantine else set()


def until_named(stack: Stack, node: str, code: str) -> None:
    stack.until(lambda: code in codes(stack, node), f"{code} in the Quarantine of {node}")


#: One round each, and each is a drain of its own.
FATAL = (46, 64, 79, 119, 136)


def test_kill_9_of_the_agent_loses_no_fault(
    cluster_space: Space, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Between the kernel's line and the ack, at five moments from at once to 40 ms after the line.

    The kernel log is a file of real records, which can be read again, as the ring can.
    """
    plane, [node] = cluster_space.plane, cluster_space.create_nodes(1)
    request.addfinalizer(lambda: remove_quarantines(plane, cluster_space.node_prefix))
    rng = random.Random(1)
    with Stack(plane, tmp_path) as stack:
        stack.aggregator.start().ready()
        agent = stack.agent(node, replayable=True)
        for at, code in enumerate(FATAL):
            agent.xid(code)
            time.sleep(at * 0.01 * rng.random())
            agent.kill()
            agent.start()
            until_named(stack, node, f"xid:{code}")

        def counted() -> list[tuple[str, int]]:
            """Code and count; none before the agent that was started last answers."""
            faults = (agent.results() or {"faults": ()})["faults"]
            return sorted((fault["code"], fault["count"]) for fault in faults)

        stack.until(lambda: len(counted()) >= len(FATAL), "all faults in the agent")
        assert counted() == sorted((f"xid:{code}", 1) for code in FATAL)


def test_kill_9_of_the_agent_after_it_took_the_fault_in_and_before_the_ack_loses_none(
    cluster_space: Space, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The kernel log is a FIFO here: a record that was read is gone, and only the latch has it."""
    plane, [node] = cluster_space.plane, cluster_space.create_nodes(1)
    request.addfinalizer(lambda: remove_quarantines(plane, cluster_space.node_prefix))
    with Stack(plane, tmp_path) as stack:
        stack.aggregator.start().ready()
        agent = stack.agent(node)
        process = present(stack.aggregator.process)
        process.send_signal(signal.SIGSTOP)
        agent.xid(79)
        stack.until(lambda: '"xid:79"' in json.dumps(agent.state()["faults"]), "the latch's file")
        agent.kill()
        process.send_signal(signal.SIGCONT)
        agent.start()
        stack.until_phase(node, "Drained")
        assert codes(stack, node) == {"xid:79"}
