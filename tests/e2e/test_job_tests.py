"""Active tests as Jobs by the real aggregator: a fault, a drain, a test on the node, its verdict.

The API server, the scheduler and the Job controller are real; kwok plays the kubelet.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.e2e.test_bursts import TRUSTING
from tests.support.active_test_jobs import Jobs
from tests.support.kube_cluster import DEPLOY
from tests.support.simulator import Simulator
from tests.support.stack import Stack, remove_quarantines

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

RIGHTS = DEPLOY.parent / "profiles" / "repair-jobs" / "repair-jobs.yaml"
#: No ladder: what is done is asked for by hand.
RULES = """
rules:
  - {name: gpu-gone, healthyFor: 1s, repair: []}
"""
LIMIT = 90


class Site:
    """A drained node, and the aggregator that tests it."""

    def __init__(self, jobs: Jobs, stack: Stack, name: str) -> None:
        self.jobs, self.stack, self.name = jobs, stack, name

    def share_the_boot(self) -> None:
        """The played kubelet names the boot of the simulated agent: no test begins before."""
        applied = self.jobs.space.plane.node(self.name)["metadata"]["annotations"]
        [[_, _, boot, _]] = json.loads(applied["sickbay.dev/applied"])["evidence"]
        status = {"status": {"nodeInfo": {"bootID": boot}}}
        path = f"/api/v1/nodes/{self.name}/status"
        self.jobs.space.plane.call("PATCH", path, status, MERGE_PATCH)

    def ask(self, ident: str) -> None:
        """As a person does who wants the node tested."""
        wish = {"metadata": {"annotations": {"sickbay.dev/repair": f"test:quick {ident}"}}}
        self.jobs.space.plane.call("PATCH", f"/api/v1/nodes/{self.name}", wish, MERGE_PATCH)

    def attempts(self) -> list[tuple[str, str]]:
        found = self.status().get("repair", {}).get("attempts", [])
        return [(one["repair"], one["state"]) for one in found]

    def status(self) -> dict[str, Any]:
        return dict((self.stack.quarantine(self.name) or {}).get("status", {}))

    def running(self) -> dict[str, Any]:
        """The pod of the test, once it runs."""

        def pods() -> list[dict[str, Any]]:
            return [pod for pod in self.jobs.pods() if pod["status"]["phase"] == "Running"]

        self.stack.until(pods, "the test's pod", timeout_s=LIMIT)
        [pod] = pods()
        assert pod["spec"]["nodeName"] == self.name
        return pod

    def ends(self, *expected: tuple[str, str]) -> None:
        def reached() -> bool:
            return self.attempts() == list(expected)

        self.stack.until(reached, f"attempts {expected}", timeout_s=LIMIT)


@pytest.fixture
def site(cluster_space: Space, tmp_path: Path) -> Iterator[Site]:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    jobs = Jobs(cluster_space)
    [name] = cluster_space.create_nodes(1)
    job = {
        "namespace": namespace,
        "image": "registry.example/tests@sha256:0",
        "profiles": {"quick": {"command": ["/tests/quick"]}},
    }
    repair = {
        "mode": "repair",
        "concurrent_percent": "100%",
        "concurrent": 100,
        "repairers": [{"kind": "test", "timeout": "10m", "job": job}],
    }
    stack = Stack(plane, tmp_path, more=TRUSTING | {"repair": repair}, policy=RULES)
    ends: list[Callable[[], object]] = [
        lambda: remove_quarantines(plane, cluster_space.node_prefix),
        lambda: stack.__exit__(None, None, None),
    ]
    with plane.applied(RIGHTS.read_text().replace("sickbay-tests", namespace)):
        stack.aggregator.start().ready()
        (tmp_path / "names").write_text(name)
        simulator = Simulator(
            ["--names", tmp_path / "names", "--aggregator", stack.aggregator.address],
            log=tmp_path / "simulator.log",
        )
        simulator.__enter__()
        ends.append(lambda: simulator.__exit__(None, None, None))
        simulator.until_streaming(1)
        simulator.inject(nodes="all", fault="xid:79")
        made = Site(jobs, stack, name)
        stack.until(lambda: made.status().get("phase") == "Drained", "the drain", timeout_s=LIMIT)
        made.share_the_boot()
        yield made
        for end in reversed(ends):
            end()


def test_a_drained_node_is_tested_once_though_the_aggregator_is_killed(site: Site) -> None:
    plane = site.jobs.space.plane
    mark = plane.audit_mark()
    assert "repair.rights_missing" not in site.stack.aggregator.log()
    site.ask("a")
    site.stack.until(site.jobs.all, "the Job", timeout_s=LIMIT)
    site.stack.aggregator.kill()  # the answer may be written by now, or not
    pod = site.running()
    site.stack.aggregator.start().ready()
    site.ends(("test", "Ordered"))
    assert not site.status()["repair"].get("held")
    site.jobs.end(pod, 1, "GPU 3: isolate")
    site.ends(("test", "Failed"))
    [attempt] = site.status()["repair"]["attempts"]
    assert "failed: GPU 3: isolate" in attempt["message"]
    assert site.jobs.all() == []
    assert site.jobs.pods() == []
    asked = [
        (entry["verb"], entry["requestURI"].partition("?")[0])
        for entry in plane.audit_entries(mark)
        if entry["user"]["username"].endswith(":sickbay-aggregator")
    ]
    made = [one for one in asked if one == ("create", site.jobs.path)]
    assert len(made) == 1
    assert not [uri for _, uri in asked if uri.endswith("/eviction")]


def test_a_test_whose_job_is_deleted_says_nothing_and_the_next_one_can_pass(site: Site) -> None:
    site.ask("a")
    site.running()
    [job] = site.jobs.all()
    path = f"{site.jobs.path}/{job['metadata']['name']}?propagationPolicy=Background"
    site.jobs.space.plane.call("DELETE", path)
    site.ends(("test", "Inconclusive"))
    site.ask("b")
    site.ends(("test", "Inconclusive"), ("test", "Ordered"))
    site.jobs.end(site.running(), 0)
    site.ends(("test", "Inconclusive"), ("test", "Succeeded"))
    assert site.jobs.all() == []


def test_a_release_by_a_person_ends_the_test_first(site: Site) -> None:
    site.ask("a")
    site.running()
    site.jobs.space.plane.call("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{site.name}")
    site.stack.until(lambda: site.stack.quarantine(site.name) is None, "the release")
    assert site.jobs.all() == []
    assert site.jobs.pods() == []
