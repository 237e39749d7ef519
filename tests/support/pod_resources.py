"""The kubelet's PodResources, v1: a gRPC server on a unix socket, with messages of its own.

The messages are made here from the published names and numbers (k8s.io/kubelet,
pkg/apis/podresources/v1/api.proto), and not from the agent's file: so a wrong number there fails.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

_TEXT, _NUMBER = 9, 3
_PUBLISHED: dict[str, list[tuple[str, int, bool, str | int]]] = {
    "ListPodResourcesResponse": [("pod_resources", 1, True, "PodResources")],
    "PodResources": [
        ("name", 1, False, _TEXT),
        ("namespace", 2, False, _TEXT),
        ("containers", 3, True, "ContainerResources"),
    ],
    "ContainerResources": [
        ("name", 1, False, _TEXT),
        ("devices", 2, True, "ContainerDevices"),
        ("cpu_ids", 3, True, _NUMBER),
        ("memory", 4, True, "ContainerMemory"),
        ("dynamic_resources", 5, True, "DynamicResource"),
    ],
    "ContainerMemory": [("memory_type", 1, False, _TEXT), ("size", 2, False, 4)],
    "ContainerDevices": [
        ("resource_name", 1, False, _TEXT),
        ("device_ids", 2, True, _TEXT),
        ("topology", 3, False, "TopologyInfo"),
    ],
    "TopologyInfo": [("nodes", 1, True, "NUMANode")],
    "NUMANode": [("ID", 1, False, _NUMBER)],
    "DynamicResource": [
        ("claim_name", 2, False, _TEXT),
        ("claim_namespace", 3, False, _TEXT),
        ("claim_resources", 4, True, "ClaimResource"),
    ],
    "ClaimResource": [
        ("cdi_devices", 1, True, "CDIDevice"),
        ("driver_name", 2, False, _TEXT),
        ("pool_name", 3, False, _TEXT),
        ("device_name", 4, False, _TEXT),
    ],
    "CDIDevice": [("name", 1, False, _TEXT)],
}


def _response() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package="v1", syntax="proto3")
    for name, members in _PUBLISHED.items():
        message = file.message_type.add(name=name)
        for field, number, repeated, kind in members:
            made: Any = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                made.type, made.type_name = 11, f".v1.{kind}"
            else:
                made.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("v1.ListPodResourcesResponse")
    return message_factory.GetMessageClass(found)


def uses(namespace: str, name: str, *containers: Mapping[str, Any]) -> dict[str, Any]:
    """A pod as PodResources lists it."""
    return {"namespace": namespace, "name": name, "containers": list(containers)}


def container(name: str, *gpus: str, claims: Sequence[str] = ()) -> dict[str, Any]:
    """A container with GPUs of the device plugin, and of claims ("gpu-3" of NVIDIA's driver)."""
    return {
        "name": name,
        "cpu_ids": [4, 5],
        "memory": [{"memory_type": "memory", "size": "1024"}],
        "devices": [
            {
                "resource_name": "nvidia.com/gpu",
                "device_ids": [gpu],
                "topology": {"nodes": [{"ID": "1"}]},
            }
            for gpu in gpus
        ],
        "dynamic_resources": [
            {
                "claim_name": f"claim-{device}",
                "claim_namespace": "jobs",
                "claim_resources": [
                    {
                        "cdi_devices": [{"name": f"k8s.gpu.nvidia.com/claim=1-{device}"}],
                        "driver_name": "gpu.nvidia.com",
                        "pool_name": "n1",
                        "device_name": device,
                    }
                ],
            }
            for device in claims
        ],
    }


class Kubelet:
    """What the server answers; ``refuse`` with a code, or ``hang``."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.refuse: grpc.StatusCode | None = None
        self.hang = False
        self.calls = 0

    async def list(self, _request: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> Any:
        self.calls += 1
        if self.hang:
            await asyncio.Event().wait()
        if self.refuse is not None:
            await context.abort(self.refuse, "rate of requests exceeded")
        return json_format.ParseDict({"pod_resources": self.pods}, _response()())


@asynccontextmanager
async def pod_resources(socket: Path) -> AsyncIterator[Kubelet]:
    """The server behind this socket of at most 100 bytes."""
    kubelet = Kubelet()
    socket.parent.mkdir(parents=True, exist_ok=True)
    server = grpc.aio.server()
    method: Any = grpc.unary_unary_rpc_method_handler(
        kubelet.list, response_serializer=lambda one: one.SerializeToString()
    )
    handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method})
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield kubelet
    finally:
        await server.stop(None)
