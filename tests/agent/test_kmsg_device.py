"""The reader on the machine's own kernel log.

The ring is shared with all other programs of this machine, so each test begins at the end of the
log and marks its lines with a nonce.
"""

import ctypes
import errno
import os
import secrets
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.checks.xid import XidCheck
from nodeagent.clock import SystemClock
from nodeagent.model import Loss
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import Cursor, KernelLogUnavailable, KmsgReader, Record
from tests.agent.kernel_log import GPU, gpu_map, log_line, only_losses, only_records
from tests.support.waiting import PATIENCE

KMSG = Path("/dev/kmsg")


def _why_not() -> str:
    """Why this machine's kernel log can't be used; empty when it can."""
    if os.geteuid() != 0:
        return "needs root to write to /dev/kmsg"
    try:
        os.close(os.open(KMSG, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        return f"/dev/kmsg cannot be opened: {error.strerror}"
    return ""


pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "-")]

Open = Callable[..., KmsgReader]


@pytest.fixture
def boot() -> str:
    return HostRoots(clock=SystemClock()).boot_id()


@pytest.fixture
def open_reader(boot: str) -> Iterator[Open]:
    """Opens readers on /dev/kmsg, by default without a cursor and in the test mode."""
    readers = []

    def start(
        *,
        cursor: Cursor | None = None,
        accept: bool = True,
        started_at: float | None = None,
        read: Callable[[int, int], bytes] = os.read,
    ) -> KmsgReader:
        reader = KmsgReader(
            KMSG,
            clock=SystemClock(),
            boot_id=boot,
            cursor=cursor,
            started_at=SystemClock().boottime() if started_at is None else started_at,
            boot_grace=0.0,
            accept_user_records=accept,
            read=read,
        )
        reader.open()
        readers.append(reader)
        return reader

    yield start
    for reader in readers:
        reader.close()


@pytest.fixture
def nonce() -> str:
    return secrets.token_hex(8)


def catch_up(reader: KmsgReader) -> list[Record | Loss]:
    """All records up to the end of the log."""
    found = reader.read_batch()
    for _ in range(1000):
        if reader.caught_up:
            return found
        found += reader.read_batch()
    raise AssertionError("the kernel log has no end")


def wait_for(reader: KmsgReader, nonce: str, count: int) -> list[Record]:
    """The records with ``nonce``, as soon as there are ``count``; poll wakes us for each."""
    found: list[Record] = []
    poll = select.poll()
    poll.register(reader.fileno(), select.POLLIN)
    until = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < until:
        poll.poll(1000)
        found += [
            record for record in only_records(reader.read_batch()) if nonce.encode() in record.text
        ]
    assert len(found) == count
    return found


def test_a_line_is_seen_when_it_is_written_and_its_age_is_true(
    open_reader: Open, nonce: str
) -> None:
    reader = open_reader()
    catch_up(reader)
    before = SystemClock().boottime()
    log_line(f"<2>sickbay test {nonce}")
    [record] = wait_for(reader, nonce, 1)
    assert (record.facility, record.level) == (1, 2)
    assert record.text == f"sickbay test {nonce}".encode()
    assert before - 0.05 <= record.at <= SystemClock().boottime()
    assert not record.historical


def test_without_the_test_mode_no_user_is_believed(open_reader: Open, nonce: str) -> None:
    strict, lenient = open_reader(accept=False), open_reader()
    catch_up(strict)
    catch_up(lenient)
    # A user may ask for facility 0, and gets 1.
    for priority in (0, 2, 8, 128):
        log_line(f"<{priority}>NVRM: Xid (PCI:{GPU}): 79, {nonce}")
    log_line(f"the last {nonce}")
    seen = wait_for(lenient, nonce, 4)
    assert {record.facility for record in seen} == {1}, "and 16 is not even ours to accept"
    assert not [
        record for record in only_records(catch_up(strict)) if nonce.encode() in record.text
    ]


def test_a_restart_neither_replays_nor_skips(open_reader: Open, nonce: str) -> None:
    first = open_reader()
    catch_up(first)
    for number in range(20):
        log_line(f"{nonce} a{number}")
    seen = wait_for(first, nonce, 20)
    saved = first.cursor
    first.close()
    for number in range(20):
        log_line(f"{nonce} b{number}")
    second = open_reader(cursor=saved)
    found = [record for record in only_records(catch_up(second)) if nonce.encode() in record.text]
    assert [record.text.decode() for record in found] == [f"{nonce} b{n}" for n in range(20)]
    assert not any(record.historical for record in found)
    assert not {record.seq for record in seen} & {record.seq for record in found}


def test_the_first_look_reads_the_whole_ring_as_history(open_reader: Open, nonce: str) -> None:
    log_line(f"{nonce} before the agent came")
    # The kernel's stamps may be milliseconds off the clock: a start well after the line.
    found = only_records(catch_up(open_reader(started_at=SystemClock().boottime() + 60.0)))
    [mine] = [record for record in found if nonce.encode() in record.text]
    assert mine.historical
    assert [record.seq for record in found] == sorted(record.seq for record in found)


def test_the_kernels_escapes_reach_the_check_as_they_are(open_reader: Open, nonce: str) -> None:
    reader = open_reader()
    catch_up(reader)
    log_line(f"{nonce} one\ntwo\\ tab\t")
    [record] = wait_for(reader, nonce, 1)
    assert record.text == f"{nonce} one\\x0atwo\\x5c tab\\x09".encode()


def test_a_user_who_makes_the_kernel_quote_him_is_not_believed(
    open_reader: Open, nonce: str, tmp_path: Path
) -> None:
    """Facility 0, by a mount that fails, which any user with a user namespace can cause."""
    reader = open_reader(accept=False)
    catch_up(reader)
    libc = ctypes.CDLL(None, use_errno=True)
    folder = tmp_path / "mount"
    folder.mkdir()
    data = f"{nonce}\nNVRM: GPU {GPU}.0: GPU has fallen off the bus.".encode()
    assert libc.mount(b"none", bytes(folder), b"tmpfs", 0, data) == -1
    assert ctypes.get_errno() == errno.EINVAL
    [record] = wait_for(reader, nonce, 1)
    assert record.facility == 0
    assert record.text == (
        f"tmpfs: Unknown parameter '{nonce}\\x0a"
        f"NVRM: GPU {GPU}.0: GPU has fallen off the bus.'".encode()
    )
    assert XidCheck(gpu_map(tmp_path / "sys")).read(record) == ()


def test_a_ring_overrun_is_told_once_with_its_count(open_reader: Open, boot: str) -> None:
    """The real device, and a kernel's answers that would cost the others here their log."""
    answers: list[bytes | OSError] = [
        b"4,100,1000000,-;a\n",
        OSError(errno.EPIPE, "Broken pipe"),
        b"4,5100,2000000,-;b\n",
        OSError(errno.EINVAL, "Invalid argument"),
        b"4,5102,3000000,-;c\n",
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    ]

    def read(_fd: int, size: int) -> bytes:
        assert size >= 8192, "the kernel answers EINVAL to less"
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    reader = open_reader(read=read)
    batch = reader.read_batch()
    assert [loss.records for loss in only_losses(batch)] == [4999, 1]
    assert [record.text for record in only_records(batch)] == [b"a", b"b", b"c"]
    assert reader.caught_up
    assert reader.cursor == Cursor(boot, 5102)


def test_a_device_that_fails_is_unavailable_and_not_silent(open_reader: Open) -> None:
    def read(_fd: int, _size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(KernelLogUnavailable, match="Input/output error"):
        open_reader(read=read).read_batch()
