"""Replicas of one process with real listeners, TLS and signed tokens: gateways and controllers."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from aggregator.ingest.agent_streams import AgentStreams
from aggregator.ingest.identity import Authenticator
from aggregator.ingest.jwks import JwksCache
from aggregator.ingest.listener import AgentListener
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.stream import StreamConfig
from aggregator.ingest.tls import CertificateFiles
from aggregator.ingest.tokens import TokenAuthenticator
from aggregator.leader.lease import Candidate
from aggregator.relay.agent_call import GatewayRules
from aggregator.relay.auth import AUDIENCE, ReplicaAuthenticator
from aggregator.relay.client import RelayClient
from aggregator.relay.credentials import ReplicaCredentials
from aggregator.relay.gateway import Gateway
from aggregator.relay.resync_pacer import ResyncPacer
from aggregator.relay.server import ControllerRole, RelayService
from sickbay.v1 import relay_pb2, relay_pb2_grpc
from tests.support.ingest import Agent, Clock
from tests.support.intake import RecordingIntake
from tests.support.pki import Authority, TokenIssuer
from tests.support.tasks import end_tasks
from tests.support.text_files import text_file

ACCOUNT = "sickbay:sickbay-aggregator"
ISSUER = TokenIssuer(algorithm="ES256")
VERSION = "0.1.0"


def replica_token(issuer: TokenIssuer = ISSUER, **claims: Any) -> str:
    told = {"account": ACCOUNT, "audience": AUDIENCE, "expires_in": 3600, **claims}
    return issuer.sign(issuer.claims("node-1", **told))


#: The secret by which a controller of the tests assigns probes.
PROBE_KEY = b"p" * 32


@dataclass
class PlayedLease:
    """The content of the Lease, as the test sets it."""

    named: Candidate | None = None
    renewed: bool = True
    calls: list[Callable[[], None]] = field(default_factory=list)

    def other(self) -> Candidate | None:
        return self.named

    def renewed_within(self, _: float) -> bool:
        return self.renewed and self.named is not None

    def on_change(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def name(self, controller: Candidate | None) -> None:
        self.named = controller
        for call in self.calls:
            call()


@dataclass
class PlayedReplica:
    """One replica: its listener, its gateway, and the streams that it has as the controller."""

    name: str
    authority: Authority
    listener: AgentListener
    gateway: Gateway
    service: RelayService
    client: RelayClient
    lease: PlayedLease
    clock: Clock
    authenticator: Authenticator
    kept_keys: list[bytes]
    intake: RecordingIntake = field(default_factory=RecordingIntake)
    stats: IngestStats = field(default_factory=IngestStats)
    pacer: ResyncPacer = field(init=False)
    holds: bool = True
    #: It does not reach the API server.
    away: bool = False
    streams: AgentStreams | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pacer = ResyncPacer(lambda: self.stats.messages["snapshot"])

    @property
    def address(self) -> Candidate:
        return Candidate(self.name, address=f"localhost:{self.listener.port}")

    def start_client(self) -> None:
        self.tasks.append(asyncio.create_task(self.client.run()))

    def become_controller(self, *, silent_after: float = 60.0) -> RecordingIntake:
        """From now on its streams are evaluated here."""
        self.streams = AgentStreams(
            authenticator=self.authenticator,
            intake=self.intake,
            rules=StreamConfig(
                name=self.name,
                version=VERSION,
                heartbeat=10.0,
                silent_after=silent_after,
                now=self.clock.now,
                wall=self.clock.wall,
                cluster_away=lambda: self.away,
            ),
            stats=self.stats,
        )
        self.tasks += [
            asyncio.create_task(self.pacer.run()),
            asyncio.create_task(self.streams.run()),
        ]
        self.service.begin(ControllerRole(self.streams, self.pacer, lambda: self.holds, PROBE_KEY))
        self.gateway.serve_locally(self.streams, self.pacer)
        return self.intake

    async def stop(self) -> None:
        self.service.close("the replica stops")
        self.gateway.close()
        if self.streams is not None:
            self.streams.close()
        await end_tasks(*self.tasks)
        await self.listener.stop()

    @asynccontextmanager
    async def agent(self, node: str = "node-1", **how: Any) -> AsyncIterator[Agent]:
        """An open call that has sent no message yet, with the node's token."""
        how.setdefault("token", ISSUER.token(node))
        async with self.channel() as channel:
            yield Agent(channel, node, **how)

    def channel(self) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(self.authority.certificate.read_bytes())
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(self.address.address, credentials, options=options)

    @asynccontextmanager
    async def relay(self, token: str | None = None, **hello: Any) -> AsyncIterator["HandRelay"]:
        """A relay to this replica by hand."""
        async with self.channel() as channel:
            shown = replica_token() if token is None else token
            metadata = grpc.aio.Metadata(("authorization", f"Bearer {shown}"))
            call = relay_pb2_grpc.RelayStub(channel).Forward(metadata=metadata)
            yield HandRelay(call, {"protocol": 1, "name": "g", "version": VERSION, **hello})


class HandRelay:
    """A gateway's end of a relay that sends what the test says."""

    def __init__(
        self,
        call: "grpc.aio.StreamStreamCall[relay_pb2.GatewayBatch, relay_pb2.ControllerBatch]",
        hello: dict[str, Any],
    ) -> None:
        self.call = call
        self._hello = hello
        self._frames: list[relay_pb2.ReplyFrame] = []

    async def begin(self) -> relay_pb2.ControllerHello:
        await self.send(hello=relay_pb2.GatewayHello(**self._hello))
        batch = await self.call.read()
        assert isinstance(batch, relay_pb2.ControllerBatch), await self.call.details()
        return batch.hello

    async def send(self, **fields: Any) -> None:
        await self.call.write(relay_pb2.GatewayBatch(**fields))

    async def frames(self, *frames: relay_pb2.AgentFrame) -> None:
        await self.send(frames=frames)

    async def frame(self, kind: str) -> relay_pb2.ReplyFrame:
        """The next frame of that kind."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.WhichOneof("body") == kind:
                    return frame
            batch = await self.call.read()
            assert isinstance(batch, relay_pb2.ControllerBatch), await self.call.details()
            self._frames += batch.frames

    async def ending(self) -> tuple[grpc.StatusCode, str]:
        with suppress(grpc.aio.AioRpcError):
            while isinstance(await self.call.read(), relay_pb2.ControllerBatch):
                pass
        return await self.call.code(), (await self.call.details()) or ""


class Replicas:
    """Made by `replicas`."""

    def __init__(self, folder: Path, ending: AsyncExitStack) -> None:
        self.folder = folder
        self.clock = Clock()
        self.authority = Authority.create(folder)
        self._ending = ending
        self.all: dict[str, PlayedReplica] = {}

    async def start(self, name: str) -> PlayedReplica:
        async def fetch() -> tuple[str, str]:
            return ISSUER.issuer, ISSUER.jwks()

        clock, stats = self.clock, IngestStats()
        pair = self.authority.server(f"server-{name}", ["localhost", "127.0.0.1"])
        keys = JwksCache(fetch, self.folder / f"keys-{name}", now=clock.now)
        agents = TokenAuthenticator(
            keys,
            audience="sickbay",
            service_account="sickbay:sickbay-agent",
            issuer="",
            now=clock.wall,
        )
        replica_auth = ReplicaAuthenticator(
            TokenAuthenticator(
                keys, audience=AUDIENCE, service_account=ACCOUNT, issuer="", now=clock.wall
            ),
            wall=clock.wall,
        )
        listener = AgentListener(
            "localhost:0",
            tls=CertificateFiles(
                pair.certificate, pair.key, None, stats=stats, now=clock.now, wall=clock.wall
            ),
            require_client_certificate=False,
        )
        rules = GatewayRules(
            name=name,
            version=VERSION,
            heartbeat=10.0,
            now=clock.now,
            address=lambda: f"localhost:{listener.port}" if len(self.all) > 1 else "",
        )
        gateway = Gateway(authenticator=agents, rules=rules, stats=stats)
        service = RelayService(replica_auth, name=name, version=VERSION, now=clock.now)
        listener.add_service(gateway.register)
        listener.add_service(service.register)
        await listener.start()
        token_file = text_file(self.folder / f"token-{name}", replica_token())
        lease = PlayedLease()
        kept_keys = list[bytes]()
        client = RelayClient(
            gateway,
            listener,
            lease,
            ReplicaCredentials(token_file=token_file, ca_file=self.authority.certificate),
            name=name,
            version=VERSION,
            now=clock.now,
            rng=random.Random(3),
            keep_probe_key=kept_keys.append,
        )
        replica = self.all[name] = PlayedReplica(
            name,
            self.authority,
            listener,
            gateway,
            service,
            client,
            lease,
            clock,
            agents,
            kept_keys,
        )
        self._ending.push_async_callback(replica.stop)
        return replica

    def elect(self, name: str) -> RecordingIntake:
        """The Lease names this one now, and all gateways read it."""
        elected = self.all[name]
        intake = elected.become_controller()
        for one in self.all.values():
            one.lease.name(None if one is elected else elected.address)
        return intake


@asynccontextmanager
async def replicas(folder: Path, *names: str) -> AsyncIterator[Replicas]:
    """The first is the controller, and all others are gateways with a client that runs."""
    async with AsyncExitStack() as ending:
        made = Replicas(folder, ending)
        for name in names:
            await made.start(name)
        if names:
            made.elect(names[0])
        for name in names[1:]:
            made.all[name].start_client()
        yield made
