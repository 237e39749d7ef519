"""The agents' port of a replica, which a gateway closes while it reaches no controller."""

import asyncio
import random
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.cluster.capabilities import Capabilities
from aggregator.composition.replica import Replica
from aggregator.config.settings import Config
from aggregator.demo.ports import free_port
from aggregator.ingest import listener as listener_module
from aggregator.ingest.listener import AgentListener
from aggregator.ingest.os_limits import ListenError
from aggregator.leader.lease import Candidate, Draft, Lease
from tests.support.waiting import until


class Lone:
    """A `LeaseStore` that this replica alone uses."""

    async def read(self) -> Lease | None:
        return None

    async def write(self, draft: Draft) -> Lease:
        return Lease(draft.holder, "1", "uid-1")


def replica() -> Replica:
    config = Config.model_validate(
        {
            "listen": {"grpc": f"127.0.0.1:{free_port()}"},
            "identity": {"kind": "insecure-trust-hello"},
        }
    )
    cluster: Any = SimpleNamespace(capabilities=Capabilities(lease=lambda _: Lone()))
    me = Candidate("a", "a-1")
    return Replica(config, cluster, None, me, rng=random.Random(1), starts=True)


def takes_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_a_gateway_whose_port_was_closed_takes_connections_as_the_controller() -> None:
    here = replica()
    await here.listener.start()
    try:
        here.listener.close_port()
        await until(lambda: not takes_connections(here.listener.port))
        assert here.lease is not None
        await here.lease._turn()
        here.lease._report(None)
        await here.be_gateway(load=asyncio.Event().wait)
        assert takes_connections(here.listener.port)
    finally:
        await here.listener.stop()
    await until(lambda: not takes_connections(here.listener.port))


async def test_a_port_that_cannot_be_opened_again_is_tried_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "_TRY_AGAIN", 0.0)
    here = AgentListener("127.0.0.1:0", tls=None, require_client_certificate=False)
    await here.start()
    listen, tries = here._listen, 0

    async def taken_twice() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ListenError("127.0.0.1:0")
        await listen()

    monkeypatch.setattr(here, "_listen", taken_twice)
    try:
        here.close_port()
        await here.open_port()
        assert (tries, takes_connections(here.port)) == (3, True)
        await here.open_port()  # it is open
        assert tries == 3
    finally:
        await here.stop()
