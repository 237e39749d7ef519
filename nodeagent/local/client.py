"""Send requests to the running agent over its unix socket. No HTTP library: a prolog pays for each
import.
"""

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sickbay.json_text import read_json

_REFUSED = 400
_LARGEST = 32 * 1024 * 1024


class NoAgent(Exception):
    """No process listens on the socket; the text states what was found."""


class RequestRefused(Exception):
    """The agent understood the request and refuses it; the text is the reason."""


class AgentTrouble(Exception):
    """A process listens and gives no usable answer. ``reason`` is one word ("hung", ...)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def get_json(path: Path, resource: str, timeout: float) -> Any:
    """GET ``resource`` from the agent that listens on ``path``, within ``timeout`` seconds.

    Raises NoAgent, or AgentTrouble when it listens and gives no valid answer in time.
    """
    return _decoded(_request(path, "GET", resource, b"", timeout), path)


def post_json(path: Path, resource: str, order: Mapping[str, object], timeout: float) -> Any:
    """POST ``order``; the agent's answer. Raises as ``get_json`` does, and RequestRefused."""
    body = json.dumps(order).encode()
    return _decoded(_request(path, "POST", resource, body, timeout), path)


def _request(path: Path, method: str, resource: str, body: bytes, timeout: float) -> bytes:
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connect(connection, path, timeout)
        try:
            return _exchange(connection, f"{method} {resource}", body, deadline)
        except TimeoutError:
            raise AgentTrouble(
                "hung", f"the agent on {path} took the question and gave no answer in {timeout:g} s"
            ) from None
        except OSError as error:
            raise AgentTrouble("broken", f"the agent on {path} hung up: {error}") from None


def _connect(connection: socket.socket, path: Path, timeout: float) -> None:
    connection.settimeout(timeout)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise NoAgent(f"there is no {path}") from None
    except ConnectionRefusedError:
        raise NoAgent(f"no process listens on {path}") from None
    except PermissionError:
        raise AgentTrouble("no-permission", f"{path} may not be opened by this user") from None
    except (TimeoutError, BlockingIOError):
        raise AgentTrouble("hung", f"the agent on {path} takes no connection") from None
    except OSError as error:
        raise AgentTrouble("broken", f"{path} can't be used: {error}") from None


def _exchange(connection: socket.socket, what: str, body: bytes, deadline: float) -> bytes:
    # HTTP/1.0: the answer is neither chunked nor kept alive, so its end is the connection's.
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    head = f"{what} HTTP/1.0\r\nHost: localhost\r\n{length}Connection: close\r\n\r\n"
    connection.sendall(head.encode("ascii") + body)
    received = bytearray()
    end: int | None = None
    while len(received) < _LARGEST and (end is None or len(received) < end):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        chunk = connection.recv(65536)
        if not chunk:
            break
        received += chunk
        end = end or _end(received)
    return bytes(received)


def _end(received: bytearray) -> int | None:
    """Where the answer ends, once its header with a Content-Length is there."""
    head = received.find(b"\r\n\r\n")
    if head < 0:
        return None
    for line in bytes(received[:head]).split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return head + 4 + int(value)
    return None


def _decoded(raw: bytes, path: Path) -> Any:
    head, _, body = raw.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if len(status) < 2 or not status[0].startswith(b"HTTP/") or not status[1].isdigit():
        raise AgentTrouble("broken", f"the process that listens on {path} is no sickbay agent")
    code = int(status[1])
    if code not in (200, _REFUSED):
        raise AgentTrouble("broken", f"the agent on {path} answered {code}")
    try:
        answer = read_json(body)
    except ValueError:
        raise AgentTrouble("broken", f"the agent on {path} gave no valid JSON") from None
    if code == _REFUSED:
        why = answer.get("error") if isinstance(answer, dict) else None
        raise RequestRefused(str(why or "the agent gave no reason"))
    return answer
