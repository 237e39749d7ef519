"""The kernel's knowledge of its own clock: adjtimex(2), read and never set.

The daemon that disciplines the clock (chronyd, ntpd, systemd-timesyncd) sets the clock's error in
the kernel. The kernel adds 500 parts per million as long as the daemon sets no newer one (RFC
5905's dispersion, ``ntp_update`` of the kernel); at 16 s it calls the clock unsynchronised. So no
request is needed.
"""

import os
import struct

from nodeagent.dataclass import dataclass

__all__ = ["Timex", "parse", "read_kernel"]

#: Bits of ``status`` in linux/timex.h.
_STA_UNSYNC = 0x0040
_STA_NANO = 0x2000
#: struct timex of 64-bit Linux: modes, offset, freq, maxerror, esterror, status.
_HEAD = struct.Struct("=I4xqqqqi")
#: struct timex is 208 bytes; a kernel that knows more fields has room to write them.
SIZE = 256


@dataclass(frozen=True, slots=True)
class Timex:
    """Seconds.

    ``offset`` is the correction that a daemon has left to the kernel (chronyd does not use it).
    """

    synchronised: bool
    offset: float
    max_error: float


def parse(raw: bytes) -> Timex:
    """Parses a struct timex. Raises ValueError when it is too short."""
    if len(raw) < _HEAD.size:
        raise ValueError(f"{len(raw)} bytes are no struct timex")
    _, offset, _, max_error, _, status = _HEAD.unpack_from(raw)
    unit = 1e-9 if status & _STA_NANO else 1e-6
    return Timex(not status & _STA_UNSYNC, offset * unit, max_error * 1e-6)


def read_kernel() -> bytes:
    """The running kernel's struct timex. Raises OSError."""
    import ctypes  # 0.3 MiB that only this check needs

    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(SIZE)  # modes 0 sets no field
    if libc.adjtimex(buffer) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw
