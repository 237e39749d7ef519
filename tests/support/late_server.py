"""A TLS server on loopback whose last handshake comes late, and which records what arrives."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.pki import Authority


class LateServer:
    """``answers``: JSON by path, each given on a connection of its own. The connection that follows
    ``at_once`` answers waits in its handshake until `let_go`.
    """

    def __init__(self, answers: Mapping[str, Any], at_once: int) -> None:
        self.url, self.ca = "", Path()
        self.arrived: list[str] = []
        self.is_late = asyncio.Event()
        self.let_go = asyncio.Event()
        self._answers = answers
        self._at_once = at_once

    async def serve(self, taken: socket.socket, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            if len(self.arrived) >= self._at_once:
                self.is_late.set()
                await self.let_go.wait()
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, taken, ssl=tls)
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, _ = head.split("\r\n")[0].split(" ")
            self.arrived.append(f"{method} {target}")
            found = self._answers.get(target.partition("?")[0])
            status = b"404 Not Found" if found is None and method == "GET" else b"200 OK"
            body = json.dumps(found or {}).encode()
            writer.write(
                b"HTTP/1.1 "
                + status
                + b"\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body) + body
            )
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client sent nothing
        else:
            writer.close()


@asynccontextmanager
async def late_server(
    folder: Path, answers: Mapping[str, Any], at_once: int
) -> AsyncIterator[LateServer]:
    authority = Authority.create(folder / "pki")
    pair = authority.server("server", ("127.0.0.1",))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate, pair.key)
    made = LateServer(answers, at_once)
    made.ca = authority.certificate
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    made.url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    accepting = asyncio.create_task(_accept(listener, made, tls))
    try:
        yield made
    finally:
        made.let_go.set()
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        listener.close()


async def _accept(listener: socket.socket, server: LateServer, tls: ssl.SSLContext) -> None:
    async with asyncio.TaskGroup() as group:
        while True:
            taken, _ = await asyncio.get_running_loop().sock_accept(listener)
            group.create_task(server.serve(taken, tls))
