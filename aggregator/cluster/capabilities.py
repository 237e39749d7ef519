"""Features of some kinds of cluster alone, next to the port that all of them have."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aggregator.cluster.agent_pods import PodSink
from aggregator.cluster.namespace_owners import NamespaceOwners
from aggregator.cluster.objects import ObjectStore
from aggregator.cluster.pod_ends import PodEndSink
from aggregator.cluster.port import Cluster, Guard, Pod
from aggregator.cluster.reboots import NodeReboots
from aggregator.cluster.users import AccessReviews
from aggregator.leader.lease import LeaseStore
from aggregator.leader.standby import ReadAhead

if TYPE_CHECKING:  # its libraries take time to import, and no configuration needs them
    from aggregator.tls.authority_store import AuthorityStore


class PodNotes(Protocol):
    """Pods that can be annotated, and those of a gang."""

    async def annotate_pod(
        self, pod: Pod, annotations: Mapping[str, str], *, guard: Guard
    ) -> None: ...

    async def pods_labelled(
        self, namespace: str, label: str, value: str, *, background: bool = False
    ) -> list[Pod]: ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Each is None where the cluster lacks it: whoever needs it then does without."""

    #: The Lease's store, by the seconds for one request. None: there is one replica.
    lease: Callable[[float], LeaseStore] | None = None
    #: The first reads of a controller, made by a gateway that may soon be one.
    read_ahead: ReadAhead | None = None
    #: The issuer of service account tokens, and its keys as JWKS text.
    signing_keys: Callable[[], Awaitable[tuple[str, str]]] | None = None
    access_reviews: AccessReviews | None = None
    #: The store of the certificate authorities that the aggregator makes itself.
    authorities: "AuthorityStore | None" = None
    #: Objects of any kind, in this cluster ("") or in that of another kubeconfig.
    objects: Callable[[str], ObjectStore] | None = None
    #: Carries a person's write out by the cluster's own client. Raises ClusterError.
    carry_out: Callable[[Callable[[Any], Awaitable[Any]]], Awaitable[Any]] | None = None
    #: Requests and how they ended, for metrics (`RequestCounters`).
    counters: Any = None
    #: For ever: the agents' own pods, namespaces' owners, and pods that anyone has stopped.
    follow_agent_pods: Callable[[PodSink], Coroutine[Any, Any, None]] | None = None
    follow_namespaces: Callable[[NamespaceOwners], Coroutine[Any, Any, None]] | None = None
    follow_pod_ends: Callable[[PodEndSink], Coroutine[Any, Any, None]] | None = None
    #: Whether `Cluster.pods_on` has the pods of jobs, and not a placeholder for a command.
    runs_jobs: bool = False
    pod_notes: PodNotes | None = None
    #: Reboots that the cluster itself carries out.
    reboots: NodeReboots | None = None


class OpenedCluster(Cluster, Protocol):
    """A cluster as the composition gets it from the registry."""

    @property
    def capabilities(self) -> Capabilities: ...
