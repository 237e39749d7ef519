"""A remote filesystem in miniature: a FUSE process that answers statvfs, while it runs.

``python fuse_server.py POINT [ERRNO]`` mounts "fuse.sshfs" at POINT (root only, no libfuse) and
serves until it is killed; stopped by SIGSTOP it is a server that is away. With ERRNO the root can't
be read, while statvfs is answered. Protocol: linux/fuse.h, 7.31.
"""

import ctypes
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

INIT, GETATTR, STATFS, FORGET, INTERRUPT, BATCH_FORGET = 26, 3, 17, 2, 36, 42
ENOSYS = 38


class Filer(NamedTuple):
    """One that is mounted, as the fixture of this name gives it."""

    point: Path
    server: "subprocess.Popen[str]"

    def stop(self) -> None:
        """Returns when it is stopped: the kernel never gives up a request that it still took."""
        self.server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.server.pid, os.WSTOPPED)


def mount(point: str, file: int) -> None:
    options = f"fd={file},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"filer:/export", point.encode(), b"fuse.sshfs", 0, options):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")


def answer(opcode: int, refusal: int) -> tuple[int, bytes]:
    match opcode:
        case 26:  # INIT
            return 0, struct.pack("=IIIIHHII", 7, 31, 65536, 0, 12, 9, 65536, 1) + bytes(36)
        case 3 if refusal:
            return -refusal, b""
        case 3:  # GETATTR of the root
            attributes = struct.pack("=6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 0, 0)
            return 0, struct.pack("=QII", 0, 0, 0) + attributes
        case 17:  # STATFS
            return 0, struct.pack("=5Q4I24x", 1000, 600, 600, 100, 50, 4096, 255, 4096, 0)
        case _:
            return -ENOSYS, b""


def main(point: str, refusal: str = "0") -> None:
    file = os.open("/dev/fuse", os.O_RDWR)
    mount(point, file)
    print("mounted", flush=True)
    while True:
        try:
            request = os.read(file, 1 << 17)
        except OSError:
            return  # unmounted
        _, opcode, unique = struct.unpack_from("=IIQ", request)
        if opcode not in (FORGET, INTERRUPT, BATCH_FORGET):
            error, body = answer(opcode, int(refusal))
            os.write(file, struct.pack("=IiQ", 16 + len(body), error, unique) + body)


if __name__ == "__main__":
    main(*sys.argv[1:])
