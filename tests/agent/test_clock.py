"""The clock by adjtimex: recorded answers of kernels, and a call to this kernel."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import clock
from nodeagent.model import Status
from nodeagent.sources.timex import Timex, parse, read_kernel
from tests.agent.kernel_log import HandClock
from tests.agent.machines import built, options, sources, this_machine, verdicts

#: As Linux 6.18 gave it on a machine without a time daemon: 16 s, STA_UNSYNC.
UNSYNCHRONISED = bytes.fromhex(
    "00000000000000000000000000000000000000000000000000"
    "24f400000000000024f40000000000400000000000000002000000000000000100000000000000"
)
STA_PLL, STA_UNSYNC, STA_NANO = 0x1, 0x40, 0x2000


def raw(*, offset: int = 0, max_error: int = 50_000, status: int = STA_PLL) -> bytes:
    """A struct timex as the kernel fills it."""
    return struct.pack("=I4xqqqqi", 0, offset, 0, max_error, 0, status) + bytes(160)


async def verdict(answer: bytes, *, up: float = 1e6, **settings: float) -> tuple[Status, str]:
    check = clock.ClockCheck(HandClock(up), options(clock.SPEC, **settings), lambda: answer)
    return verdicts(await check.run_check())[""]


def test_a_struct_of_this_kernel() -> None:
    assert parse(UNSYNCHRONISED) == Timex(False, 0.0, 16.0)


def test_offsets_are_in_nanoseconds_when_the_kernel_says_so() -> None:
    assert parse(raw(offset=-2_000_000, status=STA_NANO)).offset == pytest.approx(-0.002)
    assert parse(raw(offset=-2_000_000)).offset == pytest.approx(-2.0)


async def test_thresholds_are_settings() -> None:
    late = raw(max_error=6_000_000)
    assert await verdict(late) == (Status.DEGRADED, "uncertain")
    assert await verdict(raw(offset=1_500_000)) == (Status.FAILED, "offset")
    assert await verdict(raw(offset=1_500_000, status=STA_NANO)) == (Status.OK, "")
    assert await verdict(late, max_error=10.0) == (Status.OK, "")
    assert await verdict(raw(offset=200_000), max_offset=0.1) == (Status.FAILED, "offset")


async def test_what_was_synchronised_since_the_boot_is_not_starting() -> None:
    answers = [raw(), UNSYNCHRONISED]
    check = clock.ClockCheck(HandClock(60), options(clock.SPEC), lambda: answers.pop(0))
    assert verdicts(await check.run_check())[""] == (Status.OK, "")
    assert verdicts(await check.run_check())[""] == (Status.DEGRADED, "unsynchronised")


async def test_a_kernel_that_refuses_is_unknown() -> None:
    def refuse() -> bytes:
        raise PermissionError(1, "Operation not permitted")

    check = clock.ClockCheck(HandClock(60), options(clock.SPEC), refuse)
    assert verdicts(await check.run_check())[""] == (Status.UNKNOWN, "no-adjtimex")


@given(st.binary(max_size=256))
def test_any_bytes_are_a_timex_or_an_error(garbage: bytes) -> None:
    if len(garbage) >= 44:
        parse(garbage)
    else:
        with pytest.raises(ValueError, match="no struct timex"):
            parse(garbage)


async def test_this_kernel_answers() -> None:
    assert len(read_kernel()) >= 208
    found = verdicts(
        await built(clock.SPEC, sources(this_machine()), options(clock.SPEC)).run_check()
    )[""]
    assert found[1] != "no-adjtimex"
