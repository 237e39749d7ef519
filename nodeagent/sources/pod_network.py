"""Requests to the prober that runs on the pod network. See `nodeagent.pod_prober`."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodeagent.dataclass import dataclass

__all__ = ["NoProber", "ProberError", "ProberReply", "query"]

_LARGEST = 256 * 1024


class NoProber(Exception):
    """No prober listens: it is not installed, or its pod is away. The text states which was
    seen.
    """


class ProberError(Exception):
    """A prober listens and gives no usable answer. ``reason`` is one word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ProberReply:
    """For each name and target: reason (empty: it works) and message."""

    names: Mapping[str, tuple[str, str]]
    targets: Mapping[str, tuple[str, str]]


async def query(
    path: Path, names: Sequence[str], targets: Sequence[str], *, deadline: float
) -> ProberReply:
    """The names and targets that work from the pod network.

    ``targets`` are "host:port", ``deadline`` is in seconds.

    Raises NoProber or ProberError (``hung``, ``error``, ``garbled``).
    """
    question = json.dumps({"names": list(names), "targets": list(targets)}).encode() + b"\n"
    try:
        async with asyncio.timeout(deadline):
            line = await _exchange(path, question)
    except TimeoutError:
        raise ProberError("hung", f"the prober gave no answer in {deadline:g} s") from None
    except (FileNotFoundError, NotADirectoryError):
        raise NoProber(f"there is no {path}") from None
    except ConnectionRefusedError:
        raise NoProber(f"no process listens on {path}") from None
    except (OSError, ValueError) as error:
        raise ProberError("error", f"the prober's socket: {error}") from None
    return _parse(line, names, targets)


async def _exchange(path: Path, question: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path, limit=_LARGEST)
    try:
        writer.write(question)
        await writer.drain()
        return await reader.readline()
    finally:
        writer.transport.abort()


def _parse(line: bytes, names: Sequence[str], targets: Sequence[str]) -> ProberReply:
    try:
        reply = json.loads(line)
        if "error" in reply:
            raise ProberError("error", f"the prober: {reply['error']}")
        return ProberReply(_chosen(reply["names"], names), _chosen(reply["targets"], targets))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ProberError("garbled", f"the prober answered {line[:40]!r}") from None


def _chosen(reply: Mapping[str, Sequence[str]], keys: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The answers to the questions sent, and no others."""
    found = {}
    for key in keys:
        reason, message = reply[key]
        found[key] = (str(reason), str(message))
    return found
