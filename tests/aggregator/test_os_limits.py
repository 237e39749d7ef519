"""The listener: a port that is taken, too few descriptors, many connections at once."""

import asyncio
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from aggregator.ingest.os_limits import (
    MOST_CONNECTIONS,
    SPARE_DESCRIPTORS,
    ListenError,
    connections_allowed,
    descriptor_warning,
    why_not,
)
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.tls import CertificateFiles, TlsError
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc
from tests.support import evidence as said
from tests.support.ingest import NOTHING, site
from tests.support.pki import Authority

INF = resource.RLIM_INFINITY


def test_grpc_is_not_loaded_before_it_is_told_how_to_listen(tmp_path: Path) -> None:
    """gRPC reads its environment once."""
    file = tmp_path / "aggregator.yaml"
    file.write_text(
        "listen: {grpc: '127.0.0.1:0', web: 'localhost:0'}\n"
        "alerts:\n  receivers:\n"
        "    - {name: a, webhook: {url: 'http://a/', secret_file: aggregator.yaml}}\n"
    )
    code = (
        "import sys; from pathlib import Path; from aggregator.daemon_cli import main\n"
        "main.load(Path(sys.argv[1]))\n"
        "print([name for name in sys.modules if name.startswith('grpc')])"
    )
    command = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_port_in_use_is_said_plainly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ListenError, match="another process listens there already"):
            async with site(address=address):
                pass


async def test_two_aggregators_do_not_share_a_port() -> None:
    async with site(address="127.0.0.1:0") as first:
        with pytest.raises(ListenError, match="another process listens there already"):
            async with site(address=f"127.0.0.1:{first.server.port}"):
                pass


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("192.0.2.1:8443", "this machine does not have that address"),
        ("no-such-host.invalid:8443", "no such host here"),
        ("unix:/no/such/folder/grpc.sock", "the folder of the socket must exist"),
        (f"unix:{__file__}", "a file that is not a socket is there already"),
    ],
)
async def test_an_address_that_cannot_be_had_says_why(address: str, says: str) -> None:
    with pytest.raises(ListenError, match=says) as refused:
        async with site(address=address):
            pass
    assert address in str(refused.value)


def test_a_port_that_is_free_again_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
    assert "free now" in why_not(address)


@pytest.mark.parametrize(
    ("limits", "warns"),
    [
        ((INF, INF), False),
        ((20_000, 20_000), False),
        ((1024, 1_048_576), False),  # raised to the needed number
        ((1024, INF), False),
        ((1024, 4096), True),
        ((10_000, 10_000), True),
    ],
)
def test_too_few_descriptors_are_warned_of(limits: tuple[int, int], warns: bool) -> None:  # noqa: FBT001
    warning = descriptor_warning(10_000, limits=limits)
    assert bool(warning) is warns
    if warns:
        assert f"{limits[1]} files" in warning
        assert str(10_000 + SPARE_DESCRIPTORS) in warning


def pair(folder: Path, **files: Path) -> CertificateFiles:
    authority = Authority.create(folder)
    made = authority.server("server", ["localhost"])
    return CertificateFiles(
        files.get("cert", made.certificate),
        files.get("key", made.key),
        files.get("ca", authority.certificate),
        stats=IngestStats(),
        now=lambda: 0.0,
        wall=time.time,
    )


def test_certificate_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    junk, gone = tmp_path / "junk", tmp_path / "gone"
    pair(tmp_path).credentials(require_client_certificate=False)
    foreign = Authority.create(tmp_path / "other").server("x", ["localhost"]).key
    for files, says in (
        ({"cert": junk}, "junk is no certificate in PEM"),
        ({"key": junk}, "junk is no private key in PEM"),
        ({"ca": junk}, "junk is no certificate in PEM"),
        ({"key": gone}, "gone can't be read: No such file"),
        ({"key": foreign}, "x.key is not the key of"),
    ):
        with pytest.raises(TlsError, match=says):
            pair(tmp_path, **files).credentials(require_client_certificate=False)


@pytest.mark.parametrize(
    ("soft", "allowed"),
    [(1024, 512), (4096, 4096 - SPARE_DESCRIPTORS), (INF, MOST_CONNECTIONS)],
)
def test_agents_connections_leave_files_for_everything_else(soft: int, allowed: int) -> None:
    assert connections_allowed(soft) == allowed


async def test_connections_beyond_the_limit_are_closed_and_one_that_leaves_makes_room() -> None:
    stack = ExitStack()
    async with site(connections=3) as running:
        where = ("localhost", running.server.port)

        async def is_served() -> bool:
            """HTTP/2 begins with the server's SETTINGS; a connection that is refused has none."""
            reader, writer = await asyncio.open_connection(*where)
            stack.callback(writer.close)
            try:
                return bool(await reader.read(64))
            except ConnectionError:
                return False

        assert [await is_served() for _ in range(3)] == [True] * 3
        assert not await is_served()
        stack.close()

        async def attached() -> bool:
            async with running.agent("node-1") as agent:
                try:
                    await agent.attend()
                except (AssertionError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return False
                return True

        for _ in range(600):  # the server takes a moment to see that they are gone
            if await attached():
                return
            await asyncio.sleep(0.05)
        pytest.fail("no connection was accepted after the others had left")


async def test_a_stampede_of_2000_agents_is_let_in_without_a_rejection() -> None:
    """Guards two arguments of grpc that are not public: with its defaults most are CANCELLED."""
    hello, full = pb.AgentMessage(), said.snapshot(NOTHING)
    hello.hello.CopyFrom(
        pb.Hello(boot_id="b", spool_epoch="e", agent_version="1", instance="i", contract_version=1)
    )
    async with site() as running:
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = f"localhost:{running.server.port}"
        channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(20)]
        calls = [
            sickbay_pb2_grpc.AgentGatewayStub(channels[n % len(channels)]).Connect()
            for n in range(2000)
        ]

        async def attend(
            n: int, call: "grpc.aio.StreamStreamCall[pb.AgentMessage, pb.AggregatorMessage]"
        ) -> None:
            told = pb.AgentMessage.FromString(hello.SerializeToString())
            told.hello.node = f"node-{n}"
            await call.write(told)
            await call.write(full)
            welcome, ack = await call.read(), await call.read()
            assert isinstance(welcome, pb.AggregatorMessage)
            assert isinstance(ack, pb.AggregatorMessage)
            assert (welcome.WhichOneof("body"), ack.ack.seq) == ("welcome", 1)

        await asyncio.gather(*(attend(n, call) for n, call in enumerate(calls)))
        assert running.stats.attached == running.stats.opened == 2000
        for channel in channels:
            await channel.close()
