"""``sickbay-agent pod-prober``: the half of check ``pod-network`` that lives on the pod network.

An agent on the host's network can't see whether pods reach their services. This process runs in a
pod of its own, without privileges, and does not act by itself: it answers on a unix socket in a
folder of the host, which crosses network namespaces. A request is a line of JSON, ``{"names":
[NAME, ...], "targets": ["HOST:PORT", ...]}``, and the answer is one, ``{"names": {NAME: [REASON,
MESSAGE]}, "targets": {...}}``; an empty reason is success.
"""

import asyncio
import json
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from nodeagent import logs
from nodeagent.clock import Clock, SystemClock
from nodeagent.configfile.units import host_port
from nodeagent.local.server import private_socket, remove_socket
from nodeagent.sources.tcp_probe import ResolveError, Resolver, connect
from sickbay.json_text import read_json

log = logging.getLogger(__name__)

#: Requests at a time, and questions in one of them; far more than a node's own agent sends.
ASKERS = 4
MOST = 64
LARGEST = 64 * 1024
PATIENCE = 5.0

Findings = dict[str, list[str]]


def run(path: Path) -> int:
    """Answer on ``path`` until a signal stops it. Returns the exit code."""
    logs.start("info")
    try:
        asyncio.run(_run(path))
    except OSError as error:
        sys.stderr.write(f"{path}: can't be listened on: {error.strerror or error}\n")
        return 1
    return 0


async def _run(path: Path) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    server = await start(path, SystemClock())
    ours = _identity(path)
    log.info("pod prober ready", extra={"socket": str(path)})
    await stopping.wait()
    _give_back(path, ours)  # while it is open no other file has its number
    server.close()


async def start(path: Path, clock: Clock) -> asyncio.Server:
    """Listen. Raises OSError. A file that a killed predecessor left is replaced."""
    prober = _Prober(clock)
    return await asyncio.start_unix_server(prober.serve, sock=_listener(path), limit=LARGEST)


def _listener(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    remove_socket(path)
    return private_socket(path)  # only root may connect: the node's agent


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _give_back(path: Path, ours: tuple[int, int]) -> None:
    """Remove our socket, but not an object that has replaced it: a successor's socket, a file."""
    try:
        if _identity(path) == ours:
            path.unlink()
        else:
            text = "the prober's socket was not removed: another file has its place"
            log.warning(text, extra={"socket": str(path)})
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("the prober's socket can't be removed: %s", error)


class _Prober:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._requests += 1
        try:
            async with asyncio.timeout(PATIENCE):
                line = await reader.readline()
            writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
            async with asyncio.timeout(PATIENCE):
                await writer.drain()
        except (OSError, TimeoutError, ValueError) as error:
            log.warning("a client of the prober's socket was not answered: %s", error)
        finally:
            self._requests -= 1
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        if self._requests > ASKERS:
            return {"error": "too many requests at once"}
        try:
            names, targets = _parse(line)
        except (ValueError, TypeError) as error:
            return {"error": str(error)}
        # Resolve anew each time: a name known a minute ago is no evidence about the pods' resolver.
        resolver = Resolver(self._clock)
        found = await asyncio.gather(
            *(self._name(resolver, name) for name in names),
            *(self._target(resolver, *target) for target in targets.values()),
        )
        return {
            "names": dict(zip(names, found, strict=False)),
            "targets": dict(zip(targets, found[len(names) :], strict=True)),
        }

    async def _name(self, resolver: Resolver, name: str) -> list[str]:
        begun = self._clock.boottime()
        try:
            addresses = await resolver.addresses(name)
        except ResolveError as error:
            return ["unresolved", str(error)]
        took = self._clock.boottime() - begun
        return ["", f"{', '.join(addresses[:4])} in {took * 1000:.0f} ms"]

    async def _target(self, resolver: Resolver, host: str, port: int) -> list[str]:
        try:
            addresses = await resolver.addresses(host)
        except ResolveError as error:
            return ["unresolved", str(error)]
        connection = await connect(addresses, port, self._clock)
        return [connection.reason, connection.message]


def _parse(line: bytes) -> tuple[list[str], dict[str, tuple[str, int]]]:
    """Raises ValueError or TypeError."""
    request = read_json(line)
    if not isinstance(request, dict):
        raise TypeError("no question")
    names, targets = request.get("names", []), request.get("targets", [])
    for texts in (names, targets):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise TypeError("names and targets are lists of texts")
    if len(names) + len(targets) > MOST:
        raise ValueError(f"more than {MOST} questions")
    return list(dict.fromkeys(names)), {target: host_port(target) for target in targets}
