"""Other tools' marks on nodes of a real API server: sickbay's stand beside them.

An uncordon by kured and others is in test_uncordon, the conditions of node-problem-detector and
others in test_node_conditions.
"""

from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Action
from aggregator.events import EventKind
from aggregator.quarantine.decide.lost_marks import RestoreRules
from aggregator.quarantine.decide.maintenance import MaintenanceRules, MarkKind, OthersMark
from aggregator.quarantine.decide.node_marks import (
    TaintRule,
)
from aggregator.quarantine.settings import Settings
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import Bench, running_bench
from tests.support.replica import SETTINGS, fault, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
CORDONS = replace(SETTINGS, mode=Action.CORDON)


def taints(space: Space, node: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = space.plane.node(node)["spec"].get("taints") or []
    return found


def break_gpu(bench: Bench, *nodes: str) -> None:
    for node in nodes:
        bench.attach(node, snapshot(fault("xid:79", boot_id=bench.boot(node))))


def with_marks(settings: Settings, **changes: Any) -> Settings:
    return replace(settings, marks=RestoreRules(**changes))


STALE = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1700000000", "effect": "NoSchedule"}


async def test_a_mark_left_behind_is_reported_again_and_a_setting_acts_in_spite_of_it(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """Issues autoscaler#5657 and gpu-operator#2549; the site's own mark counts as the shipped."""
    left, failed, site = nodes = cluster_space.create_nodes(3)
    marks = (
        (left, {"spec": {"taints": [STALE]}}),
        (failed, {"metadata": {"labels": {UPGRADE: "upgrade-failed"}}}),
        (site, {"metadata": {"labels": {"example.test/rack-move": "yes"}}}),
    )
    for node, mark in marks:
        cluster_space.plane.call("PATCH", f"/api/v1/nodes/{node}", mark, MERGE_PATCH)
    mine = OthersMark(MarkKind.LABEL, "example.test/rack-move", reason="the rack is being moved")
    holds = replace(CORDONS, maintenance=MaintenanceRules((mine,)))
    async with running_bench(kube, cluster_space, settings=holds, keep=True) as bench:
        break_gpu(bench, *nodes)
        await bench.phase(failed, "Cordoned")

        def limit(node: str) -> str:
            found = bench.fleet.node_summaries[node].decision.hold
            return found.limit if found is not None else ""

        await until(lambda: (limit(left), limit(site)) == ("stale-mark", "maintenance"))
        [told] = [
            one
            for one in bench.notes.transitions
            if one.node == left and one.kind is EventKind.HELD
        ]
        assert told.details["limit"] == "stale-mark"
        assert "older than 1h: the autoscaler is removing it" in told.summary
        assert not bench.unschedulable(left)
    acts = replace(CORDONS, maintenance=MaintenanceRules((mine,), on_stale="act"))
    async with running_bench(kube, cluster_space, settings=acts) as bench:
        break_gpu(bench, left)
        await bench.phase(left, "Cordoned")
        assert STALE in [dict(one) for one in taints(cluster_space, left)]


async def test_a_change_of_the_taints_key_between_two_starts_leaves_no_taint_behind(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """The descheduler and a site's own tolerations may need another key or effect."""
    first, second = cluster_space.create_nodes(2)
    foreign = {"key": "example.com/broken", "value": "theirs", "effect": "NoExecute"}
    body = {"spec": {"taints": [foreign]}}
    cluster_space.plane.call("PATCH", f"/api/v1/nodes/{first}", body, MERGE_PATCH)
    chosen = with_marks(CORDONS, taint=TaintRule("example.com/broken", "yes", "PreferNoSchedule"))
    async with running_bench(kube, cluster_space, settings=chosen, keep=True) as bench:
        break_gpu(bench, first)
        await bench.phase(first, "Cordoned")
        ours = {"key": "example.com/broken", "value": "yes", "effect": "PreferNoSchedule"}
        assert [{**one} for one in taints(cluster_space, first) if one["value"] == "yes"] == [ours]
    async with running_bench(kube, cluster_space, settings=CORDONS) as bench:
        break_gpu(bench, first, second)
        await bench.phase(second, "Cordoned")
        [new] = [one for one in taints(cluster_space, second) if "sickbay" in one["key"]]
        assert (new["key"], new["value"]) == ("sickbay.dev/quarantine", "gpu")
        for node in (first, second):
            bench.delete(node)
            await bench.free(node)
    kept = [(one["key"], one["value"], one["effect"]) for one in taints(cluster_space, first)]
    assert kept == [tuple(foreign.values())]
