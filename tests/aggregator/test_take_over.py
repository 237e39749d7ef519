"""A controller's knowledge of the time before it: all durable facts, and none older."""

import asyncio
from dataclasses import replace

import pytest

from aggregator.cluster.port import EvictionResult, Guard, Phase, Pod
from aggregator.health.model import Cleared, ClearedBy, Delta
from aggregator.quarantine.decide.node_marks import read_overruled
from tests.support import virtual_time
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import OPEN, SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running, later, soon

ILL = snapshot(fault())
FIRST = fault("xid:48", "GPU-1", cleared_by=ClearedBy.GPU_RESET)
SECOND = fault("xid:48", "GPU-2", cleared_by=ClearedBy.GPU_RESET, source_seq=8)
FIRST_ENDS = Cleared("xid:48", "GPU-1", "gpu-reset")
SECOND_ENDS = Cleared("xid:48", "GPU-2", "gpu-reset")


@pytest.fixture
def world() -> World:
    made = World()
    for node in ("n1", "n2", "n3", "n4"):
        made.add_node(node, boot_id="boot-1")
        made.add_pod(node, f"job-{node}")
    return made


async def controller(world: World) -> Replica:
    """One that begins, as on another replica when the one before it is gone."""
    made = Replica(world, clock=Running(), settings=SETTINGS)
    await soon(lambda: not made.fleet.view_lost)
    return made


async def drained(world: World, *nodes: str) -> None:
    """Wait until these are drained, while the kubelets do their part."""

    def done() -> bool:
        world.kubelets_finish()
        return all(phase_of(world, node) is Phase.DRAINED for node in nodes)

    await soon(done)


def test_a_sign_that_the_controller_before_has_acknowledged_is_known(world: World) -> None:
    async def main() -> None:
        first = await controller(world)
        first.agent("n1", snapshot(FIRST))
        await drained(world, "n1")
        acknowledged = first.agent("n1", Delta(cleared=(FIRST_ENDS,)))
        assert acknowledged is not None
        await acknowledged
        assert phase_of(world, "n1") is Phase.DRAINED  # until it has been well for long enough
        await first.stop()
        heir = await controller(world)
        heir.agent("n1", snapshot())  # its agent has no need to say it again
        await soon(lambda: phase_of(world, "n1") is None)
        await heir.stop()

    virtual_time.run(main())


def test_what_came_to_a_quarantine_after_it_was_made_is_known(world: World) -> None:
    async def main() -> None:
        first = await controller(world)
        first.agent("n1", snapshot(FIRST))
        await drained(world, "n1")
        first.agent("n1", Delta(faults=(SECOND,)))
        await soon(lambda: len(world.quarantines["n1"].spec.evidence) == 2)
        await first.stop()
        heir = await controller(world)
        # Its agent has lost its memory: there is no positive sign for the second fault.
        heir.agent("n1", snapshot(cleared=(FIRST_ENDS,)))
        await later(3600)
        assert phase_of(world, "n1") is Phase.DRAINED
        heir.agent("n1", Delta(cleared=(SECOND_ENDS,)))
        await soon(lambda: phase_of(world, "n1") is None)
        await heir.stop()

    virtual_time.run(main())


def test_a_sign_ends_the_word_of_a_person_that_was_spoken_before_this_controller(
    world: World,
) -> None:
    async def main() -> None:
        first = await controller(world)
        first.agent("n1", snapshot(FIRST))
        await drained(world, "n1")
        world.person_deletes("n1")
        await soon(lambda: phase_of(world, "n1") is None)
        await first.stop()
        heir = await controller(world)
        answer = heir.agent("n1", snapshot(cleared=(FIRST_ENDS,)))
        if answer is not None:
            await answer
        assert not read_overruled(world.nodes["n1"].annotations)
        heir.agent("n1", Delta(faults=(replace(FIRST, source_seq=9),)))
        await drained(world, "n1")
        await heir.stop()

    virtual_time.run(main())


def test_without_the_lease_no_step_begins_and_no_sign_is_acknowledged(world: World) -> None:
    """Evidence is folded all the same, and acted on when the Lease proves to be ours still."""

    async def main() -> None:
        holds = [False]
        held = Replica(world, clock=Running(), settings=SETTINGS, may_act=lambda: holds[0])
        await soon(lambda: not held.fleet.view_lost)
        held.agent("n1", ILL)
        answer = held.agent("n2", snapshot(cleared=(FIRST_ENDS,)))
        writes = len(world.writes)
        await later(60)
        assert isinstance(answer, asyncio.Future)
        assert (answer.done(), world.quarantines, len(world.writes)) == (False, {}, writes)
        holds[0] = True
        await drained(world, "n1")
        await answer
        await held.stop()

    virtual_time.run(main())


class Slow(MemoryCluster):
    """A cluster whose evictions take a second; ``under_way`` and the most of them are counted."""

    under_way = most = 0

    async def evict(
        self,
        pod: Pod,
        *,
        dry_run: bool = False,
        background: bool = False,
        guard: Guard | None = None,
    ) -> EvictionResult:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await later(1)
            return await super().evict(pod, dry_run=dry_run, background=background, guard=guard)
        finally:
            self.under_way -= 1


def test_evictions_at_once_are_counted_over_the_fleet(world: World) -> None:
    async def main() -> None:
        for node in world.nodes:
            for number in range(6):
                world.add_pod(node, f"job-{node}-{number}")
        settings, cluster = (
            replace(SETTINGS, limits=replace(OPEN, evictions_at_once=3)),
            Slow(world),
        )
        one = Replica(world, clock=Running(), settings=settings, cluster=cluster)
        await soon(lambda: not one.fleet.view_lost)
        for node in world.nodes:
            one.agent(node, ILL)
        await drained(world, *world.nodes)
        assert cluster.most == 3
        await one.stop()

    virtual_time.run(main())
