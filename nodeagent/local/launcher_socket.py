"""The node health check of NVIDIA's ft_launcher, which calls it before each rendezvous.

gRPC on a unix socket: ``nvhcd.HealthCheckService/RunHealthCheck`` of nvidia-resiliency-ext 0.6.0
and 0.7.0. A launcher reads ``success`` and, in the JSON of ``output``, ``fail_count``: both are
always set. It finds the socket once, at its own start, so the path stays when the agent ends: a
launcher takes a refused connection for "no objection", and calls the next agent at the same path.

Two messages of two fields are encoded here by hand: generated code costs memory on every node.
"""

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import grpc.aio

from nodeagent.local.ready import Readiness
from nodeagent.local.server import remove_socket

log = logging.getLogger(__name__)

METHOD = "RunHealthCheck"
SERVICE = "nvhcd.HealthCheckService"
_LARGEST = 64 * 1024
#: Calls at once. Another one fails, which a launcher takes for "no objection".
_CALLS = 64
_MOST_TEXT = 4000


class LauncherSocket:
    """Serves on ``path``, which any user may call: codes and components, no messages."""

    def __init__(self, path: Path, read: Callable[[Sequence[str]], Readiness]) -> None:
        self._path = path
        self._read = read
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Replace the socket that an earlier agent left, in one step. Raises OSError."""
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # gRPC removes the file that it bound when it ends. It binds another name, and the path is
        # that file renamed, so the path stays.
        bound = self._path.with_name(f".{os.getpid()}")
        remove_socket(bound)
        if self._path.exists() and not self._path.is_socket():
            raise FileExistsError(f"{self._path} exists and is no socket")
        server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", _LARGEST), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=_CALLS,
        )
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            self._answer
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        try:
            server.add_insecure_port(f"unix:{bound}")
        except RuntimeError as error:
            raise OSError(f"{bound} can't be bound: {error}") from error
        await server.start()
        bound.chmod(0o666)
        bound.rename(self._path)
        self._server = server

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _answer(self, request: bytes, _: object) -> bytes:
        """The request's arguments select tests of NVIDIA's daemon, and are ignored."""
        del request
        return response(self._read(()))


def response(found: Readiness) -> bytes:
    """A HealthCheckResponse: bool success = 1, int32 exit_code = 2, string output = 3, string
    error = 4.
    """
    failed = [
        " ".join(filter(None, (one.code or one.check, one.component))) for one in found.against
    ]
    output = {
        "node": found.node,
        "fail_count": found.total,
        "failed_checks": failed,
        "source": "sickbay-agent",
    }
    fields = b""
    if found.ready:
        fields += b"\x08\x01"  # field 1, varint
    else:
        fields += b"\x10\x01"  # field 2, varint
    fields += _text(0x1A, json.dumps(output))  # field 3, length-delimited
    if not found.ready:
        fields += _text(0x22, f"sickbay: {'; '.join(failed)}"[:_MOST_TEXT])
    return fields


def _text(tag: int, text: str) -> bytes:
    raw = text.encode()
    return bytes([tag]) + _varint(len(raw)) + raw


def _varint(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
