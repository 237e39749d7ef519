"""In a burst all nodes get their marks before what follows the first ones' marks begins."""

import asyncio
from typing import Any

import pytest

from aggregator.cluster.port import ClusterError, Phase
from aggregator.quarantine.reconcile.work_queue import MARKS_FIRST
from tests.support import virtual_time
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

NODES = [f"n{number}" for number in range(20)]
#: Seconds between the creations of two nodes' Quarantines.
APART = 0.02


class OneByOne(MemoryCluster):
    """Creates the Quarantines one after the other, and never that of ``stuck``."""

    stuck = ""

    async def create_quarantine(self, node: str, *args: Any, **more: Any) -> Any:
        await asyncio.sleep(3600 if node == self.stuck else NODES.index(node) * APART)
        return await super().create_quarantine(node, *args, **more)


async def ill(*, stuck: str = "") -> tuple[World, Any, Any]:
    """A replica whose nodes have all just failed, and its calls with their times."""
    world, calls = World.of(*NODES), list[tuple[float, str]]()

    def note(call: str) -> ClusterError | None:
        calls.append((virtual_time.loop_time(), call))
        return None

    cluster = OneByOne(world, fails=note)
    cluster.stuck = stuck
    replica = await Replica(world, clock=Running(), cluster=cluster).ready()
    replica.agents(NODES, snapshot(fault()))
    return world, calls, replica


async def test_no_status_is_written_before_the_last_node_has_its_marks() -> None:
    world, calls, _replica = await ill()
    await until(lambda: all(phase_of(world, name) is Phase.DRAINED for name in NODES))
    names = [call for _, call in calls]
    last = len(names) - names[::-1].index("patch_node")
    assert "write_quarantine_status" not in names[:last]


async def test_a_node_that_gets_no_marks_holds_up_the_others_for_a_moment_only() -> None:
    world, _, _replica = await ill(stuck="n7")
    begun, others = virtual_time.loop_time(), [name for name in NODES if name != "n7"]
    drains = (Phase.DRAINING, Phase.DRAINED)
    await until(lambda: all(phase_of(world, name) in drains for name in others))
    assert virtual_time.loop_time() - begun < MARKS_FIRST + len(NODES) * APART + 2.0


async def test_a_release_waits_for_no_other_nodes_marks() -> None:
    world, _, _replica = await ill(stuck="n7")
    await until(lambda: bool(world.nodes["n0"].taints))
    begun = virtual_time.loop_time()
    world.person_deletes("n0")
    await until(lambda: not world.nodes["n0"].taints)
    assert virtual_time.loop_time() - begun < MARKS_FIRST / 2
