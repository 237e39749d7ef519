"""Limits on the real kube-apiserver: the record is what holds, and it lasts.

The real controller with the real client; the test plays the agents and turns the clocks. All
other limits and common causes are in tests/aggregator (test_mass_events, test_pools_controller), in
virtual time.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Guard, NodeMeta, Phase
from aggregator.composition.core import build_controller
from aggregator.events import EventKind
from aggregator.health.model import Delta, Hello, Snapshot
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.admission_record import Record, parse_record
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    ConfiguredRepairer,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from aggregator.quarantine.settings import Settings, SilenceRules
from aggregator.quarantine.state.fleet import FleetState
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.support.kube_cluster import kube_cluster
from tests.support.replica import (
    POLICY,
    SETTINGS,
    FakeLine,
    Notes,
    Turned,
    fault,
    snapshot,
)
from tests.support.stack import remove_quarantines
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

#: The wall clock when the turned one is at 0 (seconds since the epoch).
NIGHT = 1.75e9
SHIPPED = replace(
    SETTINGS,
    limits=replace(Limits(), quorum_percent=0),
    common=CommonLimits(),
    silence=SilenceRules(1e9),
)


class Own(KubeCluster):
    """The shared plane may have nodes of others: those of this test are the fleet."""

    def __init__(self, space: Space) -> None:
        super().__init__(
            kubeconfig=str(space.plane.kubeconfig), namespace=space.namespace, rng=random.Random(1)
        )
        self._prefix = space.node_prefix

    async def list_nodes(self) -> list[NodeMeta]:
        return [meta for meta in await super().list_nodes() if meta.name.startswith(self._prefix)]


class Bench:
    """One life of an aggregator, and the agents that speak to it."""

    def __init__(
        self, cluster: KubeCluster, settings: Settings, clock: Turned, ahead: float
    ) -> None:
        """``ahead``: by so much the wall clock is."""
        self.fleet, self.notes, self.clock = FleetState(), Notes(), clock
        self.controller = build_controller(
            cluster=cluster,
            policy=POLICY,
            settings=settings,
            fleet=self.fleet,
            event_sink=self.notes,
            clocks=Clocks(clock, lambda: NIGHT + clock.time + ahead),
            rng=random.Random(7),
        )

    def attach(self, node: str, told: Snapshot) -> None:
        hello = Hello(node, "boot-1", "epoch", "0.1.0", 1, "agent")
        self.controller.on_connect(hello, FakeLine())
        self.controller.on_evidence(node, told, self.clock())

    def break_(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.controller.on_evidence(
                node, Delta(faults=(fault("xid:79", f"GPU-{node}"),)), self.clock()
            )

    def holds(self) -> dict[str, str]:
        node_summaries = self.fleet.node_summaries.values()
        return {
            one.node: one.decision.hold.limit
            for one in node_summaries
            if one.decision.hold is not None
        }

    def marked(self) -> set[str]:
        """The given nodes that carry our marks by now."""
        found = ((one.node, one.quarantine) for one in self.fleet.node_summaries.values())
        return {node for node, one in found if one and one.status.phase is not Phase.ADMITTED}


@asynccontextmanager
async def life(
    space: Space,
    settings: Settings,
    clock: Turned,
    told: dict[str, Snapshot],
    *,
    ahead: float = 0.0,
) -> AsyncIterator[Bench]:
    """One process: its own client, and agents that come with these snapshots."""
    cluster = Own(space)
    await cluster.start()
    bench = Bench(cluster, settings, clock, ahead)
    task = asyncio.create_task(bench.controller.run())
    try:
        await until(
            lambda: not bench.fleet.view_lost and len(bench.fleet.node_summaries) >= len(told)
        )
        for node, evidence in told.items():
            bench.attach(node, evidence)
        yield bench
    finally:
        task.cancel()
        await asyncio.wait({task})
        await cluster.close()


async def stored(space: Space) -> Record:
    """The record as the API server has it."""
    async with kube_cluster(space.plane.kubeconfig, namespace=space.namespace) as cluster:
        return parse_record((await cluster.read_record()).text)


UPGRADE = {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}
REMOVED = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}


@pytest.mark.parametrize("mark", ["label", "later"])
@pytest.mark.usefixtures("quarantine_definition")
async def test_14_bad_nodes_that_another_tool_holds_leave_the_15th_its_place_at_once(
    cluster_space: Space, request: pytest.FixtureRequest, mark: str
) -> None:
    """``later``: the marks are newer than the list of nodes, so that the patch alone finds them.

    The shipped bound of common causes would hold all: its evidence is the fleet's, marks or not.
    """
    plane = cluster_space.plane
    request.addfinalizer(lambda: remove_quarantines(plane, cluster_space.node_prefix))
    labels = UPGRADE if mark == "label" else None
    held = cluster_space.create_nodes(14, labels=labels)
    others = cluster_space.create_nodes(46, start=14)
    free = others[0]

    limits = replace(SHIPPED.limits, concurrent_percent=100)
    settings = replace(SHIPPED, limits=limits, common=CommonLimits(common_cause_percent=60))
    well = dict.fromkeys([*held, *others], snapshot())
    async with life(cluster_space, settings, Turned(), well) as bench:
        for node in held if mark == "later" else ():
            body = {"spec": {"taints": [REMOVED]}}
            plane.call("PATCH", f"/api/v1/nodes/{node}", body, MERGE_PATCH)
        bench.break_(held)
        await until(lambda: set(bench.holds()) == set(held))
        await until(
            lambda: set(bench.holds().values()) == {"maintenance"}, lambda: f"{bench.holds()}"
        )
        bench.break_([free])
        await until(lambda: bench.marked() == {free}, lambda: f"{bench.holds()}", within=20)
        assert set(bench.holds().values()) == {"maintenance"}
        record = await stored(cluster_space)
        assert (set(record.entries), len(record.admissions), record.cooldowns) == ({free}, 1, {})
        for node in held:
            assert EventKind.ADMITTED not in bench.notes.kinds(node)
        assert bench.notes.kinds(free).count(EventKind.ADMITTED) == 1


class SlowRepairs:
    """A repairer whose orders are accepted, and are not proved for long."""

    sends_twice = False

    def __init__(self) -> None:
        self.ordered: list[str] = []
        self.looks = 0

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        await guard()
        self.ordered.append(order.node)
        return RepairAnswer(AnswerState.TAKEN)

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        self.looks += 1
        return RepairAnswer(AnswerState.TAKEN)

    async def cancel(self, order: RepairOrder) -> bool:
        return False


@pytest.mark.usefixtures("quarantine_definition")
async def test_a_controller_whose_clock_is_23_hours_ahead_frees_no_place_of_a_repair(
    cluster_space: Space, request: pytest.FixtureRequest
) -> None:
    """Nor does one whose clock is as far behind hold it for longer than the attempt lasts."""
    request.addfinalizer(lambda: remove_quarantines(cluster_space.plane, cluster_space.node_prefix))
    first, second = nodes = cluster_space.create_nodes(2, labels={"rack": "7"})
    repairs, clock, lasts = SlowRepairs(), Turned(), 1800.0
    rules = RepairRules(mode=RepairMode.REPAIR, concurrent_percent=100.0)
    reboot = ConfiguredRepairer(repairs, lasts)
    settings = replace(
        SETTINGS, repair=RepairSettings(rules, {"reboot": reboot}, domain_labels=("rack",))
    )
    ill = {node: snapshot(fault("xid:79", f"GPU-{node}")) for node in nodes}

    def turn() -> bool:
        clock.time += 1.0  # a look at a repair is due every few seconds
        return True

    async with life(cluster_space, settings, clock, {first: ill[first]}):
        await until(lambda: turn() and repairs.ordered == [first])
        await until(lambda: turn() and repairs.looks > 1)
    for ahead in (23 * 3600.0, -23 * 3600.0):
        before = repairs.looks
        async with life(cluster_space, settings, clock, ill, ahead=ahead) as bench:

            def held(bench: Bench = bench) -> str:
                found = bench.fleet.node_summaries[second].quarantine
                repair = found.status.repair if found is not None else None
                return repair.held if repair is not None else ""

            await until(lambda: turn() and repairs.looks > before + 1 and bool(held()))  # noqa: B023
            assert f"{first} is being repaired" in held()
            assert repairs.ordered == [first]
            assert set((await stored(cluster_space)).repairs) == {first}
            if ahead < 0:
                clock.time += lasts
                await until(lambda: turn() and repairs.ordered[-1] != first)
                assert repairs.ordered == [first, second]
