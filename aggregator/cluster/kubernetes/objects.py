"""Nodes, pods, the record and lists, as much of them as is used: decoded from raw JSON.

Unknown fields are skipped while they are parsed, so that a node of 15 KB costs microseconds.
Shapes: https://kubernetes.io/docs/reference/kubernetes-api/
"""

import dataclasses
import datetime as dt
import itertools
import sys
from typing import TypeVar

import msgspec

from aggregator.cluster.node_names import CONDITION
from aggregator.cluster.port import (
    Node,
    NodeChange,
    NodeMeta,
    Pod,
    RecordText,
    Refused,
    StopText,
    Taint,
    Toleration,
)
from aggregator.runtime.interning import EMPTY, intern_text

T = TypeVar("T")

RECORD_NAME = "sickbay-record"
STOP_NAME = "sickbay-stop"
#: The certificates that agents and replicas trust (ConfigMap), and the keys of automatic ones
#: (Secret).
CA_NAME = "sickbay-ca"
CA_KEYS_NAME = "sickbay-ca-keys"
#: The kubelet's own note on a pod that comes from a file on the node and can't be evicted.
_MIRROR = "kubernetes.io/config.mirror"
#: The prefix of all annotations that people or sickbay set on nodes for sickbay.
_OURS = "sickbay.dev/"


class Owner(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: float | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[Owner] | None = None


class PartialObjectMetadata(msgspec.Struct, frozen=True):
    """Any object, its metadata alone."""

    metadata: Meta


class SpecAndStatus(msgspec.Struct, frozen=True):
    """An object of a kind of our own, its parts yet to be decoded."""

    metadata: Meta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next: str = msgspec.field(default="", name="continue")


class RawList(msgspec.Struct, frozen=True):
    """A page of a list whose objects are decoded one by one."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class RawWatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class TaintObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool | None = None
    taints: list[TaintObject] | None = None


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class NodeInfo(msgspec.Struct, frozen=True):
    boot_id: str = msgspec.field(default="", name="bootID")


class NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: list[Condition] | None = None
    node_info: NodeInfo | None = None


#: Prefixes of extended resources that are accelerators: a device plugin can keep one of them out.
ACCELERATORS = (
    "nvidia.com/",
    "amd.com/",
    "gpu.intel.com/",
    "habana.ai/",
    "google.com/",
    "aws.amazon.com/",
)


#: No node has more: a pod that waits for a node may request any number.
_MOST_GPUS = 1024
_LONGEST_ID = 128
#: Resources of which one is a whole accelerator.
_WHOLE_GPUS = frozenset(
    {
        "nvidia.com/gpu",
        "amd.com/gpu",
        "gpu.intel.com/i915",
        "gpu.intel.com/xe",
        "habana.ai/gaudi",
        "google.com/tpu",
        "aws.amazon.com/neuron",
    }
)


class NodeObject(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, if the node has it."""
        conditions = self.status.conditions if self.status else None
        return next((one for one in conditions or () if one.type == kind), None)


class EmptyDir(msgspec.Struct, frozen=True):
    medium: str = ""

    @property
    def in_memory(self) -> bool:
        """As /dev/shm needs it: what is there ends with the pod, wherever it runs."""
        return self.medium == "Memory" or self.medium.startswith("HugePages")


class Volume(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    empty_dir: EmptyDir | None = None


class WorkloadRef(msgspec.Struct, frozen=True, rename="camel"):
    """KEP-4671 as in Kubernetes 1.35."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class SchedulingGroup(msgspec.Struct, frozen=True, rename="camel"):
    """KEP-4671 since Kubernetes 1.36."""

    pod_group_name: str = ""


class Resources(msgspec.Struct, frozen=True):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None
    claims: list[msgspec.Raw] | None = None


class Container(msgspec.Struct, frozen=True):
    resources: Resources | None = None

    @property
    def gpus(self) -> int:
        """Whole accelerators: an extended resource is requested in whole numbers alone."""
        requests = (self.resources.requests if self.resources else None) or {}
        counts = (str(text) for name, text in requests.items() if name in _WHOLE_GPUS)
        return sum(int(text) for text in counts if text.isascii() and text.isdigit())


class PodResourceClaim(msgspec.Struct, frozen=True):
    name: str = ""


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    resource_claims: list[PodResourceClaim] | None = None
    eviction_responders: list[msgspec.Raw] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    node_name: str = ""
    termination_grace_period_seconds: float | None = None
    workload_ref: WorkloadRef | None = None
    scheduling_group: SchedulingGroup | None = None
    tolerations: list[Toleration] | None = None

    @property
    def group(self) -> str:
        """The name of the group that is scheduled together; empty for none."""
        if self.scheduling_group is not None:
            return self.scheduling_group.pod_group_name
        ref = self.workload_ref
        return f"{ref.name}/{ref.pod_group}/{ref.pod_group_replica_key}" if ref else ""


class AllocatedDevice(msgspec.Struct, frozen=True, rename="camel"):
    resource_id: str = msgspec.field(default="", name="resourceID")


class AllocatedResource(msgspec.Struct, frozen=True):
    """KEP-4680, on by default since Kubernetes 1.36: one resource's devices, by the kubelet."""

    name: str = ""
    resources: list[AllocatedDevice] | None = None


class Terminated(msgspec.Struct, frozen=True, rename="camel"):
    exit_code: int = 0


class ContainerState(msgspec.Struct, frozen=True):
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    state: ContainerState | None = None
    allocated_resources_status: list[AllocatedResource] | None = None


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = "Unknown"
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None

    @property
    def true_conditions(self) -> list[Condition]:
        return [one for one in self.conditions or () if one.status == "True"]

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        """The ids of whole accelerators that its containers have; at most `_MOST_GPUS`."""
        found = (
            device.resource_id[:_LONGEST_ID]
            for status in self.container_statuses or ()
            for one in status.allocated_resources_status or ()
            if one.name in _WHOLE_GPUS
            for device in one.resources or ()
        )
        return tuple(itertools.islice(found, _MOST_GPUS))


class PodObject(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: PodSpec | None = None
    status: PodStatus | None = None


class PodList(msgspec.Struct, frozen=True):
    metadata: ListMeta
    items: list[PodObject] | None = None


class ConfigMap(msgspec.Struct, frozen=True):
    """That of the admission record, or of the stop switch."""

    metadata: Meta
    data: dict[str, str | None] | None = None


class Served(msgspec.Struct, frozen=True):
    name: str = ""
    served: bool = False


class DefinitionSpec(msgspec.Struct, frozen=True):
    versions: list[Served] | None = None


class Definition(msgspec.Struct, frozen=True):
    """A CustomResourceDefinition."""

    metadata: Meta
    spec: DefinitionSpec | None = None

    def serves(self, version: str) -> bool:
        """Whether this version of its objects can be requested."""
        versions = self.spec.versions if self.spec else None
        return any(one.name == version and one.served for one in versions or ())


class ReviewStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class Review(msgspec.Struct, frozen=True):
    """The answer of a SubjectAccessReview, or of a SelfSubjectAccessReview."""

    status: ReviewStatus


def decode(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode; a body of another shape raises Refused, as no API server sends it."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(
            f"the response is not a {kind.__name__}: is this an API server? {error}"
        ) from error


def seconds(text: str | None) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0 for none. Raises ValueError."""
    return dt.datetime.fromisoformat(text).timestamp() if text else 0.0


def to_meta(bare: PartialObjectMetadata) -> NodeMeta:
    """The metadata kept of each of 10,000 nodes: only our annotations, and each label text once."""
    meta = bare.metadata
    labels = {intern_text(key): intern_text(value) for key, value in (meta.labels or {}).items()}
    ours = {key: text for key, text in (meta.annotations or {}).items() if key.startswith(_OURS)}
    return NodeMeta(
        sys.intern(meta.name), meta.uid, labels, ours or EMPTY, annotated=bool(meta.annotations)
    )


def to_node(node: NodeObject) -> Node:
    meta, spec = node.metadata, node.spec or NodeSpec()
    info = node.status.node_info if node.status else None
    ready, ours = node.condition("Ready"), node.condition(CONDITION)
    return Node(
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        unschedulable=bool(spec.unschedulable),
        taints=tuple(
            Taint(taint.key, taint.value, taint.effect, taint.time_added or "")
            for taint in spec.taints or ()
        ),
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        boot_id=info.boot_id if info else "",
        ready=None if ready is None or ready.status == "Unknown" else ready.status == "True",
        ready_since=seconds(ready.last_transition_time) if ready is not None else 0.0,
        condition=ours.status if ours is not None else "",
        devices=_devices(node.status) if node.status else {},
    )


def patched(before: Node, change: NodeChange, meta: Meta) -> Node:
    """The node after a patch against its version, by the metadata that came back."""
    return dataclasses.replace(
        before,
        version=meta.resource_version,
        unread=None,
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        taints=before.taints if change.taints is None else change.taints,
        unschedulable=(
            before.unschedulable if change.unschedulable is None else change.unschedulable
        ),
    )


def _devices(status: NodeStatus) -> dict[str, tuple[str, str]]:
    """Quantities as they are written: the API server writes equal ones alike."""
    allocatable = status.allocatable or {}
    return {
        name: (most, allocatable.get(name, "0"))
        for name, most in (status.capacity or {}).items()
        if name.startswith(ACCELERATORS)
    }


def to_pod(pod: PodObject) -> Pod:
    meta = pod.metadata
    owner = next((one for one in meta.owner_references or () if one.controller), Owner())
    spec, status = pod.spec or PodSpec(), pod.status or PodStatus()
    grace = spec.termination_grace_period_seconds
    return Pod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        phase=status.phase,
        deleting=meta.deletion_timestamp is not None,
        mirror=_MIRROR in (meta.annotations or {}),
        owner_kind=owner.kind,
        owner_name=owner.name,
        empty_dirs=tuple(
            volume.name
            for volume in spec.volumes or ()
            if volume.empty_dir is not None and not volume.empty_dir.in_memory
        ),
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        node=spec.node_name,
        created_at=seconds(meta.creation_timestamp),
        deletion_at=seconds(meta.deletion_timestamp),
        grace=30.0 if grace is None else grace,
        group=spec.group,
        tolerations=tuple(spec.tolerations or ()),
        gpus=min(sum(one.gpus for one in spec.containers or ()), _MOST_GPUS),
        gpu_ids=status.gpu_ids,
        has_claims=bool(spec.resource_claims),
        conditions=frozenset(one.type for one in status.true_conditions),
        has_responders=bool(spec.eviction_responders),
    )


def to_record(found: ConfigMap) -> RecordText:
    meta = found.metadata
    return RecordText((found.data or {}).get("record") or "", meta.resource_version, meta.uid)


def to_stop(found: ConfigMap) -> StopText:
    return StopText((found.data or {}).get("reason"), found.metadata.resource_version)


def from_taint(taint: Taint) -> TaintObject:
    return TaintObject(taint.key, taint.effect, taint.value, taint.time_added or None)
