"""A real ingest server on loopback, and agents that talk to it as the test says."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from aggregator.health.model import Delta, Hello, Snapshot
from aggregator.ingest.agent_streams import AgentStreams
from aggregator.ingest.deleted_pods import DeletedPods
from aggregator.ingest.identity import Authenticator, TrustingAuthenticator
from aggregator.ingest.interfaces import EvidenceSink
from aggregator.ingest.listener import AgentListener
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.stream import StreamConfig
from aggregator.ingest.tls import CertificateFiles
from aggregator.relay.agent_call import GatewayRules
from aggregator.relay.gateway import Gateway
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc
from tests.support import evidence as said
from tests.support.intake import RecordingIntake
from tests.support.pki import Authority

NOTHING = Snapshot(components=(), faults=())


@dataclass
class Clock:
    """Real time, which a test can push forward."""

    ahead: float = 0.0

    def now(self) -> float:
        return time.monotonic() + self.ahead

    def wall(self) -> float:
        return time.time() + self.ahead


@dataclass
class Site:
    """A running server with all parts that a test wants to hold."""

    server: "Server"
    intake: RecordingIntake
    clock: Clock
    authority: Authority | None
    away: list[bool] = field(default_factory=lambda: [False])
    #: Its address among other replicas; empty: there are none.
    among_others: list[str] = field(default_factory=lambda: [""])

    @property
    def stats(self) -> IngestStats:
        return self.server.stats

    def channel(self, **client: Any) -> grpc.aio.Channel:
        """A connection of its own; ``client`` certificate, if the site wants one."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = f"localhost:{self.server.port}"
        if self.authority is None:
            return grpc.aio.insecure_channel(address, options=options)
        pair = client.get("certificate")
        credentials = grpc.ssl_channel_credentials(
            self.authority.certificate.read_bytes(),
            pair.key.read_bytes() if pair else None,
            pair.certificate.read_bytes() if pair else None,
        )
        return grpc.aio.secure_channel(address, credentials, options=options)

    @asynccontextmanager
    async def agent(self, node: str = "node-1", **how: Any) -> AsyncIterator["Agent"]:
        """An open call that has sent no message yet."""
        async with self.channel(certificate=how.pop("certificate", None)) as channel:
            yield Agent(channel, node, **how)


class Server(AgentListener):
    """The listener of a replica that is the controller: a `Gateway` with the streams of its own."""

    def __init__(
        self,
        address: str,
        *,
        tls: CertificateFiles | None,
        require_client_certificate: bool,
        authenticator: Authenticator,
        intake: EvidenceSink,
        rules: StreamConfig,
        stats: IngestStats,
        shared_connections: bool = False,
        connections: int | None = None,
        deleted_pods: DeletedPods | None = None,
    ) -> None:
        super().__init__(
            address,
            tls=tls,
            require_client_certificate=require_client_certificate,
            shared_connections=shared_connections,
            connections=connections,
        )
        self.streams = AgentStreams(
            authenticator=authenticator,
            intake=intake,
            rules=rules,
            stats=stats,
            probe_key=b"",
            deleted_pods=deleted_pods,
        )
        self.stats = stats
        self.table = self.streams.table
        self.orders = rules.orders
        gateway = Gateway(
            authenticator=authenticator,
            rules=GatewayRules(
                name=rules.name,
                version=rules.version,
                heartbeat=rules.heartbeat,
                now=rules.now,
                address=rules.among_others,
            ),
            stats=stats,
        )
        gateway.streams = self.streams
        self.add_service(gateway.register)
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await super().start()
        self._ticking = asyncio.get_running_loop().create_task(self.streams.run())

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self.streams.close()
        await super().stop()


class Agent:
    """One call of Connect, by hand."""

    def __init__(
        self, channel: grpc.aio.Channel, node: str, *, instance: str = "i-1", token: str = ""
    ) -> None:
        self.node = node
        self.instance = instance
        metadata = grpc.aio.Metadata()
        if token:
            metadata.add("authorization", f"Bearer {token}")
        self.call = sickbay_pb2_grpc.AgentGatewayStub(channel).Connect(metadata=metadata)
        self._channel = channel

    async def send(self, message: pb.AgentMessage) -> None:
        await self.call.write(message)

    async def receive(self) -> pb.AggregatorMessage:
        """The next message; an AssertionError with the status when the stream ended."""
        message = await self.call.read()
        if not isinstance(message, pb.AggregatorMessage):
            raise AssertionError(f"ended: {await self.call.code()} {await self.call.details()}")  # noqa: TRY004
        return message

    async def expect(self, kind: str) -> Any:
        message = await self.receive()
        assert message.WhichOneof("body") == kind, message
        return getattr(message, kind)

    async def ending(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ends, reading what comes before."""
        try:
            while isinstance(await self.call.read(), pb.AggregatorMessage):
                pass
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code(), (await self.call.details()) or ""

    async def hello(self, **fields: Any) -> None:
        told = Hello(
            **{
                "node": self.node,
                "boot_id": "boot-1",
                "spool_epoch": "epoch-1",
                "agent_version": "0.1.0",
                "contract_version": 1,
                "instance": self.instance,
                **fields,
            }
        )
        await self.send(said.hello(told))

    async def try_hello(self) -> None:
        """Sends what `hello` sends, on a call that may have been refused before."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.hello()

    async def snapshot(self, evidence: Snapshot = NOTHING, *, seq: int = 1) -> None:
        await self.send(said.snapshot(evidence, seq=seq))

    async def delta(self, evidence: Delta | None = None, *, seq: int) -> None:
        await self.send(said.delta(evidence or Delta(), seq=seq))

    async def beat(self, digest: int) -> None:
        await self.send(said.heartbeat(digest))

    async def attend(self) -> None:
        """Hello, Snapshot, Welcome and the snapshot's Ack."""
        await self.hello()
        await self.expect("welcome")
        await self.snapshot()
        assert (await self.expect("ack")).seq == 1


def calls_in_memory() -> int:
    """Calls of this process's servers, ended ones included."""
    return sum(type(one).__name__ == "_ServicerContext" for one in gc.get_objects())


@asynccontextmanager
async def site(
    *,
    folder: Path | None = None,
    authenticator: Authenticator | None = None,
    make_authenticator: Callable[[Clock], Authenticator] | None = None,
    client_certificates: bool = False,
    silent_after: float = 60.0,
    heartbeat: float = 10.0,
    clock: Clock | None = None,
    address: str = "127.0.0.1:0",  # localhost may be ::1 too, where the port is not ours
    intake: EvidenceSink | None = None,
    connections: int | None = None,
    deleted_pods: DeletedPods | None = None,
) -> AsyncIterator[Site]:
    """A server that runs for the block. With ``folder`` it speaks TLS, its files lying there."""
    clock = clock or Clock()
    stats = IngestStats()
    authority, tls = None, None
    if folder is not None:
        authority = Authority.create(folder)
        pair = authority.server("server", ["localhost", "127.0.0.1"])
        tls = CertificateFiles(
            pair.certificate,
            pair.key,
            authority.certificate,
            stats=stats,
            now=clock.now,
            wall=clock.wall,
        )
    if make_authenticator is not None:
        authenticator = make_authenticator(clock)
    believes = authenticator is None  # as with identity.kind insecure-trust-hello
    recorder = RecordingIntake()
    away, among_others = [False], [""]
    server = Server(
        address,
        tls=tls,
        require_client_certificate=client_certificates,
        authenticator=authenticator or TrustingAuthenticator(),
        intake=intake or recorder,
        rules=StreamConfig(
            name="aggregator-0",
            version="0.1.0",
            heartbeat=heartbeat,
            silent_after=silent_after,
            now=clock.now,
            wall=clock.wall,
            cluster_away=lambda: away[0],
            among_others=lambda: among_others[0],
        ),
        stats=stats,
        shared_connections=believes,
        connections=connections,
        deleted_pods=deleted_pods,
    )
    await server.start()
    try:
        yield Site(server, recorder, clock, authority, away, among_others)
    finally:
        await server.stop()
