"""A node that comes from a cache may be out of date: the cost is a second try, and no more."""

import asyncio
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import TAINT, is_marked
from aggregator.cluster.port import Guard, Node, Phase, RecordText, Taint
from aggregator.quarantine.actions.cordon import ExpectedNodes
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.operator_requests import EXEMPT, exemption
from tests.support import virtual_time
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.present import present
from tests.support.replica import Replica, fault, snapshot
from tests.support.virtual_replica import Running, later, soon

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

ILL = snapshot(fault())


READS = pytest.mark.usefixtures("reads_each_node")


@pytest.fixture
def reads_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list tells too little of nodes, so that each is read before its quarantine."""
    monkeypatch.setattr(ExpectedNodes, "expect", lambda _self, _node_state: None)


@pytest.fixture(params=["read", "expected"], autouse=True)
def both_ways(request: pytest.FixtureRequest) -> None:
    if request.param == "read":
        request.getfixturevalue("reads_each_node")


class Noting(MemoryCluster):
    """Notes of each read of a node that is not marked yet whether the cache would do."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.reads: list[bool] = []

    async def read_node(
        self, name: str, *, cached: bool = False, background: bool = False
    ) -> Node | None:
        if not is_marked(self.world.nodes[name]):
            self.reads.append(cached)
        return await super().read_node(name, cached=cached, background=background)


class Tiring(MemoryCluster):
    """Writes the record ever slower, so that a loop of writes is noticed."""

    async def write_record(self, text: str, version: str, *, guard: Guard) -> RecordText:
        await asyncio.sleep(self.world.writes.count("record") // 10)
        return await super().write_record(text, version, guard=guard)


def one_node() -> World:
    world = World(cache_lags=True)
    world.add_node("n1")
    return world


def in_quarantine(world: World) -> bool:
    return phase_of(world, "n1") is Phase.DRAINED


async def test_an_old_picture_costs_a_second_try_and_wipes_out_nobodys_taint() -> None:
    world = one_node()
    theirs = Taint("example.com/rack-work", "", "NoSchedule")
    replica = Replica(world, clock=Running())
    world.set_node(replace(world.nodes["n1"], taints=(theirs,)))
    replica.agent("n1", ILL)
    await soon(lambda: in_quarantine(world))
    assert {one.key for one in world.nodes["n1"].taints} == {theirs.key, TAINT}
    assert world.writes.count("patch n1") == 1


async def test_an_exemption_that_the_cache_does_not_show_yet_keeps_the_node_untouched() -> None:
    world = one_node()
    replica = Replica(world, clock=Running())
    world.person_annotates("n1", EXEMPT, exemption(10**9, "hands off"))
    replica.agent("n1", ILL)
    await soon(lambda: replica.fleet.node_summaries["n1"].decision.exempt)
    await later(600)
    assert not is_marked(world.nodes["n1"])
    assert not world.quarantines
    assert not parse_record(world.record.text).entries


async def test_an_exemption_that_only_the_cache_still_shows_holds_nothing_up() -> None:
    world = one_node()
    world.person_annotates("n1", EXEMPT, exemption(10**9, "hands off"))
    world.person_annotates("n1", EXEMPT, None)
    replica = Replica(world, clock=Running())
    replica.agent("n1", ILL)
    await soon(lambda: in_quarantine(world), within=10)


async def test_a_persons_word_holds_although_the_cache_shows_the_node_before_it() -> None:
    world = one_node()
    replica = Replica(world, clock=Running())
    replica.agent("n1", ILL)
    await soon(lambda: in_quarantine(world))
    world.person_uncordons("n1")
    await soon(lambda: not world.quarantines)
    await later(600)
    assert not is_marked(world.nodes["n1"])
    assert not world.quarantines


async def test_a_node_made_anew_is_not_taken_for_the_one_that_the_cache_remembers() -> None:
    world = one_node()
    world.renew_node("n1", "boot-2")
    assert world.cached_node("n1") != world.nodes["n1"]
    replica = Replica(world, clock=Running())
    replica.agent("n1", ILL, boot_id="boot-2")
    await soon(lambda: in_quarantine(world))
    quarantine = world.quarantines["n1"]
    assert quarantine.status.node_uid == world.nodes["n1"].uid
    assert is_marked(world.nodes["n1"])


async def test_of_a_node_that_only_the_cache_remembers_it_is_said_that_it_is_not_there() -> None:
    world = one_node()
    world.add_node("n2")  # some are there: of none at all no share could be taken
    replica = Replica(world, clock=Running())
    world.set_node(world.nodes["n1"])
    del world.nodes["n1"]
    replica.agent("n1", ILL)
    await later(600)
    hold = present(replica.fleet.node_summaries["n1"].decision.hold)
    assert hold.reason == "the cluster has no node of this name"
    assert not world.quarantines


async def test_an_ill_node_the_cluster_does_not_have_is_held_and_told_and_written_of_once() -> None:
    """Deleted while its agent lives on, or known to the agent by another name. Each admission that
    was written and undone caused an event, and each event asked for admission again: forty writes a
    second, and a place in every limit.
    """
    world = one_node()
    replica = Replica(world, cluster=Tiring(world), clock=Running())
    replica.agent("n2", ILL)
    await later(600)
    assert world.writes.count("record") <= 4
    hold = present(replica.fleet.node_summaries["n2"].decision.hold)
    assert (hold.limit, hold.reason) == ("no-node", "the cluster has no node of this name")
    assert parse_record(world.record.text).entries == {}
    assert parse_record(world.record.text).admissions == ()
    assert not world.quarantines
    world.add_node("n2")
    await soon(lambda: phase_of(world, "n2") is Phase.DRAINED, within=30)
    assert replica.fleet.node_summaries["n2"].decision.hold is None


@READS
@pytest.mark.parametrize(
    ("lags", "reads"), [("", [True]), ("a version", [True, False]), ("a wish", [True, False])]
)
@virtual_time.in_virtual_time
async def test_what_is_not_as_it_is_known_is_read_where_it_is_stored(
    lags: str, reads: list[bool]
) -> None:
    world = one_node()
    if lags == "a wish":
        world.person_annotates("n1", EXEMPT, exemption(10**9, "hands off"))
        world.person_annotates("n1", EXEMPT, None)
    elif lags:
        world.set_node(world.nodes["n1"])
    world.cache_lags = bool(lags)
    cluster = Noting(world)
    replica = Replica(world, clock=Running(), cluster=cluster)
    replica.agent("n1", ILL)
    await soon(lambda: is_marked(world.nodes["n1"]))
    assert cluster.reads == reads
