"""The raw record parser: records of the kernel, and all other input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.sources.kmsg import Record, is_users_line, parse
from tests.support.present import present


def test_a_record_is_taken_apart() -> None:
    assert parse(b"4,1234,81000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n") == Record(
        facility=0,
        level=4,
        seq=1234,
        at=81.0,
        text=b"NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
    )


def test_a_priority_is_a_facility_and_a_level() -> None:
    found = present(parse(b"30,1,1,-;from a daemon\n"))
    assert (found.facility, found.level) == (3, 6)


def test_fields_after_the_flags_are_passed_over() -> None:
    found = present(parse(b"6,7,8,-,caller=T4711;text; with a semicolon\n"))
    assert found.text == b"text; with a semicolon"


def test_dictionary_lines_are_left_out() -> None:
    found = present(parse(b"6,7,8,c;PCI bus error\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"))
    assert found.text == b"PCI bus error"


def test_escapes_stay_as_the_kernel_wrote_them() -> None:
    found = present(parse(rb"6,7,8,-;one\x0atwo\x5cthree" + b"\n"))
    assert found.text == rb"one\x0atwo\x5cthree"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b";",
        b"text without a header\n",
        b"4,1234,81000000,-\n",
        b"4,1234;no time\n",
        b"4,,81000000,-;no sequence\n",
        b"-4,1,1,-;negative\n",
        b" 4,1,1,-;a space first\n",
        b"4,1_0,1,-;underscore\n",
        b"4,+1,1,-;sign\n",
        b"4,18446744073709551616,1,-;a sequence that no counter reaches\n",
        "\u0664,\u0661,\u0661,-;digits of another script\n".encode(),
        b"4,1,1,-\n4,2,1,-;the header runs into the next line\n",
    ],
)
def test_what_is_no_record_is_none(raw: bytes) -> None:
    assert parse(raw) is None


@given(st.binary(max_size=400))
def test_no_bytes_raise(raw: bytes) -> None:
    parse(raw)


@given(
    prefix=st.sampled_from([b"4,1,1,-;", b"4,1,1,", b"4,1,", b"4,99999999999999999999,1,-;"]),
    rest=st.binary(max_size=400),
    repeat=st.sampled_from([1, 400]),
)
def test_records_that_begin_well_never_raise(prefix: bytes, rest: bytes, repeat: int) -> None:
    found = parse(prefix + rest * repeat)
    if found is not None:
        assert b"\n" not in found.text


@given(
    facility=st.integers(0, 23),
    level=st.integers(0, 7),
    seq=st.integers(0, 2**64 - 1),
    usec=st.integers(0, 2**50),
    text=st.binary(max_size=200).filter(lambda text: b"\n" not in text),
    cut=st.integers(0, 400),
)
def test_a_record_comes_back_whole_and_a_cut_one_does_not_raise(
    facility: int, level: int, seq: int, usec: int, text: bytes, cut: int
) -> None:
    raw = b"%d,%d,%d,-;%s\n" % (facility << 3 | level, seq, usec, text)
    assert parse(raw) == Record(facility, level, seq, usec / 1e6, text)
    parse(raw[:cut])


def test_a_line_of_100_kilobytes_is_a_record_like_any() -> None:
    found = present(parse(b"4,1,1,-;" + b"x" * 100_000 + b"\n"))
    assert len(found.text) == 100_000


def test_a_packet_that_a_netfilter_rule_logs_is_known_by_what_the_kernel_adds() -> None:
    assert is_users_line(b"any prefix IN=eth0 OUT= MAC=00:11 SRC=10.0.0.1 DST=10.0.0.2 ")
    assert is_users_line(b"NVRM: x IN= OUT=lo SRC=127.0.0.1 ")
    assert not is_users_line(b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    assert not is_users_line(b"IN= " * 20_000 + b" OUT=")
