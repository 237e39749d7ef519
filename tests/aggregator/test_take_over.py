"""A controller's knowledge of the time before it: all durable facts, and none older."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import OVERRULED
from aggregator.cluster.port import (
    Action,
    EvictionResult,
    Guard,
    Phase,
    Pod,
    QuarantineSpec,
    RepairAttempt,
    RepairState,
)
from aggregator.health.model import Cleared, ClearedBy, Delta
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.gpu_operands import PAUSED
from aggregator.quarantine.decide.node_marks import read_overruled, write_overruled
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.repair.operand_pause import OperandPause
from tests.support import virtual_time
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.present import present
from tests.support.replica import OPEN, SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running, later, soon

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

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
    return await Replica(world, clock=Running(), settings=SETTINGS).ready()


async def drained(world: World, *nodes: str) -> None:
    """Wait until these are drained, while the kubelets do their part."""

    def done() -> bool:
        world.kubelets_finish()
        return all(phase_of(world, node) is Phase.DRAINED for node in nodes)

    await soon(done)


async def test_a_sign_that_the_controller_before_has_acknowledged_is_known(world: World) -> None:
    first = await controller(world)
    first.agent("n1", snapshot(FIRST))
    await drained(world, "n1")
    acknowledged = present(first.agent("n1", Delta(cleared=(FIRST_ENDS,))))
    await acknowledged
    assert phase_of(world, "n1") is Phase.DRAINED  # until it has been well for long enough
    await first.stop()
    heir = await controller(world)
    heir.agent("n1", snapshot())  # its agent has no need to say it again
    await soon(lambda: phase_of(world, "n1") is None)
    await heir.stop()


async def test_what_came_to_a_quarantine_after_it_was_made_is_known(world: World) -> None:
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


async def test_a_sign_ends_the_word_of_a_person_that_was_spoken_before_this_controller(
    world: World,
) -> None:
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


async def test_a_silent_node_that_was_only_admitted_keeps_no_place_for_ever(world: World) -> None:
    first = await controller(world)
    first.agents(("n2", "n3", "n4"), snapshot())
    await soon(lambda: first.fleet.node_summaries["n4"].agent.was_received)
    first.cluster.crash_at_change(1, after=True)
    first.agent("n1", ILL)
    await soon(first.cluster.crashed.is_set)
    await first.stop()
    second = await controller(world)
    second.agents(("n2", "n3", "n4"), snapshot())
    await later(SETTINGS.limits.silent_drain_after - 5)
    assert set(parse_record(world.record.text).entries) == {"n1"}, "its agent may come back"
    await later(10)
    assert not parse_record(world.record.text).entries


async def test_without_the_lease_no_step_begins_and_no_sign_is_acknowledged(world: World) -> None:
    """Evidence is folded all the same, and acted on when the Lease proves to be ours still."""
    holds = [False]
    held = await Replica(
        world, clock=Running(), settings=SETTINGS, may_act=lambda: holds[0]
    ).ready()
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


class Slow(MemoryCluster):
    """A cluster whose evictions take a second; ``under_way`` and the most of them are counted."""

    under_way = most = 0

    async def evict(
        self,
        pod: Pod,
        *,
        dry_run: bool = False,
        background: bool = False,
        guard: Guard,
    ) -> EvictionResult:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await later(1)
            return await super().evict(pod, dry_run=dry_run, background=background, guard=guard)
        finally:
            self.under_way -= 1


async def test_evictions_at_once_are_counted_over_the_fleet(world: World) -> None:
    for node in world.nodes:
        for number in range(6):
            world.add_pod(node, f"job-{node}-{number}")
    settings, cluster = (
        replace(SETTINGS, limits=replace(OPEN, evictions_at_once=3)),
        Slow(world),
    )
    one = await Replica(world, clock=Running(), settings=settings, cluster=cluster).ready()
    for node in world.nodes:
        one.agent(node, ILL)
    await drained(world, *world.nodes)
    assert cluster.most == 3
    await one.stop()


def made_anew(world: World) -> None:
    """The definition of quarantines, by `kubectl replace --force`."""
    world.person_removes_definition()
    world.person_applies_definition()


WORD, OPERAND = Override("xid:48", "GPU-1", "boot-1", "gpu-reset"), "nvidia.com/gpu.deploy.dcgm"
#: Writes that undo, or make an object again: the state before, and the cause of the write.
UNDOES: dict[str, tuple[Callable[[World], object], Callable[[World, Replica], object]]] = {
    "an override that has ended": (
        lambda world: world.person_annotates("n1", OVERRULED, write_overruled(frozenset({WORD}))),
        lambda _, replica: replica.agent("n1", snapshot(cleared=(FIRST_ENDS,))),
    ),
    "a quarantine whose definition was gone": (
        lambda world: world.person_creates("n1", QuarantineSpec(Action.CORDON, "node", "fan")),
        lambda world, _: made_anew(world),
    ),
    "stopped operands": (
        lambda world: world.set_node(replace(world.nodes["n1"], labels={OPERAND: PAUSED})),
        lambda _, replica: asyncio.ensure_future(operands(replica)),
    ),
}


async def operands(replica: Replica) -> str:
    """The end of a reset."""
    acts = replica.controller.parts.worker._reads.acts
    pause = OperandPause(acts)
    node_state = replica.controller.parts.registry.node_state("n1")
    return await pause.resume(node_state, RepairAttempt("q-1", "gpu-reset", RepairState.ORDERED))


@pytest.mark.parametrize("what", UNDOES)
async def test_a_controller_whose_place_is_lost_while_its_request_waits_undoes_nothing(
    world: World, what: str
) -> None:
    """Another one may have gone on, and a person may have requested something else there."""
    holds, waited = [True], list[str]()

    async def in_queue(name: str) -> None:
        if name != "write_record":
            holds[0] = False
            waited.append(name)

    there, request = UNDOES[what]
    there(world)
    one = await Replica(world, clock=Running(), settings=SETTINGS, may_act=lambda: holds[0]).ready()
    await later(30)
    one.cluster.in_queue = in_queue
    request(world, one)
    node, writes = world.nodes["n1"], [one for one in world.writes if one != "record"]
    await soon(lambda: waited)
    await later(60)
    assert [one for one in world.writes if one != "record"] == writes
    assert (world.nodes["n1"].annotations, world.nodes["n1"].labels) == (
        node.annotations,
        node.labels,
    )
    await one.stop()
