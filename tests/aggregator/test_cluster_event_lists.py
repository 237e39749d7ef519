"""The effect of a list of nodes in each case: kept, read again, or forgotten. Called directly."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.cluster.node_names import APPLIED
from aggregator.cluster.port import (
    Action,
    NodeMeta,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.health.model import Cleared
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import PIN
from aggregator.quarantine.decide.uncordon import Uncordoned
from aggregator.quarantine.reconcile.cluster_events import FORGOTTEN_AFTER, ClusterEventHandler
from aggregator.quarantine.reconcile.node_rounds import NodeRounds
from aggregator.quarantine.state.node import NodeState
from tests.aggregator.test_forgotten_names import NotAll
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.node_states import part_with, set_fields
from tests.support.replica import Replica, Turned
from tests.support.virtual_time import VirtualTimeLoop, play, played_by


def quarantine(**status: Any) -> Quarantine:
    spec = QuarantineSpec(Action.DRAIN, "gpu", "x", OURS)
    return Quarantine("n1", "q", "1", spec, QuarantineStatus(**status))


class Bench:
    """A stopped replica's following, and whom it would attend to next."""

    def __init__(self, replica: Replica, world: World, patch: pytest.MonkeyPatch) -> None:
        self.replica, self.world = replica, world
        self.clock = replica.clock
        self.cluster_events: ClusterEventHandler = replica.controller.parts.cluster_events
        self.node_registry = replica.controller.parts.registry
        self.kicked: list[str] = []
        queue = self.cluster_events._queue
        patch.setattr(
            queue, "add", lambda node_state, *_, **__: self.kicked.append(node_state.node)
        )

    def node_state(self, node: str) -> NodeState:
        return self.node_registry.node_state(node)

    def listed(self, **annotations: str) -> NodeState:
        """The list has node "n1" with these."""
        node_state = self.node_state("n1")
        self.cluster_events._node_listed(node_state, NodeMeta("n1", "uid-n1", {}, annotations))
        return node_state


def on_a_bench(
    test: Callable[[Bench], Awaitable[None]], *, kind: type[MemoryCluster] = MemoryCluster
) -> None:
    async def main(_: VirtualTimeLoop) -> None:
        world = World.of("n1")
        replica = await Replica(world, clock=Turned(), cluster=kind(world)).ready()
        await asyncio.sleep(1)
        await replica.stop()
        replica.cluster.crashed.clear()
        with pytest.MonkeyPatch.context() as patch:
            await test(Bench(replica, world, patch))

    play(main)


pytestmark = pytest.mark.decorated(by=played_by(on_a_bench))


async def test_a_name_that_the_cluster_lacks_is_forgotten_when_nothing_is_on_it(
    bench: Bench,
) -> None:
    is_no_more, now = bench.cluster_events._is_no_more, bench.clock()
    assert not is_no_more(bench.node_state("n1")), "the list has it"
    ghost = bench.node_state("ghost")
    assert is_no_more(ghost)
    for name, value in (
        ("orphan", "uid"),
        ("to_adopt", True),
        ("waiters", (asyncio.get_running_loop().create_future(),)),
    ):
        before = getattr(part_with(ghost, name), name)
        set_fields(ghost, **{name: value})
        assert not is_no_more(ghost), name
        set_fields(ghost, **{name: before})
    ghost.agent.attached = True
    assert not is_no_more(ghost)
    ghost.agent.attached = False
    ghost.quarantine_view.quarantine = quarantine()
    assert not is_no_more(ghost)
    ghost.quarantine_view.quarantine = None
    ghost.work.task = asyncio.ensure_future(asyncio.sleep(5))
    assert not is_no_more(ghost), "something is being done"
    await ghost.work.task
    assert is_no_more(ghost)
    ghost.agent.last_seen = now - FORGOTTEN_AFTER + 1
    assert not is_no_more(ghost)
    ghost.agent.last_seen = now - FORGOTTEN_AFTER
    assert is_no_more(ghost)
    await bench.replica.controller.parts.record_writer.enter(Entry("ghost", "", "", 1.0))
    assert not is_no_more(ghost)


@played_by(on_a_bench, kind=NotAll)
async def test_where_the_list_lacks_nodes_one_that_was_heard_goes_only_if_it_was_listed_once(
    bench: Bench,
) -> None:
    ghost = bench.node_state("ghost")
    ghost.agent.last_seen = bench.clock() - 2 * FORGOTTEN_AFTER
    assert not bench.cluster_events._is_no_more(ghost)
    ghost.cluster.meta = NodeMeta("ghost", "uid")
    assert bench.cluster_events._is_no_more(ghost)


@pytest.mark.parametrize(
    ("node", "found", "gone", "unlisted"),
    [
        ("ghost", quarantine(node_uid="u"), False, True),
        ("ghost", quarantine(node_uid="u"), True, False),
        ("ghost", quarantine(), False, False),
        ("ghost", None, False, False),
        ("n1", quarantine(node_uid="u"), False, False),
    ],
)
async def test_a_marked_node_that_the_list_lacks_is_looked_for(
    bench: Bench, node: str, found: Quarantine | None, *, gone: bool, unlisted: bool
) -> None:
    node_state = bench.node_state(node)
    set_fields(node_state, quarantine=found, node_gone=gone)
    assert bench.cluster_events._is_unlisted(node_state) == unlisted


@pytest.mark.parametrize(
    ("node", "found", "read"),
    [("ghost", None, True), ("ghost", quarantine(), False), ("n1", None, False)],
)
async def test_an_entry_whose_node_and_object_are_gone_is_attended_to(
    bench: Bench, node: str, found: Quarantine | None, *, read: bool
) -> None:
    node_state = bench.node_state(node)
    set_fields(node_state, needs_read=False, quarantine=found)
    bench.cluster_events._entry_is_open(node_state)
    assert node_state.work.needs_read == read
    assert bench.kicked == ([node] if read else [])


def prepare_nothing(_: NodeState) -> None:
    """The positive control: the list tells what is known."""


def another_uid_is_claimed(node_state: NodeState) -> None:
    node_state.agent.claimed = "another"


def this_uid_is_claimed(node_state: NodeState) -> None:
    node_state.agent.claimed = "uid-n1"


def it_was_gone(node_state: NodeState) -> None:
    node_state.cluster.node_gone = True


def it_bore_our_marks(node_state: NodeState) -> None:
    node_state.cluster.marked = True


def others_cordoned_it(node_state: NodeState) -> None:
    node_state.cluster.foreign = "cordoned by another tool or person"


def others_cordoned_it_and_it_is_waited_for(node_state: NodeState) -> None:
    others_cordoned_it(node_state)
    node_state.quarantine_view.quarantine = quarantine(phase=Phase.ADMITTED)
    node_state.cluster.maintained = "kured"


def its_quarantine_is_of_another_node(node_state: NodeState) -> None:
    node_state.quarantine_view.quarantine = quarantine(node_uid="another")


def its_quarantine_is_of_no_node_yet(node_state: NodeState) -> None:
    node_state.quarantine_view.quarantine = quarantine(phase=Phase.ADMITTED)


@pytest.mark.parametrize(
    ("prepare", "suspect"),
    [
        (prepare_nothing, False),
        (another_uid_is_claimed, True),
        (this_uid_is_claimed, False),
        (it_was_gone, True),
        (it_bore_our_marks, True),
        (others_cordoned_it, True),
        (others_cordoned_it_and_it_is_waited_for, False),
        (its_quarantine_is_of_another_node, True),
        (its_quarantine_is_of_no_node_yet, False),
    ],
)
async def test_a_node_is_read_where_the_list_differs_from_what_is_known(
    bench: Bench, prepare: Callable[[NodeState], None], *, suspect: bool
) -> None:
    node_state = bench.listed()
    node_state.work.needs_read = node_state.cluster.node_gone = False
    bench.kicked.clear()
    prepare(node_state)
    bench.listed()
    assert node_state.work.needs_read == suspect
    assert bench.kicked == (["n1"] if suspect else [])
    assert node_state.cluster.read_at == bench.clock()


async def test_marks_in_the_list_are_unclaimed_where_no_quarantine_stands(bench: Bench) -> None:
    def is_unclaimed(node_state: NodeState) -> bool:
        return node_state.quarantine_view.to_adopt

    def is_marked(node_state: NodeState) -> bool:
        return node_state.cluster.marked

    node_state = bench.listed(**{APPLIED: "x"})
    assert is_unclaimed(node_state)
    assert is_marked(node_state)
    assert bench.kicked == ["n1"]
    set_fields(node_state, to_adopt=False, orphan="uid")
    bench.listed(**{APPLIED: "x"})
    assert not is_unclaimed(node_state), "its marks are being undone"
    set_fields(node_state, orphan="", unclaimed="shown")
    bench.listed(**{APPLIED: "x"})
    assert not is_unclaimed(node_state), "nothing is made of them in mode observe"
    bench.listed()
    assert node_state.quarantine_view.unclaimed == ""
    assert not is_marked(node_state)
    node_state.quarantine_view.quarantine = quarantine(node_uid="uid-n1", phase=Phase.ADMITTED)
    bench.listed(**{APPLIED: "x"})
    assert not is_unclaimed(node_state)


async def test_other_wishes_in_the_list_are_read_in_full(bench: Bench) -> None:
    node_state = bench.listed()
    node_state.work.needs_read = False
    bench.listed(**{PIN: "x"})
    assert node_state.work.needs_read


async def test_a_list_whose_answer_comes_after_a_newer_one_counts_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, late = bench.replica.cluster, asyncio.Event()
    read = cluster.list_nodes

    async def read_late() -> list[NodeMeta]:
        found = await read()
        await late.wait()
        return found

    monkeypatch.setattr(cluster, "list_nodes", read_late)
    older = asyncio.ensure_future(bench.cluster_events.refresh_nodes())
    await asyncio.sleep(1)
    bench.clock.time += 60
    bench.world.add_node("n2", labels={"pool": "new"})
    monkeypatch.setattr(cluster, "list_nodes", read)
    assert await bench.cluster_events.refresh_nodes()
    late.set()
    assert await older
    assert bench.node_registry.labels_of("n2") == {"pool": "new"}
    assert bench.cluster_events.listed_at == bench.clock()


async def test_a_long_list_gives_way_to_other_work(bench: Bench) -> None:
    for number in range(450):
        bench.world.add_node(f"m{number}")
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    work = asyncio.ensure_future(other_work())
    await asyncio.sleep(0)
    listing: list[int] = []
    for step in (
        bench.cluster_events.refresh_nodes(),
        bench.cluster_events._view_restored(frozenset()),
    ):
        before = turns
        await step
        listing.append(turns - before)
    work.cancel()
    assert listing[0] >= 4
    assert listing[1] >= listing[0] + 4


async def test_after_the_news_are_whole_again_only_marked_nodes_that_are_schedulable_are_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_state = bench.listed()
    signs = (Cleared("xid:79", "GPU-1", "operator"),)
    for phase, unschedulable, suspect in (
        (Phase.CORDONED, False, True),
        (Phase.DRAINED, False, True),
        (Phase.CORDONED, True, False),
        (Phase.ADMITTED, False, False),
        (Phase.RELEASING, False, False),
    ):
        node_state.quarantine_view.quarantine = quarantine(phase=phase, node_uid="uid-n1")
        set_fields(node_state, needs_read=False, signs=signs, definition_going=True)
        bench.cluster_events._queue.view = False
        names = frozenset({"n1"} if unschedulable else ())
        # Another test shows the effect of the list alone.
        monkeypatch.setattr(bench.cluster_events, "_node_listed", lambda *_: None)
        await bench.cluster_events._view_restored(names)
        assert node_state.work.needs_read == suspect, phase
        assert node_state.cluster.signs == (signs if suspect else ())
        assert not node_state.quarantine_view.definition_going
        assert bench.cluster_events._queue.view
    node_state.quarantine_view.vanished = "uid"
    await bench.cluster_events._view_restored(frozenset())
    assert (node_state.quarantine_view.vanished, node_state.quarantine_view.to_adopt) == (
        "",
        True,
    )


def test_each_round_comes_to_a_quarantine_whose_node_is_schedulable_or_absent() -> None:
    nothing: Any = SimpleNamespace(waits=lambda _: False)
    rounds = NodeRounds(registry=nothing, queue=nothing, repairs=nothing)
    node_state = NodeState("n1", now=lambda: 1.0)
    assert not rounds._waits(node_state)
    for whose in Uncordoned:
        node_state.quarantine_view.uncordoned = whose
        assert rounds._waits(node_state) == (whose is not Uncordoned.NO)
    node_state.quarantine_view.uncordoned = Uncordoned.NO
    for since, waits in ((0.0, False), (0.5, True)):
        at_rest = quarantine(phase=Phase.DRAINED, node_absent_since=since)
        node_state.quarantine_view.quarantine = at_rest
        assert rounds._waits(node_state) is waits
