"""The GPU operator's pods are stopped for a GPU reset, and started again whatever its end."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.port import (
    UNGUARDED,
    ClusterError,
    Guard,
    GuardRefused,
    Node,
    Pod,
    RepairState,
    Unreachable,
)
from aggregator.quarantine.decide.gpu_operands import (
    PAUSED,
    operand_pods,
    pause_change,
    paused_by_another,
    resume_change,
)
from aggregator.quarantine.decide.node_marks import undo_change
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.operand_pause import OperandPause
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from tests.aggregator.repair_site import Site
from tests.aggregator.test_node_actions import Bench, with_bench
from tests.support.memory_cluster import MemoryCluster
from tests.support.repair_shop import ShopRepairer, repair_settings
from tests.support.replica import shipped_policy
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

POLICY = shipped_policy("rules:\n  - {name: gpu-gone, repair: [gpu-reset, ticket]}\n")
PLUGIN, DCGM = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.dcgm"
#: As the operator labels a node. One operand is off by the site's own will.
LABELS = {
    PLUGIN: "true",
    DCGM: "true",
    "nvidia.com/gpu.deploy.dcgm-exporter": "false",
    "nvidia.com/gpu.deploy.driver": "true",
}
DAEMON_SETS = {PLUGIN: "nvidia-device-plugin-daemonset", DCGM: "nvidia-dcgm"}


def node(labels: dict[str, str]) -> Node:
    return Node("n1", "uid", "1", True, (), labels, {})


values = st.sampled_from(
    ["true", "false", "", PAUSED, "paused-for-driver-upgrade", "paused-for-mig-change"]
)
labelled = st.dictionaries(
    st.sampled_from([*LABELS, "nvidia.com/gpu.deploy.gpu-feature-discovery", "zone"]), values
)


@given(labelled)
def test_what_is_stopped_and_started_again_is_as_before(labels: dict[str, str]) -> None:
    before = {key: "true" if value == PAUSED else value for key, value in labels.items()}
    stopped: dict[str, Any] = {**before, **pause_change(node(before))}
    assert {**stopped, **resume_change(node(stopped))} == before
    assert all(stopped[key] != "true" for key in DAEMON_SETS if key in stopped)
    assert stopped.get("nvidia.com/gpu.deploy.driver") == before.get("nvidia.com/gpu.deploy.driver")


@given(labelled)
def test_only_our_own_value_is_ever_taken_back(labels: dict[str, str]) -> None:
    assert set(resume_change(node(labels))) == {
        key for key, value in labels.items() if value == PAUSED and key != "zone"
    }


@pytest.mark.parametrize("value", ["paused-for-driver-upgrade", "paused-for-mig-change"])
def test_an_operand_that_another_party_stopped_is_its_mark(value: str) -> None:
    assert paused_by_another(node({PLUGIN: "true", DCGM: value})) == DCGM
    assert paused_by_another(node({PLUGIN: PAUSED, "zone": value})) == ""


def test_the_release_starts_what_a_repair_has_left_stopped() -> None:
    change = undo_change(node({PLUGIN: PAUSED, DCGM: "false"}), "q", None)
    assert change.labels == {PLUGIN: "true"}


def test_pods_that_hold_gpus_are_known_by_their_daemon_sets() -> None:
    def pod(name: str, kind: str = "DaemonSet", phase: str = "Running") -> Pod:
        return Pod("gpu-operator", name, name, "1", phase, False, False, kind, name, ())

    names = ["nvidia-device-plugin-daemonset", "nvidia-dcgm-exporter", "gpu-feature-discovery"]
    others = [pod("nvidia-driver-daemonset"), pod("nvidia-dcgm", "ReplicaSet")]
    ended = pod("nvidia-dcgm", phase="Succeeded")
    assert operand_pods([*map(pod, names), *others, ended]) == sorted(
        f"gpu-operator/{name}" for name in names
    )


# -- the whole controller ------------------------------------------------------------------


class GpuSite(Site):
    """A node whose operands follow its labels, a kubelet's time later."""

    def __init__(self, *, pauses: bool = True, stays: bool = False) -> None:
        super().__init__(kinds=("gpu-reset", "ticket"))
        self.policy, self.pauses, self.stays = POLICY, pauses, stays
        self.world.nodes["n1"] = replace(self.world.nodes["n1"], labels=LABELS)
        self.held_at_order: list[list[str]] = []
        self.has_reset = True
        self.run_operands()

    def repair(self, cluster: MemoryCluster) -> RepairSettings:
        site = self

        class Reset(ShopRepairer):
            async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
                site.held_at_order.append(operand_pods(site.world.pods.values()))
                return await super().order(order, UNGUARDED)

        made = repair_settings(
            ("gpu-reset", Reset(self.shop, cluster, sends_twice=True)),
            ("ticket", ShopRepairer(self.shop, cluster)),
            mode=self.mode,
        )
        paused = replace(made.repairers["gpu-reset"], pauses_operands=self.pauses)
        reset = {"gpu-reset": paused} if self.has_reset else {}
        return replace(made, repairers={"ticket": made.repairers["ticket"], **reset})

    def go_on(self) -> None:
        super().go_on()
        self.run_operands()

    def run_operands(self) -> None:
        """The operator's DaemonSets, and the kubelet that ends their pods."""
        for label, name in DAEMON_SETS.items():
            runs = self.labels.get(label) == "true"
            there = f"n1/{name}" in self.world.pods
            if runs and not there:
                self.world.add_pod("n1", name, owner_kind="DaemonSet", owner_name=name)
            elif there and not runs and not self.stays:
                del self.world.pods[f"n1/{name}"]

    @property
    def labels(self) -> Any:
        return self.world.nodes["n1"].labels

    def are_labels_restored(self) -> bool:
        return {key: self.labels.get(key) for key in LABELS} == LABELS


async def test_the_reset_is_ordered_when_the_operands_are_gone_and_they_run_again_after_it() -> (
    None
):
    site = GpuSite()
    await site.runs_until(lambda: site.repaired)
    assert site.held_at_order == [[]]
    assert {site.labels[key] for key in DAEMON_SETS} == {PAUSED}
    assert site.labels["nvidia.com/gpu.deploy.dcgm-exporter"] == "false"
    site.shop.look = RepairAnswer(AnswerState.DONE, "reset")
    await site.settles(lambda: site.attempts() == [("gpu-reset", RepairState.SUCCEEDED)])
    assert site.are_labels_restored()
    site.check()


async def test_while_the_operands_go_their_pods_are_named() -> None:
    site = GpuSite(stays=True)
    await site.runs_until(
        lambda: site.world.quarantines and "nvidia-dcgm" in site.quarantine().status.repair.held
    )
    assert site.repaired == []
    # They never go. The agent has the last word about a GPU in use.
    await site.settles(lambda: site.repaired)
    assert site.held_at_order[0] != []


async def test_without_the_setting_no_label_is_touched() -> None:
    site = GpuSite(pauses=False)
    await site.runs_until(lambda: site.repaired)
    assert site.are_labels_restored()
    assert site.held_at_order[0] != []


async def test_in_mode_observe_no_label_is_touched() -> None:
    site = GpuSite()
    site.mode = RepairMode.OBSERVE
    await site.runs_until(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await later(600)
    assert site.are_labels_restored()


@pytest.mark.parametrize(
    "end", ["failed", "refused", "deadline", "cancelled", "cancelled before", "release"]
)
async def test_the_operands_run_again_at_every_end(end: str) -> None:
    site = GpuSite(stays=end == "cancelled before")
    if end == "refused":
        site.shop.answer = RepairAnswer(AnswerState.FAILED, "a GPU is in use")
    site.shop.cancels = True
    await site.runs_until(lambda: site.world.quarantines and PAUSED in site.labels.values())
    if end != "cancelled before":
        await site.settles(lambda: site.repaired)
    if end == "failed":
        site.shop.look = RepairAnswer(AnswerState.FAILED, "Unknown Error")
    elif end.startswith("cancelled"):
        site.world.operations.person_cancels("n1")
    elif end == "release":
        site.world.person_deletes("n1")
    await site.settles(site.are_labels_restored)
    if end == "cancelled before":
        assert "gpu-reset" not in site.repaired


@pytest.mark.parametrize("lost", ["pause_gpu_operator", "the repairer"])
async def test_the_operands_run_again_though_a_restart_has_lost_their_setting(lost: str) -> None:
    """Else the GPUs that are missing with them would hold the node's release."""
    site = GpuSite()
    site.shop.look = RepairAnswer(AnswerState.TAKEN)
    await site.runs_until(lambda: site.repaired)
    assert PAUSED in site.labels.values()
    await site.replica.stop()
    site.pauses, site.has_reset = False, lost != "the repairer"
    site.shop.look = RepairAnswer(AnswerState.FAILED, "Unknown Error")
    await site.runs_until(site.are_labels_restored)
    assert site.world.quarantines


async def test_the_end_is_written_when_the_operands_can_run_again() -> None:
    site = GpuSite()
    fails: list[str] = []

    def refuses(name: str) -> ClusterError | None:
        return Unreachable("no API server") if name in fails else None

    site.start(fails=refuses)
    await site.settles(lambda: site.repaired)
    fails.append("patch_node")
    site.shop.look = RepairAnswer(AnswerState.DONE, "reset")
    await later(300)
    assert site.attempts() == [("gpu-reset", RepairState.ORDERED)]
    fails.clear()
    await site.settles(lambda: site.attempts() == [("gpu-reset", RepairState.SUCCEEDED)])
    assert site.are_labels_restored()


@with_bench
async def test_a_controller_that_has_lost_its_place_ends_no_attempt_while_operands_are_stopped(
    bench: Bench,
) -> None:
    """An attempt that ends late ends whatever it leaves; the next controller starts them."""
    bench.labelled({PLUGIN: PAUSED})
    pause = OperandPause(bench.acts)
    attempt: Any = SimpleNamespace(operation="q-1-gpu-reset")
    bench.may = False
    with pytest.raises(GuardRefused):
        await pause.resume(bench.node_state, attempt)
    assert bench.world.nodes["n1"].labels == {PLUGIN: PAUSED}
    bench.may = True
    assert await pause.resume(bench.node_state, attempt) == ""
    assert bench.world.nodes["n1"].labels == {PLUGIN: "true"}


@pytest.mark.parametrize("after", [False, True])
async def test_death_at_any_call_leaves_no_operand_stopped(*, after: bool) -> None:
    """The process dies before or after each of its calls; the next one finishes."""
    paused = 0
    for calls in range(1, 80):
        site = GpuSite()
        site.shop.look = RepairAnswer(AnswerState.DONE, "reset")
        first = site.start(crash_at=calls, after=after)
        done = [("gpu-reset", RepairState.SUCCEEDED)]
        await site.settles(
            lambda s=site, f=first, d=done: f.cluster.crashed.is_set() or s.attempts() == d
        )
        ended = not first.cluster.crashed.is_set()
        paused += PAUSED in site.labels.values()
        await first.stop()
        if ended:
            break
        second = site.start()
        await site.settles(lambda s=site, d=done: s.attempts() == d)
        assert site.are_labels_restored(), calls
        assert site.shop.wrong == [], calls
        assert len(set(site.shop.done)) == 1, calls
        await second.stop()
    else:
        raise AssertionError("the repair needs more calls than were tried")
    assert paused > 1
