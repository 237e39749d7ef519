"""A name server with the addresses that a test wants, as a cluster's DNS for a headless Service.

Listens on port 53 of an address in 127.0.0.0/8 of its own; ``resolving`` gives the words that run a
command which asks only this server, in a mount namespace of its own.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Self, cast

_PORT = 53
_A, _IN = 1, 1
_NO_ERROR, _NO_SUCH_NAME = 0, 3


class NameServer(asyncio.DatagramProtocol):
    """``names`` may change while it runs. Clients must not cache its answers (TTL 0)."""

    def __init__(self, names: dict[str, list[str]] | None = None) -> None:
        self.names = names or {}
        #: The names whose addresses were asked for, as they came.
        self.asked: list[str] = []
        self.address = f"127.53.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, (self.address, _PORT))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(self.answer(data), addr)

    def answer(self, query: bytes) -> bytes:
        """RFC 1035: the question again, and an A record for each address."""
        name, end = _name(query, 12)
        (kind,) = struct.unpack_from("!H", query, end)
        addresses = self.names.get(name.lower())
        if kind == _A:
            self.asked.append(name)
        records = addresses if addresses and kind == _A else []
        code = _NO_SUCH_NAME if addresses is None else _NO_ERROR
        head = query[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(records), 0, 0)
        found = b"".join(
            struct.pack("!HHHIH", 0xC00C, _A, _IN, 0, 4) + socket.inet_aton(address)
            for address in records
        )
        return head + query[12 : end + 4] + found

    def resolving(self, folder: Path) -> Sequence[str]:
        """Words to put before a command."""
        conf = folder / "resolv.conf"
        conf.write_text(f"nameserver {self.address}\noptions timeout:1 attempts:3 ndots:1\n")
        return (
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"',
            str(conf),
        )


def _name(packet: bytes, at: int) -> tuple[str, int]:
    """A name without compression, and where it ends."""
    labels = []
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    return ".".join(labels), at + 1
