"""DNS servers: those of ``/etc/resolv.conf``, and one question to one of them (RFC 1035, UDP)."""

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Callable

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots

__all__ = ["Reply", "nameservers", "parse_nameservers", "query", "question", "read_reply"]

_MOST_SERVERS = 3  # the resolver reads no more (MAXNS, resolv.conf(5))
_TYPE_A, _TYPE_NS, _CLASS_IN = 1, 2, 1
_RECURSE = 0x0100
_LONGEST = 65535
_RCODES = {1: "format-error", 2: "servfail", 3: "no-such-name", 4: "not-implemented", 5: "refused"}
#: Errors of a connection to a host to which no way leads.
UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


@dataclass(frozen=True, slots=True)
class Reply:
    """``trouble`` is empty when there was an answer, else ``timeout``, ``unreachable``, ``closed``
    (no process listens) or ``error``. ``code`` is the answer's word: "" is success. ``seconds`` is
    the time that it took.
    """

    trouble: str
    code: str
    seconds: float
    message: str


def nameservers(machine: HostRoots) -> tuple[str, ...]:
    """The addresses that the host's resolver queries. Raises OSError."""
    path = machine.host("/etc/resolv.conf")
    if path.is_symlink() and (target := path.readlink()).is_absolute():
        path = machine.host(str(target))  # and not that path of the pod
    return parse_nameservers(path.read_text(encoding="utf-8", errors="replace"))


def parse_nameservers(text: str) -> tuple[str, ...]:
    """The addresses in resolv.conf(5), each once, in order. Invalid ones are left out, as there."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        word, *rest = line.split() or [""]
        if word == "nameserver" and rest and is_address(rest[0]):
            found[rest[0]] = None
    return tuple(found)[:_MOST_SERVERS]


def is_address(text: str) -> bool:
    """Whether it is an IP address, and no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def question(name: str, ident: int) -> bytes:
    """A packet that requests the addresses of ``name``; empty: for the root's name servers.

    Raises ValueError for a text that cannot be a name.
    """
    labels = [label.encode("idna") for label in name.rstrip(".").split(".")] if name else []
    if any(not 0 < len(label) < 64 for label in labels):
        raise ValueError(f"{name!r} is no host name")
    encoded = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    kind = _TYPE_A if name else _TYPE_NS
    counts = b"\0\1" + bytes(6)
    head = ident.to_bytes(2, "big") + _RECURSE.to_bytes(2, "big") + counts
    return head + encoded + kind.to_bytes(2, "big") + _CLASS_IN.to_bytes(2, "big")


def read_reply(packet: bytes, ident: int) -> str | None:
    """The answer's word, "" for success, or None when it answers another question."""
    if len(packet) < 12 or packet[:2] != ident.to_bytes(2, "big") or not packet[2] & 0x80:
        return None
    code = packet[3] & 0xF
    return "" if code == 0 else _RCODES.get(code, f"code-{code}")


async def query(
    server: str,
    name: str,
    clock: Callable[[], float],
    *,
    port: int = 53,
    deadline: float = 5.0,
    again: float = 2.0,
) -> Reply:
    """One question, sent anew every ``again`` seconds, for packets get lost. Never raises.

    ``clock`` gives seconds.
    """
    begun = clock()
    try:
        code = await _exchange(server, name, port, deadline, again)
    except TimeoutError:
        return Reply("timeout", "", deadline, f"no answer in {deadline:g} s")
    except ConnectionRefusedError:
        return Reply(
            "closed", "", clock() - begun, "the host answers, and no DNS server runs on it"
        )
    except OSError as error:
        trouble = "unreachable" if error.errno in UNREACHABLE else "error"
        return Reply(trouble, "", clock() - begun, error.strerror or str(error))
    taken = clock() - begun
    return Reply("", code, taken, f"answers in {taken * 1000:.1f} ms")


async def _exchange(server: str, name: str, port: int, deadline: float, again: float) -> str:
    loop = asyncio.get_running_loop()
    address, _, zone = server.partition("%")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # A port of the kernel's choice and a random number, so that no other host can forge the answer.
    ident = int.from_bytes(os.urandom(2), "big")
    packet = question(name, ident)
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        scope = socket.if_nametoindex(zone) if zone else 0
        sock.connect((address, port) if family == socket.AF_INET else (address, port, 0, scope))
        async with asyncio.timeout(deadline):
            while True:
                sock.send(packet)
                try:
                    async with asyncio.timeout(again):
                        while (
                            code := read_reply(await loop.sock_recv(sock, _LONGEST), ident)
                        ) is None:
                            pass
                except TimeoutError:
                    continue
                return code
