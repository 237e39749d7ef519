"""A person's edits of a Quarantine's spec on the real API server: each holds, or is rejected."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import Bench, running_bench
from tests.support.replica import fault, snapshot
from tests.support.stack import pods_of, protect, start_job
from tests.support.waiting import until

pytestmark = pytest.mark.cluster


@pytest.fixture
async def bench(kube: KubeCluster, cluster_space: Space) -> AsyncIterator[Bench]:
    async with running_bench(kube, cluster_space) as made:
        yield made


def edit(bench: Bench, node: str, **spec: Any) -> tuple[int, str]:
    path = f"/apis/sickbay.dev/v1alpha1/quarantines/{node}"
    answer = bench.plane.request("PATCH", path, {"spec": spec}, MERGE_PATCH)
    return answer.status, str(answer.body.get("message", ""))


async def test_a_weaker_action_that_a_person_sets_holds_and_is_shown(
    bench: Bench, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    plane, space = bench.plane, cluster_space.namespace
    start_job(plane, space, "train", node)
    protect(plane, space, "train", 2)
    bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
    await bench.phase(node, "Draining")
    assert edit(bench, node, action="cordon")[0] == 200
    await bench.phase(node, "Cordoned")
    plane.call("DELETE", f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets/train")
    bench.says(node, faults=(fault("xid:48", "GPU-2", boot_id=bench.boot(node)),))
    await until(lambda: "xid:48" in str(bench.quarantine(node)))
    await bench.settles()
    assert len(pods_of(plane, space, node)) == 2
    assert "a person set cordon" in bench.status(node, "override")
    assert edit(bench, node, action="drain")[0] == 200  # the positive control: it may be ended
    await bench.phase(node, "Drained")
    assert bench.status(node, "override") == ""


@pytest.mark.parametrize("field", ["kind", "incident", "bootID", "policyHash"])
async def test_an_edit_that_could_not_hold_is_rejected_with_the_way_that_is_supported(
    bench: Bench, cluster_space: Space, field: str
) -> None:
    [node] = cluster_space.create_nodes(1)
    bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
    await bench.phase(node, "Drained")
    for value in ("disk", None):
        status, message = edit(bench, node, **{field: value})
        assert status == 422, (field, value, message)
        assert f"{field} can't be changed; " in message
    assert edit(bench, node, reason="other words, RMA 7")[0] == 200
    await bench.settles()
    found = bench.quarantine(node)
    assert found is not None
    assert found["spec"]["reason"] == "other words, RMA 7"
