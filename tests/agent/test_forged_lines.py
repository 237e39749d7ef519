"""Every line that a kernel log check believes, forged in each way that a user without rights has.

A user can have the kernel quote his text behind words of its own (a mount option), choose the
prefix of a packet's line, write to /dev/kmsg with another facility than the kernel's, and choose up
to 15 bytes with which some lines of the kernel begin: the name of a process.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.checks.base import LogCheck
from nodeagent.sources.kmsg import Record
from nodeagent.terminal.kmsg_file import _checks
from tests.agent.kernel_log import FIXTURES, fixture_records, record
from tests.agent.line_checks import faults
from tests.agent.test_log_edges import PACKET

#: Fixtures of lines that kernels print; those of forged lines are tests of their own.
GENUINE = sorted(p.name for p in FIXTURES.glob("*.log") if not p.name.startswith("forged"))

#: The kernel's words after the name of a process at the start of a line.
AFTER_A_NAME = (
    b"[4711]: segfault at 0 ip 000055d1 sp 00007ffc error 4 in a[55d1+1000] likely on CPU 1",
    b"[4711] general protection fault ip:55d1 sp:7ffc error:0 in a[55d1+1000]",
    b"[4711]: bad frame in rt_sigreturn frame:55d1 ip:55d1 sp:7ffc orax:0",
    b": page allocation failure: order:9, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO)",
    b" invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    b" (4711) used greatest stack depth: 11992 bytes left",
    b" (4711): drop_caches: 3",
    b" (4711): Using mlock ulimits for SHM_HUGETLB is obsolete",
    b": vmemmap alloc failure: order:9, mode:0x40dc0(GFP_KERNEL)",
    b": potentially unexpected fatal signal 11.",
    b"[4711] vsyscall attempted with vsyscall=none ip:55d1 cs:33 sp:7ffc ax:0 si:0 di:0",
    b": Corrupted page table at address 7f3c5e2f0000",
    rb": attempt to access beyond end of device\x0asda1: rw=0, sector=8, nr_sectors = 8 limit=4",
    # The crash names the file that the code was in, which is the user's as well.
    b"[4711]: segfault at 0 ip 000055d1 sp 00007ffc error 4 in corruption[55d1+1000]",
    b"[4711]: segfault at 0 ip 000055d1 sp 00007ffc error 4 in xfs_repair[55d1+1000]",
    b"[4711]: segfault at 0 ip 000055d1 sp 00007ffc error 4 in Link failed[55d1+1000]",
    b"[4711] general protection fault ip:55d1 sp:7ffc error:0 in timeout[55d1+1000]",
)

#: Words and marks of genuine lines that fit into a name.
IN_A_NAME = (
    *(
        b"[#1] SMP",
        b": 0000 [#1]",
        b": ",
        b"): ",
        b" (",
        b"Fatal, ",
        b"XFS (a): ",
        b"NVRM: ",
        b" error ",
    ),
    *(b"timeout", b" lost", b" failed", b"corrupt", b"Link ", b"0x1", b"@ LBA 1, "),
)


@pytest.fixture(scope="module")
def checks() -> tuple[LogCheck, ...]:
    """All of them, on a machine that has every device."""
    return tuple(_checks().values())


def believed(checks: tuple[LogCheck, ...], item: Record) -> list[str]:
    return [fault.code for check in checks for fault in faults(check, item)]


def lines() -> list[bytes]:
    checks = tuple(_checks().values())
    return [
        each.text for name in GENUINE for each in fixture_records(name) if believed(checks, each)
    ]


LINES = lines()

#: The crash of a process: its name before this, and the name of its file after it.
CRASHES = (
    b"[4711]: segfault at 0 ip 000055d1 sp 00007ffc error 4 in ",
    b"[4711] general protection fault ip:55d1 sp:7ffc error:0 in ",
    b"[4711] trap divide error ip:55d1 sp:7ffc error:0 in ",
    b"[4711]: bad frame in rt_sigreturn frame:55d1 ip:55d1 sp:7ffc orax:0 in ",
    b"[4711]: unhandled exception: DABT (lower EL), ESR 0x92000006, level 2 fault in ",
)


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize(
    ("name", "file"),
    [
        (b"NVRM: f: failed", b"status=0x62"),
        (b"NVRM: f: failed", b"status=0xF"),
        (rb"NVRM: f:\x09failed", b"status=0x62"),
        (b"MCE 0x0: ", b" page recovery: Recovered"),
        (b"EXT4-fs (sda): ", b" -- potential data loss!"),
        (
            b"WARNING: Pool '",
            b"' has encountered an uncorrectable I/O failure and has been suspended",
        ),
        (b"libceph: ", b"client blacklisted"),
        (b"rbd: rbd0: ", b"result -5 xferred"),
        (b"INFO: task ", b":1 blocked for more than 120 seconds."),
    ],
)
def test_the_names_of_a_process_and_of_its_file_make_no_line_of_the_kernel(
    checks: tuple[LogCheck, ...], crash: bytes, name: bytes, file: bytes
) -> None:
    assert believed(checks, record(name + crash + file + b"[55d1+1000]")) == []


@pytest.mark.parametrize("crash", CRASHES)
def test_no_genuine_line_is_believed_with_a_crash_within_it(
    checks: tuple[LogCheck, ...], crash: bytes
) -> None:
    for line in LINES:
        for at in (8, 12, 15):
            assert believed(checks, record(line[:at] + crash + line[at:])) == [], line


def test_the_fixtures_have_lines_of_every_kernel_log_check(checks: tuple[LogCheck, ...]) -> None:
    assert len(LINES) > 700
    assert all(any(check.read(record(line)) for line in LINES) for check in checks)


@pytest.mark.parametrize("before", [b"tmpfs: Unknown parameter 'x\\x0a", b" ", b"\\x0a"])
def test_a_line_behind_words_of_the_kernel_is_not_believed(
    checks: tuple[LogCheck, ...], before: bytes
) -> None:
    for line in LINES:
        assert believed(checks, record(before + line + b"'")) == [], line


def test_a_line_that_is_a_packet_s_prefix_is_not_believed(checks: tuple[LogCheck, ...]) -> None:
    for line in LINES:
        assert believed(checks, record(line + PACKET)) == [], line


@pytest.mark.parametrize("after", AFTER_A_NAME)
def test_the_name_of_a_process_is_not_believed(checks: tuple[LogCheck, ...], after: bytes) -> None:
    devices = {b"a 0000:3b:00.0", b"a 0000:3b:00.0:", b"ab 0000:3b:00.0", b"eth0", b"bond0"}
    for name in devices | {line[:length] for line in LINES for length in range(4, 16)}:
        assert believed(checks, record(name + after)) == [], name


@given(
    line=st.sampled_from(LINES),
    cut=st.integers(0, 15),
    words=st.lists(st.sampled_from(IN_A_NAME), max_size=4),
    after=st.sampled_from(AFTER_A_NAME),
)
def test_no_name_of_words_that_the_kernel_writes_is_believed(
    line: bytes, cut: int, words: list[bytes], after: bytes
) -> None:
    name = (line[:cut] + b"".join(words))[:15]
    assert believed(tuple(_checks().values()), record(name + after)) == []


def test_lines_with_a_user_s_text_between_the_kernel_s_words_are_not_believed(
    checks: tuple[LogCheck, ...],
) -> None:
    forged = fixture_records("forged-names.log")
    assert len(forged) > 100
    assert {item.text: codes for item in forged if (codes := believed(checks, item))} == {}


@settings(max_examples=900, deadline=None)
@given(
    line=st.sampled_from(LINES),
    cut=st.integers(0, 200),
    filler=st.binary(max_size=60),
    repeat=st.sampled_from([1, 400, 2500]),
    tail=st.booleans(),
)
def test_no_damage_to_a_line_raises_or_makes_a_message_endless(
    checks: tuple[LogCheck, ...],
    line: bytes,
    cut: int,
    filler: bytes,
    repeat: int,
    tail: bool,  # noqa: FBT001  # hypothesis gives it by name
) -> None:
    """True lines cut anywhere, filled with up to 150 KB of anything, with or without their end."""
    damaged = line[:cut] + filler * repeat + (line[cut:] if tail else b"")
    for check in checks:
        for fault in faults(check, record(damaged)):
            assert len(fault.message) <= 512
            assert len(fault.component) <= 128
            assert all(len(value) <= 512 for value in fault.details.values())
            (fault.component + fault.message + "".join(fault.details.values())).encode()
