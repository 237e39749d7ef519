"""The deletion of an object that a finalizer of ours keeps: two requests, each with its fence."""

from aggregator.cluster.kubernetes.errors import Failure
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import Meta, PartialObjectMetadata, decode
from aggregator.cluster.kubernetes.transport import Transport, encode


async def request_deletion(
    transport: Transport, path: str, lane: Priority, uid: str, version: str = ""
) -> Meta | None:
    """Have the object deleted that has this uid and, if given, version. Returns what a finalizer
    keeps of it; None: it is gone. Raises Conflict where another one has its name or version.
    """
    fence = {"uid": uid} | ({"resourceVersion": version} if version else {})
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": fence}
    answer = await transport.try_request("DELETE", path, lane, body=encode(options))
    if isinstance(answer, Failure):
        if answer.code == 404:
            return None
        raise answer.error()
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
