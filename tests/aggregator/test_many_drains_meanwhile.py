"""Events of a node between its marks and the proof that it is empty."""

import asyncio
from collections.abc import Callable

import pytest

from aggregator.cluster.port import (
    Action,
    ClusterError,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Unreachable,
)
from aggregator.health.model import Cleared, Delta
from aggregator.quarantine.reconcile import poller
from tests.support.drains import ILL, Noted, transitions, world_with
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import SETTINGS, Replica
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

THEIRS = "remediation.medik8s.io/exclude-from-remediation"


EMPTY_FOR = 5.0


async def marked(
    world: World, cluster: Noted, may_act: Callable[[], bool] = lambda: True
) -> Replica:
    """The node has had its taint for a second, and no list of the nodes comes for minutes."""
    replica = await Replica(
        world, clock=Running(), settings=SETTINGS, cluster=cluster, may_act=may_act
    ).ready()
    await asyncio.sleep(30)
    replica.agent("n1", ILL)
    await until(lambda: world.nodes["n1"].taints)
    await asyncio.sleep(1)
    return replica


async def test_the_condition_that_came_before_the_end_of_the_drain_costs_no_read() -> None:
    world = world_with()
    replica = await marked(world, Noted(world))
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    await asyncio.sleep(60)
    assert replica.cluster.asked["read_node"] == 0


async def test_a_sign_is_acknowledged_before_the_node_is_proved_empty() -> None:
    world = world_with()
    replica = await marked(world, Noted(world))
    durable = replica.agent("n1", Delta(cleared=(Cleared("xid:48", "GPU-2", "gpu-reset"),)))
    assert durable is not None
    await asyncio.wait_for(asyncio.ensure_future(durable), 1.0)
    assert phase_of(world, "n1") is Phase.DRAINING


async def test_an_edit_of_the_quarantine_meanwhile_doubles_no_transition() -> None:
    world = world_with()
    replica = await marked(world, Noted(world))
    world.put_quarantine(world.quarantines["n1"])  # a label, say
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    await asyncio.sleep(60)
    told = transitions(replica)
    kinds = ("cordoned", "draining", "drained")
    assert [told.count(f"quarantine.{kind}") for kind in kinds] == [1, 1, 1]


async def test_the_pods_of_a_node_that_a_person_quarantines_are_read_by_its_drain_alone() -> None:
    """One read is no proof there, so the drain reads them twice after its begin."""
    world = world_with()
    cluster = Noted(world)
    await Replica(world, clock=Running(), settings=SETTINGS, cluster=cluster).ready()
    world.person_creates("n1", QuarantineSpec(Action.DRAIN, "manual", "a new power supply"))
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    assert cluster.phases[0] == ("n1", Phase.DRAINING)
    assert len(cluster.polled_at) == 2


async def test_the_pods_of_a_node_that_was_found_empty_are_read_again_after_5_minutes() -> None:
    """Also where the node was polled long ago, for an earlier quarantine."""
    world = world_with()
    cluster = Noted(world)
    replica = await marked(world, cluster)
    replica.fleet.node_summaries["n1"].work.polled_at = 0.0
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    looks = len(cluster.polled_at)
    await asyncio.sleep(poller.DRAINED_EVERY - 20)
    assert len(cluster.polled_at) == looks
    await asyncio.sleep(30)
    assert len(cluster.polled_at) == looks + 1


class Queued(Noted):
    """A phase waits for its turn for a minute, except those of a release."""

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        if status.phase in (Phase.DRAINING, Phase.DRAINED):
            await asyncio.sleep(60)
        return await super().write_quarantine_status(quarantine, status)


def _deletes(world: World) -> None:
    world.person_deletes("n1")


def _uncordons(world: World) -> None:
    world.person_uncordons("n1")


@pytest.mark.parametrize("pods", [0, 1])
@pytest.mark.parametrize("ends", [_deletes, _uncordons])
async def test_a_release_does_not_wait_for_the_turn_of_a_phase(
    ends: Callable[[World], None], pods: int
) -> None:
    world = world_with(*["a"] * pods)
    await marked(world, Queued(world))
    await asyncio.sleep(10)
    ends(world)
    await until(lambda: "n1" not in world.quarantines, within=3)
    assert not world.nodes["n1"].taints
    assert world.evicted == []


def test_a_phase_that_the_watch_shows_before_its_answer_is_told_once() -> None:
    class Late(Noted):
        async def write_quarantine_status(
            self, quarantine: Quarantine, status: QuarantineStatus
        ) -> Quarantine:
            written = await super().write_quarantine_status(quarantine, status)
            await asyncio.sleep(0.5)
            return written

    @in_virtual_time
    async def test() -> None:
        world = world_with()
        cluster = Late(world)
        replica = await marked(world, cluster)
        await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
        await asyncio.sleep(60)
        assert cluster.phases == [("n1", Phase.DRAINING), ("n1", Phase.DRAINED)]
        told = transitions(replica)
        kinds = ("cordoned", "draining", "drained")
        assert [told.count(f"quarantine.{kind}") for kind in kinds] == [1, 1, 1]
        await replica.stop()

    test()


@pytest.mark.parametrize("dies", [False, True])
async def test_an_uncordon_is_not_undone_where_the_status_of_the_marks_can_not_be_written(
    *, dies: bool
) -> None:
    world, loop = world_with(), asyncio.get_running_loop()
    fails_until = loop.time() + 45.0

    def fails(name: str) -> ClusterError | None:
        is_write = name == "write_quarantine_status" and loop.time() < fails_until
        return Unreachable("503") if is_write else None

    replica = await marked(world, Noted(world, fails=fails))
    world.person_uncordons("n1")
    if dies:
        await asyncio.sleep(5)
        await replica.stop()
        replica = await Replica(world, clock=Running(), settings=SETTINGS).ready()
        replica.agent("n1", ILL)
    await until(lambda: "n1" not in world.quarantines, within=120)
    assert not world.nodes["n1"].taints
    assert not {"quarantine.draining", "quarantine.drained"} & set(transitions(replica))
