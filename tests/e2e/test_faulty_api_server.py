"""The API server answers badly: no fault is lost, no action repeated, and the server is spared."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.pytest_plugin import Space
from tests.controlplane.waiting import wait_until
from tests.e2e.test_bursts import TRUSTING, quarantined, tainted
from tests.support.evictions import accepted_evictions
from tests.support.faulty_proxy import ApiFaults, FaultyProxy
from tests.support.simulator import Simulator
from tests.support.stack import Stack, remove_quarantines

pytestmark = pytest.mark.cluster

EVERY_POD: dict[str, Any] = {"drain": {"evict_unmanaged": True}}


def test_with_30_per_cent_of_answers_500_or_reset_no_fault_is_lost_and_no_pod_evicted_twice(
    cluster_space: Space, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    space, plane, count = cluster_space, cluster_space.plane, 15
    nodes = space.create_nodes(count)
    for node in nodes:
        plane.create_pod(space.namespace, node, node=node)
    plane.wait_pod_running(space.namespace, nodes[-1], timeout_s=60)
    mark = plane.audit_mark()
    request.addfinalizer(lambda: remove_quarantines(plane, space.node_prefix))
    faults = ApiFaults(fails=0.15, resets=0.08, loses_answers=0.07, busy=0.01, watches_live=15)
    with (
        # The proxy ends last: an aggregator that lives on would connect to it until then.
        FaultyProxy(plane, tmp_path / "proxy", ApiFaults()) as proxy,
        Stack(plane, tmp_path, more=TRUSTING | EVERY_POD) as stack,
    ):
        stack.aggregator.goes_by(proxy.kubeconfig)
        stack.aggregator.start().ready()
        names = tmp_path / "names"
        names.write_text("\n".join(nodes))
        line: list[str | Path] = ["--names", names, "--aggregator", stack.aggregator.address]
        with Simulator(line, log=tmp_path / "simulator.log") as simulator:
            simulator.until_streaming(count)
            proxy.faults = faults
            proxy.busy_once = "/eviction"  # chance alone may give no 429
            simulator.inject(nodes="all", fault="xid:79")
            stack.until(
                lambda: list(quarantined(plane, space.node_prefix).values()) == ["Drained"] * count,
                "all to be drained",
                timeout_s=120,
            )
            assert tainted(plane, nodes) == sorted(nodes)
            for node in nodes:
                plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{node}")
            wait_until(lambda: not tainted(plane, nodes), what="all releases", timeout_s=120)
    happened = [entry.what for entry in proxy.log]
    assert {"failed", "reset", "answer lost", "busy"} <= set(happened), "it was rough"
    evicted = accepted_evictions(plane, mark, space.namespace)
    assert sorted(evicted) == sorted(f"{space.namespace}/{node}" for node in nodes)


def test_a_server_that_asks_for_patience_is_asked_nothing_until_then(
    cluster_space: Space, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    space, plane = cluster_space, cluster_space.plane
    nodes = space.create_nodes(10)
    request.addfinalizer(lambda: remove_quarantines(plane, space.node_prefix))
    with (
        # The proxy ends last: an aggregator that lives on would connect to it until then.
        FaultyProxy(plane, tmp_path / "proxy", ApiFaults()) as proxy,
        Stack(plane, tmp_path, more=TRUSTING) as stack,
    ):
        stack.aggregator.goes_by(proxy.kubeconfig)
        stack.aggregator.start().ready()
        names = tmp_path / "names"
        names.write_text("\n".join(nodes))
        line: list[str | Path] = ["--names", names, "--aggregator", stack.aggregator.address]
        with Simulator(line, log=tmp_path / "simulator.log") as simulator:
            simulator.until_streaming(len(nodes))
            proxy.faults = ApiFaults(busy=1.0, retry_after=5)
            simulator.inject(nodes="all", fault="xid:79")
            wait_until(
                lambda: any(e.what == "busy" and "/leases" not in e.request for e in proxy.log),
                what="a 429",
                timeout_s=30,
            )
            time.sleep(8)  # the measured time: how often it asks in it
            # The Lease is renewed by its own clock, in a lane of its own.
            asked = [e for e in proxy.log if e.what == "busy" and "/leases" not in e.request]
            proxy.faults = ApiFaults()
            wait_until(lambda: tainted(plane, nodes) == sorted(nodes), what="taints", timeout_s=60)
    # Requests under way at the first 429 are sent, on a busy machine seconds later; then one pause
    # follows another.
    later = [entry.at - asked[0].at for entry in asked]
    assert not [at for at in later if 3.0 < at < 4.9], ("asked before the time was over", asked)
    assert plane.request("GET", "/readyz").status == 200
