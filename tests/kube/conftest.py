"""Fixtures that the tests of the Kubernetes client share."""

from collections.abc import AsyncIterator

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.support.kube_cluster import DEPLOY, kube_cluster


@pytest.fixture(scope="session")
def quarantine_definition(control_plane: ControlPlane) -> None:
    """The shared plane knows Quarantines."""
    control_plane.apply(DEPLOY / "crd.yaml")


@pytest.fixture
async def kube(cluster_space: Space, quarantine_definition: None) -> AsyncIterator[KubeCluster]:
    """The administrator's client of the shared plane, its record in the test's namespace."""
    plane = cluster_space.plane
    async with kube_cluster(plane.kubeconfig, namespace=cluster_space.namespace) as cluster:
        yield cluster
