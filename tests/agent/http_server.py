"""A small HTTP server on the loopback whose answers are a function, or raw bytes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """``headers`` by lower-case name."""

    method: str
    path: str
    headers: Mapping[str, str]


Answer = Callable[[Request], bytes]


def response(body: str | bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    raw = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(raw)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + raw


NOT_FOUND = response("", "404 Not Found")


@contextlib.asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """Gives the server's URL, without a path. With an empty answer the server hangs.

    At the end each connection is closed, so that no test leaves one.
    """
    writers: list[asyncio.StreamWriter] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *rest = head.rstrip().split("\r\n")
            method, path, _ = first.split(" ")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in rest)}
            out = answer(Request(method, path, headers))
            if out:
                writer.write(out)
                await writer.drain()
            else:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with server:
            yield f"http://127.0.0.1:{port}"
    finally:
        for writer in writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
