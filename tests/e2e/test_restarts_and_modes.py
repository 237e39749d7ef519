"""A fault while the aggregator is killed, stopped, or in another mode.

Tests of one configuration follow each other: they share an aggregator on a real kube-apiserver.
"""

import time

import pytest

from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.e2e.conftest import Start
from tests.support.evictions import accepted_evictions
from tests.support.stack import pods_of, protect, start_job

pytestmark = pytest.mark.cluster

#: For one node without pods, the reads of the stop switch and four Events of the drain among them,
#: and room for a list of the nodes, a read again and a conflict.
MOST_REQUESTS = 23
OPENED = '"stream to the aggregator opened"'


def test_kill_9_of_the_aggregator_mid_drain_resumes_and_evicts_nobody_twice(
    cluster_space: Space, stack_of: Start
) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    [node] = cluster_space.create_nodes(1)
    start_job(plane, namespace, "train", node, pods=6)
    protect(plane, namespace, "train", 3)
    pods = {f"{namespace}/{pod['metadata']['name']}" for pod in pods_of(plane, namespace, node)}
    mark = plane.audit_mark()
    stack = stack_of()
    stack.agent(node).xid(79)
    stack.until(lambda: len(accepted_evictions(plane, mark, namespace)) >= 2, "some evictions")
    stack.aggregator.kill()
    killed = plane.audit_mark()
    plane.request("DELETE", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/train")
    stack.aggregator.start().ready()
    stack.until_phase(node, "Drained", timeout_s=60)
    # One under way at the kill had no client for its answer, and is not logged as accepted.
    evicted = accepted_evictions(plane, mark, namespace)
    assert len(evicted) == len(set(evicted))
    assert pods.issuperset(evicted)
    assert len(pods) == 6
    assert pods_of(plane, namespace, node) == []
    assert len(accepted_evictions(plane, killed, namespace)) >= 3, "the budget held them before"


def test_a_persons_release_of_a_latched_fault_is_not_undone_by_the_next_snapshot(
    cluster_space: Space, stack_of: Start
) -> None:
    plane, [node] = cluster_space.plane, cluster_space.create_nodes(1)
    stack = stack_of()
    agent = stack.agent(node)
    agent.xid(79)
    stack.until_phase(node, "Drained")
    plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{node}")
    stack.until(lambda: stack.quarantine(node) is None, "the release")
    agent.kill()
    agent.start()  # a new stream: its snapshot has the fault
    stack.until(lambda: agent.log().count(OPENED) >= 2, "the second stream")
    stack.aggregator.kill()
    stack.aggregator.start().ready()  # nor does an aggregator that remembers nothing
    stack.until(lambda: agent.log().count(OPENED) >= 3, "the third stream")
    agent.xid(48)  # a new fault, which shows that it has looked
    stack.until_phase(node, "Drained")
    codes = [item["code"] for item in (stack.quarantine(node) or {})["spec"]["evidence"]]
    assert "xid:48" in codes


def test_nodes_make_no_request_to_the_api_server_and_a_quarantine_costs_few(
    cluster_space: Space, stack_of: Start
) -> None:
    plane, [node] = cluster_space.plane, cluster_space.create_nodes(1)
    stack = stack_of()
    agent = stack.agent(node, start=False)
    mark = plane.audit_mark()
    agent.start()
    stack.attached(agent)
    stack.until(lambda: _asked_nothing(plane), "the end of what the aggregator asks at its start")
    since = plane.audit_mark()
    agent.xid(79)
    stack.until_phase(node, "Drained")
    stack.until(
        lambda: [one for one in _asked_of(plane, since) if one == ("create", "events")], "its Event"
    )
    users = {who for who, _ in plane.requests_by_user_and_verb(mark)}
    assert not [user for user in users if "sickbay-agent" in user]
    # docs/benchmarks.md lists the requests: from the record to Drained, with condition and Event.
    asked = _asked_of(plane, since)
    assert 5 <= len(asked) <= MOST_REQUESTS, asked


def _asked_nothing(plane: ControlPlane) -> bool:
    """Whether no request came for a second: a start logs its connection before its first read."""
    mark = plane.audit_mark()
    time.sleep(1.0)
    return not _asked_of(plane, mark)


def _asked_of(plane: ControlPlane, mark: int) -> list[tuple[str, str]]:
    """The aggregator's requests since then, by verb and resource; watches, Leases and paths that
    are no resource (the keys of tokens) left out.
    """
    user = "system:serviceaccount:sickbay:sickbay-aggregator"
    return [
        (entry["verb"], entry.get("objectRef", {}).get("resource", ""))
        for entry in plane.audit_entries(mark)
        if entry["user"]["username"] == user
        and entry["verb"] != "watch"
        and entry.get("objectRef", {}).get("resource", "") not in {"", "leases"}
    ]


def test_scaling_the_aggregator_to_zero_changes_nothing(
    cluster_space: Space, stack_of: Start
) -> None:
    plane, [node] = cluster_space.plane, cluster_space.create_nodes(1)
    stack = stack_of()
    agent = stack.agent(node)
    agent.xid(79)
    stack.until_phase(node, "Drained")
    assert stack.aggregator.stop() == 0
    mark = plane.audit_mark()
    agent.xid(48)
    stack.until(lambda: "xid:48" in str(agent.results()), "the second fault to be latched")
    assert stack.taint(node) == "gpu"
    users = {who for who, verb in plane.requests_by_user_and_verb(mark)}
    assert not [user for user in users if "sickbay" in user]
    stack.aggregator.start().ready()
    stack.until(
        lambda: "xid:48" in str((stack.quarantine(node) or {})["spec"]["evidence"]),
        "what came in meanwhile",
    )


def test_observe_mode_writes_nothing_at_all(cluster_space: Space, stack_of: Start) -> None:
    plane, [node] = cluster_space.plane, cluster_space.create_nodes(1)
    mark = plane.audit_mark()
    stack = stack_of({"mode": "observe"})
    stack.agent(node).xid(79)
    stack.aggregator.wait_for_log("quarantine.suppressed")
    user = "system:serviceaccount:sickbay:sickbay-aggregator"
    writes = {
        verb: count
        for (who, verb), count in plane.requests_by_user_and_verb(mark).items()
        if who == user and verb not in {"get", "list", "watch"}
    }
    # The questions about its own rights are creations in name; the record is made empty; the
    # Lease is renewed.
    updates = [
        entry["objectRef"]["resource"]
        for entry in plane.audit_entries(mark)
        if entry["user"]["username"] == user and entry["verb"] == "update"
    ]
    assert set(writes) <= {"create", "update"}
    assert set(updates) <= {"leases"}
    created = {
        entry["objectRef"]["resource"]
        for entry in plane.audit_entries(mark)
        if entry["user"]["username"] == user and entry["verb"] == "create"
    }
    assert created <= {"selfsubjectaccessreviews", "configmaps", "leases"}
    assert stack.taint(node) is None
