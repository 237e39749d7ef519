"""DNS: the packets, the verdicts, and servers on the loopback."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import dns
from nodeagent.clock import SystemClock
from nodeagent.model import Status
from nodeagent.sources.dns import nameservers, parse_nameservers, query, question, read_reply
from nodeagent.sources.host import HostRoots
from tests.agent.machines import built, made_up, observations, options, sources, verdicts
from tests.support.waiting import PATIENCE

OK = (Status.OK, "")
NOW = SystemClock().boottime
Answer = Callable[[bytes], bytes]


def says(code: int) -> Answer:
    """A server's answer without records, with a response code."""
    return lambda asked: asked[:2] + bytes([0x81, 0x80 | code]) + asked[4:]


class _Server(asyncio.DatagramProtocol):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.asked.append(data)
        if reply := self.answer(data):
            self.transport.sendto(reply, addr)


@contextlib.asynccontextmanager
async def serving(answer: Answer, port: int = 0) -> AsyncIterator[tuple[int, _Server]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(
        lambda: _Server(answer), ("127.0.0.1", port)
    )
    with closing(transport):
        yield transport.get_extra_info("sockname")[1], server


def with_servers(root: Path, *addresses: str) -> HostRoots:
    machine = made_up(root)
    lines = [f"nameserver {address}\n" for address in addresses]
    (root / "etc/resolv.conf").write_text("search a.example\n" + "".join(lines))
    return machine


def test_servers_of_resolv_conf() -> None:
    text = (
        "; by somebody\n# nameserver 1.1.1.1\nnameserver 10.0.0.2\n  nameserver\tfd00::53\n"
        "nameserver ns.example\nnameserver\nnameserver 10.0.0.2\nnameserver fe80::1%eth0\n"
        "nameserver 10.0.0.4\noptions ndots:5\n"
    )
    assert parse_nameservers(text) == ("10.0.0.2", "fd00::53", "fe80::1%eth0")
    assert parse_nameservers("") == ()


def test_a_pod_follows_the_hosts_link_below_its_root(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    stub = tmp_path / "run/systemd/resolve/stub-resolv.conf"
    stub.parent.mkdir(parents=True)
    stub.write_text("nameserver 127.0.0.53\n")
    for target in ("/run/systemd/resolve/stub-resolv.conf", "../run/systemd/resolve/" + stub.name):
        (tmp_path / "etc/resolv.conf").unlink(missing_ok=True)
        (tmp_path / "etc/resolv.conf").symlink_to(target)
        assert nameservers(machine) == ("127.0.0.53",)


def test_questions() -> None:
    head = bytes.fromhex("1234 0100 0001 0000 0000 0000")
    assert question("", 0x1234) == head + bytes.fromhex("00 0002 0001")
    assert question("a.example.", 0x1234) == head + b"\1a\7example\0" + bytes.fromhex("00010001")


@given(st.binary(max_size=64), st.integers(0, 65535))
def test_garbage_is_no_answer(packet: bytes, ident: int) -> None:
    code = read_reply(packet, ident)
    assert code is None or packet[:2] == ident.to_bytes(2, "big")


async def test_a_server_that_answers_and_one_that_is_not_there(tmp_path: Path) -> None:
    machine = with_servers(tmp_path, "127.0.0.1", "127.0.0.2")
    async with serving(says(5)) as (port, server):
        check = dns.Dns(machine, (), slow=2.0, port=port)
        report = await check.run_check()
        assert verdicts(report) == {
            "dns://127.0.0.1": OK,
            "dns://127.0.0.2": (Status.FAILED, "closed"),
        }
        assert [packet[12:] for packet in server.asked] == [bytes.fromhex("0000020001")]
        # A server that failed has the file read again.
        with_servers(tmp_path, "127.0.0.1")
        report = await check.run_check()
        assert verdicts(report) == {"dns://127.0.0.1": OK}


async def test_a_lost_packet_is_sent_again_and_a_strangers_answer_is_not_heard() -> None:
    lost = [b"", b"\0\0\x81\x80" + bytes(8)]

    def answer(asked: bytes) -> bytes:
        return lost.pop() if lost else says(0)(asked)

    async with serving(answer) as (port, server):
        reply = await query("127.0.0.1", "a.example", NOW, port=port, deadline=10, again=0.1)
        assert (reply.trouble, reply.code) == ("", "")
        assert len(server.asked) == 3
        assert len(set(server.asked)) == 1


async def test_a_silent_server_times_out() -> None:
    async with serving(lambda _: b"") as (port, _):
        reply = await query("127.0.0.1", "", NOW, port=port, deadline=0.3, again=0.1)
    assert (reply.trouble, reply.message) == ("timeout", "no answer in 0.3 s")


async def test_a_server_that_cannot_be_reached(tmp_path: Path) -> None:
    reply = await query("fe80::1%nothing", "", NOW)
    assert reply.trouble == "error"


async def test_names_as_programs_resolve_them(tmp_path: Path) -> None:
    check = built(
        dns.SPEC,
        sources(made_up(tmp_path)),
        options(dns.SPEC, names=("localhost", "nothing.invalid")),
    )
    report = await check.run_check()
    assert verdicts(report) == {
        "localhost": OK,
        "nothing.invalid": (Status.FAILED, "unresolved"),
    }
    assert observations(report)["localhost"].message.startswith(("127.0.0.1 in", "::1 in"))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for port 53")
async def test_the_usual_port(tmp_path: Path) -> None:
    machine = with_servers(tmp_path, "127.0.0.87")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.87", 53))
        sock.setblocking(False)
        check = built(dns.SPEC, sources(machine), options(dns.SPEC))
        checking = asyncio.create_task(check.run_check())
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE):
            asked, sender = await loop.sock_recvfrom(sock, 512)
            await loop.sock_sendto(sock, says(0)(asked), sender)
            assert verdicts(await checking) == {"dns://127.0.0.87": OK}
