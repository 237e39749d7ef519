"""The admission record is lost, and the aggregator dies at any call while it is rebuilt.

As in test_interruption: it dies before or after each of its calls, another takes over with an empty
memory, and the end is the same. At no moment more nodes are marked than the limit allows.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Action, ClusterError, Node, Phase
from aggregator.quarantine.decide.admission import SETTLES
from aggregator.quarantine.decide.admission_record import Entry, dump_record, parse_record
from tests.support.deaths import at_each_change, sees
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import OPEN, SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

ILL, WELL = snapshot(fault()), snapshot()
ONE = replace(SETTINGS, mode=Action.CORDON, limits=replace(OPEN, concurrent=1))


@dataclass
class Counted(World):
    """Counts, at each change of a node, how many are marked at once."""

    most: int = 0

    def set_node(self, node: Node) -> None:
        super().set_node(node)
        self.most = max(self.most, sum(map(is_marked, self.nodes.values())))


def of_others(world: World) -> str:
    """The record with an entry that no replica here made, in the generation that is known."""
    found = parse_record(world.record.text)
    entry = Entry("n3", "i", "", 5.0)
    return dump_record(replace(found, entries={"n3": entry}))


Harm = Callable[[World], None]
HARMS: dict[str, Harm] = {
    "deleted": lambda world: world.person_deletes_record(),
    "rolled back": lambda world: world.person_rolls_back_record(""),
    "foreign": lambda world: world.person_rolls_back_record(of_others(world)),
}


def entries(world: World) -> set[str]:
    return set(parse_record(world.record.text).entries)


def is_whole(world: World) -> bool:
    return entries(world) == set(world.quarantines)


def is_held(replica: Replica, name: str, limit: str) -> bool:
    hold = replica.fleet.node_summaries[name].decision.hold
    return hold is not None and hold.limit == limit


async def one_in_quarantine() -> Counted:
    """One node is in quarantine, which is all that the limit allows."""
    world = Counted.of("n1", "n2", "n3")
    replica = Replica(world, clock=Running(), settings=ONE)
    await sees(replica, n1=ILL, n3=WELL)
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    await replica.stop()
    return world


async def ends_well(world: Counted) -> None:
    """The successor holds a node that failed meanwhile, and admits it as soon as there is room."""
    replica = Replica(world, clock=Running(), settings=ONE)
    await sees(replica, n1=ILL, n2=ILL, n3=WELL)
    await until(lambda: is_held(replica, "n2", "limits.concurrent"), within=3 * SETTLES)
    await until(lambda: is_whole(world))
    assert set(world.quarantines) == {"n1"}
    await asyncio.sleep(600)
    assert set(world.quarantines) == entries(world) == {"n1"}
    world.person_deletes("n1")
    await until(lambda: phase_of(world, "n2") is Phase.CORDONED, within=3 * SETTLES)
    await until(lambda: entries(world) == {"n2"})
    assert world.most == 1
    await replica.stop()


@pytest.mark.parametrize("harm", HARMS)
@in_virtual_time
async def test_death_at_any_call_of_a_rebuild_passes_no_limit_and_is_finished_by_the_next(
    harm: str,
) -> None:
    async def one(crash_in: int | None, *, after: bool) -> int:
        world = await one_in_quarantine()
        first = Replica(world, clock=Running(), settings=ONE)
        await sees(first, n1=ILL, n3=WELL)
        await asyncio.sleep(10)  # its own beginning is done, and the record is known
        before = first.cluster.changes
        if crash_in is not None:
            first.cluster.crash_at_change(crash_in, after=after)
        HARMS[harm](world)
        await sees(first, n2=ILL, n3=WELL)
        if crash_in is None:
            await until(lambda: is_held(first, "n2", "limits.concurrent"), within=3 * SETTLES)
            assert is_whole(world)
            assert parse_record(world.record.text).rebuilt is not None
        else:
            await asyncio.wait_for(first.cluster.crashed.wait(), 3 * SETTLES)
        await first.stop()
        await ends_well(world)
        return first.cluster.changes - before

    await at_each_change(one, least=2)  # it is read, and written


@pytest.mark.parametrize("harm", HARMS)
@in_virtual_time
async def test_a_record_that_is_lost_at_any_call_of_an_admission_passes_no_limit(harm: str) -> None:
    """Two nodes fail at once, and one may be admitted. It is lost before the so-manieth call."""

    async def one(at: int) -> int:
        world = Counted.of("n1", "n2", "n3")
        calls: list[str] = []

        def strikes(name: str) -> ClusterError | None:
            calls.append(name)
            if len(calls) == at:
                HARMS[harm](world)
            return None

        replica = Replica(world, clock=Running(), settings=ONE, fails=strikes)
        await sees(replica, n1=ILL, n2=ILL, n3=WELL)
        ill = ("n1", "n2")
        await until(lambda: sum(phase_of(world, one) is Phase.CORDONED for one in ill) == 1)
        used = len(calls)
        await until(
            lambda: any(is_held(replica, one, "limits.concurrent") for one in ill),
            within=3 * SETTLES,
        )
        await asyncio.sleep(3 * SETTLES)
        assert is_whole(world)
        assert len(world.quarantines) == world.most == 1
        await replica.stop()
        return used

    used = await one(-1)
    assert used >= 5
    for at in range(1, used + 1):
        await one(at)
