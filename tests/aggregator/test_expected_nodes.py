"""A quarantine that begins without a read of its node, and what others do to the node meanwhile."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import RELEASED, TAINT, is_marked
from aggregator.cluster.port import ClusterError, Node, Phase, Taint, Unreachable
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.operator_requests import EXEMPT, exemption
from tests.support import virtual_time
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import Replica, fault, snapshot
from tests.support.virtual_replica import Running, later, soon

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

ILL = snapshot(fault())
THEIRS = Taint("example.com/rack-work", "", "NoSchedule")
SHUT_DOWN = Taint("node.cloudprovider.kubernetes.io/shutdown", "", "NoSchedule")

Change = Callable[[Node], Node]


class Noting(MemoryCluster):
    """Notes each call up to the first mark."""

    def __init__(
        self, world: World, fails: Callable[[str], ClusterError | None] = lambda _: None
    ) -> None:
        self.noted: list[str] = []

        def note(name: str) -> ClusterError | None:
            if not any(is_marked(node) for node in world.nodes.values()):
                self.noted.append(name)
            return fails(name)

        super().__init__(world, fails=note)
        #: Names of nodes that were read before they were marked.
        self.read: list[str] = []

    async def read_node(
        self, name: str, *, cached: bool = False, background: bool = False
    ) -> Node | None:
        if not is_marked(self.world.nodes[name]):
            self.read.append(name)
        return await super().read_node(name, cached=cached, background=background)

    def requests(self) -> list[str]:
        """The requests about nodes and quarantines, by name."""
        return [
            name for name in self.noted if name.endswith(("_node", "_quarantine", "quarantine"))
        ]


def in_quarantine(world: World, name: str = "n1") -> bool:
    return phase_of(world, name) is Phase.DRAINED


async def test_a_quarantine_and_one_patch_are_all_requests_until_the_taint() -> None:
    world = World.of("n1", labels={"pool": "a"}, annotations={"keep": "me"})
    cluster = Noting(world)
    replica = Replica(world, clock=Running(), cluster=cluster)
    replica.agent("n1", ILL)
    await soon(lambda: in_quarantine(world))
    assert cluster.requests() == ["create_quarantine", "patch_node"]
    assert world.nodes["n1"].annotations["keep"] == "me"


async def test_the_taints_of_a_pool_are_learned_from_its_first_node() -> None:
    world = World.of("n1", taints=(THEIRS,))
    world.add_node("n2", taints=(THEIRS,))
    for number in range(3, 40):  # no limit is about these two
        world.add_node(f"n{number}")
    cluster = Noting(world)
    replica = Replica(world, clock=Running(), cluster=cluster)
    replica.agent("n1", ILL)
    await soon(lambda: in_quarantine(world))
    assert cluster.requests() == [
        *("create_quarantine", "patch_node"),
        *("read_node", "read_quarantine", "patch_node"),
    ]
    cluster.read.clear()
    replica.agent("n2", ILL)
    await soon(lambda: is_marked(world.nodes["n2"]), within=3600)
    assert "n2" not in cluster.read
    assert {one.key for one in world.nodes["n2"].taints} == {THEIRS.key, TAINT}


def set_during(
    world: World, call: str, change: Change
) -> tuple[Callable[[str], ClusterError | None], list[str]]:
    """Another client changes the node before the first call of this name is carried out."""
    done: list[str] = []

    def fails(name: str) -> ClusterError | None:
        if name == call and not done:
            done.append(name)
            world.set_node(change(world.nodes["n1"]))
        return None

    return fails, done


@pytest.mark.parametrize("call", ["write_record", "create_quarantine", "patch_node"])
@pytest.mark.parametrize(
    "change",
    [
        lambda node: replace(node, taints=(THEIRS,)),
        lambda node: replace(node, unschedulable=True),
        lambda node: replace(node, labels={"pool": "b"}),
        lambda node: replace(node, annotations={RELEASED: "q-0@1"}),
    ],
    ids=["taint", "cordon", "label", "release"],
)
async def test_what_others_write_between_is_seen_and_stays(call: str, change: Change) -> None:
    world = World.of("n1")
    fails, done = set_during(world, call, change)
    cluster = Noting(world, fails)
    replica = Replica(world, clock=Running(), cluster=cluster)
    replica.agent("n1", ILL)
    await soon(lambda: in_quarantine(world))
    theirs, node = change(world.nodes["n1"]), world.nodes["n1"]
    assert done
    assert "read_node" in cluster.requests()
    assert set(theirs.taints) - set(node.taints) <= {THEIRS}
    assert {TAINT} <= {one.key for one in node.taints}
    world.person_deletes("n1")
    await soon(lambda: not world.quarantines)
    after, plain = world.nodes["n1"], World.of("n1").nodes["n1"]
    assert after.taints == change(plain).taints
    assert after.unschedulable == change(plain).unschedulable
    assert after.labels == change(plain).labels


@pytest.mark.parametrize("call", ["write_record", "create_quarantine", "patch_node"])
async def test_a_node_that_another_party_has_taken_meanwhile_is_not_marked(call: str) -> None:
    world = World.of("n1")
    fails, done = set_during(world, call, lambda node: replace(node, taints=(SHUT_DOWN,)))
    replica = Replica(world, clock=Running(), cluster=Noting(world, fails))
    replica.agent("n1", ILL)
    await soon(lambda: done)
    await later(600)
    assert not is_marked(world.nodes["n1"])
    assert world.nodes["n1"].taints == (SHUT_DOWN,)
    world.set_node(replace(world.nodes["n1"], taints=()))
    await soon(lambda: in_quarantine(world), within=3600)


async def test_a_failed_withdrawal_leaves_a_quarantine_that_ends_by_itself() -> None:
    """The object is Releasing before it goes, so that the next try is the ordinary undo."""
    world = World.of("n1")
    refused: list[str] = []
    taken, done = set_during(
        world, "create_quarantine", lambda node: replace(node, taints=(SHUT_DOWN,))
    )

    def fails(name: str) -> ClusterError | None:
        taken(name)
        if name == "drop_quarantine" and not refused:
            refused.append(name)
            return Unreachable("no answer")
        return None

    replica = Replica(world, clock=Running(), cluster=Noting(world, fails))
    replica.agent("n1", ILL)
    await soon(lambda: done and refused)
    await soon(lambda: not world.quarantines)
    await later(600)
    assert not is_marked(world.nodes["n1"])
    assert world.nodes["n1"].taints == (SHUT_DOWN,)
    assert parse_record(world.record.text).entries == {}
    world.set_node(replace(world.nodes["n1"], taints=()))
    await soon(lambda: in_quarantine(world), within=3600)


async def test_a_node_that_was_replaced_meanwhile_is_not_marked_for_the_older_one() -> None:
    world = World.of("n1")
    done: list[str] = []

    def fails(name: str) -> ClusterError | None:
        if name == "patch_node" and not done:
            done.append(name)
            world.renew_node("n1", "boot-2")
        return None

    replica = Replica(world, clock=Running(), cluster=Noting(world, fails))
    replica.agent("n1", ILL)
    await soon(lambda: done)
    await later(60)
    marked = is_marked(world.nodes["n1"])
    quarantine = world.quarantines.get("n1")
    assert not marked or (
        quarantine is not None and quarantine.status.node_uid == world.nodes["n1"].uid
    )


async def test_a_repeated_quarantine_reads_the_node() -> None:
    """Our own release is newer than the list of nodes."""
    world = World.of("n1")
    replica = Replica(world, clock=Running())
    replica.agent("n1", ILL)
    await soon(lambda: in_quarantine(world))
    world.person_deletes("n1")
    await soon(lambda: not world.quarantines)
    replica.agent("n1", snapshot(fault(code="xid:95")))
    await soon(lambda: in_quarantine(world), within=3600)
    assert world.writes.count("patch n1") == 3


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("crash_at", range(1, 9))
@pytest.mark.parametrize("hand", ["none", "taint", "cordon", "exempt"])
def test_a_death_at_any_call_and_another_hand_leave_nothing_undone(
    crash_at: int, hand: str, *, after: bool
) -> None:
    """A process dies; another client changes the node; the next process finishes or withdraws."""

    async def main() -> None:
        world = World.of("n1")
        first = MemoryCluster(world, crash_at=crash_at, after=after)
        replica = Replica(world, clock=Running(), cluster=first)
        replica.agent("n1", ILL)
        await later(60)
        await replica.stop()
        node = world.nodes["n1"]
        if hand == "taint":
            world.set_node(replace(node, taints=(*node.taints, THEIRS)))
        elif hand == "cordon":
            world.person_cordons("n1")
        elif hand == "exempt":
            world.person_annotates("n1", EXEMPT, exemption(10**9, "hands off"))
        was_marked = is_marked(node)
        following = Replica(world, clock=Running())
        following.agent("n1", ILL)
        if hand == "exempt":
            await later(600)
            marked = is_marked(world.nodes["n1"])
            assert marked <= was_marked
            assert set(world.quarantines) == ({"n1"} if marked else set())
            assert set(parse_record(world.record.text).entries) == set(world.quarantines)
            return
        await soon(lambda: phase_of(world, "n1") in {Phase.DRAINED, Phase.CORDONED}, within=600)
        assert is_marked(world.nodes["n1"])
        assert set(parse_record(world.record.text).entries) == {"n1"}
        assert (THEIRS in world.nodes["n1"].taints) == (hand == "taint")

    virtual_time.run(asyncio.wait_for(main(), 10**6))
