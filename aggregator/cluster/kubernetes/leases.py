"""The replicas' Leases: one each, in the record's namespace, written by its replica alone.

A Lease is put whole, at the version that it was last at, so that a write by another is noticed. All
of them are listed without a resourceVersion, which the API server answers with a consistent read of
etcd (never an older state of its cache). No request is tried again here, and none waits for the
limiter: a Lease that waits is a Lease that is lost. A Lease that was deleted is made anew by its
next renewal: the API server lets updates create Leases, whatever version they name (tried).

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/lease-v1/
"""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence

import msgspec

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.errors import Failure
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import Meta, PartialObjectMetadata, decode
from aggregator.cluster.kubernetes.transport import Transport, encode
from aggregator.cluster.port import ClusterError, Conflict, NotFound
from aggregator.replicas.membership.lease_store import (
    Lease,
    LeaseConflict,
    LeaseForbidden,
    LeaseNotFound,
    LeaseStoreError,
)
from aggregator.replicas.membership.lease_timing import TIMES
from aggregator.replicas.membership.view import Member

#: A Lease's name is this and its replica's.
PREFIX = "sickbay-"
LABELS = {"app.kubernetes.io/name": "sickbay", "app.kubernetes.io/component": "aggregator"}
_EPOCH = "sickbay.dev/epoch"
_ADDRESS = "sickbay.dev/address"
_PAGE = "sickbay.dev/page"
_POLICY = "sickbay.dev/policy-hash"
_MODE = "sickbay.dev/mode"
_LIMITS = "sickbay.dev/limits-hash"
_VERSION = "sickbay.dev/version"
_SINCE = "sickbay.dev/since"
#: Set, to any value, by a replica that stopped in order.
_LEAVING = "sickbay.dev/leaving"
#: The year 5138: a replica that joins later writes one second more, which a MicroTime must hold.
_LATEST = 1e11


class LeaseList(msgspec.Struct, frozen=True):
    """A LeaseList, as much of it as is used: the times in a Lease's spec are for people."""

    items: list[PartialObjectMetadata] | None = None


class KubeLeases:
    """Implements `LeaseStore`. ``deadline``: seconds for one request. ``wall``: for people."""

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        *,
        deadline: float,
        wall: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._deadline = deadline
        self._wall = wall

    async def list(self) -> Sequence[Lease]:
        """See the protocol."""
        body = await self._ask("GET", paths.leases(self._namespace))
        try:
            found = decode(body, LeaseList).items or ()
        except ClusterError as error:
            raise LeaseStoreError(str(error)) from error
        return [_lease(one.metadata) for one in found if _is_a_replicas(one.metadata)]

    async def write(self, member: Member, version: str, *, leaving: bool = False) -> Lease:
        """See the protocol."""
        name = PREFIX + member.name
        where = paths.lease(self._namespace, name) if version else paths.leases(self._namespace)
        body = await self._ask(
            "PUT" if version else "POST",
            where,
            encode(self._object(name, member, version, leaving=leaving)),
        )
        try:
            return Lease(
                member, decode(body, PartialObjectMetadata).metadata.resource_version, leaving
            )
        except ClusterError as error:
            raise LeaseStoreError(str(error)) from error

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            answer = await self._transport.ask(
                method, path, kind="leases", lane=Priority.LEASE, body=body, deadline=self._deadline
            )
        except ClusterError as error:
            raise LeaseStoreError(str(error), retry_after=error.retry_after) from error
        if not isinstance(answer, Failure):
            return answer
        refusal = answer.error()
        kind: type[LeaseStoreError] = LeaseStoreError
        if isinstance(refusal, Conflict):
            kind = LeaseConflict
        elif isinstance(refusal, NotFound) and method == "PUT":
            kind = LeaseNotFound
        elif answer.code == 403:
            kind = LeaseForbidden
        raise kind(str(refusal), retry_after=refusal.retry_after)

    def _object(
        self, name: str, member: Member, version: str, *, leaving: bool
    ) -> Mapping[str, object]:
        annotations = {
            _EPOCH: member.epoch,
            _ADDRESS: member.address,
            _PAGE: member.page,
            _POLICY: member.policy_hash,
            _VERSION: member.version,
            _MODE: member.mode,
            _LIMITS: member.limits_hash,
            _SINCE: repr(member.since),
        }
        if leaving:
            annotations[_LEAVING] = "true"
        metadata: dict[str, object] = {
            "name": name,
            "namespace": self._namespace,
            "labels": LABELS,
            "annotations": annotations,
        }
        if version:
            metadata["resourceVersion"] = version
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": member.name,
                "leaseDurationSeconds": round(TIMES.lease_duration),
                "acquireTime": _micro_time(member.since),
                "renewTime": _micro_time(self._wall()),
            },
        }


def _is_a_replicas(meta: Meta) -> bool:
    """By its name and either mark: a replica must see its own Lease when an edit damaged it."""
    if not meta.name.startswith(PREFIX):
        return False
    labels, annotations = meta.labels or {}, meta.annotations or {}
    return _EPOCH in annotations or LABELS.items() <= labels.items()


def _lease(meta: Meta) -> Lease:
    notes = meta.annotations or {}
    return Lease(
        Member(
            name=meta.name.removeprefix(PREFIX),
            epoch=notes.get(_EPOCH, ""),
            address=notes.get(_ADDRESS, ""),
            page=notes.get(_PAGE, ""),
            policy_hash=notes.get(_POLICY, ""),
            version=notes.get(_VERSION, ""),
            mode=notes.get(_MODE, ""),
            limits_hash=notes.get(_LIMITS, ""),
            since=_since(notes.get(_SINCE, "")),
        ),
        version=meta.resource_version,
        leaving=_LEAVING in notes,
    )


def _since(text: str) -> float:
    """When it joined; 0 where an edit left a value that is no time.

    NaN differs at each comparison, so its Lease would seem to be renewed for ever; and a replica
    that joins after one in the year 30,000 could not write its own time.
    """
    try:
        found = float(text)
    except ValueError:
        return 0.0
    return found if 0.0 <= found <= _LATEST else 0.0


def _micro_time(seconds: float) -> str:
    """A Kubernetes MicroTime, which has six digits, in UTC."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
