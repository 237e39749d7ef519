r"""The kernel log, as the kernel gives it: one reader for all checks.

A record of ``/dev/kmsg`` is ``prio,seq,usec,flags[,more];text\n`` with dictionary lines (``
KEY=value``) after it (Documentation/ABI/testing/dev-kmsg). Bytes below 32, above 126 and the
backslash are in the text as ``\xNN``. That is kept: a reader that undoes it, or joins two records,
lets a user who can make the kernel quote him forge a line of a driver's.

Records that userspace writes to ``/dev/kmsg`` never have facility 0, so records of another facility
are passed over.
"""

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from nodeagent.clock import Clock
from nodeagent.dataclass import dataclass
from nodeagent.model import Loss

SOURCE = "kmsg"

#: The kernel refuses a read that is smaller than the record (EINVAL) and makes none over 8 KiB.
_READ_SIZE = 16 * 1024

#: A line longer than this in a file or FIFO is no record of any kernel.
_LONGEST_LINE = 64 * 1024

#: Reads in one batch for each requested result: passing over records must not hold the agent up.
_READS_PER_RESULT = 8

_DEVICE = os.makedev(1, 11)

_WITHOUT = "To go without the kernel log, set kernel_log.enabled = false."

_HEADER = re.compile(rb"(\d{1,9}),(\d{1,20}),(\d{1,20}),[^;\n]*;")
_SEQUENCES = 1 << 64

#: The words that the kernel itself writes after the prefix of a netfilter LOG rule.
_PACKET = re.compile(rb"IN=\S{0,64} OUT=\S{0,64} ")
#: The crash of a process: its name (15 bytes, some escaped), and at the end its file's name.
_CRASH = re.compile(rb"(?:[^\\]|\\x..){1,15}\[\d+\]:? (?:segfault|general|trap|bad|unhandled) ")


@dataclass(frozen=True, slots=True)
class Record:
    """One kernel log record.

    ``at`` is in boottime seconds. ``text`` is the first line exactly as the kernel gave it, its
    escapes never undone, dictionary lines left out. ``historical``: from before the agent first
    looked, so it may be long repaired.
    """

    facility: int
    level: int
    seq: int
    at: float
    text: bytes
    historical: bool = False


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last record consumed. Sequence numbers mean something within their boot alone."""

    boot_id: str
    seq: int


class KernelLogUnavailable(Exception):
    """The kernel log cannot be opened or read; the text states why and what to do."""


def parse(raw: bytes) -> Record | None:
    """A record from the bytes of one read, or None when they are no record.

    ``at`` is the record's own stamp in seconds, which is the kernel's local clock (see
    ``KmsgReader`` for how it becomes boottime). Raises nothing, whatever the bytes.
    """
    header = _HEADER.match(raw)
    if header is None:
        return None
    seq = int(header[2])
    if seq >= _SEQUENCES:
        return None
    start = header.end()
    end = raw.find(b"\n", start)
    priority = int(header[1])
    return Record(
        facility=priority >> 3,
        level=priority & 7,
        seq=seq,
        at=int(header[3]) / 1e6,
        text=raw[start:] if end < 0 else raw[start:end],
    )


def is_users_line(text: bytes) -> bool:
    """Whether a user has chosen the record's beginning, and more of it: of a packet or a crash.

    A netfilter LOG rule puts a prefix of its author's choosing at the very start of a facility 0
    record. Where ``net.netfilter.nf_log_all_netns`` is 1 any user with a user namespace can write
    one. The crash of a process begins with its name and ends with that of its file. So a check that
    has matched a driver's line uses this to find out whether the line is a user's.
    """
    # A flood of Xids has no bracket there, and is not matched again.
    crashed = text.find(b"[", 1, 64) > 0 and _CRASH.match(text)
    return bool(crashed or (b" OUT=" in text and _PACKET.search(text)))


class KmsgReader:
    """Reads the kernel log from a saved cursor, or from the start of the ring.

    ``cursor`` counts when it is of this boot: records that it covers are not given again. Without
    one every record is given, and those from before ``started_at`` (boottime seconds) are
    ``historical``, unless the boot was then younger than ``boot_grace`` seconds: a ring may hold
    weeks of faults long repaired, but the faults of a boot that the agent came up with are news.

    Stamps: the kernel stamps records with its local clock, which starts with CLOCK_BOOTTIME, stops
    in suspend, and is not disciplined by NTP, so that it drifts by seconds a month. A record is
    younger than the moment at which the ring was last seen empty and older than the moment at which
    it is read; the reader moves its idea of the difference just enough to keep that true.

    ``path`` may be a regular file or a FIFO that holds records one a line, for tests; ``read`` is
    os.read. Not safe for use from two threads.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        boot_id: str,
        cursor: Cursor | None,
        started_at: float,
        boot_grace: float = 1200.0,
        accept_user_records: bool = False,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self.pollable = False
        self._path = path
        self._read_fd = read
        self._clock = clock
        self._boot_id = boot_id
        self._facilities = (0, 1) if accept_user_records else (0,)
        self._started_at = started_at
        self._young_boot = started_at < boot_grace
        self._resume_after = cursor.seq if cursor and cursor.boot_id == boot_id else None
        self._first_read = self._resume_after is None
        self._last = self._resume_after
        self._seen: int | None = None
        self._overrun = False
        self._caught_up = False
        self._last_empty: float | None = None
        self._skew = 0.0
        self._fd = -1
        self._fifo = False
        self._lines: _Lines | None = None

    def open(self) -> None:
        """Open the log. Raises KernelLogUnavailable. ``pollable`` is then whether poll works."""
        try:
            found = self._path.stat()
            mode = found.st_mode
            if stat.S_ISCHR(mode) and found.st_rdev != _DEVICE:
                raise KernelLogUnavailable(
                    f"{self._path} is a device, but not the kernel log (c 1:11). {_WITHOUT}"
                )
            # A FIFO without a writer is at its end for ever, and poll reports it for ever: hold
            # one.
            self._fifo = stat.S_ISFIFO(mode)
            access = os.O_RDWR if self._fifo else os.O_RDONLY
            self._fd = os.open(self._path, access | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise KernelLogUnavailable(_why_not_open(self._path, error)) from error
        self.pollable = not stat.S_ISREG(mode)
        self._lines = None if stat.S_ISCHR(mode) else _Lines(self._fd)

    def close(self) -> None:
        """Close the log; closing it twice is allowed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """The descriptor to wait on; it is readable while there are records."""
        if self._fd < 0:
            raise ValueError("the kernel log reader is not open")
        return self._fd

    @property
    def cursor(self) -> Cursor | None:
        """The last record that ``read_batch`` gave or passed over, or None before the first."""
        return None if self._last is None else Cursor(self._boot_id, self._last)

    @property
    def caught_up(self) -> bool:
        """Whether the latest batch ended because there was no more to read."""
        return self._caught_up

    def read_batch(self, limit: int = 512) -> list[Record | Loss]:
        """The records that have come since, at most ``limit``, without waiting.

        Lost records come as a Loss in their place. An empty list while ``caught_up`` is false means
        only that the records read were not for us. Raises KernelLogUnavailable when the log is
        gone.
        """
        batch: list[Record | Loss] = []
        self._caught_up = False
        before = self._clock.boottime()
        for _ in range(limit * _READS_PER_RESULT):
            if len(batch) >= limit:
                break
            raw = self._read()
            if raw is None:
                self._empty(before, batch)
                break
            now = self._clock.boottime()
            self._take(raw, now, batch)
            before = now
        return batch

    def _read(self) -> bytes | None:
        """One record's bytes, empty for one that was lost, or None when there is no more."""
        try:
            if self._lines is not None:
                return self._lines.read()
            return self._read_fd(self.fileno(), _READ_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            # EPIPE: overwritten before it was read. EINVAL: larger than our buffer, and skipped.
            # In both the next record's sequence number shows how many are gone.
            if error.errno in (errno.EPIPE, errno.EINVAL):
                self._overrun = True
                return b""
            raise KernelLogUnavailable(
                f"{self._path} can no longer be read: {error.strerror}; "
                "no fault is seen in the kernel log until it can"
            ) from error

    def _take(self, raw: bytes, now: float, batch: list[Record | Loss]) -> None:
        if not raw:
            return
        record = parse(raw)
        if record is None:  # malformed
            return
        self._seen = record.seq
        if self._last is not None and record.seq <= self._last:
            return
        self._count_lost(record.seq, batch)
        self._last = record.seq
        at = self._boottime(record.at, now)
        if record.facility in self._facilities:
            batch.append(
                Record(
                    record.facility,
                    record.level,
                    record.seq,
                    at,
                    record.text,
                    self._is_historical(at),
                )
            )

    def _count_lost(self, seq: int, batch: list[Record | Loss]) -> None:
        """Report the records that are missing between the last record and ``seq``."""
        expected = None if self._last is None else self._last + 1
        if expected is None and self._young_boot and self._lines is None:
            expected = 0  # a boot's own records, and the ring has lost its start
        missing = 0 if expected is None else seq - expected
        if missing or (self._overrun and expected is not None):
            batch.append(
                Loss(
                    SOURCE,
                    missing,
                    f"{missing} kernel log records ({expected} to {seq - 1}) were overwritten "
                    "before they were read",
                )
            )
        self._overrun = False

    def _empty(self, before: float, batch: list[Record | Loss]) -> None:
        self._caught_up = True
        self._last_empty = before
        ahead = self._resume_after
        self._resume_after = None
        if ahead is None or self._seen is None or self._seen >= ahead:
            return
        # A machine restored from a snapshot keeps its boot id and counts again from an earlier
        # number: to wait until it passes the cursor would be to be blind.
        batch.append(
            Loss(
                SOURCE,
                0,
                f"the saved cursor ({ahead}) is ahead of the kernel log ({self._seen}), which "
                "was set back; it is read again from its start",
            )
        )
        self._last = None
        self._first_read = True
        self._young_boot = False
        self._last_empty = None
        self._caught_up = False
        if not self._fifo:
            os.lseek(self.fileno(), 0, os.SEEK_SET)

    def _boottime(self, stamp: float, now: float) -> float:
        if stamp + self._skew > now:
            self._skew = now - stamp
        elif self._last_empty is not None and stamp + self._skew < self._last_empty:
            self._skew = self._last_empty - stamp
        return max(0.0, stamp + self._skew)

    def _is_historical(self, at: float) -> bool:
        """Whether it predates the agent's start: by the stamp, only while the ring is read."""
        return (
            self._first_read
            and self._last_empty is None
            and not self._young_boot
            and at < self._started_at
        )


class _Lines:
    """Records of a file or FIFO, one a line."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        self._ready: list[bytes] = []
        self._skipping = False

    def read(self) -> bytes | None:
        """The next whole line, empty for a continuation, or None at the end. Raises OSError."""
        while not self._ready:
            chunk = os.read(self._fd, _LONGEST_LINE)
            if not chunk:
                return None
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if self._skipping and lines:
                lines = lines[1:]
                self._skipping = False
            if len(self._rest) > _LONGEST_LINE:
                self._skipping = True
                self._rest = b""
            self._ready = lines[::-1]
        line = self._ready.pop()
        return b"" if line.startswith(b" ") else line


def _why_not_open(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"{path} does not exist; give the agent the host's /dev. {_WITHOUT}"
    if error.errno in (errno.EPERM, errno.EACCES):
        return (
            f"{path} may not be opened ({error.strerror}): that takes CAP_SYSLOG where "
            "kernel.dmesg_restrict is 1, and a device cgroup that allows c 1:11; in a pod, "
            f"privileged. {_WITHOUT}"
        )
    return f"{path} cannot be opened: {error.strerror}. {_WITHOUT}"
