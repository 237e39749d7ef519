"""``scope: gpu``: a fault of one GPU evicts the pods that use it, and no other work."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import (
    Action,
    EvidenceItem,
    Phase,
    Pod,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.quarantine.decide.drain_plan import DrainMoment, DrainRules
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.settings import Settings
from aggregator.workloads.gpu_scope import GpuScope, faulty_gpus, spared
from tests.support import virtual_time
from tests.support.drains import GANG, drained, status
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import POLICY, SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.waiting import until

BAD = "GPU-1"
DAY = 86400.0
RULES = DrainRules(gpu_scope_for=DAY)
SCOPES = {rule.name: rule.scope for rule in POLICY.rules}


def scope_of(rule: str) -> str:
    return SCOPES.get(rule, "")


def pod(name: str, *gpus: str, **changes: Any) -> Pod:
    plain = Pod("jobs", name, f"uid-{name}", "1", "Running", False, False, "Job", "j", ())
    return replace(plain, **{"gpus": len(gpus), "gpu_ids": gpus, **changes})


def kept(*pods: Pod, after: float = 0.0, gpus: frozenset[str] = frozenset({BAD})) -> set[str]:
    moment = DrainMoment(1000.0 + after, 1000.0, 1000.0 + 7 * DAY)
    return {uid.removeprefix("uid-") for uid in spared(pods, gpus, RULES, moment)}


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
    assert kept(*pods, after=DAY) == set()  # no drain lasts for ever
    assert kept(*pods, gpus=frozenset()) == set()


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


def settings(**changes: Any) -> Settings:
    rules = DrainRules(gpu_scope_for=DAY, **changes)
    return replace(SETTINGS, drain=rules, waits=GpuScope(rules, scope_of))


def world_of(*pods: Pod) -> World:
    world = World()
    world.add_node("n1")
    for one in pods:
        world.add_pod("n1", one.name, gpus=one.gpus, gpu_ids=one.gpu_ids)
    return world


async def begun(world: World, code: str = "xid:48") -> Replica:
    replica = Replica(world, clock=Running(), settings=settings())
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", snapshot(fault(code)))
    return replica


def test_other_work_ends_by_itself_and_only_then_the_node_is_drained() -> None:
    async def scenario() -> None:
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
        await replica.stop()

    virtual_time.run(scenario())


def test_a_second_fault_of_the_whole_node_and_the_end_of_the_time_evict_the_rest() -> None:
    async def scenario() -> None:
        world = world_of(USER, OTHER)
        replica = await begun(world)
        await asyncio.sleep(3600)
        assert world.evicted == ["uid-user"]
        replica.agent("n1", snapshot(fault("xid:48"), fault("xid:79", "GPU-2", source_seq=9)))
        await until(lambda: len(world.evicted) == 2, within=60)
        await replica.stop()
        world = world_of(USER, OTHER)
        replica = await begun(world)
        await asyncio.sleep(DAY + 60)
        assert sorted(world.evicted) == ["uid-other", "uid-user"]
        await replica.stop()

    virtual_time.run(scenario())


def test_a_rule_without_the_scope_drains_the_whole_node() -> None:
    async def scenario() -> None:
        world = world_of(USER, OTHER)
        replica = await begun(world, "xid:79")
        await until(lambda: len(world.evicted) == 2, within=60)
        await replica.stop()

    virtual_time.run(scenario())
