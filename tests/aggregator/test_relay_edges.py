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
