"""Quarantines of deleted Nodes: shown, not counted, and ended when the Node stays away.

One of them on the real API server is in tests/kube/test_lost_marks.py.
"""

import asyncio
from dataclasses import replace

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Action, Phase, QuarantineSpec
from aggregator.quarantine.decide.node_marks import read_overruled
from tests.aggregator.test_interruption import ILL, drained, entries, world_with_jobs
from tests.support.memory_cluster import World, phase_of
from tests.support.present import present
from tests.support.replica import OPEN, SETTINGS, Replica, Turned, snapshot
from tests.support.waiting import until

DAY = SETTINGS.limits.absent_node_after


def absent(world: World, name: str) -> float:
    found = world.quarantines.get(name)
    return found.status.node_absent_since if found is not None else 0.0


def limited(concurrent: int) -> object:
    return replace(SETTINGS, limits=replace(OPEN, concurrent=concurrent))


async def polled_at(replica: Replica, name: str) -> None:
    """The work of one round; the rounds of these tests' loop are five real seconds apart."""
    node_state = replica.controller.parts.registry.node_state(name)
    replica.controller.parts.queue.add(node_state)
    await until(
        lambda: (
            node_state.work.task is not None
            and node_state.work.task.done()
            and not node_state.work.is_queued
        )
    )


async def drained_node() -> tuple[World, Turned, Replica]:
    world, clock = world_with_jobs(), Turned()
    replica = Replica(world, clock=clock)
    replica.agent("n1", ILL)
    await drained(world)
    return world, clock, replica


async def test_a_quarantine_whose_node_stays_away_ends_with_its_entry() -> None:
    world, clock, replica = await drained_node()
    before = clock.time
    world.delete_node("n1")
    await until(lambda: absent(world, "n1") == before)
    assert "its Node is gone" in world.quarantines["n1"].status.message
    assert "quarantine.node_absent" in replica.notes.kinds("n1")
    clock.time += DAY - 1
    await polled_at(replica, "n1")
    assert phase_of(world, "n1") is Phase.DRAINED
    clock.time += 2
    await polled_at(replica, "n1")
    await until(lambda: not world.quarantines and not entries(world))
    ended = [t.summary for t in replica.notes.transitions if t.kind == "quarantine.released"]
    assert "absent_node_after" in ended[-1]


async def test_the_time_of_absence_survives_a_restart() -> None:
    world, clock, replica = await drained_node()
    world.delete_node("n1")
    await until(lambda: absent(world, "n1"))
    await replica.stop()
    since = absent(world, "n1")
    clock.time += DAY / 2
    second = Replica(world, clock=clock)
    await until(lambda: second.controller.parts.registry.node_state("n1").cluster.node_gone)
    await polled_at(second, "n1")
    assert absent(world, "n1") == since
    clock.time += DAY / 2
    await polled_at(second, "n1")
    await until(lambda: not world.quarantines and not entries(world))


async def test_an_absent_node_counts_for_no_limit_and_is_counted_again_when_it_is_back() -> None:
    world, clock = World.of("n1", "n2", "n3"), Turned()
    replica = Replica(world, clock=clock, settings=limited(1))  # type: ignore[arg-type]
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    replica.agent("n2", ILL)
    await until(lambda: replica.fleet.node_summaries["n2"].decision.hold)
    node = world.nodes["n1"]
    world.delete_node("n1")
    await until(lambda: absent(world, "n1"))
    await polled_at(replica, "n2")
    await until(lambda: phase_of(world, "n2") is Phase.DRAINED)
    # Its Node is back in the same boot: its quarantine is kept, above the limit.
    world.add_node("n1", uid="uid-again", boot_id=node.boot_id)
    await until(lambda: not absent(world, "n1") and is_marked(world.nodes["n1"]))
    assert entries(world) == {"n1", "n2"}
    replica.agent("n3", ILL)
    await until(lambda: replica.fleet.node_summaries["n3"].decision.hold)
    hold = present(replica.fleet.node_summaries["n3"].decision.hold)
    assert (hold.limit, hold.reason) == (
        "limits.concurrent",
        "2 nodes are in quarantine; the limit is 1",
    )
    assert "n3" not in world.quarantines


async def test_one_made_by_hand_is_reported_and_neither_counted_nor_ended() -> None:
    world, clock = World.of("n1", "n2"), Turned()
    replica = Replica(world, clock=clock, settings=limited(1))  # type: ignore[arg-type]
    await until(lambda: not replica.fleet.view_lost)
    world.person_creates("n1", QuarantineSpec(Action.CORDON, "manual", "smoke", "hall-2"))
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    world.delete_node("n1")
    await until(lambda: absent(world, "n1"))
    replica.agent("n2", ILL)
    await until(lambda: phase_of(world, "n2") is Phase.DRAINED)
    clock.time += 100 * DAY
    await polled_at(replica, "n1")
    assert phase_of(world, "n1") is Phase.CORDONED
    assert "until it is deleted" in world.quarantines["n1"].status.message
    world.person_deletes("n1")
    await until(lambda: "n1" not in world.quarantines and entries(world) == {"n2"})


async def test_the_same_boot_that_comes_back_after_the_end_is_quarantined_anew() -> None:
    world, clock, replica = await drained_node()
    boot = world.nodes["n1"].boot_id
    world.delete_node("n1")
    await until(lambda: absent(world, "n1"))
    clock.time += DAY + 1
    await polled_at(replica, "n1")
    await until(lambda: not world.quarantines and not entries(world))
    world.add_node("n1", uid="uid-again", boot_id=boot)
    await replica.controller.parts.cluster_events.refresh_nodes()
    replica.agent("n1", ILL)
    await until(lambda: phase_of(world, "n1") is not None and is_marked(world.nodes["n1"]))
    assert not read_overruled(world.nodes["n1"].annotations)


async def test_a_node_that_is_back_at_the_last_look_keeps_its_quarantine() -> None:
    """No event has told of its return: the read before the end finds it."""
    world, clock, replica = await drained_node()
    boot = world.nodes["n1"].boot_id
    world.delete_node("n1")
    await until(lambda: absent(world, "n1"))
    node_state = replica.controller.parts.registry.node_state("n1")
    world.add_node("n1", uid="uid-again", boot_id=boot)
    assert node_state.cluster.node_gone
    clock.time += DAY + 1
    await polled_at(replica, "n1")
    await until(lambda: not absent(world, "n1"))
    await until(lambda: is_marked(world.nodes["n1"]))
    assert "quarantine.released" not in replica.notes.kinds("n1")
    await asyncio.sleep(0)


async def test_a_release_of_a_node_that_is_gone_is_carried_out() -> None:
    world, _, replica = await drained_node()
    world.delete_node("n1")
    await until(lambda: absent(world, "n1"))
    replica.agent("n1", snapshot())
    world.person_deletes("n1")
    await until(lambda: not world.quarantines and not entries(world))
