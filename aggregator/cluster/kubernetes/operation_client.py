"""Operations in the API: made, read, changed and dropped, each write with its fence."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.deletion import metadata_with, patch_without, request_deletion
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.object_codec import ObjectCodec, ObjectForm
from aggregator.cluster.kubernetes.objects import (
    Meta,
    RawList,
    SpecAndStatus,
    decode,
    seconds,
)
from aggregator.cluster.kubernetes.paths import quoted
from aggregator.cluster.kubernetes.quarantine_codec import CONDITION, GROUP, VERSION
from aggregator.cluster.kubernetes.reflector import Resource, read_objects
from aggregator.cluster.kubernetes.transport import Transport, encode
from aggregator.cluster.operation_conditions import with_conditions
from aggregator.cluster.operations import KnownOperations, unknown_outcome, with_attempts
from aggregator.cluster.port import (
    UNGUARDED,
    NodeTestStatus,
    NotFound,
    ObjectCondition,
    Operation,
    OperationSpec,
    OperationStatus,
    Quarantine,
    Refused,
    RepairState,
)

FINALIZER = f"{GROUP}/operation"
#: The label by which a node's operations are selected; `label_of` has its value.
NODE_LABEL = f"{GROUP}/node"
_LONGEST_LABEL = 63
RESOURCE = Resource(paths.OPERATIONS)
_FORMS: Mapping[type, ObjectForm] = {
    OperationSpec: ObjectForm(required=frozenset({"node", "kind"})),
    OperationStatus: ObjectForm(always={"phase": RepairState.PENDING, "number": 0}),
    # Without a field that is never null no object would be left of the first test of a new node.
    NodeTestStatus: ObjectForm(always={"inconclusive": 0}),
    ObjectCondition: CONDITION,
}
SPEC, STATUS = ObjectCodec(OperationSpec, _FORMS), ObjectCodec(OperationStatus, _FORMS)


class KubeOperations:
    """Implements `Operations`. ``wall`` (seconds) is the time of conditions that change.

    Those of another ``installation`` are neither known nor listed; empty: there is one.
    """

    def __init__(
        self, transport: Transport, wall: Callable[[], float], installation: str = ""
    ) -> None:
        self._transport = transport
        self._wall = wall
        #: What is known of them; the informer keeps it up to date.
        self.known = KnownOperations(installation)

    async def create(self, name: str, spec: OperationSpec) -> Operation:
        body = operation_body(name, spec, finalizers=[FINALIZER])
        made = await self._transport.request(
            "POST", paths.OPERATIONS, Priority.PHASE, body=encode(body), guard=UNGUARDED
        )
        return self._take(made)

    async def adopt(self, operation: Operation) -> Operation:
        """Finalizers of others are read with it, so that the list keeps them."""
        if operation.held:
            return operation
        path, name = _path(operation.name), f"operation {operation.name}"
        metadata = await metadata_with(
            self._transport, path, FINALIZER, operation.uid, operation.version, name
        )
        change = metadata | {"labels": {NODE_LABEL: label_of(operation.spec.node)}}
        return await self._patch(path, {"metadata": change}, Priority.PHASE)

    async def read(self, name: str) -> Operation | None:
        try:
            return self._take(await self._transport.get(_path(name), Priority.READ))
        except NotFound:
            return None

    async def of(self, node: str) -> list[Operation]:
        selector = {"labelSelector": f"{NODE_LABEL}={label_of(node)}"}
        listed = await self._transport.get(paths.OPERATIONS, Priority.READ, query=selector)
        operations = (decode_operation(one) for one in decode(listed, RawList).items or ())
        ours = self.known.installation
        found = [one for one in operations if one.spec.node == node and one.is_of(ours)]
        self.known.take_read(found, node)
        return found

    async def all(self) -> list[Operation]:
        return await list_operations(self._transport)

    async def write_status(self, operation: Operation, status: OperationStatus) -> Operation:
        fence = {"resourceVersion": operation.version, "uid": operation.uid}
        written = with_conditions(operation.status, status, self._wall())
        patch = {"metadata": fence, "status": msgspec.to_builtins(STATUS.encode(written))}
        return await self._patch(f"{_path(operation.name)}/status", patch, Priority.PHASE)

    async def drop(self, operation: Operation) -> None:
        """The deletion first: a crash in between leaves one to finish."""
        left = await request_deletion(
            self._transport,
            _path(operation.name),
            Priority.STATUS,
            operation.uid,
            operation.version,
            guard=UNGUARDED,
        )
        patch = patch_without(left, FINALIZER)
        if patch is not None:
            with contextlib.suppress(NotFound):
                await self._patch(_path(operation.name), patch, Priority.STATUS)
        self.known.drop(operation)

    async def _patch(self, path: str, patch: Mapping[str, object], lane: Priority) -> Operation:
        body = encode(patch)
        return self._take(
            await self._transport.request("PATCH", path, lane, body=body, guard=UNGUARDED)
        )

    def _take(self, body: bytes) -> Operation:
        operation = decode_operation(body)
        self.known.take(operation)
        return operation


class NoOperations(KubeOperations):
    """Where they are left out, with the rights to them: none is begun, and none is known."""

    async def read(self, name: str) -> Operation | None:  # noqa: ARG002
        return None

    async def of(self, node: str) -> list[Operation]:  # noqa: ARG002
        return []

    async def all(self) -> list[Operation]:
        return []


async def list_operations(transport: Transport) -> list[Operation]:
    """All of the fleet's."""
    return await read_objects(transport, RESOURCE, decode_operation)


def operation_body(
    name: str, spec: OperationSpec, finalizers: Sequence[str] = ()
) -> dict[str, Any]:
    """The object, as it is created."""
    values = msgspec.to_builtins(SPEC.encode(spec))
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Operation",
        "metadata": {
            "name": name,
            "labels": {NODE_LABEL: label_of(spec.node)},
            "finalizers": finalizers,
        },
        "spec": {key: value for key, value in values.items() if value is not None},
    }


async def join_operations(
    transport: Transport, quarantines: Sequence[Quarantine], node: str = ""
) -> list[Quarantine]:
    """The quarantines with their attempts, read now; ``node``: all are of this one. Without them
    where the account may not read operations.
    """
    operations = KubeOperations(transport, lambda: 0.0)
    try:
        found = await (operations.of(node) if node else operations.all())
    except Refused as error:
        if error.status != 403:
            raise
        found = []
    return [with_attempts(one, found) for one in quarantines]


def _path(name: str) -> str:
    return f"{paths.OPERATIONS}/{quoted(name)}"


def label_of(node: str) -> str:
    """The node's name, cut to the length of a label's value: the spec has it whole."""
    return node[:_LONGEST_LABEL].rstrip("-._")


def _is_ours(meta: Meta, spec: OperationSpec) -> bool:
    """Whether it has our label and our finalizer: another tool may have set one of them, and a read
    by the label misses an object without that.
    """
    labelled = (meta.labels or {}).get(NODE_LABEL) == label_of(spec.node)
    return labelled and FINALIZER in (meta.finalizers or ())


def decode_operation(body: bytes | msgspec.Raw) -> Operation:
    """An Operation as the API server sent it. Raises Refused where the body is no object.

    One whose status a later version wrote has an unknown outcome, and keeps its place among the
    attempts: nothing follows it by itself.
    """
    found = decode(body, SpecAndStatus)
    meta = found.metadata
    try:
        spec = SPEC.load(found.spec)
    except ValueError:
        spec = OperationSpec("", "")  # of no node
    status, why, _ = STATUS.load_fields(found.status)
    if why is not None:
        status = unknown_outcome(meta.name, spec, status, why)
    return Operation(
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        spec=spec,
        status=status,
        created_at=seconds(meta.creation_timestamp),
        deleting=meta.deletion_timestamp is not None,
        held=_is_ours(meta, spec),
    )
