"""A stream may report about the node that its credentials name, for as long as they hold."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from aggregator.ingest import agent_exchange
from aggregator.ingest.awaited_hellos import MOST_AWAITED
from aggregator.ingest.identity import (
    Caller,
    CertificateAuthenticator,
    Identity,
    IdentityError,
    Refusal,
    TrustingAuthenticator,
    peer_is_local,
)
from aggregator.ingest.jwks import JwksCache
from aggregator.ingest.listener import STREAMS_PER_CONNECTION
from aggregator.ingest.stream_table import GRACE
from aggregator.ingest.tokens import TokenAuthenticator
from sickbay.v1 import sickbay_pb2 as pb
from tests.support.ingest import Agent, Clock, calls_in_memory, site
from tests.support.pki import Authority, TokenIssuer
from tests.support.waiting import PATIENCE, no_collection, until

Code = grpc.StatusCode
ISSUER = TokenIssuer(algorithm="ES256")


def tokens(folder: Path) -> Callable[[Clock], TokenAuthenticator]:
    """An authenticator for tokens of `ISSUER`, as of the site's clock."""

    async def fetch() -> tuple[str, str]:
        return ISSUER.issuer, ISSUER.jwks()

    def make(clock: Clock) -> TokenAuthenticator:
        return TokenAuthenticator(
            JwksCache(fetch, folder / "jwks.json", now=time.monotonic),
            audience="sickbay",
            service_account="sickbay:sickbay-agent",
            issuer="",
            now=clock.wall,
        )

    return make


async def renew(agent: Agent, token: str) -> None:
    await agent.send(pb.AgentMessage(credentials=pb.Credentials(token=token)))


@pytest.mark.parametrize("token", ["", "a.b.c"])
async def test_a_refused_call_leaves_no_garbage(tmp_path: Path, token: str) -> None:
    """A collection of thousands of them would hold up all streams."""
    async with site(folder=tmp_path, make_authenticator=tokens(tmp_path)) as running:
        with no_collection():
            for _ in range(5):
                async with running.agent("node-1", token=token) as agent:
                    if token:
                        await agent.hello()
                    assert (await agent.ending())[0] is Code.UNAUTHENTICATED
            await until(lambda: calls_in_memory() == 0, within=10)


# -- tokens -------------------------------------------------------------------------------------


async def test_a_token_of_our_account_is_let_in_and_names_the_nodes_uid(tmp_path: Path) -> None:
    async with (
        site(folder=tmp_path, make_authenticator=tokens(tmp_path)) as running,
        running.agent("node-1", token=ISSUER.token("node-1")) as agent,
    ):
        await agent.attend()
        [hello] = running.intake.hellos
        assert hello.node_uid == "uid-of-node-1"


@pytest.mark.parametrize(
    ("token", "code", "why"),
    [
        ("", Code.UNAUTHENTICATED, "no_credentials"),
        ("nonsense", Code.UNAUTHENTICATED, "bad_token"),
        (ISSUER.token(expires_in=-60), Code.UNAUTHENTICATED, "expired"),
        (ISSUER.token(account="tenant:job"), Code.PERMISSION_DENIED, "other_account"),
        (ISSUER.token("node-2"), Code.PERMISSION_DENIED, "another_node"),
    ],
)
async def test_any_other_token_is_refused_counted_and_unheard(
    tmp_path: Path, token: str, code: grpc.StatusCode, why: str
) -> None:
    async with (
        site(folder=tmp_path, make_authenticator=tokens(tmp_path)) as running,
        running.agent("node-1", token=token) as agent,
    ):
        if token:
            # A call without a token is refused before it is read, and grpc.aio shows INTERNAL in
            # place of the reason where the Hello is still under way.
            await agent.try_hello()
        ended, text = await agent.ending()
        assert ended is code
        assert text
        assert running.stats.refused == {why: 1}
        assert running.intake.events == []


async def test_a_call_without_valid_credentials_ends_before_it_says_anything(
    tmp_path: Path,
) -> None:
    """Each such call would hold memory for a minute, and thousands of them a gibibyte."""
    async with site(make_authenticator=tokens(tmp_path)) as running:
        for token, why in (("", "no_credentials"), ("nonsense", "bad_token")):
            async with running.agent("node-1", token=token) as silent:
                async with asyncio.timeout(PATIENCE):
                    code, _ = await silent.ending()
                assert code is Code.UNAUTHENTICATED
                assert running.stats.refused[why] == 1
        async with running.agent("node-1", token=ISSUER.token("node-1")) as agent:
            await agent.attend()


async def test_one_connection_carries_a_few_calls_and_the_others_wait(tmp_path: Path) -> None:
    async with site(make_authenticator=tokens(tmp_path)) as running, running.channel() as channel:
        first = []
        for n in range(STREAMS_PER_CONNECTION):
            first.append(Agent(channel, f"node-{n}", token=ISSUER.token(f"node-{n}")))
            await first[-1].attend()
        last = Agent(channel, "node-last", token=ISSUER.token("node-last"))
        late = asyncio.create_task(last.attend())
        async with running.agent("node-x", token=ISSUER.token("node-x")) as other:
            await other.attend()  # another connection is served meanwhile
        assert not late.done()
        assert running.stats.opened == STREAMS_PER_CONNECTION + 1
        first[0].call.cancel()
        async with asyncio.timeout(PATIENCE):
            await late


async def test_of_one_nodes_streams_without_a_hello_only_the_newest_few_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token is good for any number of calls, and each may wait for a minute."""
    monkeypatch.setattr(
        agent_exchange, "HELLO_WITHIN", PATIENCE
    )  # a busy machine takes a minute for all
    async with site(make_authenticator=tokens(tmp_path)) as running, AsyncExitStack() as stack:
        token = ISSUER.token("node-1")
        waiting: list[Agent] = []
        while len(waiting) < MOST_AWAITED:
            waiting.append(await stack.enter_async_context(running.agent("node-1", token=token)))
            await until(lambda: running.stats.opened == len(waiting))
        other = await stack.enter_async_context(
            running.agent("node-2", token=ISSUER.token("node-2"))
        )
        newest = await stack.enter_async_context(running.agent("node-1", token=token))
        async with asyncio.timeout(PATIENCE):
            codes = [await waiting[0].ending()]
        assert codes[0][0] is Code.RESOURCE_EXHAUSTED
        assert running.stats.refused == {"too_many": 1}
        await newest.attend()
        await other.attend()
        await waiting[1].attend()  # the stream that was kept works, and the other's turn is over
        assert (await newest.ending())[0] is Code.ABORTED


async def test_a_stream_ends_when_its_token_expires(tmp_path: Path) -> None:
    async with (
        site(make_authenticator=tokens(tmp_path), silent_after=1e9) as running,
        running.agent("node-1", token=ISSUER.token("node-1", expires_in=600)) as agent,
    ):
        await agent.attend()
        running.clock.ahead += 620
        code, text = await agent.ending()
        assert code is Code.UNAUTHENTICATED
        assert "expired" in text
        assert running.stats.ended == {"expired": 1}


async def test_a_token_renewed_within_the_stream_keeps_it_up(tmp_path: Path) -> None:
    async with (
        site(make_authenticator=tokens(tmp_path), silent_after=1e9) as running,
        running.agent("node-1", token=ISSUER.token("node-1", expires_in=600)) as agent,
    ):
        await agent.attend()
        await renew(agent, ISSUER.token("node-1", expires_in=6000))
        await until(lambda: running.stats.renewed == 1)
        running.clock.ahead += 620
        running.server.table.tick()
        await agent.delta(seq=2)
        assert (await agent.expect("ack")).seq == 2


async def test_a_token_of_another_node_within_the_stream_ends_it(tmp_path: Path) -> None:
    async with (
        site(make_authenticator=tokens(tmp_path)) as running,
        running.agent("node-1", token=ISSUER.token("node-1")) as agent,
    ):
        await agent.attend()
        await renew(agent, ISSUER.token("node-2"))
        code, _ = await agent.ending()
        assert code is Code.PERMISSION_DENIED
        assert running.stats.ended == {"another_node": 1}


async def test_while_the_api_server_is_away_a_stream_stays_up_on_an_expired_token_and_it_shows(
    tmp_path: Path,
) -> None:
    async with (
        site(make_authenticator=tokens(tmp_path), silent_after=1e9) as running,
        running.agent("node-1", token=ISSUER.token("node-1", expires_in=600)) as agent,
    ):
        await agent.attend()
        running.away[0] = True
        running.clock.ahead += 620
        running.server.table.tick()
        assert running.stats.overdue == 1
        await agent.delta(seq=2)
        assert (await agent.expect("ack")).seq == 2

        # A new stream with such a token is another matter.
        async with running.agent("node-1", token=ISSUER.token("node-1", expires_in=600)) as new:
            await new.try_hello()
            assert (await new.ending())[0] is Code.UNAUTHENTICATED

        # It is back: the kubelet gets its time to renew, and no more.
        running.away[0] = False
        running.clock.ahead += GRACE / 2
        running.server.table.tick()
        assert running.stats.overdue == 1
        running.clock.ahead += GRACE
        assert (await agent.ending())[0] is Code.UNAUTHENTICATED


# -- certificates -------------------------------------------------------------------------------


async def test_a_certificate_speaks_for_the_node_it_names(tmp_path: Path) -> None:
    async with site(
        folder=tmp_path, authenticator=CertificateAuthenticator(), client_certificates=True
    ) as running:
        assert running.authority is not None
        by_name = running.authority.client("a", dns=["node-1.example.test", "node-1"])
        by_cn = running.authority.client("b", common_name="node-2")
        for node, pair in (("node-1", by_name), ("node-2", by_cn)):
            async with running.agent(node, certificate=pair) as agent:
                await agent.attend()
        wildcard = running.authority.client("c", common_name="node-3", dns=["*.example.test"])
        nameless = running.authority.client("d")
        for node, pair, why in (
            ("node-2", by_name, "another_node"),
            ("node-1", by_cn, "another_node"),
            ("node-3", wildcard, "another_node"),  # with DNS names the CN is ignored
            ("node-4.example.test", wildcard, "another_node"),
            ("node-1", nameless, "no_node"),
        ):
            running.stats.refused.clear()
            async with running.agent(node, certificate=pair) as agent:
                await agent.try_hello()
                assert (await agent.ending())[0] is Code.PERMISSION_DENIED
            assert running.stats.refused == {why: 1}


async def test_a_certificate_of_another_authority_or_none_gets_no_connection(
    tmp_path: Path,
) -> None:
    async with site(
        folder=tmp_path / "ours",
        authenticator=CertificateAuthenticator(),
        client_certificates=True,
    ) as running:
        stranger = Authority.create(tmp_path / "theirs").client("a", dns=["node-1"])
        for pair in (stranger, None):
            async with running.agent("node-1", certificate=pair) as agent:
                assert await agent.call.code() is Code.UNAVAILABLE
        assert running.stats.opened == 0


async def test_a_stream_ends_when_its_certificate_does(tmp_path: Path) -> None:
    async with site(
        folder=tmp_path,
        authenticator=CertificateAuthenticator(),
        client_certificates=True,
        silent_after=1e9,
    ) as running:
        assert running.authority is not None
        pair = running.authority.client("a", dns=["node-1"])
        async with running.agent("node-1", certificate=pair) as agent:
            await agent.attend()
            running.clock.ahead += 3 * 86_400
            assert (await agent.ending())[0] is Code.UNAUTHENTICATED


async def test_the_servers_certificate_is_read_again_when_it_rotates(tmp_path: Path) -> None:
    async with site(folder=tmp_path) as running, running.agent() as agent:
        await agent.attend()

        # A half-written pair: the old one serves on.
        replacement = Authority.create(tmp_path / "next")
        pair = replacement.server("server", ["localhost"])
        pair.certificate.replace(tmp_path / "server.crt")
        running.clock.ahead += 2
        async with running.agent("node-2") as second:
            await second.attend()
        assert running.stats.certificate_troubles == 1

        pair.key.replace(tmp_path / "server.key")
        running.clock.ahead += 2
        async with running.agent("node-3") as stale:  # it trusts the old authority only
            assert await stale.call.code() is Code.UNAVAILABLE
        running.authority = replacement
        async with running.agent("node-4") as third:
            await third.attend()

        await agent.delta(seq=2)  # a stream that is up stays up
        assert (await agent.expect("ack")).seq == 2


# -- trust --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:4711", True),
        ("ipv6:[::1]:4711", True),
        ("ipv6:%5B::1%5D:4711", True),
        ("unix:", True),
        ("ipv4:10.0.0.1:4711", False),
        ("ipv6:[2001:db8::1]:4711", False),
        ("ipv6:%5Bfe80::1%5D:4711", False),
        ("", False),
    ],
)
def test_who_is_on_this_machine(peer: str, local: bool) -> None:  # noqa: FBT001
    assert peer_is_local(peer) is local


async def test_an_agents_word_counts_on_this_machine_only() -> None:
    near, far = Caller("ipv4:127.0.0.1:1"), Caller("ipv4:10.0.0.1:1")
    assert (await TrustingAuthenticator().authenticate(near)).claimed("n").node == "n"
    with pytest.raises(IdentityError, match="own machine"):
        await TrustingAuthenticator().authenticate(far)
    assert await TrustingAuthenticator(anywhere=True).authenticate(far)


async def test_a_unix_socket_is_this_machine(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/grpc.sock"
    async with site(address=address) as running, grpc.aio.insecure_channel(address) as channel:
        agent = Agent(channel, "node-1")
        await asyncio.wait_for(agent.attend(), 300)
        assert running.stats.attached == 1


async def test_a_certificate_that_cannot_be_read_is_refused() -> None:
    caller = Caller("ipv4:10.0.0.1:5", {}, {"x509_pem_cert": [b"no certificate"]})
    with pytest.raises(IdentityError, match="the client certificate can't be read") as refused:
        await CertificateAuthenticator().authenticate(caller)
    assert refused.value.refusal is Refusal.BAD_CERTIFICATE


def test_the_text_of_a_caller_shows_no_credentials() -> None:
    caller = Caller("peer", {"authorization": "Bearer s3cret"}, {"x509_pem_cert": [b"s3cret"]})
    assert "s3cret" not in repr(caller)
    assert "x509_pem_cert" not in repr(caller)


async def test_a_certificate_is_not_renewed_by_a_token() -> None:
    with pytest.raises(IdentityError, match="certificates prove who node 'node-1' is") as refused:
        await CertificateAuthenticator().renew(Identity("node-1"), "a token")
    assert refused.value.refusal is Refusal.BAD_TOKEN
