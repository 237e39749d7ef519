"""The reader: where it begins, its report of lost records, and the age of a record."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.sources.kmsg import Cursor, KernelLogUnavailable
from tests.agent.kernel_log import (
    BOOT,
    HandClock,
    only_losses,
    only_records,
    open_log,
    raw,
)

Append = Callable[[bytes], None]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.touch()
    return path


@pytest.fixture
def append(log: Path) -> Append:
    def write(data: bytes) -> None:
        with log.open("ab") as file:
            file.write(data)

    return write


def test_nothing_new_is_an_empty_batch(log: Path) -> None:
    reader = open_log(log)
    assert reader.read_batch() == []
    assert reader.caught_up
    assert reader.cursor is None


def test_records_come_in_order_and_the_cursor_follows(log: Path, append: Append) -> None:
    append(raw(10, "a") + raw(11, "b"))
    reader = open_log(log)
    assert [found.text for found in only_records(reader.read_batch())] == [b"a", b"b"]
    assert reader.cursor == Cursor(BOOT, 11)
    append(raw(12, "c"))
    assert [found.seq for found in only_records(reader.read_batch())] == [12]


def test_a_batch_ends_at_its_limit_and_says_that_there_is_more(log: Path, append: Append) -> None:
    append(b"".join(raw(seq, "x") for seq in range(10)))
    reader = open_log(log)
    assert len(reader.read_batch(limit=4)) == 4
    assert not reader.caught_up
    assert reader.cursor == Cursor(BOOT, 3)
    assert len(reader.read_batch(limit=100)) == 6
    assert reader.caught_up


def test_a_saved_cursor_of_this_boot_neither_replays_nor_skips(log: Path, append: Append) -> None:
    append(b"".join(raw(seq, "x") for seq in range(10)))
    found = only_records(open_log(log, cursor=Cursor(BOOT, 6)).read_batch())
    assert [record.seq for record in found] == [7, 8, 9]
    assert not any(record.historical for record in found), "they came while the agent was away"


def test_a_cursor_of_another_boot_counts_for_nothing(log: Path, append: Append) -> None:
    append(raw(0, "x") + raw(1, "y"))
    found = only_records(open_log(log, cursor=Cursor("another", 5000)).read_batch())
    assert [record.seq for record in found] == [0, 1]


def test_records_lost_while_away_are_counted(log: Path, append: Append) -> None:
    append(raw(500, "x"))
    batch = open_log(log, cursor=Cursor(BOOT, 99)).read_batch()
    [loss] = only_losses(batch)
    assert (loss.source, loss.records) == ("kmsg", 400)
    assert "100 to 499" in loss.message
    assert [record.seq for record in only_records(batch)] == [500]


def test_a_gap_between_two_records_is_told_in_its_place(log: Path, append: Append) -> None:
    append(raw(1, "a") + raw(5, "b"))
    batch = open_log(log).read_batch()
    assert [type(item).__name__ for item in batch] == ["Record", "Loss", "Record"]
    assert only_losses(batch)[0].records == 3


def test_a_ring_whose_start_is_long_gone_is_no_loss_on_the_first_look(
    log: Path, append: Append
) -> None:
    append(raw(70_000, "x"))
    assert only_losses(open_log(log).read_batch()) == []


def test_user_records_are_passed_over_but_move_the_cursor(log: Path, append: Append) -> None:
    append(raw(1, "forged", facility=1) + raw(2, "forged", facility=16))
    reader = open_log(log)
    assert reader.read_batch() == []
    assert reader.cursor == Cursor(BOOT, 2)


def test_the_test_mode_takes_facility_1_and_no_other(log: Path, append: Append) -> None:
    append(raw(1, "test", facility=1) + raw(2, "forged", facility=16) + raw(3, "kernel"))
    found = only_records(open_log(log, accept_user_records=True).read_batch())
    assert [record.text for record in found] == [b"test", b"kernel"]


def test_a_flood_of_others_records_does_not_hold_the_agent_up(log: Path, append: Append) -> None:
    append(b"".join(raw(seq, "x", facility=1) for seq in range(100)))
    append(raw(100, "mine"))
    reader = open_log(log)
    ends = []
    found = []
    for _ in range(10):
        found += only_records(reader.read_batch(limit=2))
        ends.append(reader.caught_up)
    assert not ends[0], "an empty batch, and yet not the end"
    assert ends[-1]
    assert [record.text for record in found] == [b"mine"]


def test_without_a_cursor_what_was_there_before_is_historical(log: Path, append: Append) -> None:
    clock = HandClock(100_000.0)
    append(raw(1, "weeks ago", at=50.0) + raw(2, "just now", at=99_999.5))
    reader = open_log(log, clock=clock, started_at=99_999.0)
    assert [found.historical for found in only_records(reader.read_batch())] == [True, False]


def test_after_a_young_boot_the_boots_own_faults_are_news(log: Path, append: Append) -> None:
    clock = HandClock(130.0)
    append(raw(0, "at boot", at=20.0))
    reader = open_log(log, clock=clock, started_at=120.0, boot_grace=1200.0)
    assert [found.historical for found in only_records(reader.read_batch())] == [False]


def test_once_the_ring_was_read_nothing_is_historical_whatever_its_stamp(
    log: Path, append: Append
) -> None:
    """The kernel's clock may be seconds off after a month; new records must not count as old."""
    clock = HandClock(3_000_000.0)
    reader = open_log(log, clock=clock, started_at=2_999_990.0)
    assert reader.read_batch() == []
    clock.now += 1.0
    append(raw(1, "news", at=2_999_000.0))
    [found] = only_records(reader.read_batch())
    assert not found.historical
    assert 3_000_000.0 <= found.at <= 3_000_001.0


def test_a_stamp_ahead_of_the_clock_is_now_at_most(log: Path, append: Append) -> None:
    clock = HandClock(1000.0)
    append(raw(1, "x", at=1010.0) + raw(2, "y", at=1010.5))
    reader = open_log(log, clock=clock)
    assert [found.at for found in only_records(reader.read_batch())] == [1000.0, 1000.0]
    clock.now = 1003.0
    append(raw(3, "z", at=1012.0))
    [found] = only_records(reader.read_batch())
    assert found.at == pytest.approx(1001.5), "the difference is remembered"


def test_a_good_stamp_is_kept_to_the_microsecond(log: Path, append: Append) -> None:
    clock = HandClock(5000.0)
    reader = open_log(log, clock=clock)
    assert reader.read_batch() == []
    clock.now = 5010.0
    append(raw(1, "x", at=5004.123456))
    assert only_records(reader.read_batch())[0].at == pytest.approx(5004.123456, abs=1e-6)


def test_a_log_that_was_set_back_is_read_again_and_said(log: Path, append: Append) -> None:
    """A machine restored from a snapshot: the same boot id, and sequence numbers from before."""
    append(raw(1, "old", at=10.0) + raw(2, "newer", at=4995.0))
    reader = open_log(log, cursor=Cursor(BOOT, 9000))
    [loss] = only_losses(reader.read_batch())
    assert "ahead of the kernel log" in loss.message
    assert [(found.seq, found.historical) for found in only_records(reader.read_batch())] == [
        (1, True),
        (2, False),
    ]
    assert reader.cursor == Cursor(BOOT, 2)


def test_garbage_is_a_gap_and_what_follows_is_read(log: Path, append: Append) -> None:
    append(b"\x00\xff garbage\n" + raw(1, "x") + b"4,2\n" + raw(3, "y"))
    reader = open_log(log)
    batch = reader.read_batch()
    assert [found.text for found in only_records(batch)] == [b"x", b"y"]
    assert [loss.records for loss in only_losses(batch)] == [1], "record 2 was not readable"


def test_a_record_in_the_making_is_read_when_it_is_whole(log: Path, append: Append) -> None:
    whole = raw(1, "in two parts")
    reader = open_log(log)
    append(whole[:15])
    assert reader.read_batch() == []
    append(whole[15:])
    assert [found.text for found in only_records(reader.read_batch())] == [b"in two parts"]


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_an_endless_line_costs_bounded_memory_and_itself_alone(
    log: Path, append: Append, size: int
) -> None:
    append(raw(1, "a") + b"4,2,1,-;" + b"x" * size + b"\n" + raw(3, "b"))
    batch = open_log(log).read_batch()
    assert [found.seq for found in only_records(batch) if len(found.text) < 10] == [1, 3]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)
@given(data=st.binary(max_size=3000))
def test_no_log_raises(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "fuzz"
    path.write_bytes(data + b"\n" + raw(2**40, "the last"))
    reader = open_log(path)
    found = []
    while not reader.caught_up:
        found += only_records(reader.read_batch())
    reader.close()
    assert found == [] or found[-1].seq <= 2**64


def test_a_fifo_is_read_as_it_is_written_and_does_not_end(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = open_log(path)
    assert reader.pollable
    assert reader.read_batch() == []
    for seq in (1, 2):
        path.write_bytes(raw(seq, "x"))  # opens, writes, closes
        assert [found.seq for found in only_records(reader.read_batch())] == [seq]
        assert reader.read_batch() == []
    reader.close()


def test_a_regular_file_says_that_it_cannot_be_polled(log: Path) -> None:
    assert not open_log(log).pollable


def test_a_missing_log_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KernelLogUnavailable, match=r"does not exist.*kernel_log\.enabled = false"):
        open_log(tmp_path / "none")


def test_a_log_that_is_a_folder_is_unavailable(tmp_path: Path) -> None:
    reader = open_log(tmp_path)
    with pytest.raises(KernelLogUnavailable, match="can no longer be read"):
        reader.read_batch()


def test_another_device_is_not_the_kernel_log() -> None:
    with pytest.raises(KernelLogUnavailable, match="not the kernel log"):
        open_log(Path("/dev/null"))


def test_a_reader_that_is_not_open_has_no_descriptor(log: Path) -> None:
    reader = open_log(log)
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="not open"):
        reader.fileno()
