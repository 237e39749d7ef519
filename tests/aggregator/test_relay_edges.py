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
    told = hello("n" * 253)
    for number in range(limits.MAX_CHECKS):
        told.hello.checks.add(
            name=f"{number:03}" + "x" * (limits.MAX_NAME - 3),
            interval_ms=limits.MAX_AGE_MS,
            off_because="x" * limits.MAX_TEXT,
        )
    for number in range(limits.MAX_TRAITS):
        told.hello.traits[f"{number:03}" + "x" * (limits.MAX_NAME - 3)] = "x" * limits.MAX_TEXT
    told.hello.test_profiles.extend(["x" * limits.MAX_NAME] * limits.MAX_TEST_PROFILES)
    assert MOST_HELLO / 2 < told.ByteSize() < MOST_HELLO * 0.7
