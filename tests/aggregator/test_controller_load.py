"""The controller's cost for the cluster and itself under many events, or few over a long time."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from aggregator.cluster.port import (
    UNGUARDED,
    AdmissionFailed,
    ClusterError,
    Guard,
    NodeMeta,
    Phase,
    Quarantine,
    QuarantineSpec,
    RecordText,
    Refused,
    Unreachable,
)
from aggregator.health.model import Delta, Status
from aggregator.quarantine.decide.admission import FleetSize, Proposal
from aggregator.quarantine.decide.admission_record import Entry, dump_record, parse_record
from aggregator.quarantine.reconcile.rounds import REFRESH, ROUNDS
from aggregator.quarantine.state.node import NodeState
from tests.support import virtual_time
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.present import present
from tests.support.record_writers import record_writer_of
from tests.support.replica import (
    OPEN,
    SETTINGS,
    FakeLine,
    Replica,
    Turned,
    component,
    evaluator_of,
    fault,
    snapshot,
)
from tests.support.virtual_replica import LoopClock, Running
from tests.support.virtual_time import loop_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

ILL = snapshot(fault())


async def test_proposals_that_are_held_cost_no_request_however_many_and_however_long() -> None:
    world, calls = World.of(*(f"n{number}" for number in range(300))), Counter[str]()

    def count(call: str) -> ClusterError | None:
        calls[call] += 1
        return None

    replica = await Replica(
        world,
        clock=Running(),
        settings=replace(SETTINGS, limits=replace(OPEN, concurrent=3)),
        fails=count,
    ).ready()
    for number in range(300):
        replica.agent(f"n{number}", ILL)
    await asyncio.sleep(1)
    assert len(world.quarantines) == 3
    assert calls["read_node"] <= 40
    calls.clear()
    await asyncio.sleep(100)
    assert (
        sum(
            node_summary.decision.hold is not None
            for node_summary in replica.fleet.node_summaries.values()
        )
        == 297
    )
    assert set(calls) <= {"list_nodes"}


def test_an_hour_at_rest_costs_the_same_few_requests_however_many_nodes_there_are() -> None:
    asked: dict[int, Counter[str]] = {}

    def count_for(nodes: int) -> None:
        async def test(loop: virtual_time.VirtualTimeLoop) -> None:
            world, calls = World.of(*(f"n{number}" for number in range(nodes))), Counter[str]()

            def count(call: str) -> ClusterError | None:
                calls[call] += 1
                return None

            replica = await Replica(world, clock=LoopClock(loop), fails=count).ready()
            well = snapshot(component("disk-space", "/", Status.OK))
            for number in range(nodes):
                replica.agent(f"n{number}", well)
            await asyncio.sleep(100)
            assert calls["list_nodes"] == 1, "a start lists the nodes once"
            await asyncio.sleep(100)
            calls.clear()
            await asyncio.sleep(3600)
            asked[nodes] = calls
            await replica.stop()

        virtual_time.play(test)

    for nodes in (3, 300):
        count_for(nodes)
    # The watches stand all the while; a replica's Lease is not the controller's
    # (test_lease_manager).
    assert asked[3] == asked[300]
    assert set(asked[300]) == {"list_nodes"}
    assert asked[300]["list_nodes"] == 3600 / REFRESH


class SlowList(MemoryCluster):
    """A list of many nodes takes longer than several rounds."""

    async def list_nodes(self) -> list[NodeMeta]:
        found = await super().list_nodes()
        await asyncio.sleep(6 * ROUNDS)
        return found


async def test_a_start_lists_the_nodes_once_however_long_that_takes() -> None:
    world = World.of("n1")
    cluster = SlowList(world)
    await Replica(world, clock=Running(), cluster=cluster).ready()
    assert loop_time() >= 6 * ROUNDS
    await asyncio.sleep(2 * ROUNDS)
    assert cluster.asked["list_nodes"] == 1


async def test_a_cluster_that_refuses_for_hours_is_asked_on_and_the_node_is_seen_to_then() -> None:
    world, refusing, asked = World.of("n1"), True, 0

    def fails(call: str) -> ClusterError | None:
        nonlocal asked
        if call != "create_quarantine":
            return None
        asked += 1
        return Refused("no right to create") if refusing else None

    replica = Replica(world, clock=Running(), fails=fails)
    replica.agent("n1", ILL)
    await asyncio.sleep(1)
    task = replica.controller.parts.registry.node_state("n1").work.task
    await asyncio.sleep(4 * 3600)
    assert (
        replica.controller.parts.registry.node_state("n1").work.task is task
    )  # it did not die of it
    assert replica.fleet.node_summaries["n1"].work.last_error == "no right to create"
    assert asked < 4 * 3600 / 5
    refusing = False
    await asyncio.sleep(30)
    assert phase_of(world, "n1") is Phase.DRAINED


@pytest.mark.parametrize(
    "error",
    [Refused("exceeded quota", status=403), AdmissionFailed("failed calling webhook", status=500)],
)
async def test_a_quarantine_that_is_refused_is_an_event_and_leaves_its_place_to_others(
    error: ClusterError,
) -> None:
    class RefusesOne(MemoryCluster):
        async def create_quarantine(
            self, node: str, spec: QuarantineSpec, *, guard: Guard
        ) -> Quarantine:
            if node == "n1":
                raise error
            return await super().create_quarantine(node, spec, guard=guard)

    world = World.of("n1", "n2")
    settings = replace(SETTINGS, limits=replace(OPEN, concurrent=1))
    replica = Replica(world, clock=Running(), settings=settings, cluster=RefusesOne(world))
    replica.agent("n1", ILL)
    await asyncio.sleep(90)
    assert replica.notes.kinds("n1").count("quarantine.marks_missing") == 1
    replica.agent("n2", ILL)
    await asyncio.sleep(30)
    assert phase_of(world, "n2") is Phase.DRAINED


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("etcdserver: request timed out", status=500),
        Refused("exceeded quota: by an earlier try without an answer", status=403),
    ],
)
async def test_a_quarantine_that_was_stored_all_the_same_keeps_its_place(
    error: ClusterError,
) -> None:
    world, kept = World.of("n1"), list[bool]()

    class StoresAndFails(MemoryCluster):
        async def create_quarantine(
            self, node: str, spec: QuarantineSpec, *, guard: Guard
        ) -> Quarantine:
            await super().create_quarantine(node, spec, guard=guard)
            raise error

        async def write_record(self, text: str, version: str, *, guard: Guard) -> RecordText:
            kept.append("n1" in parse_record(text).entries)
            return await super().write_record(text, version, guard=guard)

    replica = Replica(world, clock=Running(), cluster=StoresAndFails(world))
    replica.agent("n1", ILL)
    await asyncio.sleep(30)
    assert phase_of(world, "n1") is Phase.DRAINED
    assert all(kept[kept.index(True) :])


async def test_a_check_that_flaps_is_not_written_each_time() -> None:
    world = World.of("n1")
    replica = Replica(world, clock=Running())
    full = component("disk-space", "/", Status.FAILED, "bytes")
    replica.agent("n1", snapshot(full))
    await asyncio.sleep(1)
    written = 0
    for turn in range(20):
        status = Status.OK if turn % 2 else Status.FAILED
        told = "" if turn % 2 else "read-only"
        flapping = component("disk-readonly", "/", status, told, since=loop_time())
        replica.agent("n1", Delta(components=(flapping,)))
        await asyncio.sleep(15)
        if turn == 3:
            assert phase_of(world, "n1") is Phase.DRAINED
            written = len(world.writes)
    assert world.writes[written:] == []


async def test_nodes_that_come_and_go_are_not_remembered_for_ever() -> None:
    world = World.of("stays", "ill")
    replica = await Replica(world, clock=Running()).ready()
    replica.agent("ill", ILL)
    await until(lambda: phase_of(world, "ill") is Phase.DRAINED)
    del world.nodes["ill"]
    replica.agent("certificate-only", snapshot())  # no Node of the cluster's, and alive
    for number in range(30):
        name = f"spot-{number}"
        world.add_node(name)
        line = FakeLine()
        replica.agent(name, ILL if number % 5 == 0 else snapshot(), line=line)
        await asyncio.sleep(400)
        replica.controller.on_disconnect(name, line, "gone")
        if name in world.quarantines:
            world.person_deletes(name)
            await asyncio.sleep(5)
        del world.nodes[name]
    await asyncio.sleep(200)
    assert "spot-29" in replica.fleet.node_summaries  # for people, for a while
    assert len(replica.fleet.node_summaries) < 20
    await asyncio.sleep(4000)
    # Nodes in quarantine, and nodes that were never listed, stay.
    assert set(replica.fleet.node_summaries) == {"stays", "ill", "certificate-only"}
    world.add_node("spot-3")
    await asyncio.sleep(200)
    assert "spot-3" in replica.fleet.node_summaries


@pytest.mark.parametrize("kicks", [1, 50])
@pytest.mark.asyncio
async def test_one_task_at_most_works_on_a_node(kicks: int) -> None:
    world = World.of("n1")
    at_work, most = 0, 0

    replica = Replica(world, clock=Turned())
    real = replica.controller.parts.worker._one_step

    async def counted(node_state: object) -> bool:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        try:
            return await real(node_state)  # type: ignore[arg-type]
        finally:
            at_work -= 1

    replica.controller.parts.worker._one_step = counted  # type: ignore[method-assign]
    await until(lambda: not replica.fleet.view_lost)
    for _ in range(kicks):
        replica.agent("n1", ILL)
        await asyncio.sleep(0)
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    assert most == 1


def counting(replica: Replica) -> Counter[str]:
    """The steps that are taken for each node from now on."""
    steps, real = Counter[str](), replica.controller.parts.worker._one_step

    async def counted(node_state: NodeState) -> bool:
        steps[node_state.node] += 1
        return await real(node_state)

    replica.controller.parts.worker._one_step = counted  # type: ignore[method-assign]
    return steps


async def test_a_quarantine_concerns_no_other_node_and_what_we_wrote_is_no_news() -> None:
    world = World.of(*(f"n{number}" for number in range(60)))
    replica = await Replica(world, clock=Running()).ready()
    for number in range(59):
        replica.agent(f"n{number}", ILL)
    await until(lambda: all(phase_of(world, f"n{n}") is Phase.DRAINED for n in range(59)))
    await asyncio.sleep(1)
    steps, evaluated = counting(replica), Counter[str]()
    evaluator = evaluator_of(replica)
    real = evaluator.evaluate_node

    def evaluate(node_state: NodeState) -> None:
        evaluated[node_state.node] += 1
        real(node_state)

    evaluator.evaluate_node = evaluate
    replica.agent("n59", ILL)
    await until(lambda: phase_of(world, "n59") is Phase.DRAINED)
    await asyncio.sleep(0.1)
    assert set(steps) == {"n59"}
    # Its evidence alone: its admission, and the writes of its object, change no incident.
    assert evaluated["n59"] == 1


async def test_a_burst_of_deltas_about_a_node_is_one_evaluation() -> None:
    world = World.of("n0")
    replica = await Replica(world, clock=Running()).ready()
    replica.agent("n0", snapshot())
    await asyncio.sleep(10)
    evaluations, evaluator = Counter[str](), evaluator_of(replica)
    real = evaluator.evaluate_node

    def evaluate(node_state: NodeState) -> None:
        evaluations[node_state.node] += 1
        real(node_state)

    evaluator.evaluate_node = evaluate
    for number in range(10):
        replica.agent("n0", Delta((component("disk", f"d{number}", Status.FAILED, "x"),)))
    await asyncio.sleep(0.05)
    assert evaluations == {"n0": 1}
    health = present(replica.fleet.node_summaries["n0"].agent.health)
    assert len([one for one in health.components.all() if one.check == "disk"]) == 10


async def test_a_place_that_is_free_again_is_taken_at_once_and_a_stop_concerns_all() -> None:
    world = World.of(*(f"n{number}" for number in range(5)))
    replica = await Replica(
        world,
        clock=Running(),
        settings=replace(SETTINGS, limits=replace(OPEN, concurrent=3)),
    ).ready()
    for number in range(5):
        replica.agent(f"n{number}", ILL)
    await until(lambda: len(world.quarantines) == 3)
    await asyncio.sleep(ROUNDS - loop_time() % ROUNDS + 0.5)  # no round comes soon
    freed = loop_time()
    gone = min(world.quarantines)
    world.person_deletes(gone)
    await until(lambda: gone not in world.quarantines and len(world.quarantines) == 3)
    assert loop_time() - freed < 1.0
    steps = counting(replica)
    world.person_stops("a test")
    await asyncio.sleep(0.5)
    assert set(steps) == {f"n{number}" for number in range(5)} - {gone}


@pytest.mark.asyncio
async def test_news_of_an_older_record_change_nothing_and_a_read_of_one_does() -> None:
    """Such events come behind our own writes, and after a restore of the API server's database."""
    world, calls = World(), Counter[str]()

    def count(call: str) -> ClusterError | None:
        calls[call] += 1
        return None

    record_writer = record_writer_of(
        MemoryCluster(world, fails=count),
        limits=OPEN,
        size=lambda: FleetSize(10, 10),
        wall=lambda: 1000.0,
    )
    seen = [world.record]
    for number in range(3):
        assert await record_writer.propose(Proposal(f"n{number}", "i", "")) is None
        seen.append(world.record)
        assert not record_writer.seen(seen[-2])
    assert set(record_writer.record.entries) == {"n0", "n1", "n2"}
    assert (calls["read_record"], calls["write_record"]) == (1, 3)
    assert record_writer.seen(world.record)
    world.record = seen[1]
    await record_writer.read()
    assert set(record_writer.record.entries) == {"n0"}


@pytest.mark.asyncio
async def test_news_of_our_own_write_may_come_before_its_answer_and_so_may_anothers() -> None:
    world = World()

    class Early(MemoryCluster):
        """An event comes before the answer to a write, and may be of another's later write."""

        async def write_record(self, text: str, version: str, *, guard: Guard) -> RecordText:
            written = await super().write_record(text, version, guard=guard)
            assert record_writer.seen(written)
            if "n1" in text and "n2" not in text:
                other = parse_record(text).enter([Entry("n2", "i", "", 9.0)])
                other = replace(other, generation=other.generation + 1)
                assert record_writer.seen(
                    await super().write_record(dump_record(other), written.version, guard=UNGUARDED)
                )
            return written

    record_writer = record_writer_of(
        Early(world),
        limits=OPEN,
        size=lambda: FleetSize(10, 10),
        wall=lambda: 1000.0,
    )
    for node in ("n0", "n1", "n3"):
        assert await record_writer.propose(Proposal(node, "i", "")) is None
        assert node in record_writer.record.entries
        assert not record_writer.problem
    assert set(record_writer.record.entries) == {"n0", "n1", "n2", "n3"}
    assert parse_record(world.record.text) == record_writer.record


@pytest.mark.asyncio
async def test_a_round_through_all_nodes_lets_others_go_between_and_skips_the_forgotten() -> None:
    replica = await Replica(World(), clock=Turned()).ready()
    node_registry = replica.controller.parts.registry
    for number in range(1600):
        node_registry.node_state(f"n{number}")
    went: list[int] = []
    seen: list[str] = []

    async def other() -> None:
        while True:
            went.append(len(seen))
            if len(seen) > 1000:
                known = node_registry.known("n1599")
                if known is not None:
                    node_registry.forget_node(known)
            await asyncio.sleep(0)

    going = asyncio.create_task(other())
    await asyncio.sleep(0)
    async for node_state in node_registry.by_slices():
        seen.append(node_state.node)  # noqa: PERF401 - the other looks at it meanwhile
    going.cancel()
    assert len({count for count in went if 0 < count < 1600}) >= 2
    assert seen == [f"n{number}" for number in range(1599)]
