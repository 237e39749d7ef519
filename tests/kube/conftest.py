"""Fixtures that the tests of the Kubernetes client share."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aggregator.cluster.kubernetes import node_condition
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.quarantine.drain import drainer
from aggregator.quarantine.reconcile import node_conditions, rounds
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.support import waiting
from tests.support.active_test_jobs import Jobs
from tests.support.admission_policies import ACCOUNT, KeptPolicies
from tests.support.kube_cluster import DEPLOY, unreviewed_cluster

#: Those of the file that is running, if a test of it has needed them.
_kept: list[KeptPolicies] = []


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller in this process goes on at once where time has to pass: tests/aggregator has the
    tests of these times, in virtual time.
    """
    monkeypatch.setattr(drainer, "EMPTY_FOR", 0.5)
    monkeypatch.setattr(rounds, "ROUNDS", 1.0)
    monkeypatch.setattr(node_conditions, "EVERY_WITHOUT", 2.0)
    monkeypatch.setattr(node_condition, "WATCH_S", 0.2)


@pytest.fixture(autouse=True)
def _few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look is a request here: 18 in the first second of a wait and 4 in each other, not 120 and
    10. A write and its event take 0.02 s, so the first look after one is no earlier.
    """
    monkeypatch.setattr(waiting, "_SHORT", 0.02)
    monkeypatch.setattr(waiting, "PART", 0.2)
    monkeypatch.setattr(waiting, "LONG", 0.25)


@pytest.fixture(scope="session")
def quarantine_definition(control_plane: ControlPlane) -> None:
    """The shared plane knows Quarantines."""
    control_plane.apply(DEPLOY / "crd.yaml")


@pytest.fixture
async def kube(cluster_space: Space, quarantine_definition: None) -> AsyncIterator[KubeCluster]:
    """The administrator's client of the shared plane, its record in the test's namespace."""
    plane = cluster_space.plane
    own = cluster_space.namespace
    async with unreviewed_cluster(plane.kubeconfig, namespace=own) as cluster:
        yield cluster


@pytest.fixture
def aggregator(control_plane: ControlPlane, quarantine_definition: None) -> Path:
    """A kubeconfig of the aggregator's own service account."""
    control_plane.apply(DEPLOY / "aggregator-rbac.yaml")
    return control_plane.kubeconfig_for_service_account(*ACCOUNT)


@pytest.fixture
def jobs(cluster_space: Space) -> Jobs:
    return Jobs(cluster_space)


@pytest.fixture
def rights(control_plane: ControlPlane, aggregator: Path, jobs: Jobs) -> Iterator[Path]:
    """A kubeconfig of the aggregator's account, with what deploy/ has for tests by Jobs in the
    namespace.
    """
    text = (DEPLOY.parent / "profiles" / "repair-jobs" / "repair-jobs.yaml").read_text()
    with control_plane.applied(text.replace("sickbay-tests", jobs.space.namespace)):
        yield aggregator


@pytest.fixture(scope="module")
def policies_of_the_file(control_plane: ControlPlane) -> Iterator[KeptPolicies]:
    kept = KeptPolicies(control_plane)
    _kept.append(kept)
    yield kept
    _kept.remove(kept)
    kept.close()


@pytest.fixture(autouse=True)
def _policies_for_those_that_need_them(request: pytest.FixtureRequest) -> None:
    """Another test finds none, whatever the test before it had."""
    if "policies" not in request.fixturenames:
        for kept in _kept:
            kept.remove()


@pytest.fixture
def policies(policies_of_the_file: KeptPolicies, aggregator: Path) -> None:
    """Those about nodes and Quarantines are in force: each has denied something."""
    assert aggregator  # the account of a probe
    policies_of_the_file.put()
