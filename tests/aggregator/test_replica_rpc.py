"""Replicas coordinate over real gRPC with TLS and signed tokens, which admit or refuse them."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from aggregator.ingest.identity import TrustingAuthenticator
from aggregator.ingest.jwks import JwksCache
from aggregator.ingest.server import IngestServer
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.stream import StreamConfig
from aggregator.ingest.tls import CertificateFiles
from aggregator.relay.auth import AUDIENCE, ReplicaAuthenticator
from aggregator.replicas.membership.view import Member, MembershipView
from aggregator.replicas.rpc import factory
from aggregator.replicas.rpc.client import LeaderClient, ReplicaCredentials, ReplicaRpcConfigError
from aggregator.replicas.rpc.server import CoordinationService
from sickbay.v1 import shards_pb2 as pb
from sickbay.v1 import shards_pb2_grpc
from tests.support.coordination import PlayedShards, member
from tests.support.ingest import Clock, calls_in_memory
from tests.support.memory_cluster import World
from tests.support.pki import Authority, TokenIssuer
from tests.support.replica import Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.waiting import no_collection, until

ACCOUNT = "sickbay:sickbay-aggregator"
ISSUER = TokenIssuer(algorithm="ES256")
STRANGER = TokenIssuer(algorithm="ES256")  # the same kid, another key


#: Longer than the first ones.
LONG = 86_400.0


def token(issuer: TokenIssuer = ISSUER, **claims: Any) -> str:
    told = {"account": ACCOUNT, "audience": AUDIENCE, "expires_in": 3600, **claims}
    return issuer.sign(issuer.claims("node-1", **told))


@dataclass
class Place:
    """One replica: its controller, its listener, its end of the stream."""

    replica: Replica
    shards: PlayedShards
    server: IngestServer
    speaker: LeaderClient
    token_file: Path
    task: asyncio.Task[None] | None = None

    @property
    def missing(self) -> str:
        return self.replica.controller.coordinator.uncertainty().missing


@dataclass
class Site:
    folder: Path
    world: World = field(default_factory=World)
    clock: Clock = field(default_factory=Clock)
    places: dict[str, Place] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    away: bool = False

    async def begin(self, *names: str) -> None:
        self.authority = Authority.create(self.folder)
        for number in range(40):
            self.world.add_node(f"n{number}")
        for name in names:
            self.places[name] = await self.place(name)
        self.reform()
        await until(lambda: not any(p.replica.fleet.view_lost for p in self.places.values()))
        for place in self.places.values():
            place.task = asyncio.create_task(place.speaker.run())

    async def place(self, name: str) -> Place:
        async def fetch() -> tuple[str, str]:
            return ISSUER.issuer, ISSUER.jwks()

        shards = PlayedShards(name, ())
        replica = Replica(self.world, clock=Running(), shards=shards)
        pair = self.authority.server(f"server-{name}", ["localhost"])
        stats = IngestStats()
        server = IngestServer(
            "localhost:0",
            tls=CertificateFiles(
                pair.certificate,
                pair.key,
                None,
                stats=stats,
                now=self.clock.now,
                wall=self.clock.wall,
            ),
            require_client_certificate=False,
            authenticator=TrustingAuthenticator(),
            intake=replica.controller,
            rules=StreamConfig(
                name=name,
                version="0.1.0",
                heartbeat=10.0,
                silent_after=60.0,
                now=self.clock.now,
                wall=self.clock.wall,
                cluster_away=lambda: False,
            ),
            stats=stats,
        )
        keys = JwksCache(fetch, self.folder / f"keys-{name}", now=self.clock.now)
        service = factory.service(
            replica.controller.coordinator,
            keys,
            service_account=ACCOUNT,
            issuer="",
            plaintext=False,
            cluster_away=lambda: self.away,
            wall=self.clock.wall,
        )
        server.add_service(service.register)
        await server.start()
        address = f"localhost:{server.port}"
        self.members[name] = replace(member(name), address=address)
        file = self.folder / f"token-{name}"
        file.write_text(token())
        speaker = factory.speaker(
            replica.controller.coordinator,
            shards,
            token_file=file,
            ca_file=self.authority.certificate,
            pair=None,
            now=self.clock.now,
            rng=random.Random(3),
        )
        return Place(replica, shards, server, speaker, file)

    def reform(self, *gone: str, by: str = "") -> None:
        """All replicas learn which replicas are there now, or only the one does."""
        if not by:
            for name in gone:
                del self.members[name]
        known = {n: m for n, m in self.members.items() if n not in gone}
        for name, place in self.places.items():
            if by in ("", name):
                place.shards.take(MembershipView(name, known, settled=True))

    def node_of(self, name: str) -> str:
        membership_view = MembershipView(name, self.members)
        nodes = (f"n{number}" for number in range(40))
        return next(n for n in nodes if (found := membership_view.owner(n)) and found.name == name)

    async def end(self) -> None:
        for place in self.places.values():
            if place.task is not None:
                place.task.cancel()
                await asyncio.wait([place.task])
            await place.replica.stop()
            await place.server.stop()


@asynccontextmanager
async def site(folder: Path, *names: str) -> AsyncIterator[Site]:
    made = Site(folder)
    try:
        await made.begin(*names)
        yield made
    finally:
        await made.end()


async def test_a_follower_s_node_is_quarantined_when_the_leader_has_admitted_it(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, "a", "b") as running:
        leader, follower = running.places["a"], running.places["b"]
        node = running.node_of("b")
        await until(lambda: not leader.missing)
        follower.replica.agent(node, snapshot(fault()))
        await until(lambda: node in running.world.quarantines)
        assert node in json.loads(running.world.record.text)["entries"]
        assert (follower.speaker.trouble, follower.missing) == ("", "")


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        pytest.param(
            token(audience="sickbay", expires_in=LONG),
            'expected is "sickbay-shards"',
            id="for the agents' listener",
        ),
        pytest.param(
            token(account="sickbay:sickbay-agent", expires_in=LONG), "only", id="an agent's account"
        ),
        pytest.param(
            token(account="tenant:aggregator", expires_in=LONG), "only", id="a tenant's account"
        ),
        pytest.param(token(expires_in=-60), "expired", id="expired"),
        pytest.param(token(STRANGER, expires_in=LONG), "ignature", id="signed by another"),
        pytest.param("nonsense", "no signed token", id="no token"),
    ],
)
async def test_who_does_not_show_a_replica_s_own_token_is_not_heard(
    tmp_path: Path, shown: str, told: str
) -> None:
    async with site(tmp_path, "a", "b") as running:
        follower = running.places["b"]
        await until(lambda: not running.places["a"].missing)
        follower.token_file.write_text(shown)
        running.clock.ahead = 7200  # the token shown before has expired
        await until(lambda: told in follower.speaker.trouble, lambda: follower.speaker.trouble)
        await until(lambda: "b has not told" in running.places["a"].missing)
        await until(lambda: told in follower.replica.fleet.incomplete)  # on its page, too
        node = running.node_of("b")
        follower.replica.agent(node, snapshot(fault()))
        await until(lambda: follower.replica.fleet.node_summaries[node].decision.hold is not None)
        hold = follower.replica.fleet.node_summaries[node].decision.hold
        assert hold is not None
        assert (hold.limit, hold.value) == ("shards", "no answer")
        assert shown not in follower.speaker.trouble


async def test_a_token_that_is_renewed_keeps_the_stream_up(tmp_path: Path) -> None:
    async with site(tmp_path, "a", "b") as running:
        leader, follower = running.places["a"], running.places["b"]
        await until(lambda: not leader.missing)
        [session] = leader.replica.controller.coordinator._leader_role._sessions.values()
        follower.token_file.write_text(token(expires_in=7200))
        running.clock.ahead = 3000  # the old one is still good, and it is time to look
        heard = session.heard_at
        await until(lambda: session.heard_at > heard + 0.5)
        running.clock.ahead = 5000
        heard = session.heard_at
        await until(lambda: session.heard_at > heard + 0.5)
        assert list(leader.replica.controller.coordinator._leader_role._sessions.values()) == [
            session
        ]


class EndedCall:
    """A call that ends as its second message is written: the error of grpc.aio is raised."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    async def write(self, message: object) -> None:
        self._written += 1
        if self._written > 1:
            raise asyncio.InvalidStateError("RPC already finished.")
        await self._call.write(message)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    async def details(self) -> str:
        return "it stops"


class EndingOnce(ReplicaCredentials):
    """The first call of the first channel is an `EndedCall`."""

    ended = False

    def channel(self, address: str) -> grpc.aio.Channel:
        channel = super().channel(address)
        if self.ended:
            return channel
        self.ended = True
        dial = channel.stream_stream

        def ending(*args: Any, **kwargs: Any) -> Any:
            call = dial(*args, **kwargs)
            return lambda **given: EndedCall(call(**given))

        channel.stream_stream = ending  # type: ignore[method-assign]  # one call of one test
        return channel


async def test_a_stream_that_ends_while_a_word_is_written_is_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path, "a", "b") as running:
        leader, follower = running.places["a"], running.places["b"]
        await until(lambda: not leader.missing)
        credentials = EndingOnce(
            token_file=follower.token_file, ca_file=running.authority.certificate
        )
        follower.speaker._credentials = credentials
        [session] = leader.replica.controller.coordinator._leader_role._sessions.values()
        session.close("another begins")
        await until(
            lambda: any(
                getattr(record, "error", "") == "UNAVAILABLE: it stops" for record in caplog.records
            )
        )
        await until(lambda: not follower.speaker.trouble and not leader.missing)


class GoneContext:
    """A replica's stream as gRPC shows it to the leader; its other end goes away during a write."""

    def __init__(self, replica: Member, error: Exception) -> None:
        introduction = pb.Introduction(name=replica.name, epoch=replica.epoch)
        self._said = [pb.ShardMessage(introduction=introduction)]
        self._error = error
        self.writes = 0

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {token()}"),)

    async def read(self) -> pb.ShardMessage:
        if not self._said:
            # gRPC reports the end of the call later than it knows of it.
            await asyncio.Event().wait()
        return self._said.pop()

    async def write(self, message: pb.LeaderMessage) -> None:
        assert message.WhichOneof("body")
        self.writes += 1
        raise self._error


class Believing:
    async def verify_account(self, _: str) -> float:
        return LONG


@pytest.mark.parametrize(
    "error",
    [
        grpc.aio.InternalError("Failed grpc_call_start_batch"),
        grpc.aio.UsageError("RPC already finished."),
        asyncio.InvalidStateError("RPC already finished."),
    ],
)
async def test_the_leaders_end_of_a_stream_ends_quietly_when_the_other_goes_under_its_write(
    tmp_path: Path, error: Exception
) -> None:
    async with site(tmp_path, "a", "b") as running:
        leader, follower = running.places["a"], running.places["b"]
        await until(lambda: not leader.missing)
        assert follower.task is not None
        follower.task.cancel()
        await asyncio.wait([follower.task])
        coordinator = leader.replica.controller.coordinator
        replica_auth = ReplicaAuthenticator(Believing(), wall=lambda: 0.0)
        service = CoordinationService(
            coordinator, replica_auth, cluster_away=lambda: False, now=lambda: 0.0
        )
        context = GoneContext(running.members["b"], error)
        async with asyncio.timeout(30):
            await service.Report(None, context)  # type: ignore[arg-type]  # as much as it uses
        assert context.writes == 1
        assert "b has not told" in leader.missing  # and its session is free for the next stream
        assert not coordinator._leader_role._sessions


async def test_while_the_api_server_is_away_an_expired_token_ends_no_stream(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, "a", "b") as running:
        leader = running.places["a"]
        await until(lambda: not leader.missing)
        [session] = leader.replica.controller.coordinator._leader_role._sessions.values()
        running.away = True
        running.clock.ahead = 7200
        heard = session.heard_at
        await until(lambda: session.heard_at > heard + 0.5)
        running.away = False
        await until(lambda: leader.missing)


async def test_who_is_not_among_the_replicas_is_not_heard(tmp_path: Path) -> None:
    async with site(tmp_path, "a", "b") as running:
        leader, follower = running.places["a"], running.places["b"]
        await until(lambda: not leader.missing)
        running.reform("b", by="a")  # its Lease has run out, as a sees it; b does not know yet
        await until(lambda: "not among the replicas" in follower.speaker.trouble)
        await until(lambda: follower.missing)
        running.reform(by="a")
        await until(lambda: not leader.missing and not follower.missing)


async def test_a_replica_s_former_life_is_not_heard(tmp_path: Path) -> None:
    async with site(tmp_path, "a", "b") as running:
        leader = running.places["a"]
        await until(lambda: not leader.missing)
        running.members["b"] = replace(running.members["b"], epoch="another")
        running.reform(by="a")
        await until(lambda: "not among" in running.places["b"].speaker.trouble)
        assert leader.missing


async def test_when_the_leader_has_gone_the_next_one_is_dialled(tmp_path: Path) -> None:
    async with site(tmp_path, "a", "b", "c") as running:
        await until(lambda: not running.places["a"].missing)
        gone = running.places.pop("a")
        assert gone.task is not None
        gone.task.cancel()
        await gone.replica.stop()
        await gone.server.stop()
        running.reform("a")
        await until(lambda: not running.places["b"].missing and not running.places["c"].missing)
        assert running.places["b"].replica.controller.coordinator.leads
        node = running.node_of("c")
        running.places["c"].replica.agent(node, snapshot(fault()))
        await until(lambda: node in running.world.quarantines)


async def test_a_bad_message_ends_its_own_stream_and_no_other(tmp_path: Path) -> None:
    async with site(tmp_path, "a", "b") as running:
        leader = running.places["a"]
        await until(lambda: not leader.missing)
        running.members["x"] = replace(member("x"), address="localhost:1")
        running.reform(by="a")
        credentials = grpc.ssl_channel_credentials(running.authority.certificate.read_bytes())
        address = running.members["a"].address
        async with grpc.aio.secure_channel(address, credentials) as channel:
            for bad in (
                pb.ShardMessage(report_batch=pb.ReportBatch(nodes=[pb.NodeReport()])),
                pb.ShardMessage(
                    report_batch=pb.ReportBatch(
                        nodes=[pb.NodeReport(node="n", signs=[pb.NodeSign(what="a", age_s=1e30)])]
                    )
                ),
                pb.ShardMessage(question=pb.Question(node="n", incident="i", action="drain")),
                pb.ShardMessage(introduction=pb.Introduction(name="x")),
                pb.ShardMessage(),
            ):
                metadata = grpc.aio.Metadata(("authorization", f"Bearer {token()}"))
                call = shards_pb2_grpc.CoordinationStub(channel).Report(metadata=metadata)
                who = pb.Introduction(name="x", epoch=running.members["x"].epoch)
                await call.write(pb.ShardMessage(introduction=who))
                assert isinstance(await call.read(), pb.LeaderMessage)
                await call.write(bad)
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            call = shards_pb2_grpc.CoordinationStub(channel).Report(metadata=metadata)
            await call.write(pb.ShardMessage(keep_alive=pb.KeepAlive()))
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert leader.missing == "x has not told of all nodes"  # and b has


async def test_a_refused_call_leaves_no_garbage(tmp_path: Path) -> None:
    """A collection of thousands of them would hold up all streams."""
    async with site(tmp_path, "a") as running:
        credentials = grpc.ssl_channel_credentials(running.authority.certificate.read_bytes())
        address = running.members["a"].address
        async with grpc.aio.secure_channel(address, credentials) as channel:
            with no_collection():
                for _ in range(5):
                    call = shards_pb2_grpc.CoordinationStub(channel).Report()
                    assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
                await until(lambda: calls_in_memory() == 0, within=10)


async def test_a_listener_that_another_authority_vouches_for_gets_no_token(tmp_path: Path) -> None:
    async with site(tmp_path / "one", "a", "b") as running:
        await until(lambda: not running.places["a"].missing)
        other = Authority.create(tmp_path / "other")
        credentials = ReplicaCredentials(
            token_file=running.places["b"].token_file, ca_file=other.certificate
        )
        async with credentials.channel(running.members["a"].address) as channel:
            call = shards_pb2_grpc.CoordinationStub(channel).Report()
            assert await call.code() is grpc.StatusCode.UNAVAILABLE


def test_without_tls_replicas_coordinate_on_one_machine_only(tmp_path: Path) -> None:
    with pytest.raises(ReplicaRpcConfigError, match=r"shards\.ca_file"):
        ReplicaCredentials(token_file=tmp_path / "token", ca_file=None).channel("10.0.0.1:8443")


def test_a_token_that_is_not_there_is_said_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ReplicaRpcConfigError, match=r"shards\.token_file.*can't be read"):
        ReplicaCredentials(token_file=tmp_path / "token", ca_file=None).token()
