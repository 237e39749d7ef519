"""A release never waits for the admission record: unreadable, forbidden, failing or silent.

The node is undone now; the object stays in Releasing until its entry can be taken out. The same on
a real API server is in tests/kube/test_releases_without_record.py.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import UNGUARDED, ClusterError, Guard, Phase, Refused, Unreachable
from aggregator.quarantine.decide.node_marks import read_overruled
from tests.aggregator.test_interruption import (
    ILL,
    check_released,
    reaches_released,
    recovers,
    world_in_quarantine,
    world_with_jobs,
)
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import Replica, Turned
from tests.support.waiting import until

T = TypeVar("T")


def deletes(replica: Replica, world: World) -> None:
    world.person_deletes("n1")


def uncordons(replica: Replica, world: World) -> None:
    world.person_uncordons("n1")


def strips(replica: Replica, world: World) -> None:
    world.person_removes_by_force("n1")


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("act", [deletes, uncordons, strips, recovers])
async def test_an_unreadable_record_holds_up_no_release(
    act: Callable[[Replica, World], None], *, restarted: bool
) -> None:
    world, clock = await world_in_quarantine()
    entered = world.record.text
    if restarted:
        world.person_garbles_the_record()
    replica = await Replica(world, clock=clock).ready()
    replica.agent("n1", ILL)
    if not restarted:
        await until(lambda: replica.fleet.node_summaries["n1"].work.in_record)
        world.person_garbles_the_record()
    await until(lambda: replica.controller.record_problem)
    act(replica, world)
    await until(lambda: not is_marked(world.nodes["n1"]))
    assert not world.nodes["n1"].unschedulable
    if act is not strips:
        await until(lambda: "admission record" in world.quarantines["n1"].status.message)
        assert phase_of(world, "n1") is Phase.RELEASING
    patched = world.writes.count("patch n1")
    await until(
        lambda: "the node is released" in replica.fleet.node_summaries["n1"].work.last_error
    )
    assert world.writes.count("patch n1") <= patched + 1, "it was undone again and again"
    world.person_garbles_the_record(entered)  # a person restores the old text
    await reaches_released(world)
    check_released(world)
    overruled = bool(read_overruled(world.nodes["n1"].annotations))
    assert overruled == (act is not recovers)


async def test_an_unreadable_record_admits_nobody_until_it_is_mended() -> None:
    world, clock = world_with_jobs(), Turned()
    entered = world.record.text
    replica = await Replica(world, clock=clock).ready()
    world.person_garbles_the_record()
    await until(lambda: replica.controller.record_problem)
    garbled = world.record.text
    replica.agent("n1", ILL)
    await until(lambda: "record" in replica.fleet.node_summaries["n1"].work.last_error)
    # It tries again and again, and never writes over a record that it cannot read.
    node_state = replica.controller.parts.registry.node_state("n1")
    for _ in range(3):
        node_state.work.queue()
        replica.agent("n1", ILL)
        await until(
            lambda: (
                not node_state.work.is_queued
                or node_state.work.task is None
                or node_state.work.task.done()
            )
        )
    assert world.quarantines == {}
    assert world.record.text == garbled
    assert not is_marked(world.nodes["n1"])
    world.person_garbles_the_record(entered)  # repaired: the same proposal goes through
    await until(lambda: is_marked(world.nodes["n1"]))
    assert world.quarantines["n1"].spec.evidence[0].code == "xid:79"


async def test_a_release_that_dies_while_the_record_is_unreadable_is_finished_by_the_next() -> None:
    world, clock = await world_in_quarantine()
    world.person_garbles_the_record()
    first = await Replica(world, clock=clock).ready()
    world.person_deletes("n1")
    await until(lambda: not is_marked(world.nodes["n1"]))
    await first.stop()
    second = await Replica(world, clock=clock).ready()
    second.agent("n1", ILL)
    world.person_garbles_the_record("")  # emptied, as the error says
    await reaches_released(world)
    check_released(world)
    assert read_overruled(world.nodes["n1"].annotations)


def forbidden(call: str) -> ClusterError | None:
    return Refused("403 configmaps is forbidden", status=403) if "record" in call else None


def failing(call: str) -> ClusterError | None:
    return Unreachable("500 etcdserver: request is too large") if "record" in call else None


@pytest.mark.parametrize("fails", [forbidden, failing])
async def test_a_record_that_may_not_or_can_not_be_used_holds_up_no_release(
    fails: Callable[[str], ClusterError | None],
) -> None:
    world, clock = await world_in_quarantine()
    broken = True
    await Replica(world, clock=clock, fails=lambda call: fails(call) if broken else None).ready()
    world.person_deletes("n1")
    await until(lambda: not is_marked(world.nodes["n1"]))
    assert phase_of(world, "n1") is Phase.RELEASING
    broken = False
    await reaches_released(world)
    check_released(world)


class Silent(MemoryCluster):
    """Requests for the record get no answer until ``answers`` is set."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.answers = asyncio.Event()
        self.answers.set()

    async def _call(self, name: str, effect: Callable[[], T], guard: Guard = UNGUARDED) -> T:
        if "record" in name:
            await self.answers.wait()
        return await super()._call(name, effect, guard)


async def test_a_record_that_gives_no_answer_holds_up_a_release_for_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aggregator.quarantine.actions.release.RELEASE_WAITS", 0.2)
    world, clock = await world_in_quarantine()
    cluster = Silent(world)
    replica = await Replica(world, clock=clock, cluster=cluster).ready()
    world.person_garbles_the_record()
    await until(lambda: replica.controller.record_problem)
    cluster.answers.clear()
    world.person_deletes("n1")
    await until(lambda: not is_marked(world.nodes["n1"]))
    cluster.answers.set()
    world.person_garbles_the_record("")
    await reaches_released(world)
    check_released(world)
