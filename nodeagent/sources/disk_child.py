"""The program that touches the devices: ``python -I -S disk_child.py``

Standard input, a line for each job: ``N WHAT PATH``, PATH in hexadecimal digits. The kind WHAT is
``space``, ``write``, ``nvme`` (PATH is a controller's device file), ``module`` (PATH is a network
interface) or ``files`` (PATH is several, with a tab between). It ends when its input has ended and
all jobs are done.

It imports nothing beyond the interpreter's own built-in modules: its start is 8 ms of CPU, and one
that is kept for further jobs takes 3 MiB. Each job has a thread, so that one that hangs holds up no
other; a process with a hung thread cannot end, and that is its parent's to report.

Output, a line each, N the job's number: ``N at TID`` when begun; then ``N space
SIZE USED FREE INODES INODES_FREE`` (bytes; FREE without root's reserve), ``N written
MICROSECONDS``, ``N differs`` (read back other bytes), ``N busy`` (another probe holds the file),
``N page HEX`` (the drive's health log, a transceiver's memory), ``N files`` and for each file its
text as ``=HEX`` or the error as ``!ERRNO``; or ``N refused ERRNO STEP``;
or ``N failed ERROR``.
"""

import _thread
import posix
import sys
import time

NAME = b".sickbay-write-probe"
_SIZE = 4096
_READ = 65536
_BUSY = (11, 13)  # EAGAIN, EACCES: another process holds the lock
_ENOSPC = 28
_EEXIST = 17
_EIO = 5
_REGULAR = 0o100000
_NVME_ADMIN_CMD = 0xC0484E41  # _IOWR('N', 0x41, 72 bytes)
_GET_LOG_PAGE, _HEALTH, _WHOLE_CONTROLLER = 0x02, 0x02, 0xFFFFFFFF
_PAGE, _SENT = 512, 192
_NVME_TIMEOUT_MS = 5000
_MOST_OF_A_FILE = 64
_NETLINK_GENERIC, _NLM_F_REQUEST, _NLMSG_ERROR = 16, 1, 2
_MODULE_EEPROM_GET, _MODULE_PAGE = 31, 128
_QSFP = (0x04, ((0, 128, 0x50), (3, 128, 0x50)))
_CMIS = (0x80, ((0, 128, 0x50), (2, 128, 0x50), (17, 128, 0x50)))
#: By the first byte of a transceiver's memory (SFF-8024): the bit of byte 2 that means that it has
#: no further pages, and these: page, offset, address.
_MODULE_PAGES = {
    0x03: (0, ((0, 0, 0x51),)),
    **dict.fromkeys((0x0C, 0x0D, 0x11), _QSFP),
    **dict.fromkeys((0x18, 0x19, 0x1B, 0x1E), _CMIS),
}


class _RefusedError(Exception):
    """A system call failed: its errno and the step of the probe."""


class _Step:
    """Names the step of the probe that a failing system call belongs to."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise _RefusedError(error.errno, self._name) from error


def _write_line(line: str) -> None:
    posix.write(1, line.encode("ascii") + b"\n")  # one write below PIPE_BUF is never torn


def space(path: bytes) -> str:
    """Space and inodes, as df counts them, of a filesystem that still reads its root.

    XFS that has shut down after an error still counts, and so may others.
    """
    with _Step("statvfs"):
        fs = posix.statvfs(path)
    with _Step("stat"):
        try:  # noqa: SIM105  contextlib costs memory
            posix.stat(path)
        except PermissionError:
            pass  # a user's own FUSE
    unit = fs.f_frsize or fs.f_bsize
    used = (fs.f_blocks - fs.f_bfree) * unit
    return f"space {fs.f_blocks * unit} {used} {fs.f_bavail * unit} {fs.f_files} {fs.f_favail}"


def write(directory: bytes) -> str:
    """Write 4 KiB, fsync, read back, unlink."""
    path = directory.rstrip(b"/") + b"/" + NAME
    began = time.monotonic()
    with _Step("open"):
        file = _open(path)
    try:
        verdict = _write_and_read(file, path)
    finally:
        posix.close(file)
    return verdict or f"written {int((time.monotonic() - began) * 1e6)}"


def _open(path: bytes) -> int:
    # Without O_CREAT first: on a frozen filesystem creating hangs, and a file that an earlier hung
    # probe left can still be opened and found locked. So a new agent adds no second hung process.
    flags = posix.O_RDWR | posix.O_NOFOLLOW | posix.O_CLOEXEC | posix.O_NONBLOCK
    try:
        return posix.open(path, flags)
    except FileNotFoundError:
        return posix.open(path, flags | posix.O_CREAT, 0o600)


def _write_and_read(file: int, path: bytes) -> str:
    found = posix.fstat(file)
    regular = found.st_mode & 0o170000 == _REGULAR
    if not regular or found.st_nlink > 1 or found.st_uid != posix.geteuid():
        raise _RefusedError(_EEXIST, "open")  # never write into a file that is not ours
    with _Step("lock"):
        if not _lock(file):
            return "busy"
    sent = posix.urandom(_SIZE)
    try:
        with _Step("write"):
            _write_all(file, sent)
        with _Step("fsync"):
            posix.fsync(file)
        # Drop the page cache, or the read would not prove that the device works.
        with _Step("read"):
            posix.posix_fadvise(file, 0, 0, posix.POSIX_FADV_DONTNEED)
            back = posix.pread(file, _SIZE, 0)
    except _RefusedError:
        _unlink(path)
        raise
    refused = _unlink(path)
    if back != sent:
        return "differs"
    if refused is not None:
        raise _RefusedError(refused, "unlink")
    return ""


def _lock(file: int) -> bool:
    """Whether it could be locked within a second: a healthy probe holds it for milliseconds."""
    for _ in range(20):
        try:
            posix.lockf(file, posix.F_TLOCK, 0)
        except OSError as error:
            if error.errno not in _BUSY:
                raise
            time.sleep(0.05)
        else:
            return True
    return False


def _write_all(file: int, sent: bytes) -> None:
    if posix.pwrite(file, sent, 0) != len(sent):
        raise OSError(_ENOSPC, "a short write: those were the last free bytes")


def _unlink(path: bytes) -> int | None:
    try:
        posix.unlink(path)
    except FileNotFoundError:  # another probe, waiting for the same file, was quicker
        return None
    except OSError as error:
        return error.errno
    return None


def nvme(device: bytes) -> str:
    """The beginning of the health log (page 2 of the whole controller)."""
    # Modules that are files: only where there is such a drive.
    import array
    import fcntl
    import struct

    page = array.array("B", bytes(_PAGE))
    # struct nvme_passthru_cmd of linux/nvme_ioctl.h; its size is in the request's number.
    command = bytearray(
        struct.pack(
            "=BBHIIIQQII6III",
            *(_GET_LOG_PAGE, 0, 0, _WHOLE_CONTROLLER, 0, 0),
            *(0, page.buffer_info()[0], 0, _PAGE),
            *((_PAGE // 4 - 1) << 16 | _HEALTH, 0, 0, 0, 0, 0),
            *(_NVME_TIMEOUT_MS, 0),
        )
    )
    with _Step("open"):
        file = posix.open(device, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    try:
        with _Step("get-log-page"):
            status = fcntl.ioctl(file, _NVME_ADMIN_CMD, command)
    finally:
        posix.close(file)
    if status:  # the drive itself refused
        return f"refused {_EIO} nvme-status-{status:#x}"
    return f"page {page.tobytes()[:_SENT].hex()}"


def module(interface: bytes) -> str:
    """The memory of a port's transceiver, by ethtool's netlink (Linux 5.13 or later)."""
    import _socket
    import struct

    netlink = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, _NETLINK_GENERIC)

    def request(family: int, command: int, attributes: bytes) -> bytes:
        length = 20 + len(attributes)
        head = struct.pack("=IHHIIBBH", length, family, _NLM_F_REQUEST, 1, 0, command, 1, 0)
        netlink.send(head + attributes)
        reply: bytes = netlink.recv(4096)
        kind, error = struct.unpack_from("=H", reply, 4)[0], struct.unpack_from("=i", reply, 16)[0]
        if kind == _NLMSG_ERROR or len(reply) < 38:
            raise OSError(-error if kind == _NLMSG_ERROR else _EIO, "refused")
        return reply

    def read(page: int, offset: int, address: int) -> bytes:
        """Header (nested: the interface), offset, length, page and address; the data come last."""
        where = (8, 2, offset, 8, 3, _MODULE_PAGE, 5, 4, page, 5, 6, address)
        attributes = name + struct.pack("=HHIHHIHHB3xHHB3x", *where)
        return request(family, _MODULE_EEPROM_GET, attributes)[-_MODULE_PAGE:]

    padded = interface + bytes(4 - len(interface) % 4)
    name = struct.pack("=HHHH", 8 + len(padded), 0x8001, 5 + len(interface), 2) + padded
    # The family's number is the attribute after its name.
    found = request(0x10, 3, struct.pack("=HH8s", 12, 2, b"ethtool"))
    family = struct.unpack_from("=H", found, 36)[0]
    memory = read(0, 0, 0x50)
    flat, pages = _MODULE_PAGES.get(memory[0], (0, ()))
    if not memory[2] & flat:
        memory += b"".join(read(*page) for page in pages)
    return f"page {memory.hex()}"


def files(paths: bytes) -> str:
    """Small files of sysfs whose drivers may query their hardware."""
    return " ".join(["files", *map(_file, paths.split(b"\t"))])


def _file(path: bytes) -> str:
    try:
        file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
        try:
            return "=" + posix.read(file, _MOST_OF_A_FILE).hex()
        finally:
            posix.close(file)
    except OSError as error:
        return f"!{error.errno}"


_PROBES = {"space": space, "write": write, "nvme": nvme, "module": module, "files": files}


def answer(what: str, path: bytes) -> str:
    """The answer to any probe, also of one that fails: without one its device would be hung."""
    try:
        return _PROBES[what](path)
    except _RefusedError as error:
        return "refused {} {}".format(*error.args)
    except OSError as error:
        return f"refused {error.errno} {what}"
    except Exception as error:  # noqa: BLE001 - it is the answer
        return f"failed {error!a}"


def _job(number: str, what: str, path: bytes, done: _thread.LockType) -> None:
    try:
        _write_line(f"{number} at {_thread.get_native_id()}")
        _write_line(f"{number} {answer(what, path)}")
    except BrokenPipeError:
        pass  # no process waits for the answer any more
    finally:
        done.release()


def main() -> None:
    pending: list[_thread.LockType] = []
    rest = b""
    while chunk := posix.read(0, _READ):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            number, what, path = line.decode("ascii").split(" ")
            if what not in _PROBES:
                sys.exit(f"no such probe: {what}")
            done = _thread.allocate_lock()
            done.acquire()
            pending = [*(each for each in pending if each.locked()), done]
            _thread.start_new_thread(_job, (number, what, bytes.fromhex(path), done))
    for done in pending:
        done.acquire()
    posix._exit(0)  # noqa: SLF001 - all is written; an orderly shutdown costs 2 ms more


if __name__ == "__main__":
    main()
