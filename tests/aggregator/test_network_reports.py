"""What a replica keeps of its nodes' and of others' words on the network, leading or not."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from aggregator.cluster.port import NodeMeta
from aggregator.health.model import Delta, Status
from aggregator.policy.network.verdict import Finding
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.decide.cause_search import CommonLimits
from aggregator.quarantine.decide.replica_messages import NodeReport
from tests.support.memory_cluster import World
from tests.support.replica import OPEN, SETTINGS, Replica, component, snapshot
from tests.support.virtual_replica import Running, soon
from tests.support.virtual_time import VirtualTimeLoop, play

LABEL = "topology.kubernetes.io/rack"
SITE = replace(SETTINGS, limits=OPEN, common=replace(CommonLimits(), domain_labels=(LABEL,)))
PEER, OTHER = "10.0.0.2", "10.0.0.3"


def on_a_replica(test: Callable[[Replica, NetworkTracker], Awaitable[None]]) -> None:
    async def main(_: VirtualTimeLoop) -> None:
        world = World()
        world.add_node("n1", labels={LABEL: "r1"})
        replica = Replica(world, clock=Running(), settings=SITE)
        await soon(lambda: not replica.fleet.view_lost)
        replica.agent("n1", snapshot())
        await test(replica, replica.controller._network_tracker)
        await replica.stop()

    play(main)


def test_of_anothers_words_only_those_on_the_network_are_edges() -> None:
    async def test(replica: Replica, network: NetworkTracker) -> None:
        sees = (
            ("disk-mounts", "/data", Status.FAILED),
            ("reach", "tcp://x", Status.FAILED),
            ("peers", PEER, Status.OK),
        )
        said = NodeReport("n9", speaking=True, address="10.0.0.9", sees=sees, assigned=(PEER,))
        replica.controller._registry.node_state("n9")
        network.set_report(said)
        assert network.node_report("n9") == ("10.0.0.9", True, sees[1:], (PEER,))
        network.set_report(replace(said, speaking=False, sees=sees[2:], assigned=(OTHER,)))
        assert network.node_report("n9") == ("10.0.0.9", False, (), (OTHER,))
        network.drop_report("n9")
        assert network.node_report("n9") == ("10.0.0.9", False, (), ())
        network.set_report(NodeReport("n8", sees=sees))
        network.drop_report("n8")  # no node of this cluster
        assert network.node_report("n8") == ("", False, (), ())

    on_a_replica(test)


def test_a_snapshot_replaces_what_a_node_sees_and_a_change_adds_to_it() -> None:
    async def test(replica: Replica, network: NetworkTracker) -> None:
        network.assigned("n1", (PEER, OTHER))
        reach, peer = component("reach", "tcp://x", Status.OK), component("peers", PEER, Status.OK)
        disk = component("disk-space", "/", Status.OK)
        replica.agent("n1", snapshot(reach, peer, disk))
        both = (("reach", "tcp://x", Status.OK), ("peers", PEER, Status.OK))
        assert network.node_report("n1")[1:3] == (True, both)
        replica.agent("n1", Delta((replace(peer, status=Status.FAILED),)))
        assert network.node_report("n1")[2] == (both[0], ("peers", PEER, Status.FAILED))
        replica.agent("n1", Delta(gone=(("reach", "tcp://x"), ("reach", "unknown"))))
        assert network.node_report("n1")[2] == (("peers", PEER, Status.FAILED),)
        network.assigned("n1", (OTHER,))
        assert network.node_report("n1")[2] == (), "nobody asked for it any more"
        replica.agent("n1", snapshot(reach))
        assert network.node_report("n1")[2] == (both[0],)
        network.silent("n1")
        assert network.node_report("n1")[1] is False

    on_a_replica(test)


def test_a_place_is_kept_of_nodes_that_have_one_or_had_one_and_for_who_leads_next() -> None:
    async def test(_: Replica, network: NetworkTracker) -> None:
        network._places.clear()
        nodes = [NodeMeta("n1", "u1", {LABEL: "r1", "other": "x"}), NodeMeta("n2", "u2", {})]
        network.listed(nodes)
        assert network._places == {"n1": [f"{LABEL}=r1"]}
        network.follow()
        network.listed([NodeMeta("n1", "u1", {LABEL: "r2"}), nodes[1]])
        assert network._places == {"n1": [f"{LABEL}=r2"]}
        network.lead(0.0)
        assert list(network._network._domains_of["n1"]) == [f"{LABEL}=r2"]
        network.listed([NodeMeta("n1", "u1", {}), nodes[1]])
        assert network._places == {"n1": []}
        network.forget_node("n1")
        assert network._places == {}

    on_a_replica(test)


@pytest.mark.parametrize("leading", [True, False])
def test_the_leaders_findings_count_for_nodes_of_ours_where_another_one_leads(
    *, leading: bool
) -> None:
    async def test(replica: Replica, network: NetworkTracker) -> None:
        if not leading:
            network.follow()
        found = Finding(Status.FAILED, "cut-off", "x", replica.clock())
        network.answered({"n1": found})
        assert (network.finding("n1") == found) == (not leading)
        network.drop_finding("n1")
        assert network.finding("n1") != found

    on_a_replica(test)


def test_an_address_of_a_node_that_another_replica_speaks_of_is_not_ours_to_tell() -> None:
    async def test(replica: Replica, network: NetworkTracker) -> None:
        network._remote_nodes.apply_reports("r2", NodeReport("n9"))
        network._owns = lambda node: node != "n9"
        network.placed("n9", "10.0.0.9")
        network.assigned("n9", (PEER,))
        assert network.node_report("n9") == ("", False, (), ())
        network._owns = lambda _: True
        network.placed("n9", "10.0.0.9")
        network.assigned("n9", (PEER,))
        assert network.node_report("n9") == ("10.0.0.9", False, (), (PEER,))
        # Nothing is begun for a node by word that it has no address or peers.
        network.placed("n7", "")
        network.assigned("n7", ())
        assert "n7" not in network._words

    on_a_replica(test)
