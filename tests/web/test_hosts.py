"""DNS rebinding: a web site whose name resolves to 127.0.0.1 reads no page on plain loopback."""

import asyncio
import socket
from pathlib import Path

import aiohttp
import pytest

from aggregator.demo.ports import free_port
from aggregator.web.hosts import AllowedHosts
from tests.support.aggregator_program import AGGREGATOR
from tests.support.fork_server import start_program
from tests.support.waiting import until
from tests.web.support import Hands, Served, running_clocks, serving, small_fleet

PATHS = ("/", "/nodes/node-1", "/api/v1/nodes", "/api/v1/stream", "/metrics", "/static/page.css")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST.:8080", True),
        ("sickbay.localhost:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("10.1.2.3", True),  # an address can't be rebound
        ("sickbay.example.org", True),
        ("Sickbay.Example.org.:443", True),
        (None, True),
        ("", False),
        ("rebound.example.com:8080", False),
        ("notlocalhost", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("sickbay.example.org.example.com", False),
        ("2130706433.example.com", False),
        ("[::1", True),
        ("[rebound.example.com]", False),
    ],
)
def test_which_names_are_answered(host: str | None, allowed: bool) -> None:  # noqa: FBT001
    assert AllowedHosts(["sickbay.example.org"]).allows(host) == allowed


async def status(served: Served, path: str, host: str) -> int:
    async with served.session.get(served.url + path, headers={"Host": host}) as response:
        return response.status


async def test_a_page_on_plain_loopback_answers_no_other_name() -> None:
    async with serving(small_fleet(Hands()), running_clocks()) as served:
        port = served.url.rpartition(":")[2]
        for path in PATHS:
            assert await status(served, path, f"rebound.example.com:{port}") == 421, path
            assert await status(served, path, f"localhost:{port}") in {200, 404}, path
        told = await served.json("/api/v1/nodes")  # by its address
        assert told["total"] > 0
        headers = {"Host": "<b>rebound</b>.example.com"}
        async with served.session.get(served.url, headers=headers) as response:
            text = await response.text()
        assert response.status == 421
        assert "listen.hosts" in text
        assert "<b>rebound" not in text
        metrics = await served.text("/metrics")
        assert 'status="421"' in metrics or 'code="421"' in metrics


async def test_a_name_that_the_configuration_allows_is_answered() -> None:
    fleet, name = small_fleet(Hands()), "sickbay.example.org"
    async with serving(fleet, running_clocks(), hosts=[name]) as served:
        assert await status(served, "/", name) == 200
        assert await status(served, "/", f"x.{name}") == 421


async def test_a_socket_and_an_address_of_the_network_are_asked_by_any_name(tmp_path: Path) -> None:
    """No browser reaches the one, and for the other the certificate names the server."""
    path = tmp_path / "page.sock"
    async with serving(small_fleet(Hands()), running_clocks(), address=f"unix:{path}"):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: any.example.com\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()
    async with serving(small_fleet(Hands()), running_clocks(), address="0.0.0.0:0") as served:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        async with served.session.get(url, headers={"Host": "any.example.com"}) as response:
            assert response.status == 200


CONFIG = """
mode: observe
cluster: {{kind: local, local: {{database: {folder}/cluster.db}}}}
listen: {{grpc: "unix:{folder}/grpc.sock", web: "127.0.0.1:{port}", hosts: [sickbay.example.org]}}
identity: {{kind: insecure-trust-hello}}
history: {{database: "sqlite:///{folder}/history.db"}}
"""


async def test_a_real_aggregator_goes_by_listen_hosts(tmp_path: Path) -> None:
    config, port = tmp_path / "aggregator.yaml", free_port()
    config.write_text(CONFIG.format(folder=tmp_path, port=port))
    with (tmp_path / "log").open("wb") as log:
        process = start_program(AGGREGATOR, ["--config", config], output=log)
    found: dict[str, int] = {}
    names = ("localhost", "sickbay.example.org", "rebound.example.com")
    try:
        await until(lambda: is_open(port), "the page")
        async with aiohttp.ClientSession() as session:
            for name in names:
                url, headers = f"http://127.0.0.1:{port}/api/v1/nodes", {"Host": name}
                async with session.get(url, headers=headers) as response:
                    found[name] = response.status
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 300)
    assert list(found.values()) == [200, 200, 421]


def is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
