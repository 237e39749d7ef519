"""HTTP for this node alone: a unix socket, and a port for scrapers if one is configured.

Small on purpose: an HTTP library would cost the agent as much memory as gRPC does. One request a
connection, answered at once; a slow client is cut off.

The socket is 0600: only a person who may become root on the node may connect.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from nodeagent.dataclass import dataclass

log = logging.getLogger(__name__)

LARGEST_HEAD = 8 * 1024
LARGEST_BODY = 64 * 1024
PATIENCE = 5.0
CONNECTIONS = 32

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class AlreadyRunning(Exception):
    """Another live agent serves this node; the text states how it was seen."""


@dataclass(frozen=True, slots=True)
class LocalResponse:
    """A route's answer."""

    body: str
    status: int = 200
    content_type: str = "application/json"


def json_answer(content: object, status: int = 200) -> LocalResponse:
    return LocalResponse(json.dumps(content) + "\n", status)


#: Paths that need the token of `serve_port`; probes have none.
PROTECTED = frozenset({"/metrics"})
#: By method and path; the argument is the request's body.
Routes = dict[tuple[str, str], Callable[[bytes], Awaitable[LocalResponse]]]


class LocalServer:
    """Serves on the node. Call ``claim`` first: it keeps a second agent off this node."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._locks: list[int] = []
        self._path: Path | None = None
        self._connections = 0

    def claim(self, path: Path) -> None:
        """Take the socket's name for this process. Raises AlreadyRunning, or OSError.

        The lock decides between two agents that start at once; a socket that answers although the
        lock is free belongs to an agent that sees another lock file (another mount namespace).
        """
        self.claim_file(path)
        if _answers(path):
            raise AlreadyRunning(
                f"another agent runs on this node: it answers on {path}. Stop it first"
            )
        remove_socket(path)
        self._path = path

    def claim_file(self, path: Path) -> None:
        """Lock the file's name for this process. Raises AlreadyRunning, or OSError."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        self._locks.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(
                f"another agent runs on this node: it holds {path}.lock. Stop it first, or give "
                "this one its own socket, run_dir and state_dir"
            ) from None

    async def serve_socket(self, routes: Routes) -> None:
        """Answer ``routes`` on the claimed socket. Raises OSError."""
        assert self._path is not None
        listener = private_socket(self._path)
        serve = partial(self._serve, routes)
        self._servers.append(
            await asyncio.start_unix_server(serve, sock=listener, limit=LARGEST_HEAD)
        )

    async def serve_port(self, address: str, routes: Routes, token: Path | None = None) -> None:
        """Answer ``routes`` on ``host:port``: to any client; `PROTECTED` ones only with the bearer
        token in the file. Raises OSError.
        """
        host, _, port = address.rpartition(":")
        serve = partial(self._serve, routes, token=token)
        self._servers.append(
            await asyncio.start_server(
                serve, host.strip("[]") or None, int(port), limit=LARGEST_HEAD
            )
        )

    async def close(self) -> None:
        """Stop listening and give the name back."""
        for server in self._servers:
            server.close()
        if self._path is not None and self._servers:
            with contextlib.suppress(OSError):
                remove_socket(self._path)
        while self._locks:
            os.close(self._locks.pop())

    async def _serve(
        self,
        routes: Routes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        token: Path | None = None,
    ) -> None:
        self._connections += 1
        try:
            answer = await self._answer(routes, reader, token)
            body = answer.body.encode()
            head = (
                f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n"
                f"Content-Type: {answer.content_type}\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            async with asyncio.timeout(PATIENCE):
                writer.write(head.encode() + body)
                await writer.drain()
        except (OSError, TimeoutError):
            return  # the client has gone
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(
        self, routes: Routes, reader: asyncio.StreamReader, token: Path | None
    ) -> LocalResponse:
        if self._connections > CONNECTIONS:
            return json_answer({"error": "too many connections"}, 503)
        try:
            async with asyncio.timeout(PATIENCE):
                method, path, body, given = await _request(reader)
        except TimeoutError:
            return json_answer({"error": "the request took too long"}, 408)
        except asyncio.LimitOverrunError:
            return json_answer({"error": "the request's head is too large"}, 413)
        except (ValueError, asyncio.IncompleteReadError) as error:
            return json_answer({"error": f"no HTTP request: {error}"}, 400)
        route = routes.get((method, path))
        if route is None:
            known = sorted(" ".join(each) for each in routes)
            status = 405 if any(path == each for _, each in routes) else 404
            return json_answer({"error": f"no {method} {path}", "routes": known}, status)
        if token is not None and path in PROTECTED and not _is_token(given, token):
            return json_answer({"error": "expected Authorization: Bearer TOKEN"}, 401)
        try:
            return await route(body)
        except Exception as error:  # outermost edge: the client gets the error, the agent runs on
            log.exception("request %s %s failed", method, path)
            return json_answer({"error": f"{type(error).__name__}: {error}"}, 500)


def remove_socket(path: Path) -> None:
    """Remove a predecessor's socket. Raises OSError for a file, which no predecessor left."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "the path exists and is no socket", str(path))
    path.unlink()


def private_socket(path: Path) -> socket.socket:
    """A unix socket at ``path`` that its owner alone may connect to. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    return listener


def _is_token(given: str, file: Path) -> bool:
    """Whether it is the token in the file, which is read each time because it may rotate."""
    import hmac  # only agents with a token file need it

    try:
        expected = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("the token of metrics_token_file can't be read: %s", error)
        return False
    return bool(expected) and hmac.compare_digest(given.encode(), expected.encode())


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, bytes, str]:
    """Method, path, body and bearer token."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{version} is not supported")
    length, token = 0, ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            length = int(value)
        elif name.strip().lower() == "authorization":
            scheme, _, rest = value.strip().partition(" ")
            token = rest.strip() if scheme.lower() == "bearer" else ""
    if not 0 <= length <= LARGEST_BODY:
        raise ValueError(f"a body of {length} bytes")
    body = await reader.readexactly(length)
    return method, target.partition("?")[0], body, token


def _answers(path: Path) -> bool:
    """Whether a process accepts connections on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError as error:
            # A full backlog belongs to a process that lives.
            return isinstance(error, TimeoutError) or error.errno == errno.EAGAIN
    return True
