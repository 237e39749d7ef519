"""The state's files with faults in them: the file that counts, and the report."""

import asyncio
import gc
import json
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from nodeagent.evidence import disk_backup
from nodeagent.evidence.disk_backup import BackupUnreadable, DiskBackup, read_copy
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.machine_identity import MachineIdentity, read_identity
from nodeagent.evidence.state import State, dump
from nodeagent.evidence.store import NAME, Store
from nodeagent.model import ClearedBy, FaultSighting
from tests.agent.kernel_log import HandClock
from tests.support.present import present
from tests.support.text_files import text_file
from tests.support.waiting import until

FAULT = FaultSighting("xid:54", "xid", "GPU-1", "power", "kmsg", 7, 900.0, ClearedBy.OPERATOR)
KEY = ("xid:54", "GPU-1")


def a_state(boot: str = "boot-a", epoch: str = "old") -> State:
    latch = Latch(boot_id=boot, epoch=epoch)
    latch.apply([FAULT], 1000.0)
    return State(latch, 7)


def epochs() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"epoch-{next(numbers)}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(run_dir=tmp_path / "run", state_dir=tmp_path / "state", clock=HandClock(1000.0))


def losses(state: State) -> list[str]:
    return [loss.message for loss in state.latch.unacked.losses]


def write(folder: Path, state: State | None = None, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    document = json.loads(json.dumps(dump(state or a_state(), 1000.0))) | changes
    (folder / NAME).write_text(json.dumps(document))
    return folder / NAME


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# -- the store ------------------------------------------------------------------------------------


def test_the_file_in_memory_counts_and_the_copy_is_not_asked(store: Store, tmp_path: Path) -> None:
    write(tmp_path / "run")
    write(tmp_path / "state", a_state(epoch="copied"))
    state = store.load(boot_id="boot-a", new_epoch=epochs())
    assert (state.latch.epoch, state.kernel_seq, losses(state)) == ("old", 7, [])
    other = store.load(boot_id="boot-b", new_epoch=epochs())
    assert (other.latch.epoch, other.kernel_seq, losses(other)) == ("epoch-1", None, [])
    assert set(other.latch.faults) == {KEY}


def test_a_copy_of_this_boot_is_said_to_be_older_and_one_of_another_boot_is_not(
    store: Store, tmp_path: Path
) -> None:
    write(tmp_path / "state")
    state = store.load(boot_id="boot-a", new_epoch=epochs())
    what = f"{tmp_path}/run/{NAME} was gone: results newer than its copy on disk are lost"
    assert (state.latch.epoch, losses(state)) == ("epoch-1", [what])
    assert state.kernel_seq == 7, "from there the kernel log is read again"
    other = store.load(boot_id="boot-b", new_epoch=epochs())
    assert (other.latch.epoch, losses(other)) == ("epoch-1", [])
    for found in (state, other):
        assert set(found.latch.faults) == {KEY}


def test_a_file_that_cannot_be_read_is_said_and_the_copy_counts(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "run" / NAME).mkdir(parents=True)
    write(tmp_path / "state")
    state = store.load(boot_id="boot-b", new_epoch=epochs())
    assert losses(state) == [f"{tmp_path}/run/{NAME} cannot be read: Is a directory"]
    assert set(state.latch.faults) == {KEY}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": 2}, "ValueError: format is 2, expected 1"),
        ({"last_seq": float("inf")}, "OverflowError: cannot convert float infinity to integer"),
        ({"last_acked": -1}, "ValueError: -1 is no count"),
        ({"losses": [["kmsg", 2**70, "m"]]}, "ValueError: 1.18e+21 is no count"),
        ({"faults": None}, "TypeError: 'NoneType' object is not iterable"),
        ({"gpus": []}, "AttributeError: 'list' object has no attribute 'items'"),
    ],
)
def test_a_damaged_file_is_set_aside_with_its_reason_and_the_copy_counts(
    store: Store, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    path = write(tmp_path / "run", **changes)
    content = path.read_bytes()
    write(tmp_path / "state")
    state = store.load(boot_id="boot-b", new_epoch=epochs())
    aside = f"it was set aside as {NAME}.corrupt"
    assert losses(state) == [f"{path} is damaged ({why}); {aside}"]
    assert path.with_name(NAME + ".corrupt").read_bytes() == content
    assert set(state.latch.faults) == {KEY}


def test_a_damaged_file_that_cannot_be_set_aside(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "run", format=2)
    (tmp_path / "run" / (NAME + ".corrupt")).mkdir()
    [said] = losses(store.load(boot_id="boot-a", new_epoch=epochs()))
    assert said.endswith("; it could not be set aside: Is a directory")
    assert path.exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[]", "it is no JSON object"),
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"format": 3}', "ValueError: format is 3, expected 1"),
    ],
)
def test_a_copy_that_cannot_be_used_is_said(
    store: Store, tmp_path: Path, content: bytes, why: str
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / NAME).write_bytes(content)
    state = store.load(boot_id="boot-a", new_epoch=epochs())
    assert losses(state) == [f"{tmp_path}/state/{NAME} cannot be used: {why}"]
    assert (state.latch.faults, state.latch.epoch) == ({}, "epoch-1")


def test_a_save_replaces_the_file_as_a_whole_and_leaves_nothing_open(
    store: Store, tmp_path: Path
) -> None:
    before = open_files()
    large = a_state()
    large.gpus = {f"0000:{n:02x}:00": "x" * 5_000 for n in range(40)}
    assert store.save(large)
    assert store.save(a_state())
    assert open_files() == before
    assert [path.name for path in (tmp_path / "run").iterdir()] == [NAME]
    document = json.loads((tmp_path / "run" / NAME).read_text())
    assert document == json.loads(json.dumps(dump(a_state(), 1000.0)))
    (tmp_path / "run" / NAME).unlink()
    (tmp_path / "run" / NAME).mkdir()
    assert not store.save(a_state())
    assert store.problem == f"{tmp_path}/run/{NAME} cannot be written: Is a directory"
    assert open_files() == before


# -- whose it is ----------------------------------------------------------------------------------


def test_two_machines_differ_in_what_both_know() -> None:
    ours = MachineIdentity("a", "u1", "m1")
    for theirs in (ours, MachineIdentity("a"), MachineIdentity(""), MachineIdentity("a", "u1")):
        assert ours.difference(theirs) == theirs.difference(ours) == ""
    assert ours.difference(MachineIdentity("b", "", "m1")) == "node b and not a"
    assert ours.difference(MachineIdentity("a", "u2", "m2")) == (
        "product UUID u2 and not u1, machine id m2 and not m1"
    )
    assert read_identity({"machine": ours.dump()}) == ours
    assert read_identity({"machine": {}}) == MachineIdentity("")
    assert read_identity({}) is None
    with pytest.raises(TypeError, match="machine is list, expected an object"):
        read_identity({"machine": []})


# -- the copy on disk -----------------------------------------------------------------------------


def test_a_copy_s_reader_says_why_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_files()
    with pytest.raises(BackupUnreadable, match=r"^IsADirectoryError: "):
        read_copy(tmp_path)
    (tmp_path / "file").write_bytes(b"\x00\xff")
    assert read_copy(tmp_path / "file") == b"\x00\xff"
    assert read_copy(tmp_path / "file" / NAME) is None
    assert read_copy(tmp_path / "none" / NAME) is None
    monkeypatch.setattr(disk_backup, "_READ", "import sys; sys.exit(7)")
    with pytest.raises(BackupUnreadable, match=r"^its reader ended with 7$"):
        read_copy(tmp_path / "file")
    monkeypatch.setattr(disk_backup, "_READ", "import time; time.sleep(600)")
    with pytest.raises(BackupUnreadable, match=r"^the disk did not answer within 0\.2 s$"):
        read_copy(tmp_path / "file", patience=0.2)
    assert open_files() == before


async def test_a_copy_that_fails_says_its_last_line_or_its_status_until_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_file(tmp_path / NAME, "content")
    copy = DiskBackup(source, tmp_path / "state", interval=3600)
    whole = disk_backup._COPY
    for program, reason in (
        ("import sys; sys.exit(3)", "status 3"),
        ("import sys; print('one', flush=True); sys.exit('two\\nthree \\n')", "three"),
        (f"import sys; sys.exit('x' * {disk_backup._WORDS * 3} + 'end')", None),
    ):
        monkeypatch.setattr(disk_backup, "_COPY", program)
        try_again = copy._rested if copy.problem else copy.changed
        copy.problem = ""
        try_again()
        await until(lambda: bool(copy.problem) and not copy.running)
        said = copy.problem.removeprefix(f"no copy of the state in {tmp_path}/state: ")
        if reason is None:
            assert said == "x" * (disk_backup._WORDS - 4) + "end"
        else:
            assert said == reason
    monkeypatch.setattr(disk_backup, "_COPY", whole)
    copy._rested()  # after the pause it is tried again, without another change
    await until(lambda: not copy.problem)
    assert (tmp_path / "state" / NAME).read_text() == "content"
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    copy.close()


async def test_a_copy_that_cannot_be_started_is_said_and_tried_at_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_file(tmp_path / NAME, "content")
    python = sys.executable
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    copy = DiskBackup(source, tmp_path / "state", interval=3600)
    copy.changed()
    running = [copy.running]
    assert copy.problem.startswith("the copy of the state on disk cannot be made: ")
    monkeypatch.setattr(sys, "executable", python)
    copy.changed()
    assert [*running, copy.running] == [False, True]
    await until(lambda: not copy.running)
    assert copy.problem == ""
    copy.close()


async def test_what_changes_while_a_copy_runs_is_copied_next(tmp_path: Path) -> None:
    source = text_file(tmp_path / NAME, "first")
    copy = DiskBackup(source, tmp_path / "state", interval=0.0)
    copy.changed()
    first = copy._child
    source.write_text("second")
    copy.changed()
    assert copy._child is first, "one at a time"
    await until(lambda: copy._child is not first)
    await until(lambda: not copy.running)
    assert (tmp_path / "state" / NAME).read_text() == "second"
    copy.close()


@pytest.mark.parametrize("is_slow", [True, False])
async def test_what_changed_is_copied_when_the_copy_before_has_ended_and_rested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    """The later of the two starts the next copy; no change comes after it."""
    if is_slow:
        slow = f"import time; time.sleep(0.3)\n{disk_backup._COPY}"
        monkeypatch.setattr(disk_backup, "_COPY", slow)
    source = text_file(tmp_path / NAME, "first")
    copy = DiskBackup(source, tmp_path / "state", interval=0.05 if is_slow else 5.0)
    copy.changed()
    first = copy._child
    if not is_slow:
        await until(lambda: not copy.running)
    copy.changed()
    assert copy._child is (first if is_slow else None)
    source.write_text("second")
    target = tmp_path / "state" / NAME
    await until(lambda: target.exists() and target.read_text() == "second")
    await until(lambda: not copy.running)
    copy.close()


async def test_a_copy_that_is_closed_starts_no_other_and_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    source = text_file(tmp_path / NAME, "first")
    before = open_files()
    copy = DiskBackup(source, tmp_path / "state", interval=3600)
    copy.close()
    copy.changed()
    assert not copy.running, "closed"
    copy = DiskBackup(source, tmp_path / "state", interval=3600)
    copy.changed()
    copy.close()
    assert (tmp_path / "state" / NAME).exists(), "before the agent ends, and its children with it"
    assert not copy.running
    copy.changed()
    assert not copy.running
    assert open_files() == before
    idle = DiskBackup(source, tmp_path / "idle", interval=3600)
    idle.close()
    assert not (tmp_path / "idle").exists(), "nothing was wanted"


async def test_a_copy_is_closed_between_the_end_of_its_output_and_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        disk_backup, "_COPY", "import os, sys; os.close(1); os.close(2); sys.stdin.read()"
    )
    here, there = os.pipe()
    popen = subprocess.Popen

    def waiting(*arguments: Any, **settings: Any) -> "subprocess.Popen[bytes]":
        return popen(*arguments, **(settings | {"stdin": here}))

    monkeypatch.setattr(subprocess, "Popen", waiting)
    copy = DiskBackup(tmp_path / NAME, tmp_path / "state")
    copy.changed()
    child = present(copy._child)
    assert child.stdout is not None
    await until(lambda: child.stdout is not None and child.stdout.closed)
    running = [copy.running]
    copy.close()
    assert [*running, copy.running] == [True, False]
    os.close(there)  # which ends it
    os.close(here)
    await asyncio.to_thread(os.waitpid, child.pid, 0)


def test_a_reader_that_is_left_behind_leaves_no_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_backup, "_READ", "import time; time.sleep(600)")
    gc.collect()
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        with pytest.raises(BackupUnreadable):
            read_copy(tmp_path / NAME, patience=0.1)
        gc.collect()
    assert [str(each.message) for each in complaints] == []
