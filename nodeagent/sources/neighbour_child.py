"""The program that queries the kernel for a neighbour: ``neighbour_child.py ADDRESS INDEX SECONDS``

A process of its own, because kernels before 6.15 answer this question under the lock that a
network driver holds while its firmware hangs. Output: a line ``state NAME`` at each change (the
kernel's NUD states, or ``absent``), or ``failed MESSAGE``. Ends when the neighbour is reachable or
known to have failed, or after SECONDS.
"""

import _socket
import posix
import sys
import time

_RTM_GETNEIGH, _RTM_NEWNEIGH, _NLMSG_ERROR = 30, 28, 2
_NLM_F_REQUEST = 1
_NDA_DST = 1
_ENOENT = 2
_HEADER, _NDMSG = 16, 12  # sizes of nlmsghdr and ndmsg
_STATES = {
    0x00: "absent",
    0x01: "incomplete",
    0x02: "reachable",
    0x04: "stale",
    0x08: "delay",
    0x10: "probe",
    0x20: "failed",
    0x40: "noarp",
    0x80: "permanent",
}
_LAST = ("reachable", "failed", "noarp", "permanent")
_PAUSE = 0.25


def question(address: str, index: int) -> bytes:
    """The netlink message that requests one neighbour of one interface."""
    family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    packed = _socket.inet_pton(family, address)
    body = bytes([family, 0, 0, 0]) + _int(index, 4) + bytes(4)
    body += _int(4 + len(packed), 2) + _int(_NDA_DST, 2) + packed
    header = _int(_HEADER + len(body), 4) + _int(_RTM_GETNEIGH, 2) + _int(_NLM_F_REQUEST, 2)
    return header + _int(1, 4) + _int(0, 4) + body


def read_reply(reply: bytes) -> str:
    """The state's name. Raises OSError for what the kernel refuses (before Linux 5.0: all)."""
    kind = int.from_bytes(reply[4:6], sys.byteorder)
    if kind == _RTM_NEWNEIGH and len(reply) >= _HEADER + _NDMSG:
        state = int.from_bytes(reply[24:26], sys.byteorder)
        return _STATES.get(state, f"{state:#x}")
    if kind == _NLMSG_ERROR and len(reply) >= _HEADER + 4:
        code = -int.from_bytes(reply[16:20], sys.byteorder, signed=True)
        if code == _ENOENT:
            return "absent"
        raise OSError(code, posix.strerror(code))
    raise OSError(0, f"netlink message of type {kind}")


def _int(number: int, size: int) -> bytes:
    return number.to_bytes(size, sys.byteorder)


def main(address: str, index: str, seconds: str) -> None:
    end = time.monotonic() + float(seconds)
    netlink = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, _socket.NETLINK_ROUTE)
    message, last_state = question(address, int(index)), ""
    while True:
        try:
            netlink.send(message)
            state = read_reply(netlink.recv(8192))
        except OSError as error:
            sys.stdout.write(f"failed {error.args[-1]}\n")
            return
        if state != last_state:
            sys.stdout.write(f"state {state}\n")
            sys.stdout.flush()
            last_state = state
        if state in _LAST or time.monotonic() >= end:
            return
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
