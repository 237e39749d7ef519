"""A person's edits of a Quarantine's spec on the real API server: each holds, or is rejected."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import Ward, warden
from tests.support.replica import fault, snapshot
from tests.support.stack import pods_of, protect, start_job
from tests.support.waiting import until

pytestmark = pytest.mark.cluster


@pytest.fixture
async def ward(kube: KubeCluster, cluster_space: Space) -> AsyncIterator[Ward]:
    async with warden(kube, cluster_space) as made:
        yield made


def edit(ward: Ward, node: str, **spec: Any) -> tuple[int, str]:
    path = f"/apis/sickbay.dev/v1alpha1/quarantines/{node}"
    answer = ward.plane.request("PATCH", path, {"spec": spec}, MERGE_PATCH)
    return answer.status, str(answer.body.get("message", ""))


async def test_a_weaker_action_that_a_person_sets_holds_and_is_shown(
    ward: Ward, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    plane, space = ward.plane, cluster_space.namespace
    start_job(plane, space, "train", node)
    protect(plane, space, "train", 2)
    ward.attach(node, snapshot(fault(boot_id=ward.boot(node))))
    await ward.phase(node, "Draining")
    assert edit(ward, node, action="cordon")[0] == 200
    await ward.phase(node, "Cordoned")
    plane.call("DELETE", f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets/train")
    ward.says(node, faults=(fault("xid:48", "GPU-2", boot_id=ward.boot(node)),))
    await until(lambda: "xid:48" in str(ward.quarantine(node)))
    await ward.settles()
    assert len(pods_of(plane, space, node)) == 2
    assert "a person set cordon" in ward.status(node, "override")
    assert edit(ward, node, action="drain")[0] == 200  # the positive control: it may be ended
    await ward.phase(node, "Drained")
    assert ward.status(node, "override") == ""


@pytest.mark.parametrize("field", ["kind", "incident", "bootID", "policyHash"])
async def test_an_edit_that_could_not_hold_is_rejected_with_the_way_that_is_supported(
    ward: Ward, cluster_space: Space, field: str
) -> None:
    [node] = cluster_space.create_nodes(1)
    ward.attach(node, snapshot(fault(boot_id=ward.boot(node))))
    await ward.phase(node, "Drained")
    for value in ("disk", None):
        status, message = edit(ward, node, **{field: value})
        assert status == 422, (field, value, message)
        assert f"{field} can't be changed; " in message
    assert edit(ward, node, reason="other words, RMA 7")[0] == 200
    await ward.settles()
    found = ward.quarantine(node)
    assert found is not None
    assert found["spec"]["reason"] == "other words, RMA 7"
