"""TCP targets: names resolved in a child process, then one connection."""

import asyncio
import socket

from nodeagent.child_process import ChildProcess, python
from nodeagent.clock import Clock
from nodeagent.dataclass import dataclass
from nodeagent.sources.dns import UNREACHABLE, is_address

__all__ = ["Connection", "ResolveError", "Resolver", "connect", "resolve"]

_MOST_ADDRESSES = 4


class ResolveError(Exception):
    """A name that the resolver does not give an address for; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How a connection went. ``message`` is for people.

    ``reason`` is empty when it was made, else ``refused``, ``timeout``, ``unreachable`` or
    ``error``.
    """

    reason: str
    message: str


class Resolver:
    """Names to addresses. An answer is kept ``keep`` seconds, and longer while no new one comes.

    ``deadline`` (seconds) ends a look-up: its child is killed.
    """

    def __init__(self, clock: Clock, *, deadline: float = 5.0, keep: float = 300.0) -> None:
        self._clock = clock
        self._deadline = deadline
        self._keep = keep
        self._known: dict[str, tuple[float, tuple[str, ...]]] = {}

    async def addresses(self, host: str) -> tuple[str, ...]:
        """At least one address, the resolver's order. Raises ResolveError."""
        if is_address(host):
            return (host,)
        at, known = self._known.get(host, (0.0, ()))
        now = self._clock.boottime()
        if known and now - at < self._keep:
            return known
        try:
            fresh = await resolve(host, deadline=self._deadline)
        except ResolveError:
            if known:
                return known
            raise
        self._known[host] = (now, fresh)
        return fresh

    def doubt(self, host: str) -> None:
        """No host answered at its addresses: resolve it again in the next run."""
        at, known = self._known.get(host, (0.0, ()))
        self._known[host] = (at - self._keep, known)


async def resolve(host: str, *, deadline: float = 5.0) -> tuple[str, ...]:
    """The resolver's answer of this moment, at least one address. Raises ResolveError."""
    found: list[str] = []
    failures: list[str] = []

    def on_line(line: str) -> None:
        word, _, rest = line.partition(" ")
        (found if word == "address" else failures).append(rest)

    try:
        child = ChildProcess(python("resolve_child.py", host), on_line)
    except OSError as error:
        raise ResolveError(f"cannot start the resolver: {error.strerror}") from error
    await asyncio.wait([child.ended], timeout=deadline)
    if not child.ended.done():
        await child.close()
        raise ResolveError(f"the resolver gave no answer in {deadline:.0f} s")
    if not found:
        raise ResolveError(failures[-1] if failures else "no address")
    return tuple(found)


async def connect(
    addresses: tuple[str, ...], port: int, clock: Clock, *, deadline: float = 5.0
) -> Connection:
    """One TCP connection to the first address that takes it, closed at once.

    ``deadline`` (seconds) is for all addresses together, shared evenly.
    """
    tried = addresses[:_MOST_ADDRESSES]
    last = Connection("error", "no address")
    for address in tried:
        last = await _connect(address, port, clock, deadline / len(tried))
        if not last.reason:
            break
    return last


async def _connect(address: str, port: int, clock: Clock, deadline: float) -> Connection:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    begun = clock.boottime()
    where = f"{address} port {port}"
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            async with asyncio.timeout(deadline):
                await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except ConnectionRefusedError:
        return Connection("refused", f"{where} refuses: the host answers, the service does not")
    except TimeoutError:
        return Connection("timeout", f"{where} gave no answer in {deadline:.0f} s")
    except OSError as error:
        reason = "unreachable" if error.errno in UNREACHABLE else "error"
        return Connection(reason, f"{where}: {error.strerror}")
    taken = clock.boottime() - begun
    return Connection("", f"{where} answers in {taken * 1000:.1f} ms")
