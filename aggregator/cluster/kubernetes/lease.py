"""The Lease that the replicas share, in the record's namespace.

It is put whole, at its last known version, so that a write by another is noticed. It is read
without a resourceVersion, which the API server answers from etcd (never an older state of its
cache). No request is tried again here, and none waits for the limiter: a Lease that waits is a
Lease that is lost.

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/lease-v1/
"""

import datetime as dt
from collections.abc import Callable, Mapping

import msgspec
from attrs import define, field

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import Meta, decode
from aggregator.cluster.kubernetes.transport import Transport, encode
from aggregator.cluster.port import UNGUARDED, ClusterError, Conflict, NotFound
from aggregator.leader.election import TIMES
from aggregator.leader.lease import (
    Candidate,
    Draft,
    Lease,
    LeaseConflict,
    LeaseNotFound,
    LeaseStoreError,
)

NAME = "sickbay-controller"
LABELS = {"app.kubernetes.io/name": "sickbay", "app.kubernetes.io/component": "aggregator"}
#: The facts about its holder, and the annotation of each.
_NOTES = {
    "epoch": "sickbay.dev/epoch",
    "address": "sickbay.dev/address",
    "page": "sickbay.dev/page",
    "version": "sickbay.dev/version",
}


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """As much of it as is used: its times are for people."""

    holder_identity: str | None = None
    acquire_time: str | None = None
    lease_transitions: int | None = None


class LeaseObject(msgspec.Struct, frozen=True):
    """A Lease of the API."""

    metadata: Meta
    spec: LeaseSpec | None = None


@define(eq=False, repr=False, slots=False)
class KubeLease:
    """Implements `LeaseStore`. ``deadline``: seconds for one request. ``wall``: for people."""

    _transport: Transport
    _namespace: str
    _deadline: float = field(kw_only=True)
    _wall: Callable[[], float] = field(kw_only=True)
    _acquired: str = field(default="", init=False)  # when its holder took it, as the Lease has it

    async def read(self) -> Lease | None:
        """See the protocol."""
        try:
            return self._lease(await self._request("GET", paths.lease(self._namespace, NAME)))
        except LeaseNotFound:
            return None

    async def write(self, draft: Draft) -> Lease:
        """See the protocol."""
        update = bool(draft.version)
        where = paths.lease(self._namespace, NAME) if update else paths.leases(self._namespace)
        method = "PUT" if update else "POST"
        return self._lease(await self._request(method, where, encode(self._object(draft))))

    async def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            return await self._transport.request(
                method, path, Priority.LEASE, body=body, deadline=self._deadline, guard=UNGUARDED
            )
        except ClusterError as error:
            kind: type[LeaseStoreError] = LeaseStoreError
            if isinstance(error, Conflict):
                kind = LeaseConflict
            elif isinstance(error, NotFound) and method != "POST":
                kind = LeaseNotFound
            raise kind(str(error), retry_after=error.retry_after) from error

    def _object(self, draft: Draft) -> Mapping[str, object]:
        now, holder = _micro_time(self._wall()), draft.holder
        metadata: dict[str, object] = {
            "name": NAME,
            "namespace": self._namespace,
            "labels": LABELS,
            "annotations": {key: getattr(holder, one) for one, key in _NOTES.items() if holder},
        }
        if draft.version:
            metadata["resourceVersion"] = draft.version
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder.name if holder is not None else "",
                "leaseDurationSeconds": round(TIMES.lease_duration),
                "acquireTime": now if draft.acquires else self._acquired or now,
                "renewTime": now,
                "leaseTransitions": draft.transitions,
            },
        }

    def _lease(self, body: bytes) -> Lease:
        try:
            found = decode(body, LeaseObject)
        except ClusterError as error:
            raise LeaseStoreError(str(error)) from error
        spec, meta = found.spec or LeaseSpec(), found.metadata
        self._acquired = spec.acquire_time or ""
        notes = meta.annotations or {}
        known = {one: notes.get(key, "") for one, key in _NOTES.items()}
        holder = Candidate(spec.holder_identity or "", **known)
        return Lease(
            holder if holder.name else None,
            version=meta.resource_version,
            uid=meta.uid or "",
            transitions=max(0, spec.lease_transitions or 0),
        )


def _micro_time(seconds: float) -> str:
    """A Kubernetes MicroTime, which has six digits, in UTC."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
