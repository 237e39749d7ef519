"""The controller's measurements of a node's way from a fault to its release."""

from dataclasses import replace

import pytest

from aggregator.health.model import Cleared, Component, Delta, Status
from aggregator.quarantine.state.gpus import GpuCounts, gpu_counts
from tests.aggregator.test_release import drained, gone
from tests.support import virtual_time
from tests.support.memory_cluster import World
from tests.support.node_states import summary_in
from tests.support.replica import OPEN, SETTINGS, Replica, component, fault, snapshot
from tests.support.virtual_replica import Running, later, soon

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)


def gpus(*failed: int) -> list[Component]:
    found = [
        component("gpu-inventory", f"GPU-{n}", Status.FAILED if n in failed else Status.OK)
        for n in range(8)
    ]
    return [*found, component("gpu-clocks", "GPU-0", Status.UNKNOWN)]


async def test_a_node_is_measured_from_the_kernels_line_to_its_release() -> None:
    world = World.of("n1")
    replica = Replica(world, clock=Running())
    stages = replica.fleet.stages
    await soon(lambda: not replica.fleet.view_lost)
    replica.agent("n1", snapshot(*gpus()))
    summary = replica.fleet.node_summaries["n1"]
    assert gpu_counts(summary) == GpuCounts(ok=8)
    line = fault(component="GPU-3", last_at=replica.clock() - 0.02)
    replica.agent("n1", Delta(faults=(line,)))
    assert stages.kernel_to_ingest.total == pytest.approx(0.02)
    await soon(lambda: stages.ingest_to_decision.count == 1)
    await drained(world)
    assert stages.decision_to_taint[False].count == 1
    assert stages.taint_to_drained.count == 1
    assert [code for _, code in stages.causes] == ["xid:79"]
    assert gpu_counts(summary) == GpuCounts(ok=7, failed=1)
    await later(100)
    assert stages.gpu_seconds == pytest.approx(8 * 100, rel=0.2)
    replica.agent("n1", snapshot(*gpus(), cleared=(Cleared("", "GPU-3", "reboot"),)))
    await gone(world)
    await soon(lambda: stages.quarantine_to_release.count)
    assert stages.quarantine_to_release.total == pytest.approx(700, rel=0.2)
    assert gpu_counts(summary) == GpuCounts(ok=8)
    before = stages.gpu_seconds
    await later(100)
    assert stages.gpu_seconds == before
    assert stages.ingest_to_decision.count == stages.decision_to_taint[False].count == 1


async def test_a_restarted_aggregator_measures_no_earlier_decision_again() -> None:
    world = World.of("n1")
    clock = Running()
    first = Replica(world, clock=clock)
    first.agent("n1", snapshot(fault()))
    await drained(world)
    await first.stop()
    second = Replica(world, clock=clock)
    second.agent("n1", snapshot(fault()))
    stages = second.fleet.stages
    await later(60)
    assert stages.kernel_to_ingest.count == stages.ingest_to_decision.count == 0
    assert stages.decision_to_taint[False].count == stages.taint_to_drained.count == 0
    assert not stages.causes


async def test_gpus_of_a_node_that_has_not_reported_are_those_of_its_label() -> None:
    world = World.of("n1", labels={"nvidia.com/gpu.count": "4"})
    replica = Replica(world, clock=Running())
    await soon(lambda: summary_in(replica.fleet, "n1").cluster.meta)
    assert gpu_counts(summary_in(replica.fleet, "n1")) == GpuCounts(unknown=4)


async def test_a_taint_that_a_limit_held_up_counts_apart() -> None:
    world = World.of("n1")
    world.add_node("n2")
    settings = replace(SETTINGS, limits=replace(OPEN, concurrent=1))
    replica = Replica(world, clock=Running(), settings=settings)
    stages = replica.fleet.stages
    await soon(lambda: not replica.fleet.view_lost)
    replica.agent("n1", snapshot(fault()))
    await drained(world)
    replica.agent("n2", snapshot(fault()))
    await later(100)
    assert "quarantine.held" in replica.notes.kinds("n2")
    replica.agent("n1", snapshot(cleared=(Cleared("", "GPU-1", "reboot"),)))
    await soon(lambda: "quarantine.cordoned" in replica.notes.kinds("n2"))
    assert stages.decision_to_taint[False].count == 1
    assert stages.decision_to_taint[True].count == 1
    assert stages.decision_to_taint[True].total > 100
