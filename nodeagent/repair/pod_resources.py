"""The kubelet's PodResources API, a local socket: which container has which devices.

https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
"""

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio

from nodeagent.dataclass import dataclass
from sickbay.v1 import pod_resources_pb2 as pb

__all__ = ["SOCKET", "Device", "PodResourcesUnknown", "read_devices"]

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
_LIST = "/v1.PodResourcesLister/List"
#: Some 300 bytes for a container of a GPU node with all its CPUs named.
_MOST_BYTES = 4 << 20
_OPTIONS = (("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.enable_http_proxy", 0))
_MOST_TEXT = 200


class PodResourcesUnknown(Exception):
    """The kubelet gave no answer; the text names the reason."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a container. ``owner`` is the resource, or the DRA driver of a ``claim``."""

    namespace: str
    pod: str
    container: str
    owner: str
    device: str
    claim: str = ""


async def read_devices(socket: Path, deadline: float) -> list[Device]:
    """The devices of all containers on the node. Raises PodResourcesUnknown."""
    if not os.path.exists(socket):  # noqa: ASYNC240, PTH110  # gRPC would try until the deadline
        raise PodResourcesUnknown(f"there is no socket {SOCKET}")
    async with grpc.aio.insecure_channel(f"unix://{socket}", options=_OPTIONS) as channel:
        call = channel.unary_unary(
            _LIST,
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )
        try:
            answer = await call(pb.ListPodResourcesRequest(), timeout=deadline)
        except grpc.aio.AioRpcError as error:
            text = (error.details() or "")[:_MOST_TEXT]
            raise PodResourcesUnknown(
                f"PodResources of the kubelet: {error.code().name}: {text}"
            ) from error
    return list(_devices(answer))


def _devices(answer: pb.ListPodResourcesResponse) -> Iterator[Device]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            here = pod.namespace, pod.name, container.name
            for group in container.devices:
                for one in group.device_ids:
                    yield Device(*here, group.resource_name, one)
            for claim in container.dynamic_resources:
                for each in claim.claim_resources:
                    name = f"{each.pool_name}/{each.device_name}"
                    yield Device(*here, each.driver_name, name, claim.claim_name)
