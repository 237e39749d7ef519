"""Quarantines in the API: made, read, changed and dropped, each write with its fence."""

from collections.abc import Callable, Mapping

import msgspec

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.crd import read_definition
from aggregator.cluster.kubernetes.deletion import metadata_with, patch_without, request_deletion
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.operation_client import KubeOperations, NoOperations
from aggregator.cluster.kubernetes.quarantine_codec import (
    FINALIZER,
    GROUP,
    VERSION,
    decode_quarantine,
    encode_changes,
    encode_spec,
    encode_status,
)
from aggregator.cluster.kubernetes.transport import Transport, encode
from aggregator.cluster.port import (
    UNGUARDED,
    Conflict,
    Guard,
    NotFound,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.cluster.quarantine_conditions import with_conditions
from aggregator.cluster.unread_status import expect_lossless

#: Another client's finalizer or status may come in between, but not five times in a row.
_TRIES = 5


class KubeQuarantines:
    """Implements `Quarantines`, as the ``installation`` sees them, each with its operations.

    ``wall`` (seconds) is the time of conditions that change.
    """

    def __init__(
        self,
        transport: Transport,
        installation: str,
        wall: Callable[[], float],
        *,
        operations: bool = True,
    ) -> None:
        self._transport = transport
        self._installation = installation
        self._wall = wall
        self.operations = (KubeOperations if operations else NoOperations)(
            transport, wall, installation
        )

    async def create_quarantine(
        self, node: str, spec: QuarantineSpec, *, guard: Guard
    ) -> Quarantine:
        """Make it, with our finalizer. Raises Conflict when the node has one."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "Quarantine",
            "metadata": {"name": node, "finalizers": [FINALIZER]},
            "spec": _without_nulls(encode_spec(spec)),
        }
        made = await self._transport.request(
            "POST", paths.QUARANTINES, Priority.CREATE, body=encode(body), guard=guard
        )
        return decode_quarantine(made, self._installation)

    async def read_quarantine(self, node: str) -> Quarantine | None:
        """From etcd, or None where the node has none. So are its operations, if any is known."""
        try:
            body = await self._transport.get(paths.quarantine(node), Priority.READ)
        except NotFound:
            return None
        if self.operations.known.has(node):
            await self.operations.of(node)
        return self.operations.known.join(decode_quarantine(body, self._installation))

    async def write_quarantine_spec(
        self, quarantine: Quarantine, spec: QuarantineSpec
    ) -> Quarantine:
        return await self._patch_quarantine(
            paths.quarantine(quarantine.node),
            {"metadata": _fence(quarantine), "spec": encode_spec(spec)},
            Priority.TAINT,
            guard=UNGUARDED,
        )

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        """With the conditions that follow from it.

        Of a status with fields that can't be read only the changes are written, for a release.
        """
        expect_lossless(quarantine, status)
        written = with_conditions(quarantine, status, self._wall())
        body = encode_changes(quarantine, written) if quarantine.unread else encode_status(written)
        lane = _lane(quarantine.status, status)
        return await self._patch_quarantine(
            f"{paths.quarantine(quarantine.node)}/status",
            {"metadata": _fence(quarantine), "status": body},
            lane,
            # Progress comes again and again, and no report about a later node waits for it.
            node=quarantine.node if lane <= Priority.REPORT else "",
            guard=UNGUARDED,
        )

    async def add_finalizer(self, quarantine: Quarantine) -> Quarantine:
        """Raises Conflict where it has changed, or is being deleted already."""
        path, name = paths.quarantine(quarantine.node), f"quarantine {quarantine.node}"
        metadata = await metadata_with(
            self._transport, path, FINALIZER, quarantine.uid, quarantine.version, name
        )
        return await self._patch_quarantine(
            path, {"metadata": metadata}, Priority.TAINT, guard=UNGUARDED
        )

    async def drop_quarantine(self, quarantine: Quarantine, *, guard: Guard) -> None:
        """Delete it, then take our finalizer off; by uid, whatever its version.

        A crash in between leaves a deletion to finish. The other order would leave a quarantine
        without a finalizer. Raises Conflict if it changes faster than it can be dropped.
        """
        path = paths.quarantine(quarantine.node)
        for _ in range(_TRIES):
            try:
                left = await request_deletion(
                    self._transport, path, Priority.RELEASE, quarantine.uid, guard=guard
                )
            except Conflict:
                return  # another one has the name now
            patch = patch_without(left, FINALIZER)
            if patch is None:
                return
            try:
                await self._patch_quarantine(path, patch, Priority.RELEASE, guard=guard)
            except NotFound:
                return
            except Conflict:
                continue
            return
        raise Conflict(f"quarantine {quarantine.node} changes faster than it can be dropped")

    async def definition_is_going(self) -> bool:
        return (await read_definition(self._transport)).going

    async def _patch_quarantine(
        self,
        path: str,
        patch: Mapping[str, object],
        lane: Priority,
        *,
        node: str = "",
        guard: Guard,
    ) -> Quarantine:
        body = await self._transport.request(
            "PATCH", path, lane, body=encode(patch), node=node, guard=guard
        )
        return self.operations.known.join(decode_quarantine(body, self._installation))


def _fence(quarantine: Quarantine) -> dict[str, object]:
    """Preconditions that make a late write fail: another version answers 409, another object 409 or
    422.
    """
    return {"resourceVersion": quarantine.version, "uid": quarantine.uid}


def _lane(before: QuarantineStatus, after: QuarantineStatus) -> Priority:
    """The next step waits for a phase change; other progress may trail."""
    if after.phase is Phase.RELEASING:
        return Priority.RELEASE
    if after.phase is Phase.DRAINING and before.phase is Phase.CORDONED:
        return Priority.EVICTION  # of many drains the first evicts while others have yet to begin
    if after.phase is Phase.DRAINED and before.phase is Phase.ADMITTED:
        return Priority.REPORT  # no pod is there, and no eviction waits for it
    if after.phase is not before.phase or not before.admitted_at:
        return Priority.PHASE
    return Priority.STATUS


def _without_nulls(spec: msgspec.Struct) -> dict[str, object]:
    """For a new object: the schema takes no null, which in a patch means "remove"."""
    values = msgspec.to_builtins(spec)
    return {key: value for key, value in values.items() if value is not None}
