"""The machine's limits that must hold before 10,000 agents can be served: an address,
descriptors.
"""

import errno
import resource
import socket
from pathlib import Path

#: Connections to the page at most, including event streams and other replicas' requests.
WEB_CONNECTIONS = 1_024
#: Connections of agents at most, however many files may be open.
MOST_CONNECTIONS = 100_000
#: Descriptors in addition to the streams: the page's connections, the API server, the database, the
#: rest.
SPARE_DESCRIPTORS = WEB_CONNECTIONS + 512


class ListenError(Exception):
    """The address can't be listened on; the text gives the reason and the next step."""

    def __init__(self, address: str) -> None:
        reason = why_not(address)
        super().__init__(f'can\'t listen on "{address}" (listen.grpc): {reason}')


def why_not(address: str) -> str:
    """Why binding to ``address`` fails, tried with a plain socket."""
    try:
        if address.startswith("unix:"):
            # Not bound for a trial, because that would take the place of a live socket.
            there = Path(address.removeprefix("unix:"))
            if there.exists() and not there.is_socket():
                return "a file that is not a socket is there already"
            return "the folder of the socket must exist and be writable"
        host, _, port = address.rpartition(":")
        family, kind, protocol, _, where = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
            trial.listen(1)
    except socket.gaierror as error:
        return f"no such host here: {error.strerror}"
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"another process listens there already (see: ss -ltnp 'sport = :{port}')"
        if error.errno == errno.EADDRNOTAVAIL:
            return "this machine does not have that address"
        return error.strerror or str(error)
    return "it was taken a moment ago and is free now: start again"


def connections_allowed(soft: int | None = None) -> int:
    """How many connections agents may have; the other descriptors are for all other files.

    ``soft``: files that may be open; the process's own limit unless given. Half of a small limit is
    kept free.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft is None else soft
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(soft // 2, soft - SPARE_DESCRIPTORS))


def descriptor_warning(
    streams: int,
    *,
    limits: tuple[int, int] | None = None,
) -> str:
    """Raise this process's soft limit to the need of ``streams``. Returns the problem, or "".

    A stream takes a file descriptor. ``limits`` (soft, hard) are the process's own unless given,
    and then the process's limit stays unchanged.
    """
    needed = streams + SPARE_DESCRIPTORS
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ""
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if limits is None and reachable > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    if reachable >= needed:
        return ""
    return (
        f"this process may open {reachable} files, enough for about "
        f"{max(0, reachable - SPARE_DESCRIPTORS)} agents; for {streams} raise its limit to "
        f"{needed} (LimitNOFILE= in a systemd unit, nofile in the container runtime)"
    )
