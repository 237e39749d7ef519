"""Python's own TLS stays out of the agent's memory, until a plugin connects by it."""

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.site_package import install
from tests.support.pki import Authority
from tests.support.waiting import until

PLUGIN = """
import asyncio, os, ssl

from nodeagent.checks.base import CheckSpec
from nodeagent.model import Observation, Status

class Check:
    def __init__(self, sources, options): pass
    async def run_check(self):
        context = ssl.create_default_context(cafile=os.environ["SITE_CA"])
        port = int(os.environ["SITE_PORT"])
        _, writer = await asyncio.open_connection("localhost", port, ssl=context)
        writer.write(b"hello")
        await writer.drain()
        writer.close()
        return [Observation("site", "", Status.OK, "")]

texts = dict(sees="s", source="s", cost="c", blind_to="b")
SPEC = CheckSpec(name="site", **texts, interval=0.2, deadline=5.0, build=Check)
"""
PLUGGED = QUIET + '[own.site]\nentry_point = "site"\n'


@dataclass
class Site:
    """A server that speaks TLS, and what it has received."""

    port: int
    received: list[bytes] = field(default_factory=list)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    authority = Authority.create(tmp_path / "pki")
    pair = authority.server("site", ["localhost", "127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    made = Site(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.received.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    folder = install(tmp_path, "site_tls", PLUGIN, "site = site_tls:SPEC")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("SITE_CA", str(authority.certificate))
    monkeypatch.setenv("SITE_PORT", str(made.port))
    async with server:
        yield made


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    made = AgentProcess(tmp_path / "node")
    made.prefix = ["env"]  # a real start, which imports all that it needs
    yield made
    made.close()


def mapped(agent: AgentProcess) -> str:
    assert agent.process is not None
    return Path(f"/proc/{agent.process.pid}/maps").read_text()


async def test_a_running_agent_has_no_library_for_tls_besides_that_of_grpc(
    agent: AgentProcess,
) -> None:
    agent.aggregator = "127.0.0.1:1"
    await agent.start().up()
    await until(lambda: "cygrpc" in mapped(agent), what=agent.log())
    libraries = mapped(agent)
    assert "libssl" not in libraries
    assert "libcrypto" not in libraries


async def test_a_plugin_of_the_start_connects_by_tls_from_asyncio(
    agent: AgentProcess, site: Site
) -> None:
    agent.more = PLUGGED
    await agent.start().up()
    await until(lambda: site.received[:1] == [b"hello"], within=20, what=agent.log())


async def test_a_plugin_that_comes_by_a_reload_connects_by_tls_from_asyncio(
    agent: AgentProcess, site: Site
) -> None:
    await agent.start().up()
    assert "libssl" not in mapped(agent)
    agent.more = PLUGGED
    agent.write_config()
    assert agent.process is not None
    agent.process.send_signal(signal.SIGHUP)
    await until(lambda: site.received[:1] == [b"hello"], within=20, what=agent.log())
