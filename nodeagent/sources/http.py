"""One HTTP/1.1 request, for servers of the node and of its cloud: no redirects, no proxy, no TLS.

Addresses only, no names: a resolver blocks, and the servers queried here (a kubelet, a metadata
service) have a fixed address. The answer is bounded, whatever the server sends.
"""

import asyncio
from collections.abc import Mapping

from nodeagent.configfile.units import host_port
from nodeagent.dataclass import dataclass
from nodeagent.sources.dns import UNREACHABLE, is_address

__all__ = ["HttpError", "Response", "Url", "parse_url", "request"]

_MOST_HEAD = 32768


@dataclass(frozen=True, slots=True)
class Url:
    """``host`` is an address. ``path`` starts with a slash."""

    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"http://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"

    def at(self, path: str) -> "Url":
        """The same server, another path below this one."""
        return Url(self.host, self.port, self.path.rstrip("/") + path)


@dataclass(frozen=True, slots=True)
class Response:
    """Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpError(Exception):
    """No answer, or none that is HTTP. ``reason`` is one word, the text is for people.

    Reasons: ``refused``, ``timeout``, ``unreachable``, ``error`` (of the connection) and
    ``garbled`` (the answer is no HTTP, ends too early or is too long).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def parse_url(text: str) -> Url:
    """Parses "http://127.0.0.1:10248/healthz". Raises ValueError."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme != "http":
        raise ValueError(f'"{text}" is no http:// URL')
    authority, slash, path = rest.partition("/")
    if any(ord(char) <= 32 or ord(char) >= 127 for char in path):
        raise ValueError(f'"{text}" has a space or another character that belongs in no URL')
    has_port = ":" in authority.rpartition("]")[2]
    host, port = host_port(authority if has_port else f"{authority}:80")
    host = "127.0.0.1" if host == "localhost" else host
    if not is_address(host):
        raise ValueError(f'"{host}" is no address (names are not resolved here)')
    return Url(host, port, slash + path or "/")


def checked_url(text: str) -> str:
    """The text, where it is a URL. Raises ValueError."""
    parse_url(text)
    return text


async def request(
    url: Url,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    host: str = "",
    deadline: float = 5.0,
    limit: int | None = 65536,
) -> Response:
    """One request without a body, on a connection of its own. Raises HttpError.

    ``host`` is the server's name in the request, where that is not its address. ``deadline``
    (seconds) is for all of it, ``limit`` (bytes) for the answer's body; with None a body of any
    length is left unread.
    """
    try:
        async with asyncio.timeout(deadline):
            return await _exchange(url, method, headers or {}, host or url.authority, limit)
    except TimeoutError:
        message = f"{url.authority} gave no answer in {deadline:g} s"
        raise HttpError("timeout", message) from None
    except ConnectionRefusedError:
        raise HttpError("refused", f"{url.authority} refuses connections") from None
    except OSError as error:
        reason = "unreachable" if error.errno in UNREACHABLE else "error"
        what = error.strerror or str(error)
        raise HttpError(reason, f"{url.authority}: {what}") from error


async def _exchange(
    url: Url, method: str, headers: Mapping[str, str], host: str, limit: int | None
) -> Response:
    reader, writer = await asyncio.open_connection(url.host, url.port, limit=_MOST_HEAD)
    try:
        lines = [
            f"{method} {url.path} HTTP/1.1",
            f"Host: {host}",
            "Connection: close",
            "Accept: */*",
            "User-Agent: sickbay-agent",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        if method == "PUT":
            lines.append("Content-Length: 0")
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
        await writer.drain()
        return await _answer(reader, limit)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise HttpError(
            "garbled", f"{url.authority} sent an answer that is not HTTP: {error}"
        ) from None
    finally:
        # Abort instead of close and wait: the request is complete, and the server may never read.
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader, limit: int | None) -> Response:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *rest = head.rstrip("\r\n").split("\r\n")
    version, _, words = status_line.partition(" ")
    code = words[:3]
    if not version.startswith("HTTP/1.") or not code.isascii() or not code.isdigit():
        raise ValueError(repr(status_line[:60]))
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    body = b"" if limit is None else await _body(reader, headers, int(code), limit)
    return Response(int(code), headers, body)


async def _body(
    reader: asyncio.StreamReader, headers: Mapping[str, str], code: int, limit: int
) -> bytes:
    if code in (204, 304):
        return b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader, limit)
    length = headers.get("content-length")
    if length is not None:
        return await reader.readexactly(_size(length, 10, limit))
    body = b""  # it ends with the connection
    while len(body) <= limit:
        more = await reader.read(limit + 1 - len(body))
        if not more:
            return body
        body += more
    raise ValueError(f"more than {limit} bytes")


async def _chunks(reader: asyncio.StreamReader, limit: int) -> bytes:
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = _size(line.decode("latin-1").partition(";")[0].strip(), 16, limit - len(body))
        if not size:
            return body
        body += await reader.readexactly(size)
        await reader.readexactly(2)


def _size(text: str, base: int, limit: int) -> int:
    digits = "0123456789abcdef"[:base]
    if not text or len(text) > 16 or not set(text.lower()) <= set(digits):
        raise ValueError(f"{text[:20]!r} is no length")
    size = int(text, base)
    if size > limit:
        raise ValueError("more bytes than are wanted")
    return size
