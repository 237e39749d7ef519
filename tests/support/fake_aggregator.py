"""A hand-written aggregator end of the stream: a real gRPC server that remembers each message.

It greets, acknowledges (``ack_all``) and folds as docs/contract.md says, so that a test can ask
what an aggregator would believe; a test triggers every other action.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc as rpc


@dataclass
class Attended:
    """One stream: the messages that came, with the monotonic time of each, and the fold of them."""

    metadata: dict[str, str]
    messages: list[tuple[float, pb.AgentMessage]] = field(default_factory=list)
    faults: dict[tuple[str, str], pb.Fault] = field(default_factory=dict)
    components: dict[tuple[str, str], pb.ComponentState] = field(default_factory=dict)
    cleared: list[pb.Cleared] = field(default_factory=list)
    lost: list[pb.EvidenceLost] = field(default_factory=list)
    results: list[pb.CommandResult] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    measured: list[pb.Measurements] = field(default_factory=list)
    digests: list[tuple[int, int]] = field(default_factory=list)
    hello: pb.Hello = field(default_factory=pb.Hello)
    ended: bool = False
    outgoing: "asyncio.Queue[pb.AggregatorMessage | None]" = field(default_factory=asyncio.Queue)

    def kinds(self) -> list[str]:
        return [message.WhichOneof("body") or "" for _, message in self.messages]

    def send(self, **body: object) -> None:
        """Send an AggregatorMessage, given as its one field."""
        self.outgoing.put_nowait(pb.AggregatorMessage(**body))  # type: ignore[arg-type]

    def permit(self, operation_id: str, refusal: str = "") -> None:
        """Grant the operation's permission, or refuse it for this reason."""
        granted = not refusal
        self.send(
            permission=pb.Permission(operation_id=operation_id, granted=granted, reason=refusal)
        )

    def end(self) -> None:
        """End the stream from this side."""
        self.outgoing.put_nowait(None)

    def take(self, message: pb.AgentMessage) -> None:
        self.messages.append((time.monotonic(), message))
        match message.WhichOneof("body"):
            case "hello":
                self.hello = message.hello
            case "snapshot":
                told = message.snapshot
                self.faults = {(f.code, f.component): f for f in told.faults}
                self.components = {(c.check, c.component): c for c in told.components}
                self.cleared += told.cleared
                self.lost += told.lost
            case "delta":
                self._fold(message.delta)
            case "heartbeat":
                self.digests.append((message.heartbeat.digest, self.digest()))
            case "credentials":
                self.tokens.append(message.credentials.token)
            case "measurements":
                self.measured.append(message.measurements)
            case "command_result":
                self.results.append(message.command_result)

    def _fold(self, told: pb.Delta) -> None:
        for sign in told.cleared:
            self.cleared.append(sign)
            self.faults.pop((sign.code, sign.component), None)
        self.faults |= {(f.code, f.component): f for f in told.faults}
        self.components |= {(c.check, c.component): c for c in told.components}
        for gone in told.gone:
            self.components.pop((gone.check, gone.component), None)
        self.lost += told.lost

    def digest(self) -> int:
        """docs/contract.md, "The digest", written down once more and independently."""
        lines = [
            f"c\x1f{c.check}\x1f{c.component}\x1f{c.status}\x1f{c.reason}\n".encode()
            for c in self.components.values()
        ]
        lines += [
            f"f\x1f{f.code}\x1f{f.component}\x1f{f.boot_id}\x1f{f.source}"
            f"\x1f{f.source_seq}\x1f{f.count}\n".encode()
            for f in self.faults.values()
        ]
        return int.from_bytes(blake2b(b"".join(sorted(lines)), digest_size=8).digest(), "big")


class FakeAggregator(rpc.AgentGatewayServicer):
    """The server. ``streams`` holds every stream that ever came, oldest first."""

    def __init__(self) -> None:
        self.streams: list[Attended] = []
        self.welcome: pb.Welcome | None = pb.Welcome(
            aggregator="fake", aggregator_version="0", heartbeat_interval_ms=1000
        )
        self.ack_all = True
        #: Called with each request for permission, which is granted where this is unset.
        self.on_permission_request: Callable[[Attended, pb.PermissionRequest], None] | None = None
        #: Refuse every call with this, as an aggregator that does not know us would.
        self.refuse: grpc.StatusCode | None = None
        self.refused = 0
        self.address = ""
        self._server: grpc.aio.Server | None = None

    async def start(
        self,
        address: str = "127.0.0.1:0",
        *,
        certificate: tuple[Path, Path] | None = None,
        client_ca: Path | None = None,
    ) -> "FakeAggregator":
        """Listen. ``certificate`` is (chain, key) for TLS; ``client_ca`` asks for client ones."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        rpc.add_AgentGatewayServicer_to_server(self, self._server)
        if certificate is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, _credentials(*certificate, client_ca))
        await self._server.start()
        self.address = f"{address.rpartition(':')[0]}:{port}"
        return self

    async def stop(self) -> None:
        """Vanish, as after a kill: streams are cut without a word."""
        if self._server is not None:
            await self._server.stop(grace=0)
            self._server = None

    @property
    def latest(self) -> Attended:
        return self.streams[-1]

    async def Connect(
        self, request_iterator: object, context: Any
    ) -> AsyncIterator[pb.AggregatorMessage]:
        if self.refuse is not None:
            self.refused += 1
            await anext(request_iterator)  # type: ignore[call-overload]  # who it is, is in Hello
            await context.abort(self.refuse, "you are not known here")
        given = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
        stream = Attended(given)
        self.streams.append(stream)
        reading = asyncio.create_task(self._read(stream, request_iterator))
        try:
            while (message := await stream.outgoing.get()) is not None:
                yield message
        finally:
            stream.ended = True
            reading.cancel()

    async def _read(self, stream: Attended, request_iterator: object) -> None:
        try:
            async for message in request_iterator:  # type: ignore[attr-defined]
                stream.take(message)
                if message.HasField("hello"):
                    if self.welcome is not None:
                        stream.send(welcome=self.welcome)
                elif message.HasField("permission_request"):
                    self._permit(stream, message.permission_request)
                elif self.ack_all and message.HasField("snapshot"):
                    stream.send(ack=pb.Ack(seq=message.snapshot.seq))
                elif self.ack_all and message.HasField("delta"):
                    stream.send(ack=pb.Ack(seq=message.delta.seq))
        finally:
            stream.end()

    def _permit(self, stream: Attended, request: pb.PermissionRequest) -> None:
        if self.on_permission_request is not None:
            self.on_permission_request(stream, request)
        else:
            stream.permit(request.operation_id)


def _credentials(chain: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(key.read_bytes(), chain.read_bytes())],
        client_ca.read_bytes() if client_ca else None,
        client_ca is not None,
    )
