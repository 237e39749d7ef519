"""A port for a server that another process starts later."""

import contextlib
import secrets
import socket

#: Those that this process was given: their servers may not listen yet.
_given: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """A port to listen on later; ``host`` "0.0.0.0": free on every address of this machine.

    It is below those that Linux gives away by itself (from 32768 on). So no other program takes it
    before ours starts, or between two starts of ours. No call gives it again. Raises OSError.
    """
    for _ in range(100):
        number = secrets.choice(range(10_240, 32_768))
        if number in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, number))
            _given.add(number)
            return number
    raise OSError(f"no port of {host} is free from 10240 to 32767")
