"""A finalizer of ours on an object, and the deletion of what it keeps; each write has its fence."""

from aggregator.cluster.kubernetes.errors import Failure
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import Meta, PartialObjectMetadata, decode
from aggregator.cluster.kubernetes.transport import Transport, encode
from aggregator.cluster.port import Conflict, Guard, NotFound


async def request_deletion(
    transport: Transport,
    path: str,
    lane: Priority,
    uid: str,
    version: str = "",
    *,
    propagation: str | None = None,
    guard: Guard,
) -> Meta | None:
    """Have the object deleted that has this uid and, if given, version. Returns what a finalizer
    keeps of it; None: it is gone. Raises Conflict where another one has its name or version.
    """
    fence = {"uid": uid} | ({"resourceVersion": version} if version else {})
    options: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": fence,
    }
    if propagation is not None:
        options["propagationPolicy"] = propagation
    answer = await transport.try_request("DELETE", path, lane, body=encode(options), guard=guard)
    if isinstance(answer, Failure):
        if isinstance(error := answer.error(), NotFound):
            return None
        raise error
    # A finalizer holds it: the object comes back. Else a Status, whose metadata is empty.
    meta = decode(answer, PartialObjectMetadata).metadata
    return meta if meta.uid == uid else None


def patch_without(left: Meta | None, finalizer: str) -> dict[str, object] | None:
    """The merge patch that takes the finalizer off what is left; None: it is not there."""
    if left is None or finalizer not in (left.finalizers or ()):
        return None
    kept = [one for one in left.finalizers or () if one != finalizer]
    fence = {"uid": left.uid, "resourceVersion": left.resource_version}
    return {"metadata": {**fence, "finalizers": kept}}


async def metadata_with(
    transport: Transport, path: str, finalizer: str, uid: str, version: str, name: str
) -> dict[str, object]:
    """The metadata of a merge patch that puts the finalizer on an object as it was read. Raises
    Conflict where it has changed, or is being deleted.
    """
    body = await transport.get(path, Priority.READ)
    meta = decode(body, PartialObjectMetadata).metadata
    if (meta.uid, meta.resource_version) != (uid, version):
        raise Conflict(f"{name} has changed since it was read")
    if meta.deletion_timestamp is not None:
        raise Conflict(f"{name} is being deleted: too late to hold it")
    others = [one for one in meta.finalizers or () if one != finalizer]
    return {"uid": uid, "resourceVersion": version, "finalizers": [*others, finalizer]}
