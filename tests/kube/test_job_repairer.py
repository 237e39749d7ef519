"""Active tests as Jobs, on a real API server with the rights of deploy/: the scheduler places the
pod, the Job controller evaluates it, and kwok plays the kubelet.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import UNGUARDED
from aggregator.quarantine.decide.own_pods import OPERATION
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.job import JobRepairer
from aggregator.repairers.job_manifest import job_manifest, job_name
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.kube.test_kube_drain import until as until_answered
from tests.kube.test_kube_fences import SPEC
from tests.support.active_test_jobs import DISRUPTED, Jobs, job_section, order_of_a_test
from tests.support.faulty_proxy import ApiFaults, FaultyProxy
from tests.support.kube_cluster import kube_cluster, unreviewed_cluster
from tests.support.present import present
from tests.support.waiting import until


@pytest.fixture
async def account(rights: Path) -> AsyncIterator[KubeCluster]:
    async with unreviewed_cluster(rights) as cluster:
        yield cluster


class Case:
    """One node in quarantine, the order of its test, and the repairer."""

    def __init__(self, cluster: KubeCluster, jobs: Jobs, order: RepairOrder, **more: Any) -> None:
        self.jobs, self.order, self.cluster = jobs, order, cluster
        self.section = job_section(jobs.space.namespace, **more)
        self.repairer = JobRepairer(cluster.objects(), self.section, sleep=self._sleep)
        self.slept = 0

    async def _sleep(self, seconds: float) -> None:
        self.slept += 1
        # The first cancellation in vain is short; a later one waits for the garbage collector.
        await asyncio.sleep(min(seconds, 0.5) if self.slept <= 15 else 2.0)

    async def ordered(self) -> None:
        answer = await self.repairer.order(self.order, UNGUARDED)
        assert answer.state is AnswerState.TAKEN, answer

    async def running(self) -> dict[str, Any]:
        await self.ordered()
        return await self.jobs.pod_on(self.order.node)

    async def outcome(self) -> RepairAnswer:
        """The answer at the end of the test."""
        return await until_answered(
            lambda: self.repairer.read_outcome(self.order),
            lambda answer: answer.state is not AnswerState.TAKEN,
        )

    async def has_no_verdict(self, why: str) -> None:
        answer = await self.outcome()
        assert answer.state is AnswerState.INCONCLUSIVE, answer
        assert why in answer.text, answer
        assert len(answer.text) < 800


@pytest.fixture
async def case(account: KubeCluster, kube: KubeCluster, jobs: Jobs) -> Case:
    return await a_case(account, kube, jobs)


async def a_case(
    account: KubeCluster, kube: KubeCluster, jobs: Jobs, *, lasts: float = 600.0, **more: Any
) -> Case:
    node = jobs.marked_node()
    made = await kube.create_quarantine(node["metadata"]["name"], SPEC, guard=UNGUARDED)
    return Case(account, jobs, order_of_a_test(node, made, lasts=lasts), **more)


# -- the Job ------------------------------------------------------------------------


async def test_the_scheduler_places_the_test_on_its_node_in_spite_of_our_marks(case: Case) -> None:
    pod = await case.running()
    job = present(case.jobs.one(case.order))
    [owner] = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Quarantine", case.order.quarantine)
    assert job["metadata"]["annotations"][OPERATION] == case.order.operation
    spec, at_end = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["backoffLimit"], spec["completions"], spec["parallelism"]) == (0, 1, 1)
    assert spec["activeDeadlineSeconds"] == at_end["activeDeadlineSeconds"] == 540
    assert spec["ttlSecondsAfterFinished"] == 86400
    assert "nodeName" not in at_end
    assert at_end["restartPolicy"] == "Never"
    assert at_end["automountServiceAccountToken"] is False
    asked = {one["key"] for one in at_end["tolerations"]}
    assert asked == {"sickbay.dev/quarantine", "node.kubernetes.io/unschedulable"}
    [container] = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert container["command"] == ["sickbay-agent", "test", "--profile", "quick"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "privileged": False}


async def test_a_taint_of_another_party_keeps_the_test_away(case: Case) -> None:
    """Only our own marks are tolerated."""
    plane, node = case.jobs.space.plane, case.order.node
    other = {"key": "example.test/maintenance", "effect": "NoSchedule"}
    taints = [*plane.node(node)["spec"]["taints"], other]
    plane.call("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": taints}}, MERGE_PATCH)
    await case.ordered()

    # The scheduler names the taint only in older versions of Kubernetes.
    told = await until_answered(
        lambda: case.repairer.read_outcome(case.order), lambda one: "untolerated taint" in one.text
    )
    assert "Unschedulable" in told.text, told


async def test_an_order_that_is_sent_again_makes_no_second_job(case: Case) -> None:
    await case.ordered()
    again = await case.repairer.order(case.order, UNGUARDED)
    assert again.state is AnswerState.TAKEN
    assert "was created before" in again.text
    assert len(case.jobs.all()) == 1


async def test_two_processes_that_order_at_once_make_one_job(case: Case) -> None:
    answers = await asyncio.gather(*(case.repairer.order(case.order, UNGUARDED) for _ in range(4)))
    allowed = (AnswerState.TAKEN, AnswerState.UNSURE)
    assert {one.state for one in answers} <= {*allowed}
    assert len(case.jobs.all()) == 1
    await case.ordered()


async def test_a_create_whose_answer_is_lost_makes_one_job(
    control_plane: ControlPlane, rights: Path, case: Case, tmp_path: Path
) -> None:
    """As a process that is killed between the create and the write of its answer."""
    with FaultyProxy(control_plane, tmp_path / "proxy", ApiFaults()) as proxy:
        async with kube_cluster(proxy.kubeconfig(rights)) as cluster:
            objects = cluster.objects()
            repairer = JobRepairer(objects, case.section)
            assert list(await repairer.missing_rights()) == []
            content = job_manifest(case.section, case.order, gpus=8)
            assert content["metadata"]["name"] == job_name(case.order)

            class Losing(type(objects)):  # type: ignore[misc]
                async def create(self, *arguments: Any, **more: Any) -> Any:
                    proxy.faults.loses_answers = 1.0
                    try:
                        return await super().create(*arguments, **more)
                    finally:
                        proxy.faults.loses_answers = 0.0

            losing = JobRepairer(Losing(objects._transport), case.section)
            answer = await losing.order(case.order, UNGUARDED)
            assert answer.state is AnswerState.UNSURE, answer
            assert len(case.jobs.all()) == 1
            again = await repairer.order(case.order, UNGUARDED)
    assert again.state is AnswerState.TAKEN
    assert len(case.jobs.all()) == 1
    pod = await case.jobs.pod_on(case.order.node)
    case.jobs.end(pod, 0)
    assert (await case.outcome()).state is AnswerState.DONE


# -- verdicts -----------------------------------------------------------------------


async def test_exit_code_0_is_a_pass(case: Case) -> None:
    pod = await case.running()
    assert (await case.repairer.read_outcome(case.order)).state is AnswerState.TAKEN
    case.jobs.end(pod, 0, "quick: 3 steps passed")
    answer = await case.outcome()
    assert answer == RepairAnswer(AnswerState.DONE, "passed: quick: 3 steps passed")
    assert (await case.repairer.clean_up(case.order)).state in (
        AnswerState.DONE,
        AnswerState.NOT_SENT,
    )
    await until(lambda: case.jobs.one(case.order) is None, "the Job's deletion")
    assert (await case.repairer.clean_up(case.order)).state is AnswerState.DONE
    await until(lambda: case.jobs.pods() == [], "its pods go with it")


async def test_exit_code_1_is_a_failure(case: Case) -> None:
    case.jobs.end(await case.running(), 1, "dcgm failed: GPU 3 isolate")
    answer = await case.outcome()
    assert answer == RepairAnswer(AnswerState.FAILED, "failed: dcgm failed: GPU 3 isolate")


async def test_another_exit_code_is_no_verdict(case: Case) -> None:
    case.jobs.end(await case.running(), 3, "another diagnostic runs")
    await case.has_no_verdict("exit code 3: another diagnostic runs")


async def test_an_evicted_pod_is_no_verdict_though_its_program_ended_with_1(case: Case) -> None:
    pod = await case.running()
    case.jobs.end(pod, 1, pod_reason="Evicted", condition=DISRUPTED)
    await case.has_no_verdict("its pod was disrupted: TerminationByKubelet")


async def test_a_deadline_is_no_verdict(
    account: KubeCluster, kube: KubeCluster, jobs: Jobs
) -> None:
    case = await a_case(account, kube, jobs, lasts=4.0)
    await case.ordered()
    answer = await case.outcome()
    assert answer.state is AnswerState.INCONCLUSIVE, answer
    await until_answered(
        lambda: case.repairer.clean_up(case.order), lambda one: one.state is AnswerState.DONE
    )


async def test_a_test_that_finds_no_room_is_no_verdict(
    account: KubeCluster, kube: KubeCluster, jobs: Jobs
) -> None:
    case = await a_case(account, kube, jobs, gpus=9)
    await case.ordered()

    def waits() -> bool:
        return any(pod["status"].get("conditions") for pod in jobs.pods())

    await until(waits, "the scheduler")
    waiting = await case.repairer.read_outcome(case.order)
    assert waiting.state is AnswerState.TAKEN
    assert "Insufficient nvidia.com/gpu" in waiting.text
    case.order = replace(case.order, lasts=1.0)  # as the runner asks for the last time
    await case.has_no_verdict("Insufficient nvidia.com/gpu")
    assert await case.repairer.cancel(case.order)


async def test_an_image_that_can_not_be_pulled_is_no_verdict(
    account: KubeCluster, kube: KubeCluster, jobs: Jobs
) -> None:
    template = {"metadata": {"annotations": {"sickbay.test/pending": "true"}}}
    case = await a_case(account, kube, jobs, template=template)
    await case.ordered()
    await until(lambda: any(pod["spec"].get("nodeName") for pod in jobs.pods()), "the scheduler")
    [pod] = jobs.pods()
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    container = {"name": "test", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    jobs.patch_status(pod, {"containerStatuses": [container | {"state": {"waiting": waiting}}]})
    answer = await case.repairer.read_outcome(case.order)
    assert answer == RepairAnswer(AnswerState.TAKEN, "ImagePullBackOff: not found")
    case.order = replace(case.order, lasts=1.0)
    await case.has_no_verdict("ImagePullBackOff")


# -- other parties ------------------------------------------------------------------


async def test_a_job_that_somebody_deletes_is_no_verdict_and_is_not_made_again(case: Case) -> None:
    await case.running()
    path = f"{case.jobs.path}/{job_name(case.order)}?propagationPolicy=Background"
    case.jobs.space.plane.call("DELETE", path)
    await case.has_no_verdict("deleted")
    await until(lambda: case.jobs.pods() == [], "its pods")
    assert (await case.repairer.clean_up(case.order)).state is AnswerState.DONE


async def test_the_end_waits_for_a_pod_that_was_left_without_its_job(case: Case) -> None:
    pod = await case.running()
    path = f"{case.jobs.path}/{job_name(case.order)}?propagationPolicy=Orphan"
    case.jobs.space.plane.call("DELETE", path)
    await until(lambda: case.jobs.one(case.order) is None, "the Job's deletion")
    await case.has_no_verdict("was deleted")
    left = await case.repairer.clean_up(case.order)
    assert left.state is AnswerState.NOT_SENT
    assert "has not ended" in left.text
    again = await case.repairer.order(case.order, UNGUARDED)
    assert again.state is AnswerState.INCONCLUSIVE
    assert "its Job was deleted, and its pod is still there" in again.text
    case.jobs.end(pod, 143)
    assert (await case.repairer.clean_up(case.order)).state is AnswerState.DONE


async def test_a_strangers_job_of_the_name_is_not_touched_and_gives_no_verdict(case: Case) -> None:
    content = job_manifest(case.section, case.order, gpus=0)
    content["metadata"].pop("annotations")
    case.jobs.space.plane.call("POST", case.jobs.path, content)
    answer = await case.repairer.order(case.order, UNGUARDED)
    assert answer.state is AnswerState.INCONCLUSIVE
    assert "another party's" in answer.text
    pod = await case.jobs.pod_on(case.order.node)
    pod_path = case.jobs.space.path("pods", pod["metadata"]["name"])
    theirs = {"metadata": {"annotations": {OPERATION: None}}}
    case.jobs.space.plane.call("PATCH", pod_path, theirs, MERGE_PATCH)
    case.jobs.end(pod, 0)
    await case.has_no_verdict("another party's")
    assert not await case.repairer.cancel(case.order)
    assert (await case.repairer.clean_up(case.order)).state is AnswerState.DONE
    assert case.jobs.one(case.order) is not None


async def test_a_cancelled_test_is_over_when_its_pod_has_ended(case: Case) -> None:
    assert not await case.repairer.cancel(case.order)  # none is there
    pod = await case.running()
    path = case.jobs.space.path("pods", pod["metadata"]["name"])
    lingers = {"metadata": {"annotations": {"sickbay.test/linger": "true"}}}
    case.jobs.space.plane.call("PATCH", path, lingers, MERGE_PATCH)
    assert not await case.repairer.cancel(case.order)
    assert case.slept == 15
    cancelled = asyncio.create_task(case.repairer.cancel(case.order))
    # It has found the Job, which is removed as soon as the pod has gone.
    await until(lambda: case.slept > 15)
    case.jobs.space.plane.call("DELETE", f"{path}?gracePeriodSeconds=0")
    assert await cancelled
    assert case.jobs.all() == []
    assert case.jobs.pods() == []


async def test_the_job_goes_with_its_quarantine(case: Case, kube: KubeCluster) -> None:
    await case.running()
    made = present(await kube.read_quarantine(case.order.node))
    await kube.drop_quarantine(made, guard=UNGUARDED)
    await until(lambda: case.jobs.one(case.order) is None, "the garbage collector")


# -- what can't be ordered ----------------------------------------------------------


async def test_a_profile_that_the_job_does_not_have_is_named(case: Case) -> None:
    answer = await case.repairer.order(replace(case.order, profile="long"), UNGUARDED)
    assert answer.state is AnswerState.INCONCLUSIVE
    assert "its Job has no profile 'long'; expected quick" in answer.text


async def test_a_node_without_gpus_is_not_tested_without_them(
    account: KubeCluster, jobs: Jobs
) -> None:
    case = Case(account, jobs, order_of_a_test(jobs.marked_node(gpus=0)))
    answer = await case.repairer.order(case.order, UNGUARDED)
    assert answer.state is AnswerState.INCONCLUSIVE
    assert "has no nvidia.com/gpu in its capacity" in answer.text
    assert jobs.all() == []


async def test_missing_rights_are_named_at_the_start_and_give_no_verdict(
    control_plane: ControlPlane, kube: KubeCluster, jobs: Jobs, aggregator: Path
) -> None:
    async with kube_cluster(aggregator) as bare:
        case = await a_case(bare, kube, jobs)
        where = jobs.space.namespace
        assert list(await case.repairer.missing_rights()) == [
            f"{verb} jobs.batch in namespace {where}" for verb in ("get", "create", "delete")
        ]
        answer = await case.repairer.order(case.order, UNGUARDED)
        assert answer.state is AnswerState.INCONCLUSIVE
        assert "docs/repair.md" in answer.text
        assert jobs.all() == []


async def test_the_rights_of_deploy_are_of_one_namespace_alone(
    account: KubeCluster, control_plane: ControlPlane, jobs: Jobs
) -> None:
    here = JobRepairer(account.objects(), job_section(jobs.space.namespace))
    assert list(await here.missing_rights()) == []
    elsewhere = JobRepairer(account.objects(), job_section("default"))
    assert len(await elsewhere.missing_rights()) == 3
