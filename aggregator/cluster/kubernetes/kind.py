"""Kubernetes as a kind of cluster."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from aggregator.cluster.capabilities import OpenedCluster
from aggregator.cluster.kind import ClusterKind, OpenOptions
from aggregator.configfile.yaml_source import Key


class KubernetesSettings(Protocol):
    """Its keys, directly below ``cluster``. Without ``kubeconfig``: in-cluster, else the usual
    places.
    """

    @property
    def kubeconfig(self) -> Path | None: ...
    @property
    def namespace(self) -> str: ...
    @property
    def requests_per_second(self) -> int: ...
    @property
    def burst(self) -> int: ...


# Each function imports its part: a configuration is checked without the client's libraries.


def _open(settings: KubernetesSettings, options: OpenOptions) -> OpenedCluster:
    from aggregator.cluster.kubernetes.cluster import KubeCluster

    return KubeCluster(
        kubeconfig=str(settings.kubeconfig or ""),
        namespace=settings.namespace,
        qps=settings.requests_per_second,
        burst=settings.burst,
        options=options,
    )


def _problems(settings: KubernetesSettings) -> Iterator[tuple[Key, str]]:
    """Only a kubeconfig that the configuration names: the machine's own is not part of the file."""
    if settings.kubeconfig is not None:
        from aggregator.cluster.kubernetes.kubeconfig_check import KubeconfigError, choose

        try:
            choose(str(settings.kubeconfig), "")
        except KubeconfigError as error:
            yield ("kubeconfig",), str(error)


def _check_start(settings: KubernetesSettings, environ: Mapping[str, str]) -> None:
    if settings.kubeconfig is None:
        from aggregator.cluster.kubernetes.credentials import CredentialSources

        CredentialSources("", "", environ).check()


KUBERNETES = ClusterKind(
    "kubernetes",
    _open,
    has_api_server=True,
    problems=_problems,
    check_start=_check_start,
)
