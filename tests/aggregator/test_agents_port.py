"""The agents' port of a replica, which a gateway closes while it reaches no controller."""

import asyncio
import random
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator import app
from aggregator.cluster.capabilities import Capabilities
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.composition.replica import Replica
from aggregator.config.settings import Config
from aggregator.demo.ports import free_port
from aggregator.ingest import listener as listener_module
from aggregator.ingest.agent_streams import AgentStreams
from aggregator.ingest.listener import AgentListener
from aggregator.ingest.os_limits import ListenError
from aggregator.ingest.tls import TlsError
from aggregator.leader import holder as holder_module
from aggregator.leader.lease import Candidate, Draft, Lease
from aggregator.relay import client as client_module
from aggregator.relay import unserved as unserved_module
from aggregator.runtime import gc_tuning
from tests.support.tasks import end_tasks
from tests.support.waiting import PATIENCE, until


class Lone:
    """A `LeaseStore` that this replica alone uses."""

    async def read(self) -> Lease | None:
        return None

    async def write(self, draft: Draft) -> Lease:
        return Lease(draft.holder, "1", "uid-1")


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Of an API server that nobody can reach.
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""


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


async def test_a_gateway_knows_of_others_while_the_controller_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its agents would all go in the same moment when it stops."""

    async def named(_: Lone) -> Lease:
        return Lease(Candidate("b", "b-1"), "7")

    here = replica()
    assert here.lease is not None
    before = here.has_others
    monkeypatch.setattr(Lone, "read", named)
    await here.lease._turn()
    assert (before, here.has_others, here.address_among_others()) == (False, True, "")


async def test_a_replica_that_leaves_takes_no_agent_any_more() -> None:
    here = replica()
    await here.listener.start()
    try:
        await here.leave(within=1.0)
        await until(lambda: not takes_connections(here.listener.port))
    finally:
        await here.listener.stop()


@pytest.fixture(autouse=True)
def no_signal_handlers() -> Iterator[None]:
    """Those of a process, which it sets in each of its loops."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def config_in(folder: Path, port: int) -> Config:
    (folder / "token").write_text("x" * 32)
    (folder / "kubeconfig").write_text(KUBECONFIG)
    return Config.model_validate(
        {
            "cluster": {"kind": "kubernetes", "kubeconfig": str(folder / "kubeconfig")},
            "listen": {"grpc": f"127.0.0.1:{port}", "web": "127.0.0.1:0"},
            "identity": {"kind": "insecure-trust-hello", "keys_cache": str(folder / "keys")},
            "replicas": {
                "name": "a",
                "address": f"127.0.0.1:{port}",
                "token_file": str(folder / "token"),
            },
            "history": {"database": f"sqlite:///{folder}/history.db"},
            "alerts": {"outbox": str(folder / "outbox.db")},
        }
    )


@asynccontextmanager
async def process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """A replica that can't use its cluster yet. Yields the agents' port."""
    monkeypatch.setattr(holder_module, "UNREADABLE_FOR", 0.5)
    for module in (client_module, unserved_module):
        monkeypatch.setattr(module, "UNSERVED_FOR", 0.5)
    port = free_port()
    running = asyncio.create_task(app.run(config_in(folder, port)))
    try:
        await until(lambda: takes_connections(port) or running.done())
        yield port
        assert not running.done()
    finally:
        await end_tasks(running)


@pytest.mark.parametrize(
    ("owner", "work"), [(gc_tuning, "collect_when_idle"), (AgentStreams, "run")]
)
async def test_a_replica_ends_with_a_task_of_it_that_ends_unexpectedly(
    owner: object, work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a gateway, or of the controller: else its work would be left undone, and nobody knew."""

    async def connect(*_: object) -> None:
        pass

    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(app, "_connect", connect)
    monkeypatch.setattr(KubeCluster, "lease", lambda *_: Lone())
    monkeypatch.setattr(owner, work, fail)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(RuntimeError, match="a bug"):
            await app.run(config_in(tmp_path, free_port()))


async def test_a_gateway_that_cannot_use_the_cluster_yet_leaves_agents_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the first of a roll, whose rights are not there yet."""
    async with process(tmp_path, monkeypatch) as port:
        await until(lambda: not takes_connections(port))


async def test_a_port_that_cannot_be_opened_keeps_no_controller_from_acting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is damaged, for example. It takes connections as soon as it can."""
    connected, controller, intact = asyncio.Event(), asyncio.Event(), False
    listen = AgentListener._listen

    async def connect(*_: object) -> None:
        await connected.wait()

    async def listen_if_intact(listener: AgentListener) -> None:
        if not intact:
            raise TlsError("tls.crt is no certificate in PEM")
        await listen(listener)

    async def be_controller(*_: object) -> Any:
        controller.set()
        return SimpleNamespace(serve=asyncio.Event().wait, act=asyncio.Event().wait)

    monkeypatch.setattr(app, "_connect", connect)
    monkeypatch.setattr(app._Process, "_be_controller", be_controller)
    monkeypatch.setattr(KubeCluster, "lease", lambda *_: Lone())
    monkeypatch.setattr(listener_module, "_TRY_AGAIN", 0.05)
    async with process(tmp_path, monkeypatch) as port:
        await until(lambda: not takes_connections(port))
        monkeypatch.setattr(AgentListener, "_listen", listen_if_intact)
        connected.set()
        async with asyncio.timeout(PATIENCE):
            await controller.wait()
        assert not takes_connections(port)
        intact = True
        await until(lambda: takes_connections(port))


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
