"""Objects of any kind in the cluster's API, as repairers need them: few requests, each fenced."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aggregator.cluster.port import Guard


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind as a manifest names it: ``api_version`` is "v1", or "GROUP/VERSION".

    A version of "" means the one that the cluster prefers ("cluster.x-k8s.io/").
    """

    api_version: str
    kind: str

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def __str__(self) -> str:
        return f"{self.kind} ({self.api_version})"


#: The label with the operation of a repair's object.
QUARANTINE = ObjectKind("sickbay.dev/v1alpha1", "Quarantine")


@dataclass(frozen=True, slots=True)
class ObjectResource:
    """A kind as the API server serves it; ``api_version`` has its version."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


@dataclass(frozen=True, slots=True)
class ClusterObject:
    """One object as it was read. ``content`` is all of it, in plain values."""

    name: str
    namespace: str
    uid: str
    version: str
    deleting: bool
    annotations: Mapping[str, str]
    content: Mapping[str, Any]


class ObjectStore(Protocol):
    """Objects of one cluster. Every method raises `ClusterError`. Those that act await
    their ``guard`` after their last wait.

    `NotFound` of `resource` means that the cluster has no such kind; no other method raises it
    for a kind that is missing.
    """

    async def resource(self, kind: ObjectKind) -> ObjectResource:
        """How the kind is served. Raises NotFound where the cluster does not have it."""

    async def get(
        self, resource: ObjectResource, namespace: str, name: str
    ) -> ClusterObject | None:
        """From etcd, or None."""

    async def find(
        self, resource: ObjectResource, which: Callable[[Mapping[str, Any]], bool]
    ) -> Sequence[ClusterObject]:
        """Of all objects in all namespaces those whose content fits, from the server's cache."""

    async def select(
        self, resource: ObjectResource, namespace: str, labels: Mapping[str, str]
    ) -> Sequence[ClusterObject]:
        """Those in the namespace that have all these labels, from etcd."""

    async def create(
        self,
        resource: ObjectResource,
        namespace: str,
        content: Mapping[str, Any],
        *,
        guard: Guard,
    ) -> ClusterObject:
        """Raises Conflict where the name is taken."""

    async def annotate(
        self,
        resource: ObjectResource,
        found: ClusterObject,
        annotations: Mapping[str, str | None],
        *,
        guard: Guard,
    ) -> None:
        """Set annotations, or remove those that are None. Raises Conflict where the object is not
        as it was read, or is another one.
        """

    async def delete(
        self,
        resource: ObjectResource,
        found: ClusterObject,
        *,
        as_read: bool,
        guard: Guard,
        foreground: bool = False,
    ) -> None:
        """Delete this object, by its uid; with ``as_read`` also by its version. An object that is
        gone is no error. Raises Conflict where it is another object, or version. ``foreground``: it
        stays, being deleted, until all that it owns is gone.
        """

    async def lacks(
        self, resource: ObjectResource, namespace: str, verbs: Sequence[str]
    ) -> Sequence[str]:
        """The rights that this identity does not have, as text: "delete nodeclaims.karpenter.sh".

        An empty ``namespace`` means all of them.
        """
