"""Whether a gRPC server behind a unix socket is alive: HTTP/2's greeting, and no client.

A connection alone proves little: the kernel makes it for a server that has been stopped. A live
HTTP/2 server answers the client's preface with its SETTINGS frame before any request (RFC 9113,
section 3.4). So no request is made, no method is called and no API version matters.
"""

import asyncio
import errno
import socket
from pathlib import Path

__all__ = ["greet"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # an empty SETTINGS frame
_FRAME_HEAD = 9
_TYPE_SETTINGS = 4


async def greet(path: Path, deadline: float) -> tuple[str, str]:
    """Reason and message: ("", ...) when it answers.

    Reasons: ``missing`` (no such file), ``refused`` (no process listens), ``timeout`` (one does,
    and does not answer), ``garbled`` (the answer is no HTTP/2) and ``error``.
    """
    try:
        async with asyncio.timeout(deadline):
            head = await _greet(path)
    except TimeoutError:
        return "timeout", f"takes connections and gave no answer in {deadline:g} s"
    except FileNotFoundError:
        return "missing", "there is no such socket"
    except ConnectionRefusedError:
        return "refused", "no process listens at the socket"
    except BlockingIOError:
        return "timeout", "its queue of connections is full: it takes no more"
    except OSError as error:
        return "error", error.strerror or errno.errorcode.get(error.errno or 0, "error")
    if len(head) < _FRAME_HEAD or head[3] != _TYPE_SETTINGS:
        return "garbled", f"answered {head[:20]!r}, which is no gRPC"
    return "", "answers"


async def _greet(path: Path) -> bytes:
    """The first frame's head, or less where the server ended."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, str(path))
        await loop.sock_sendall(sock, _PREFACE + _SETTINGS)
        head = b""
        while len(head) < _FRAME_HEAD:
            more = await loop.sock_recv(sock, _FRAME_HEAD - len(head))
            if not more:
                break
            head += more
        return head
