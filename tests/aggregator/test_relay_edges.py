"""A relay while something else changes: the Lease, tokens, the API server, a hostile agent."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from aggregator.health.model import Delta
from aggregator.ingest.codec import MOST_HELLO
from aggregator.ingest.identity import IdentityError, Refusal
from sickbay.v1 import limits
from sickbay.v1 import sickbay_pb2 as pb
from tests.support import evidence as said
from tests.support.present import present
from tests.support.relay_frames import hello, message, opened, snapshot
from tests.support.relays import ISSUER, PlayedReplica, replica_token, replicas
from tests.support.waiting import PATIENCE, until


async def test_a_controller_that_was_replaced_while_a_relay_to_it_began_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't reach the API server, so that it does not know of the other one."""
    async with replicas(tmp_path, "a") as site:
        a, b, c = site.all["a"], await site.start("b"), await site.start("c")
        b.lease.name(a.address)
        greeted, answer = asyncio.Event(), asyncio.Event()
        greet = a.service._gateway_hello

        async def greet_late(context: Any) -> Any:
            found = await greet(context)
            greeted.set()
            await answer.wait()
            return found

        monkeypatch.setattr(a.service, "_gateway_hello", greet_late)
        b.start_client()
        await greeted.wait()
        c.become_controller()
        b.lease.name(c.address)
        answer.set()
        await until(lambda: "b" in c.service.gateways)
        await until(lambda: "b" not in a.service.gateways)
        assert a.holds


async def test_a_proxy_of_the_environment_is_not_used_between_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    async with replicas(tmp_path, "a", "b") as site:
        await until(lambda: site.all["b"].gateway.relayed)


@pytest.mark.parametrize("text", ["", "one line\nand another", "\u00fcber" * 10, "x" * 20_000])
async def test_a_file_that_holds_no_token_is_named_and_read_again(
    tmp_path: Path, text: str
) -> None:
    async with replicas(tmp_path, "a") as site:
        b = await site.start("b")
        file = tmp_path / "token-b"
        token = file.read_text()
        file.write_text(text)
        b.lease.name(site.all["a"].address)
        b.start_client()
        await until(lambda: b.client.trouble.startswith(f"replicas.token_file {file} "))
        file.write_text(token)
        await until(lambda: b.gateway.relayed)


# -- a Hello ---------------------------------------------------------------------------------------


async def test_a_hello_that_no_relay_could_carry_ends_its_own_call_alone(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        b = site.all["b"]
        async with b.agent("n-1") as honest, b.agent("n-2") as hostile:
            await honest.attend()
            link = b.gateway._link
            huge = hello("n-2")
            huge.hello.checks.add(name="x", off_because="x" * (4 * 1024 * 1024 - 500))
            await hostile.send(huge)
            async with asyncio.timeout(PATIENCE):
                code, text = await hostile.ending()
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert text.startswith("hello.size: 4")
            await honest.delta(seq=2)
            assert (await honest.expect("ack")).seq == 2
            assert b.gateway._link is link, "the relay of all others has ended"


def test_a_hello_with_all_that_the_contract_allows_is_shorter_than_any_may_be() -> None:
    longest = hello("n" * 253)
    for number in range(limits.MAX_CHECKS):
        longest.hello.checks.add(
            name=f"{number:03}" + "x" * (limits.MAX_NAME - 3),
            interval_ms=limits.MAX_AGE_MS,
            off_because="x" * limits.MAX_TEXT,
        )
    for number in range(limits.MAX_TRAITS):
        longest.hello.traits[f"{number:03}" + "x" * (limits.MAX_NAME - 3)] = "x" * limits.MAX_TEXT
    longest.hello.test_profiles.extend(["x" * limits.MAX_NAME] * limits.MAX_TEST_PROFILES)
    assert MOST_HELLO / 2 < longest.ByteSize() < MOST_HELLO * 0.7


async def test_a_late_opening_does_not_supersede_a_newer_stream_of_the_agent(
    tmp_path: Path,
) -> None:
    async with replicas(tmp_path, "a") as site:
        controller = site.all["a"]
        async with controller.relay(name="fast") as fast, controller.relay() as slow:
            await fast.begin()
            await slow.begin()
            await fast.frames(opened(1, boottime=2_000), snapshot(1, seq=5))
            await until(lambda: len(site.all["a"].intake.evidence) == 1)
            await slow.frames(opened(9, boottime=1_000), snapshot(9, seq=4))
            ended = (await slow.frame("ended")).ended
            assert ended.code == grpc.StatusCode.ABORTED.value[0]
            assert "a newer stream of this node is attached" in ended.message
            await fast.frames(message(1, said.delta(Delta(), seq=6)))
            await until(lambda: len(site.all["a"].intake.evidence) == 2)
            # Of the process before, which the gateway still knows: one boot has one clock.
            await slow.frames(opened(10, instance="i-0", boottime=1_500), snapshot(10))
            assert (await slow.frame("ended")).ended.code == grpc.StatusCode.ABORTED.value[0]
            # After a reboot the clock begins anew.
            await slow.frames(opened(11, instance="i-2", boot="boot-2", boottime=1), snapshot(11))
            assert (await fast.frame("ended")).ended.code == grpc.StatusCode.ABORTED.value[0]


# -- tokens ----------------------------------------------------------------------------------------


async def test_a_renewed_token_that_met_a_full_relay_reaches_the_controller_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        a, b = site.all["a"], site.all["b"]
        async with b.agent() as agent:
            await agent.attend()
            link = present(b.gateway._link)
            with monkeypatch.context() as full:
                full.setattr(link.queue, "has_room", lambda *_: False)
                renewed = pb.Credentials(token=ISSUER.token("node-1", expires_in=90_000))
                await agent.send(pb.AgentMessage(credentials=renewed))
                await until(lambda: b.gateway.stats.renewed == 1)
                [call] = b.gateway._calls.values()
                await until(lambda: call.dropped)
            assert (await agent.expect("resync")).reason
            await agent.snapshot(seq=2)
            assert (await agent.expect("ack")).seq == 2
            await until(lambda: present(a.streams).stats.renewed == 1)


async def test_a_gateways_token_may_expire_while_the_api_server_is_away_and_for_a_while_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelets renew it minutes after the API server is back. Until then a relay that ended would
    send all agents of its gateway to the controller.
    """
    async with replicas(tmp_path, "a", "b") as site:
        a, b = site.all["a"], site.all["b"]
        await until(lambda: b.gateway.relayed and bool(a.service._links))
        table, [link] = present(a.streams).table, a.service._links
        expired, looks = a.service._replica_auth.has_expired, 0

        def count_looks(until: float) -> bool:
            nonlocal looks
            found = expired(until)
            looks += found
            return found

        monkeypatch.setattr(a.service._replica_auth, "has_expired", count_looks)
        a.away = True
        await until(lambda: table.renewals_may_fail)
        site.clock.ahead += 3_700.0  # its token is valid for an hour
        await until(lambda: looks > 2)
        a.away = False
        seen = looks
        await until(lambda: looks > seen + 4)
        assert a.service._links == {link}
        site.clock.ahead += 601.0
        await until(lambda: not a.service._links)
        await until(lambda: b.client.trouble.startswith("UNAUTHENTICATED: the token"))


async def test_a_renewed_token_that_cannot_be_verified_now_ends_no_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(tmp_path, "a") as site, site.all["a"].relay() as relay:
        a: PlayedReplica = site.all["a"]

        async def no_keys(_: str) -> float:
            raise IdentityError(Refusal.KEYS_UNAVAILABLE, "the cluster's keys can't be read now")

        await relay.begin()
        monkeypatch.setattr(a.service._replica_auth, "renew", no_keys)
        await relay.send(token=replica_token(expires_in=7_200))
        await relay.frames(opened(1), snapshot(1), message(1, said.delta(Delta(), seq=2)))
        await until(lambda: len(a.intake.evidence) == 2)
        monkeypatch.undo()
        await relay.send(token=replica_token(audience="sickbay"))
        assert (await relay.ending())[0] is grpc.StatusCode.UNAUTHENTICATED
