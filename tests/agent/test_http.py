"""The agent's HTTP client against servers that are right, wrong, slow and mad."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.sources.http import HttpError, Response, Url, parse_url, request
from tests.agent.http_server import Request, response, serving

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;name=value\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:10248/healthz", Url("127.0.0.1", 10248, "/healthz")),
        ("http://169.254.169.254", Url("169.254.169.254", 80, "/")),
        ("http://localhost:1/a?b=c", Url("127.0.0.1", 1, "/a?b=c")),
        ("http://[fd00:ec2::254]/x", Url("fd00:ec2::254", 80, "/x")),
    ],
)
def test_urls(text: str, url: Url) -> None:
    assert parse_url(text) == url
    assert parse_url(str(url)) == url


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1/x",
        "https://127.0.0.1/x",
        "http://metadata.google.internal/",
        "http://127.0.0.1:99999/",
        "http:///x",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/a\r\nX: y",
    ],
)
def test_urls_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_url(text)


async def ask(answer: bytes, **how: float) -> Response:
    async with serving(lambda _: answer) as url:
        return await request(parse_url(url), deadline=how.get("deadline", 5.0), limit=1000)


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (response("ok"), 200, b"ok"),
        (response("no", "503 Service Unavailable"), 503, b"no"),
        (CHUNKED, 200, b"hello world"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    ],
)
async def test_every_way_to_send_a_body(answer: bytes, status: int, body: bytes) -> None:
    got = await ask(answer)
    assert (got.status, got.body) == (status, body)


async def test_what_is_asked_arrives() -> None:
    asked: list[Request] = []

    def answer(what: Request) -> bytes:
        asked.append(what)
        return response("x", ETag="abc")

    async with serving(answer) as url:
        got = await request(parse_url(url + "/a/b?c=d"), method="PUT", headers={"Metadata": "true"})
    assert got.headers["etag"] == "abc"
    assert (asked[0].method, asked[0].path) == ("PUT", "/a/b?c=d")
    assert asked[0].headers["metadata"] == "true"
    assert asked[0].headers["host"] == url.removeprefix("http://")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
        b"x" * 100_000,
    ],
)
async def test_what_is_no_http_is_garbled_and_bounded(answer: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        await ask(answer)
    assert caught.value.reason == "garbled"


@settings(max_examples=50, deadline=None)
@given(garbage=st.binary(min_size=1, max_size=200), with_head=st.booleans())
async def test_garbage_is_an_answer_or_an_error(garbage: bytes, with_head: bool) -> None:  # noqa: FBT001
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" if with_head else b""
    with contextlib.suppress(HttpError):
        await ask(head + garbage)


async def test_a_silent_server_is_a_timeout() -> None:
    with pytest.raises(HttpError) as caught:
        await ask(b"", deadline=0.2)
    assert caught.value.reason == "timeout"


async def test_nobody_there_is_refused(unused_tcp_port_factory: Callable[[], int]) -> None:
    with pytest.raises(HttpError) as caught:
        await request(Url("127.0.0.1", unused_tcp_port_factory(), "/"))
    assert caught.value.reason == "refused"
