"""``scope: gpu``: a fault of one GPU evicts the pods that use it, and no other work."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Action,
    EvidenceItem,
    GpuScopeStatus,
    Phase,
    Pod,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.jobs.gpu_reader import APART, FRESH, MOST_AGE, GpuReports, PodGpuReader
from aggregator.jobs.gpu_report import NO_REPORT, GpuReport, PodGpu, gpus_by_pod
from aggregator.quarantine.decide.drain_plan import DrainMoment, DrainRules
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.settings import Settings
from aggregator.workloads.gpu_scope import GpuScope, covers, faulty_gpus, spared
from tests.support import virtual_time
from tests.support.drains import GANG, drained, status
from tests.support.gpu_reports import PodReports
from tests.support.memory_cluster import World, phase_of
from tests.support.present import present
from tests.support.replica import POLICY, SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

BAD = "GPU-1"
SCOPE_FOR = 7200.0
RULES = DrainRules(gpu_scope_for=SCOPE_FOR)
SCOPES = {rule.name: rule.scope for rule in POLICY.rules}


def scope_of(rule: str) -> str:
    return SCOPES.get(rule, "")


def pod(name: str, *gpus: str, **changes: Any) -> Pod:
    plain = Pod("jobs", name, f"uid-{name}", "1", "Running", False, False, "Job", "j", ())
    return replace(plain, **{"gpus": len(gpus), "gpu_ids": gpus, **changes})


def kept(
    *pods: Pod,
    after: float = 0.0,
    gpus: frozenset[str] = frozenset({BAD}),
    report: GpuReport = NO_REPORT,
) -> set[str]:
    moment = DrainMoment(1000.0 + after, 1000.0, 1000.0 + 7 * SCOPE_FOR)
    used = gpus_by_pod(pods, report)
    return {uid.removeprefix("uid-") for uid in spared(pods, gpus, RULES, moment, used)}


USER, OTHER, PLAIN = pod("user", BAD), pod("other", "GPU-2"), pod("plain")


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ((USER, OTHER, PLAIN), {"other", "plain"}),
        ((OTHER,), {"other"}),  # no pod uses it: nothing is evicted, and the node stays cordoned
        ((USER, PLAIN), set()),  # no other work has a GPU: an ordinary drain
        ((USER, pod("shares", f"{BAD}::3"), OTHER), {"other"}),
        ((USER, pod("has-both", BAD, "GPU-3"), OTHER), {"other"}),
        # Its gang stops with the pod, whichever GPUs the others have.
        ((pod("a", BAD, labels=GANG), pod("b", "GPU-2", labels=GANG), OTHER), {"other"}),
        # A pod that has not begun may still get the faulty GPU.
        ((USER, OTHER, pod("late", gpus=1, phase="Pending")), {"other"}),
        # Unknown mappings: the scope is the node.
        ((USER, OTHER, pod("unknown", gpus=1)), set()),
        ((USER, OTHER, pod("index", "3")), set()),
        ((USER, OTHER, pod("mig", "MIG-7")), set()),
        ((USER, OTHER, pod("claims", has_claims=True)), set()),
        ((USER, OTHER, pod("more", "GPU-3", "GPU-4", gpus=1)), set()),
        # What has ended, is ending, or belongs to its node counts for nothing.
        ((USER, pod("done", "GPU-2", phase="Succeeded"), PLAIN), set()),
        ((USER, pod("ending", "GPU-2", deleting=True), PLAIN), set()),
        ((USER, OTHER, pod("agent", gpus=1, owner_kind="DaemonSet")), {"other"}),
    ],
)
def test_the_pods_that_do_not_use_the_gpu_run_to_their_end(
    pods: tuple[Pod, ...], expected: set[str]
) -> None:
    assert kept(*pods) == expected
    assert kept(*reversed(pods)) == expected
    assert kept(*pods, after=SCOPE_FOR) == set()  # no drain lasts for ever
    assert kept(*pods, gpus=frozenset()) == set()


def entry(name: str, gpu: str, **changes: Any) -> PodGpu:
    return replace(PodGpu("jobs", name, f"uid-{name}", gpu), **changes)


def reported(*entries: PodGpu, unknown: str = "") -> GpuReport:
    return GpuReport(entries, unknown)


BLIND_USER, BLIND_OTHER = pod("user", gpus=1), pod("other", gpus=1)
BOTH = entry("user", BAD), entry("other", "GPU-2")
CLAIM = {"claim": "c", "pod_uid": ""}
WITH_CLAIMS = replace(BLIND_OTHER, gpus=0, has_claims=True)


@pytest.mark.parametrize(
    ("pods", "report", "expected"),
    [
        ((BLIND_USER, BLIND_OTHER, PLAIN), reported(*BOTH), {"other", "plain"}),
        # PodResources has no uids: names are enough, and those of an earlier pod are not.
        (
            (BLIND_USER, BLIND_OTHER),
            reported(*(replace(one, pod_uid="") for one in BOTH)),
            {"other"},
        ),
        ((BLIND_USER, BLIND_OTHER), reported(BOTH[0], replace(BOTH[1], pod_uid="before")), set()),
        # A claim, by UUID or not; a channel of memory is no GPU; none where the kubelet is old.
        ((USER, WITH_CLAIMS), reported(BOTH[0], entry("other", "GPU-2", **CLAIM)), {"other"}),
        ((USER, WITH_CLAIMS), reported(BOTH[0], entry("other", BAD, **CLAIM)), set()),
        ((USER, WITH_CLAIMS), reported(BOTH[0], entry("other", "gpu.x/n1/gpu-3", **CLAIM)), set()),
        ((USER, WITH_CLAIMS), reported(BOTH[0]), set()),
        (
            (USER, WITH_CLAIMS, OTHER2 := pod("other-2", "GPU-4")),
            reported(
                BOTH[0],
                entry("other-2", "GPU-4"),
                entry("other", "compute-domain.nvidia.com/n1/channel-0", **CLAIM),
            ),
            {"other", "other-2"},
        ),
        # Processes on the faulty GPU, whatever was allocated: a container that sees all GPUs.
        (
            (USER, OTHER, pod("sees-all"), OTHER2),
            reported(
                entry("sees-all", BAD, allocated=False, processes=1),
                *BOTH,
                entry("other-2", "GPU-4"),
            ),
            {"other", "other-2"},
        ),
        ((USER, OTHER, OTHER2), reported(*BOTH, entry("other", BAD, processes=1)), {"other-2"}),
        # The kubelet's two words differ; the report is not whole, or there is none.
        ((USER, OTHER), reported(BOTH[0], entry("other", "GPU-3")), set()),
        ((BLIND_USER, BLIND_OTHER), reported(*BOTH, unknown="600 entries"), set()),
        ((BLIND_USER, BLIND_OTHER), NO_REPORT, set()),
        ((BLIND_USER, replace(BLIND_OTHER, gpus=2)), reported(*BOTH), set()),
        # The status has them all: an agent without an answer changes nothing.
        ((USER, OTHER), reported(unknown="no answer"), {"other"}),
        # Entries for pods that are not on the node, another's uid in a process: of no effect.
        (
            (USER, OTHER),
            reported(*BOTH, entry("gone", BAD), entry("x", "GPU-2", processes=9)),
            {"other"},
        ),
    ],
)
def test_the_agents_report_names_the_gpus_that_the_status_does_not(
    pods: tuple[Pod, ...], report: GpuReport, expected: set[str]
) -> None:
    assert kept(*pods, report=report) == expected
    assert kept(*reversed(pods), report=report) == expected


NAMES = ("user", "other", "third")
IDS = st.sampled_from((BAD, "GPU-2", f"{BAD}::1", "MIG-1", "3", "gpu.x/n/d", ""))
ENTRIES = st.lists(
    st.builds(
        PodGpu,
        namespace=st.sampled_from(("jobs", "other")),
        pod=st.sampled_from(NAMES),
        pod_uid=st.sampled_from(("", *(f"uid-{name}" for name in NAMES))),
        gpu=IDS,
        claim=st.sampled_from(("", "c")),
        allocated=st.booleans(),
        processes=st.integers(0, 2),
    ),
    max_size=6,
)
PODS = st.tuples(
    *(
        st.builds(
            lambda ids, gpus, claims, name=name: pod(name, *ids, gpus=gpus, has_claims=claims),
            st.lists(IDS, max_size=2),
            st.integers(0, 2),
            st.booleans(),
        )
        for name in NAMES
    )
)


@given(pods=PODS, entries=ENTRIES, unknown=st.sampled_from(("", "why")))
def test_no_report_spares_a_pod_that_has_the_faulty_gpu_or_unknown_ones(
    pods: tuple[Pod, ...], entries: list[PodGpu], unknown: str
) -> None:
    """And none evicts a pod that the drain of the whole node would not."""
    report = GpuReport(tuple(entries), unknown)
    spared_now = kept(*pods, report=report)
    used = gpus_by_pod(pods, report)
    assert spared_now <= set(NAMES)
    for one in pods:
        if one.name not in spared_now:
            continue
        assert not used[one.uid].unknown
        assert BAD not in used[one.uid].gpus
        assert all(BAD not in device for device in one.gpu_ids)
        assert not any(
            BAD in seen.gpu
            for seen in entries
            if seen.pod_uid == one.uid and (seen.processes or not seen.allocated)
        )


def quarantine(*evidence: EvidenceItem, **spec: Any) -> Quarantine:
    made = QuarantineSpec(Action.DRAIN, "gpu", "a fault", requester=OURS, evidence=evidence)
    return Quarantine("n1", "q", "1", replace(made, **spec), QuarantineStatus())


def item(rule: str = "gpu-memory-alone", component: str = BAD, cleared: str = "") -> EvidenceItem:
    return EvidenceItem("xid:48", component, "boot-1", "", rule, "i", cleared=cleared)


def test_every_reason_of_the_quarantine_has_to_be_of_one_gpu() -> None:
    assert faulty_gpus(quarantine(item(), item(component="GPU-2")), scope_of) == {BAD, "GPU-2"}
    for other in (
        quarantine(item(), item("gpu-gone")),
        quarantine(item(), item("no-longer-a-rule")),
        quarantine(item(component="pci:0000:3b:00")),
        quarantine(item(), requester="alice"),
        quarantine(item(), action=Action.CORDON),
        quarantine(),
    ):
        assert faulty_gpus(other, scope_of) == frozenset()
    over = quarantine(item("gpu-gone", cleared="operator"), item())
    assert faulty_gpus(over, scope_of) == {BAD}


# -- whole drains ------------------------------------------------------------------------


def settings(clock: Running, reports: GpuReports, **changes: Any) -> Settings:
    rules = DrainRules(gpu_scope_for=SCOPE_FOR, **changes)
    reader = PodGpuReader(reports, Clocks(clock, clock))
    return replace(SETTINGS, drain=rules, waits=GpuScope(rules, scope_of, reader))


def world_of(*pods: Pod) -> World:
    world = World.of("n1")
    for one in pods:
        world.add_pod("n1", one.name, gpus=one.gpus, gpu_ids=one.gpu_ids)
    return world


async def begun(world: World, code: str = "xid:48", reports: GpuReports | None = None) -> Replica:
    clock = Running()
    given = settings(clock, reports or PodReports(GpuReport(unknown="no agent")))
    replica = await Replica(world, clock=clock, settings=given).ready()
    replica.agent("n1", snapshot(fault(code)))
    return replica


async def test_other_work_ends_by_itself_and_only_then_the_node_is_drained() -> None:
    world = world_of(USER, OTHER, PLAIN)
    replica = await begun(world)
    await until(lambda: world.evicted, within=60)
    world.kubelets_finish()
    await asyncio.sleep(3600)
    assert world.evicted == ["uid-user"]
    assert world.nodes["n1"].unschedulable
    assert phase_of(world, "n1") is Phase.DRAINING  # no repair begins under the other work
    reasons = {one.pod: one.reason for one in status(world).blockers}
    assert "it does not use GPU-1 (scope: gpu)" in reasons["jobs/other"]
    await replica.stop()
    replica = await begun(world)  # a restart changes nothing
    await asyncio.sleep(3600)
    assert world.evicted == ["uid-user"]
    world.pods["n1/other"] = replace(world.pods["n1/other"], phase="Succeeded")
    await drained(world)
    assert world.evicted == ["uid-user", "uid-plain"]


async def test_a_second_fault_of_the_whole_node_and_the_end_of_the_time_evict_the_rest() -> None:
    world = world_of(USER, OTHER)
    replica = await begun(world)
    await asyncio.sleep(3600)
    assert world.evicted == ["uid-user"]
    replica.agent("n1", snapshot(fault("xid:48"), fault("xid:79", "GPU-2", source_seq=9)))
    await until(lambda: len(world.evicted) == 2, within=60)
    await replica.stop()
    world = world_of(USER, OTHER)
    replica = await begun(world)
    await asyncio.sleep(SCOPE_FOR + 60)
    assert sorted(world.evicted) == ["uid-other", "uid-user"]


async def test_a_rule_without_the_scope_drains_the_whole_node() -> None:
    world = world_of(USER, OTHER)
    await begun(world, "xid:79")
    await until(lambda: len(world.evicted) == 2, within=60)


async def test_the_reports_of_the_agent_are_read_at_the_fault_and_seldom_after_it() -> None:
    world = world_of(BLIND_USER, BLIND_OTHER)
    reports = PodReports(reported(*BOTH))
    replica = await begun(world, reports=reports)
    await until(lambda: world.evicted, within=60)
    world.kubelets_finish()
    await asyncio.sleep(FRESH / 2)
    assert (world.evicted, reports.requests) == (["uid-user"], 1)
    # An agent without an answer widens nothing for a while; its report ends at last.
    reports.report = reported(unknown="no answer")
    await asyncio.sleep(MOST_AGE - FRESH)
    assert world.evicted == ["uid-user"]
    assert reports.requests < MOST_AGE / 60
    await until(lambda: len(world.evicted) == 2, within=FRESH * 2)
    texts = [one.summary for one in replica.notes.transitions if "not the GPU" in one.summary]
    assert texts == ["n1: the scope of the drain is the node, not the GPU: jobs/other: no answer"]


async def test_the_next_controller_evicts_no_wider_while_no_agent_answers_it() -> None:
    world = world_of(BLIND_USER, BLIND_OTHER)
    replica = await begun(world, reports=PodReports(reported(*BOTH)))
    await until(lambda: world.evicted, within=60)
    world.kubelets_finish()
    await asyncio.sleep(FRESH / 2)
    await replica.stop()
    scope = present(world.quarantines["n1"].status.gpu_scope)
    assert (scope.gpus, scope.evicted, scope.spared) == ((BAD,), ("uid-user",), ("uid-other",))
    replica = await begun(world)
    await asyncio.sleep(MOST_AGE - FRESH)
    assert world.evicted == ["uid-user"]
    reasons = {one.pod: one.reason for one in status(world).blockers}
    assert "it does not use GPU-1 (scope: gpu)" in reasons["jobs/other"]
    await until(lambda: len(world.evicted) == 2, within=FRESH)


@pytest.mark.parametrize("more", [254, 256])
async def test_of_more_pods_than_the_record_has_room_for_the_next_controller_reports_it(
    more: int,
) -> None:
    """It evicts what it would without the scope, and says why; the first spared the others."""
    small = [pod(f"small-{number:03}") for number in range(more)]
    world = world_of(BLIND_USER, BLIND_OTHER, *small)
    replica = await begun(world, reports=PodReports(reported(*BOTH)))
    await until(lambda: world.evicted, within=60)
    world.kubelets_finish()
    await asyncio.sleep(FRESH / 2)
    assert world.evicted == ["uid-user"]
    scope, fits = world.quarantines["n1"].status.gpu_scope, more + 2 <= 256
    assert (scope is not None) is fits
    await replica.stop()
    replica = await begun(world)
    await asyncio.sleep(FRESH / 2)
    assert (len(world.evicted) == 1) is fits
    texts = [one.summary for one in replica.notes.transitions if "not the GPU" in one.summary]
    assert [text.partition("; ")[2] for text in texts] == (
        [] if fits else ["status.gpuScope has room for 256 pods, and 257 are here"]
    )


def test_a_record_counts_for_its_gpus_and_pods_alone_and_for_an_hour() -> None:
    known = GpuScopeStatus((BAD,), ("uid-user",), ("uid-other",), read_at=1000.0)
    both, late = (USER, OTHER), pod("late", gpus=1, phase="Pending")
    assert covers(known, frozenset({BAD}), both, 1000.0 + MOST_AGE - 1)
    assert covers(known, frozenset({BAD}), (OTHER, late), 1000.0)
    assert not covers(known, frozenset({BAD}), both, 1000.0 + MOST_AGE)
    assert not covers(known, frozenset({BAD}), (*both, PLAIN), 1000.0)
    assert not covers(known, frozenset({BAD, "GPU-2"}), both, 1000.0)


async def test_readers_of_different_pods_and_many_new_pods_lead_to_few_requests() -> None:
    reports, clock = PodReports(reported(*BOTH)), Running()
    reader = PodGpuReader(reports, Clocks(clock, clock))
    for _ in range(20):
        await reader.read("n1", [BLIND_USER])
        await reader.read("n1", [BLIND_OTHER])
    assert reports.requests == 2
    began = clock()
    for number in range(10):
        await reader.read("n1", [pod(f"new-{number}")])
    assert clock() - began >= 9 * APART


async def test_without_a_report_the_whole_node_is_drained() -> None:
    world = world_of(BLIND_USER, BLIND_OTHER)
    await begun(world)
    await until(lambda: len(world.evicted) == 2, within=60)
