"""etcd is restored from a backup: versions move backwards, and consistent reads win.

The same test on a real etcd is in tests/e2e/test_etcd_restored.py.
"""

from aggregator.quarantine.decide.admission import SETTLES
from tests.aggregator.test_interruption import (
    ILL,
    check_released,
    drained,
    reaches_released,
    world_with_jobs,
)
from tests.support.memory_cluster import phase_of
from tests.support.replica import Replica, Turned, snapshot
from tests.support.waiting import until


async def test_a_quarantine_that_had_ended_stands_again_after_a_restore_and_can_be_released() -> (
    None
):
    world, clock = world_with_jobs(), Turned()
    replica = Replica(world, clock=clock)
    replica.agent("n1", ILL)
    await drained(world)
    backup = world.backup()
    world.person_deletes("n1")
    await reaches_released(world)
    await until(lambda: replica.fleet.node_summaries["n1"].quarantine is None)
    world.restore(backup)
    await until(lambda: replica.fleet.node_summaries["n1"].quarantine is not None)
    world.person_deletes("n1")
    await reaches_released(world)
    check_released(world)


async def test_a_quarantine_that_a_restore_has_taken_back_is_made_again() -> None:
    world, clock = world_with_jobs(), Turned()
    replica = Replica(world, clock=clock)
    replica.agent("n1", snapshot())
    await until(lambda: not replica.fleet.view_lost)
    backup = world.backup()
    replica.agent("n1", ILL)
    await drained(world)
    world.restore(backup)
    # A record that was rolled back holds new nodes for a while, and is rebuilt.
    await until(lambda: replica.fleet.node_summaries["n1"].decision.hold is not None)
    clock.time += SETTLES
    replica.agent("n1", ILL)
    await until(lambda: phase_of(world, "n1") is not None)
    await drained(world)
