"""The page's connections: idle ones give way, silent ones end, people are served all the while."""

import asyncio
import asyncio.sslproto
import gc
import resource
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aggregator.web.connections import ANSWER_WITHIN, HEADERS_WITHIN, TLS_BUFFER, ConnectionTable
from tests.support.pki import Authority
from tests.support.waiting import PATIENCE, no_collection, until
from tests.web.support import Hands, Served, serving, small_fleet

MOST = 8


@dataclass
class Idle:
    """A connection that sends no request, or only a part of one."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    @property
    def is_open(self) -> bool:
        return not self.reader.at_eof() and self.reader.exception() is None


@dataclass
class Crowd:
    """Connections by hand, which end with the test."""

    port: int
    made: list[Idle] = field(default_factory=list)

    async def idle(self, sent: bytes = b"") -> Idle:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.made.append(Idle(reader, writer))
        writer.write(sent)
        return self.made[-1]


@asynccontextmanager
async def crowded(hands: Hands, **how: object) -> AsyncIterator[tuple[Served, Crowd]]:
    clocks = hands.clocks()
    async with serving(small_fleet(hands), clocks, **how) as served:  # type: ignore[arg-type]
        crowd = Crowd(int(served.url.rpartition(":")[2]))
        try:
            yield served, crowd
        finally:
            for one in crowd.made:
                one.writer.close()


async def metric(served: Served, name: str) -> float:
    for line in (await served.text("/metrics")).splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(name)


async def test_the_page_answers_beside_more_idle_connections_than_may_be_open() -> None:
    async with crowded(Hands(), connections=MOST) as (served, crowd):
        opened = [await crowd.idle() for _ in range(3 * MOST)]
        assert await served.text("/healthz") == "ok\n"
        async with asyncio.timeout(PATIENCE):
            assert await opened[0].is_closed()
        assert await metric(served, "sickbay_web_connections") <= MOST
        ended = 'sickbay_web_connections_ended_total{reason="evicted"}'
        assert await metric(served, ended) >= 2 * MOST
        assert await metric(served, 'sickbay_web_connections_ended_total{reason="refused"}') == 0


async def test_a_connection_that_asks_nothing_is_closed_and_one_that_asks_stays() -> None:
    hands = Hands()
    async with crowded(hands) as (served, crowd):
        silent, slow = await crowd.idle(), await crowd.idle(b"GET /healthz HTT")
        asked = await crowd.idle(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await asked.reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        hands.advance(HEADERS_WITHIN - 1)
        assert await served.text("/healthz") == "ok\n"
        assert silent.is_open
        hands.advance(2)
        async with asyncio.timeout(PATIENCE):
            assert await silent.is_closed()
            assert await slow.is_closed()
        asked.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await asked.reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")


async def test_an_event_stream_outlasts_what_an_answer_may_take_and_gives_way_to_nobody() -> None:
    hands = Hands()
    async with crowded(hands, connections=MOST) as (served, crowd):
        stream = await crowd.idle(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await stream.reader.readuntil(b"event: hello")
        for _ in range(2 * MOST):
            await crowd.idle()
        hands.advance(2 * ANSWER_WITHIN)
        assert await served.text("/healthz") == "ok\n"
        await until(lambda: served.feed.streams == 1)
        assert stream.is_open


async def test_one_address_can_not_have_all_event_streams() -> None:
    async with crowded(Hands()) as (served, crowd):
        served.feed.most = 5
        request = b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
        answers = []
        for _ in range(5):
            one = await crowd.idle(request)
            answers.append((await one.reader.readline()).split()[1])
        assert answers == [b"200"] * 4 + [b"503"]
        assert served.feed.streams == 4


def certified(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The page's context, and that of a client which trusts it."""
    authority = Authority.create(folder)
    pair = authority.server("page", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    return context, ssl.create_default_context(cafile=str(authority.certificate))


async def test_a_tls_handshake_that_never_comes_takes_no_place_for_long(tmp_path: Path) -> None:
    """asyncio gives a handshake a minute and does not report it meanwhile."""
    context, trusting = certified(tmp_path)
    hands = Hands()
    async with crowded(hands, ssl=context, connections=MOST) as (served, crowd):
        silent = [await crowd.idle() for _ in range(2 * MOST)]
        url = served.url.replace("http:", "https:") + "/healthz"
        async with served.session.get(url, ssl=trusting) as answer:
            assert answer.status == 200
        async with asyncio.timeout(PATIENCE):
            assert await silent[0].is_closed()
        assert silent[-1].is_open
        hands.advance(HEADERS_WITHIN + 1)
        async with asyncio.timeout(PATIENCE):
            assert await silent[-1].is_closed()


def handshakes() -> int:
    """TLS connections in memory, ended ones included."""
    return sum(isinstance(one, asyncio.sslproto.SSLProtocol) for one in gc.get_objects())


#: A record's header, and no more of it.
HEADER = b"\x16\x03\x01\x02\x00"


@pytest.mark.parametrize(("sent", "most_kib"), [(b"", 16), (HEADER, 48)])
async def test_a_tls_connection_that_sends_no_request_costs_few_kilobytes(
    tmp_path: Path, sent: bytes, most_kib: int
) -> None:
    """Of Python's memory, and with this process's own end of it: asyncio's buffer is 256 KiB."""
    context, trusting = certified(tmp_path)
    count = 100
    async with crowded(Hands(), ssl=context) as (served, crowd):
        tracemalloc.start()
        try:
            for _ in range(count):
                await crowd.idle(sent)
            # Its answer comes after all of them were accepted.
            url = served.url.replace("http:", "https:") + "/healthz"
            async with served.session.get(url, ssl=trusting) as answer:
                assert answer.status == 200
            await until(lambda: not sent or handshakes() >= count)
            grown = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert grown / count < most_kib * 1024


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-secret\x01\r\n\r\n",
        b"GET /?code=a-secret x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 8\r\n\r\na-secret",
    ],
    ids=["header", "target", "body"],
)
async def test_a_request_that_is_no_http_is_answered_and_not_logged(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with crowded(Hands()) as (_, crowd):
        client = await crowd.idle(sent)
        answer = await client.reader.read()
    assert answer.split()[1].startswith(b"4")
    assert [one.message for one in caplog.records if one.name.startswith("aiohttp")] == []


@pytest.mark.parametrize("sent", [HEADER, b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_tls_handshake_that_fails_leaves_no_garbage(tmp_path: Path, sent: bytes) -> None:
    """A client that opens thousands would fill the memory until the next collection."""
    context, _ = certified(tmp_path)
    async with crowded(Hands(), ssl=context) as (_, crowd):
        with no_collection():
            for _ in range(10):
                one = await crowd.idle(sent)
                if sent == HEADER:
                    await until(lambda: handshakes() == 1)
                    one.writer.close()
                assert await one.is_closed()
                await until(lambda: handshakes() == 0, within=10)


async def test_a_tls_handshake_that_is_overdue_leaves_no_garbage(tmp_path: Path) -> None:
    context, _ = certified(tmp_path)
    hands = Hands()
    async with crowded(hands, ssl=context) as (_, crowd):
        with no_collection():
            opened = [await crowd.idle(HEADER) for _ in range(10)]
            await until(lambda: handshakes() == len(opened))
            hands.advance(HEADERS_WITHIN + 1)
            async with asyncio.timeout(PATIENCE):
                for one in opened:
                    assert await one.is_closed()
            await until(lambda: handshakes() == 0, within=10)


async def test_a_stop_waits_for_no_client_to_end_its_tls(tmp_path: Path) -> None:
    context, trusting = certified(tmp_path)
    async with crowded(Hands(), ssl=context) as (served, crowd):

        def asks_and_reads_no_more() -> ssl.SSLSocket:
            plain = socket.create_connection(("127.0.0.1", crowd.port))
            found = trusting.wrap_socket(plain, server_hostname="127.0.0.1")
            found.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            found.recv(1)
            return found

        with await asyncio.to_thread(asks_and_reads_no_more):
            await served.web.close()
            for _ in range(5):  # turns of the loop
                await asyncio.sleep(0)
            assert served.web._connections.count == 0


async def test_a_tls_request_larger_than_the_buffer_is_answered(tmp_path: Path) -> None:
    context, trusting = certified(tmp_path)
    async with crowded(Hands(), ssl=context) as (served, _):
        url = served.url.replace("http:", "https:") + "/healthz"
        for _ in range(3):
            body = b"x" * (5 * TLS_BUFFER)
            async with served.session.get(url, data=body, ssl=trusting) as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")


async def test_thousands_of_idle_connections_leave_files_to_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4_096 if hard == resource.RLIM_INFINITY else min(hard, 4_096)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    async with crowded(Hands(), connections=200) as (served, crowd):
        for _ in range(1_500):
            await crowd.idle()
        assert await served.text("/healthz") == "ok\n"
        assert await metric(served, "sickbay_web_connections") <= 200


def test_of_the_idle_the_address_with_the_most_gives_way_first() -> None:
    """A flood from one address closes its own connections, and no other's."""
    now = [0.0]
    table = ConnectionTable(lambda: now[0], most=4)
    for name, address in (("early", "a"), ("1", "flood"), ("2", "flood"), ("busy", "flood")):
        now[0] += 1
        assert table.add(name, address) is not None
    table.begin("busy")
    assert table.add("3", "flood") is not None
    table.end("busy")
    table.begin("early")
    table.begin("2")
    table.begin("3")
    assert table.add("4", "flood") is not None  # in the place of the one that was busy
    table.begin("4")
    assert table.add("5", "b") is None
    assert table.ended == {"evicted": 2, "refused": 1}
    table.end("2")
    assert table.add("5", "b") is not None
    assert table.count == 4
