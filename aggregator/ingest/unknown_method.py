"""The answer to a call of a method that this aggregator does not have.

gRPC itself answers "Method not found!", which an agent of another version writes into its log. Its
reader learns from this answer what is missing, and what to install.
"""

from typing import TypeAlias

import grpc
import grpc.aio

from aggregator.runtime.text import truncate
from sickbay.v1 import sickbay_pb2

_GATEWAY = sickbay_pb2.DESCRIPTOR.services_by_name["AgentGateway"]
#: Characters of a caller's method that are repeated to it.
_LONGEST = 200

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class UnknownMethods(grpc.GenericRpcHandler):
    """Refuses each call that gRPC passes to it. To be added after all services."""

    def __init__(self, version: str) -> None:
        self._version = version

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """A handler that reports what the caller requested, and what there is."""
        method = truncate(str(handler_call_details.method), _LONGEST)
        text = (
            f"this aggregator (version {self._version}) has no method {method}; agents call "
            f"/{_GATEWAY.full_name}/{_GATEWAY.methods[0].name}: install the aggregator's version "
            "on the caller"
        )

        async def refuse(_: object, context: _Context) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

        return grpc.stream_stream_rpc_method_handler(refuse)
