"""Limits and common causes on the real kube-apiserver: the record is what holds, and it lasts.

The real controller with the real client; the test plays the agents and turns the clocks. Scenarios
that need many nodes or hours are in tests/aggregator/test_mass_events.py, in virtual time.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Action, Guard, NodeMeta, Phase
from aggregator.composition.core import build_controller
from aggregator.events import EventKind
from aggregator.health.model import Cleared, ClearedBy, Delta, Hello, Snapshot, Status
from aggregator.policy.label_selector import LabelSelector
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.admission_record import Record, parse_record
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.quarantine.decide.pools import Pool, PoolLimits
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
from tests.controlplane.plane import ADMIN
from tests.controlplane.pytest_plugin import Space
from tests.support.kube_cluster import kube_cluster
from tests.support.present import present
from tests.support.replica import (
    POLICY,
    SETTINGS,
    FakeLine,
    Notes,
    Turned,
    component,
    evaluate_due,
    fault,
    snapshot,
)
from tests.support.stack import remove_quarantines
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

POOL = "example.com/pool"
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
        self.lines: dict[str, FakeLine] = {}
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
        line = self.lines[node] = FakeLine()
        self.controller.on_connect(Hello(node, "boot-1", "epoch", "0.1.0", 1, "agent"), line)
        self.controller.on_evidence(node, told, self.clock())

    def detach(self, node: str) -> None:
        self.controller.on_disconnect(node, self.lines[node], "its connection broke")

    def break_(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.controller.on_evidence(
                node, Delta(faults=(fault("xid:79", f"GPU-{node}"),)), self.clock()
            )

    def mend(self, node: str) -> None:
        sign = Cleared("xid:79", f"GPU-{node}", "operator")
        self.controller.on_evidence(node, Delta(cleared=(sign,)), self.clock())

    def holds(self) -> dict[str, str]:
        node_summaries = self.fleet.node_summaries.values()
        return {
            one.node: one.decision.hold.limit
            for one in node_summaries
            if one.decision.hold is not None
        }

    def sick(self) -> set[str]:
        return {
            one.node for one in self.fleet.node_summaries.values() if one.quarantine is not None
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


@pytest.mark.usefixtures("quarantine_definition")
async def test_ten_nodes_three_bad_and_a_pool_of_three_one_bad(
    cluster_space: Space, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: remove_quarantines(cluster_space.plane, cluster_space.node_prefix))
    small = cluster_space.create_nodes(3, labels={POOL: "small"})
    large = cluster_space.create_nodes(7, start=3, labels={POOL: "large"})
    well = dict.fromkeys(small + large, snapshot())
    limits = replace(
        SHIPPED.limits, concurrent_percent=20, pool_label=POOL, new_per_window_percent=100
    )
    settings = replace(SHIPPED, limits=limits)
    async with life(cluster_space, settings, Turned(), well) as bench:
        bench.break_([small[0], small[1]])  # 20 % of the pool: one of three
        await until(lambda: len(bench.sick()) == 1 and len(bench.holds()) == 1)
        assert set(bench.holds().values()) == {"limits.pool_percent"}
        bench.break_([large[0], large[1]])  # 20 % of ten: one more
        await until(lambda: len(bench.sick()) == 2 and len(bench.holds()) == 2)
        assert set(bench.holds().values()) <= {"limits.pool_percent", "limits.concurrent_percent"}
        assert len((await stored(cluster_space)).entries) == 2
        [first] = bench.sick() & set(small)
        bench.mend(first)
        evaluate_due(bench.controller)
        bench.clock.time += 700
        bench.controller.on_evidence(first, Delta(), bench.clock())
        await until(lambda: first not in bench.sick())
        await until(lambda: len(bench.sick()) == 2)  # the next one takes its place
        assert len((await stored(cluster_space)).entries) == 2


@pytest.mark.usefixtures("quarantine_definition")
async def test_a_canary_is_drained_within_its_limit_and_the_rest_observed(
    cluster_space: Space, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: remove_quarantines(cluster_space.plane, cluster_space.node_prefix))
    canary = cluster_space.create_nodes(2, labels={POOL: "canary"})
    [rest] = cluster_space.create_nodes(1, start=2, labels={POOL: "other"})
    well = dict.fromkeys([*canary, rest], snapshot())
    pool = Pool("canary", LabelSelector({POOL: "canary"}), Action.DRAIN, PoolLimits(concurrent=1))
    limits = replace(SHIPPED.limits, concurrent_percent=100, new_per_window_percent=100)
    settings = replace(SHIPPED, mode=Action.OBSERVE, pools=(pool,), limits=limits)
    async with (
        life(cluster_space, settings, Turned(), well) as bench,
        kube_cluster(cluster_space.plane.kubeconfig, namespace=cluster_space.namespace) as reader,
    ):
        bench.break_(well)
        await until(lambda: len(bench.marked()) == 1 and len(bench.holds()) == 1)
        [sick] = bench.sick()
        held = {name: "pools.limits.concurrent" for name in canary if name != sick}
        assert bench.holds() == held
        assert [(n, e.policy_pool) for n, e in (await stored(cluster_space)).entries.items()] == [
            (sick, "canary")
        ]
        assert bench.fleet.node_summaries[rest].decision.would.startswith("drain: ")
        node = present(await reader.read_node(rest))
        assert not node.unschedulable
        assert not node.taints
        assert await reader.read_quarantine(rest) is None
        # A label that a person takes away is no sign of health: mark and entry stay, and count.
        summary = bench.fleet.node_summaries[sick]
        await until(lambda: summary.quarantine and summary.quarantine.status.phase is Phase.DRAINED)
        path, label = f"/api/v1/nodes/{sick}", {"metadata": {"labels": {POOL: "other"}}}
        cluster_space.plane.call("PATCH", path, label, MERGE_PATCH)
        await until(lambda: bench.fleet.pool_of(summary) == "default")
        node = present(await reader.read_node(sick))
        assert node.unschedulable
        assert set((await stored(cluster_space)).entries) == {sick}
        assert bench.holds() == held


UPGRADE = {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}
REMOVED = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}


@pytest.mark.parametrize("mark", ["label", "taint", "later"])
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

    def taint() -> None:
        for node in held:
            body = {"spec": {"taints": [REMOVED]}}
            plane.call("PATCH", f"/api/v1/nodes/{node}", body, MERGE_PATCH)

    if mark == "taint":
        taint()
    limits = replace(SHIPPED.limits, concurrent_percent=100)
    settings = replace(SHIPPED, limits=limits, common=CommonLimits(common_cause_percent=60))
    well = dict.fromkeys([*held, *others], snapshot())
    async with life(cluster_space, settings, Turned(), well) as bench:
        if mark == "later":
            taint()
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


@pytest.mark.usefixtures("quarantine_definition")
async def test_what_accuses_nobody_touches_no_node_and_38905_lines_of_four_gpus_are_four_incidents(
    cluster_space: Space, request: pytest.FixtureRequest
) -> None:
    """A lone 13, 31, 43 and 45; a target that all miss; 30 % of the agents silent at once."""
    plane = cluster_space.plane
    request.addfinalizer(lambda: remove_quarantines(plane, cluster_space.node_prefix))
    nodes, clock = cluster_space.create_nodes(14), Turned()
    limits = replace(
        SHIPPED.limits, concurrent_percent=100, new_per_window=50, new_per_window_percent=100
    )
    settings = replace(SHIPPED, limits=limits, silence=SilenceRules(30))
    mark = plane.audit_mark()
    async with life(cluster_space, settings, clock, dict.fromkeys(nodes, snapshot())) as bench:
        for node, code in zip(nodes, ("xid:13", "xid:31", "xid:43", "xid:45"), strict=False):
            lone = fault(code, f"GPU-{node}", cleared_by=ClearedBy.EXPIRY)
            bench.controller.on_evidence(node, Delta(faults=(lone,)), clock())
        for node in nodes:
            missed = component("reach", "tcp://10.0.0.1:2049", Status.FAILED, "timeout")
            bench.controller.on_evidence(node, Delta((missed,)), clock())
        for node in nodes[:4]:
            bench.detach(node)
        clock.time += 100
        await until(lambda: sum("agent.silent" in bench.notes.kinds(node) for node in nodes) == 4)
        ill = nodes[10:]
        for node, lines in zip(ill, (9726, 9726, 9726, 9727), strict=True):
            said = fault("xid:95", f"GPU-{node}", count=lines, cleared_by=ClearedBy.GPU_RESET)
            bench.controller.on_evidence(node, Delta(faults=(said,)), clock())
        await until(lambda: bench.sick() == set(ill) == bench.marked())
        told = [note for note in bench.notes.transitions if note.kind is EventKind.INCIDENT_OPENED]
        assert sorted(note.node for note in told if "xid:95" in note.summary) == ill
        assert bench.holds() == {}
    patched = {
        entry["objectRef"]["name"]
        for entry in plane.audit_entries(mark)
        if entry["user"]["username"] == ADMIN  # the controller manager annotates new nodes
        and entry["verb"] in ("patch", "update")
        and entry["objectRef"]["resource"] == "nodes"
        and "subresource" not in entry["objectRef"]  # statuses are the played kubelets' work
    }
    assert patched & set(nodes) == set(ill)


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
