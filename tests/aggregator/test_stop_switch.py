"""The stop switch: asked immediately before each act, kept after any delete, shown as a hold.

A request may have waited in a queue for seconds when the switch is set, and the cluster's events
may be behind: here they never come. Only a read of the switch itself shows it then.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TypeVar

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    ClusterError,
    Guard,
    GuardRefused,
    Phase,
    QuarantineSpec,
    RecordSeen,
    Refused,
    StopText,
    Unreachable,
)
from aggregator.quarantine.admission.stop_switch import FRESH, REST, StopSwitch, StopUnreadable
from aggregator.quarantine.decide.admission_record import Entry, dump_record, parse_record
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

T = TypeVar("T")

ILL = snapshot(fault())
WELL = snapshot()


def world_of(*names: str) -> World:
    world = World()
    for name in names:
        world.add_node(name)
        world.add_pod(name, f"job-{name}")
    return world


def resume(world: World) -> None:
    world.person_stops("")


def held_by_stop(replica: Replica, node: str) -> bool:
    hold = replica.fleet.node_summaries[node].decision.hold
    return hold is not None and hold.limit == "stop"


async def drained(world: World, node: str) -> None:
    def done() -> bool:
        world.kubelets_finish()
        return phase_of(world, node) is Phase.DRAINED

    await until(done)


class Queue:
    """The line before an acting call: the first of ``name`` waits there while ``happens``."""

    def __init__(self, name: str, happens: Callable[[], None]) -> None:
        self.name, self._happens, self.waited = name, happens, False

    async def __call__(self, name: str) -> None:
        if name == self.name and not self.waited:
            self.waited = True
            self._happens()
            await asyncio.sleep(2 * FRESH)


@pytest.mark.parametrize(
    ("call", "begins"),
    [("create_quarantine", "create n1"), ("patch_node", "patch n1"), ("evict", "evict uid-job-n1")],
)
async def test_what_waited_in_a_queue_when_the_switch_was_set_is_not_sent(
    call: str, begins: str
) -> None:
    world = world_of("n1")
    queue = Queue(call, lambda: world.person_stops_unseen("drill"))
    replica = Replica(world, clock=Running())
    replica.cluster.in_queue = queue
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", ILL)
    await until(lambda: queue.waited and held_by_stop(replica, "n1"))
    assert replica.fleet.stop == "drill"
    await asyncio.sleep(60)
    assert begins not in world.writes
    resume(world)
    await drained(world, "n1")
    assert begins in world.writes
    assert not held_by_stop(replica, "n1")


async def test_an_admission_that_waited_in_a_queue_when_the_switch_was_set_is_not_written() -> None:
    world = world_of("n1", "n2")
    replica = await Replica(world, clock=Running()).ready()
    await replica.agent_brings("n1", ILL, Phase.DRAINING)
    queue = Queue("write_record", lambda: world.person_stops_unseen("drill"))
    replica.cluster.in_queue = queue
    replica.agent("n2", ILL)
    await until(lambda: queue.waited and held_by_stop(replica, "n2"))
    await asyncio.sleep(60)
    assert set(parse_record(world.record.text).entries) == {"n1"}
    resume(world)
    await drained(world, "n2")


async def test_an_object_whose_node_is_not_marked_yet_is_held_by_the_stop_and_goes_on_after() -> (
    None
):
    world = world_of("n1")
    world.person_stops("drill")
    world.person_creates("n1", QuarantineSpec(Action.CORDON, "manual", "fan", "hall-2"))
    replica = Replica(world, clock=Running())
    await until(lambda: "n1" in replica.fleet.node_summaries and held_by_stop(replica, "n1"))
    for _ in range(3):
        replica.agent("n1", WELL)  # the quarantine is a person's
        await asyncio.sleep(20)
        assert held_by_stop(replica, "n1")
    assert not is_marked(world.nodes["n1"])
    assert replica.notes.kinds("n1").count("quarantine.held") == 1
    resume(world)
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    assert replica.fleet.node_summaries["n1"].decision.hold is None


@pytest.mark.parametrize(
    "error", [Unreachable("no answer in 2 s"), Refused("may not get configmaps", status=403)]
)
async def test_a_switch_that_cannot_be_read_lets_nothing_begin_and_releases_go_on(
    error: ClusterError,
) -> None:
    world = world_of("n1", "n2")
    broken = [False]
    replica = await Replica(
        world,
        clock=Running(),
        fails=lambda call: error if broken[0] and call == "read_stop" else None,
    ).ready()
    replica.agent("n1", ILL)
    await drained(world, "n1")
    await asyncio.sleep(2 * FRESH)  # the earlier read is old
    broken[0] = True
    replica.agent("n2", ILL)
    await until(lambda: replica.fleet.node_summaries["n2"].work.last_error)
    text = replica.fleet.node_summaries["n2"].work.last_error
    assert text == f"no new action begins, as the stop switch can't be read: {error}"
    world.person_deletes("n1")
    await until(lambda: "n1" not in world.quarantines)
    assert not is_marked(world.nodes["n1"])
    assert "n2" not in world.quarantines
    broken[0] = False
    await drained(world, "n2")
    assert replica.fleet.node_summaries["n2"].work.last_error == ""


async def test_a_stop_outlasts_its_object_until_a_person_resumes() -> None:
    world = world_of("n1")
    replica = await Replica(world, clock=Running()).ready()
    world.person_stops("drill")
    await until(lambda: replica.fleet.stop == "drill")
    world.person_deletes_stop()
    await until(lambda: "deleted" in replica.fleet.stop)
    replica.agent("n1", ILL)
    await until(lambda: held_by_stop(replica, "n1"))
    await asyncio.sleep(60)
    assert world.quarantines == {}
    assert "sickbay resume" in replica.fleet.stop
    resume(world)
    await drained(world, "n1")
    assert replica.fleet.stop == ""


async def test_at_rest_the_switch_is_not_read_and_in_a_burst_seldom() -> None:
    names = [f"n{number}" for number in range(40)]
    world = world_of(*names)
    calls: Counter[str] = Counter()

    def count(call: str) -> None:
        calls[call] += 1

    replica = await Replica(world, clock=Running(), fails=count).ready()
    replica.agents(names, WELL)
    await asyncio.sleep(600)
    assert calls["read_stop"] == 0
    began = loop_time()
    replica.agents(names, ILL)
    await until(lambda: all(phase_of(world, name) is Phase.DRAINING for name in names))
    took = loop_time() - began
    assert 1 <= calls["read_stop"] <= took / FRESH + 2


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    @property
    def clocks(self) -> Clocks:
        return Clocks(self, self)


def test_an_older_word_changes_nothing_and_after_a_gap_the_first_one_counts() -> None:
    switch = StopSwitch(MemoryCluster(World()), clocks=Clock().clocks)
    switch.apply_seen(StopText("new", "20"))
    switch.apply_seen(StopText("", "10"))
    assert switch.reason == "new"
    switch.apply_seen(StopText("", "22"))
    switch.apply_seen(StopText("again", "5"))
    assert switch.reason == ""
    switch.view_lost()  # the store was restored: its versions are lower
    switch.apply_seen(StopText("again", "5"))
    assert switch.reason == "again"
    switch.view_lost()
    switch.apply_seen(StopText("again", "5"))  # the list
    switch.apply_seen(StopText("", "4"))  # a read that began before the watch was lost
    assert switch.reason == "again"


def test_only_words_end_a_stop_and_words_of_before_it_do_not() -> None:
    told: list[str] = []
    switch = StopSwitch(MemoryCluster(World()), clocks=Clock().clocks)
    switch.listener = SimpleNamespace(stop_changed=lambda: told.append(switch.reason))
    switch.apply_seen(StopText("", "1"))  # resumed once, long ago
    assert told == []
    switch.apply_seen(StopText("drill", "2"))
    switch.view_lost()
    switch.apply_seen(StopText())  # the object is deleted
    switch.apply_seen(StopText(None, "5"))  # and made without a reason: an installer's
    assert switch.reason.startswith("drill; the object that held it was deleted")
    switch.apply_seen(StopText("", "6"))
    assert switch.reason == ""
    assert told == [
        "drill",
        "drill; the object that held it was deleted since: `sickbay resume` ends it",
        "",
    ]


@pytest.mark.asyncio
async def test_one_read_serves_all_who_wait_and_is_good_for_half_a_second() -> None:
    world, clock = World(), Clock()
    calls: Counter[str] = Counter()

    def count(call: str) -> None:
        calls[call] += 1

    switch = StopSwitch(MemoryCluster(world, fails=count), clocks=clock.clocks)
    await asyncio.gather(*(switch.check() for _ in range(50)))
    clock.time += FRESH
    await switch.check()
    assert calls == {"read_stop": 1}
    clock.time += 0.01
    world.person_stops_unseen("drill")
    with pytest.raises(GuardRefused, match="the stop switch is set: drill"):
        await switch.check()
    assert calls["read_stop"] == 2


@pytest.mark.asyncio
async def test_a_read_that_was_begun_too_early_for_an_act_is_not_taken_for_it() -> None:
    world, clock = World(), Clock()
    slow = asyncio.Event()

    class Slow(MemoryCluster):
        async def read_stop(self) -> StopText:
            found = self.world.stop
            await slow.wait()
            return found

    switch = StopSwitch(Slow(world), clocks=clock.clocks)
    switch.begin_check()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.time += FRESH + 0.1
    world.person_stops_unseen("drill")
    waits = asyncio.create_task(switch.check())
    await asyncio.sleep(0)
    slow.set()
    with pytest.raises(GuardRefused):
        await waits


@pytest.mark.asyncio
async def test_only_the_first_write_after_a_rest_goes_beside_the_read() -> None:
    world, clock = World(), Clock()
    switch = StopSwitch(MemoryCluster(world), clocks=clock.clocks)
    world.person_stops_unseen("drill")
    await switch.check_meanwhile()  # by the events, which are late
    with pytest.raises(GuardRefused):  # the steps after an admission wait for the read
        await switch.check()
    resume(world)
    switch.apply_seen(world.stop)
    await switch.check()
    clock.time += FRESH + 0.1
    world.person_stops_unseen("drill")
    with pytest.raises(GuardRefused):
        await switch.check_meanwhile()
    resume(world)
    switch.apply_seen(world.stop)
    clock.time += REST + 1
    broken = StopSwitch(
        MemoryCluster(world, fails=lambda _: Unreachable("away")), clocks=clock.clocks
    )
    with pytest.raises(StopUnreadable):
        await broken.check()
    with pytest.raises(StopUnreadable):
        await broken.check_meanwhile()


async def test_a_stop_that_comes_with_an_entry_begins_nothing_of_it() -> None:
    """Admitted by a process that died; its successor finds the entry, and a stop with late news."""
    world = world_of("n1")
    entered = parse_record("").enter([Entry("n1", "i", "", 1.0)])
    world.record = replace(world.record, text=dump_record(entered), version=world.tick())
    world.person_stops_unseen("drill")
    replica = Replica(world, clock=Running())
    world.emit(RecordSeen(world.record))
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", ILL)
    await until(lambda: held_by_stop(replica, "n1"))
    assert world.quarantines == {}


async def test_the_first_quarantine_after_a_rest_does_not_wait_for_the_switch_to_be_read() -> None:
    """Record, object and node are written in turn; the reads run beside the first write."""
    answer = 0.1

    class Far(MemoryCluster):
        async def _call(self, name: str, effect: Callable[[], T], guard: Guard = UNGUARDED) -> T:
            found = await super()._call(name, effect, guard)
            await asyncio.sleep(answer)
            return found

    world = world_of("n1")
    replica = await Replica(world, clock=Running(), cluster=Far(world)).ready()
    replica.agent("n1", WELL)
    await asyncio.sleep(60)
    began = loop_time()
    replica.agent("n1", ILL)
    await until(lambda: is_marked(world.nodes["n1"]))
    assert 2 * answer <= loop_time() - began < 3 * answer  # the last answer is not waited for
