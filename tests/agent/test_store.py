"""The state file after a kill, a reboot, a wiped folder, a damaged file, and a frozen disk."""

import asyncio
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.evidence.disk_backup import BackupUnreadable, DiskBackup, read_copy
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State, StateError, dump, restore
from nodeagent.evidence.store import NAME, Store, UnreleasedState
from nodeagent.model import Batch, ClearedBy, Clearing, FaultSighting, Loss, Observation, Status
from tests.agent.kernel_log import HandClock
from tests.support.present import present
from tests.support.text_files import text_file
from tests.support.waiting import until

BOOT, NEXT_BOOT = "boot-a", "boot-b"
UUIDS = {"0000:3b:00": "GPU-1"}


def epochs() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"epoch-{next(numbers)}"


def full_state() -> State:
    """A state with a value in each field."""
    latch = Latch(boot_id=BOOT, epoch="epoch-0")
    batch: Batch = [
        Observation("disk-space", "/", Status.OK),
        Observation("disk-space", "/", Status.FAILED, "full", "99 %"),
        FaultSighting("xid:79", "xid", "GPU-1", "off", "kmsg", 7, 900.0, details={"pid": "1"}),
        FaultSighting("xid:79", "xid", "GPU-1", "off", "kmsg", 9, 950.0),
        FaultSighting("xid:48", "xid", "GPU-1", "dbe", "kmsg", 10, 960.0, ClearedBy.GPU_RESET),
        FaultSighting("xid:31", "xid", "GPU-1", "app", "kmsg", 11, 960.0, ClearedBy.EXPIRY),
        FaultSighting("xid:54", "xid", "GPU-1", "power", "kmsg", 12, 970.0, ClearedBy.OPERATOR),
        Clearing("GPU-2", "gpu-reset"),
        Loss("kmsg", 3, "overwritten"),
    ]
    latch.apply(batch, 1000.0)
    latch.snapshot(1000.0)
    return State(latch, 12, UUIDS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(run_dir=tmp_path / "run", state_dir=tmp_path / "state", clock=HandClock(1000.0))


def copy_to_disk(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "run" / NAME).rename(folder / "state" / NAME)


def test_everything_survives_a_restart_within_the_boot(store: Store, tmp_path: Path) -> None:
    before = full_state()
    assert store.save(before)
    after = store.load(boot_id=BOOT, new_epoch=epochs())
    assert dump(after, 1.0) == dump(before, 1.0)
    assert after.latch.epoch == "epoch-0"
    assert after.kernel_seq == 12


def test_only_the_owner_can_read_the_state(store: Store, tmp_path: Path) -> None:
    store.save(full_state())
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "run" / NAME).stat().st_mode) == 0o600


def test_a_first_start_has_nothing_and_loses_nothing(store: Store) -> None:
    state = store.load(boot_id=BOOT, new_epoch=epochs())
    assert (state.latch.faults, state.latch.unacked.losses, state.kernel_seq) == ({}, [], None)


def test_after_a_reboot_only_what_a_person_ends_is_left(store: Store, tmp_path: Path) -> None:
    store.save(full_state())
    copy_to_disk(tmp_path)
    state = store.load(boot_id=NEXT_BOOT, new_epoch=epochs())
    latch = state.latch
    assert set(latch.faults) == {("xid:54", "GPU-1")}
    fault = latch.faults["xid:54", "GPU-1"]
    assert (fault.boot_id, fault.last) == (BOOT, -30.0)  # 30 s before the last save, at least
    assert (latch.components, latch.applied, state.kernel_seq) == ({}, {}, None)
    assert latch.boot_id == NEXT_BOOT
    assert latch.epoch == "epoch-1"
    assert state.gpus == UUIDS
    assert latch.unacked.clearings == [Clearing("GPU-2", "gpu-reset")]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 99}', b"\xff\xfe", b"[" * 99_999]
)
def test_a_damaged_file_is_set_aside_and_said(store: Store, tmp_path: Path, content: bytes) -> None:
    store.save(full_state())
    (tmp_path / "run" / NAME).write_bytes(content)
    state = store.load(boot_id=BOOT, new_epoch=epochs())
    assert state.latch.faults == {}
    assert state.latch.epoch == "epoch-1"
    assert "damaged" in state.latch.unacked.losses[0].message
    assert (tmp_path / "run" / (NAME + ".corrupt")).read_bytes() == content
    assert store.save(state)


@pytest.mark.parametrize("where", ["run", "state"])
def test_a_file_of_an_unreleased_version_is_refused_and_left(
    store: Store, tmp_path: Path, where: str
) -> None:
    document = dump(full_state(), 1000.0)
    del document["format"]
    (tmp_path / where).mkdir()
    path = text_file(tmp_path / where / NAME, json.dumps(document | {"version": 1}))
    before = path.read_bytes()
    with pytest.raises(UnreleasedState, match=rf"of an unreleased version .*rm {path}"):
        store.load(boot_id=BOOT, new_epoch=epochs())
    assert path.read_bytes() == before


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_damage_within_the_document_is_a_typed_error(data: st.DataObject) -> None:
    document = json.loads(json.dumps(dump(full_state(), 1000.0)))
    key = data.draw(st.sampled_from(sorted(document)))
    junk = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=9)
    document[key] = data.draw(junk | st.dictionaries(st.text(max_size=3), junk, max_size=2))
    try:
        state = restore(document, boot_id=BOOT, new_epoch=None)
    except StateError:
        return
    json.dumps(dump(state, 1.0))  # an accepted document is whole


def test_a_folder_that_cannot_be_written_is_a_problem_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    store = Store(run_dir=tmp_path / "run", state_dir=tmp_path / "state", clock=HandClock())
    state = store.load(boot_id=BOOT, new_epoch=epochs())
    assert store.save(state) is False
    assert str(tmp_path / "run") in store.problem
    (tmp_path / "run").unlink()
    assert store.save(state) is True
    assert store.problem == ""


# -- the copy on disk -----------------------------------------------------------------------------


async def test_the_copy_appears_without_being_waited_for(store: Store, tmp_path: Path) -> None:
    copy = DiskBackup(tmp_path / "run" / NAME, tmp_path / "state", interval=0.05)
    store.save(full_state())
    copy.changed()
    assert copy.running
    target = tmp_path / "state" / NAME
    await until(target.exists)
    assert target.read_bytes() == (tmp_path / "run" / NAME).read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    store.save(State(Latch(boot_id=BOOT, epoch="later")))
    copy.changed()
    await until(lambda: b"later" in target.read_bytes())
    await until(lambda: not copy.running)
    copy.close()


async def test_changes_while_a_copy_rests_wait_and_the_end_copies_them(tmp_path: Path) -> None:
    source, folder = tmp_path / NAME, tmp_path / "state"
    source.write_text("first")
    copy = DiskBackup(source, folder, interval=3600)
    copy.changed()
    await until(lambda: not copy.running)
    for _ in range(20):
        source.write_text("second")
        copy.changed()
        assert not copy.running  # it rests
    assert (folder / NAME).read_text() == "first"
    copy.close()
    await until(lambda: (folder / NAME).read_text() == "second")


async def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    source = text_file(tmp_path / NAME, "x")
    (tmp_path / "state").write_text("a file")
    copy = DiskBackup(source, tmp_path / "state")
    copy.changed()
    await until(lambda: copy.problem)
    assert "FileExistsError" in copy.problem
    copy.close()


@pytest.mark.root
async def test_a_copy_that_hangs_holds_nobody_up_and_is_not_started_twice(
    store: Store, tmp_path: Path, frozen_disk: Path
) -> None:
    copy = DiskBackup(tmp_path / "run" / NAME, frozen_disk, interval=0.01)
    assert store.save(full_state())
    copy.changed()
    child = present(copy._child)
    wchan = Path(f"/proc/{child.pid}/wchan")
    await until(lambda: "percpu_rwsem" in wchan.read_text() or "sb_start" in wchan.read_text())
    for _ in range(3):
        assert store.save(full_state())  # evidence goes on
        copy.changed()
        assert copy._child is child
    await asyncio.to_thread(subprocess.check_call, ["fsfreeze", "-u", str(frozen_disk)])
    await until(lambda: (frozen_disk / NAME).exists() and copy._child is not child)
    await until(lambda: not copy.running)
    copy.close()


def test_a_node_that_starts_no_process_more_has_an_agent_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(BackupUnreadable, match="its reader can't be started"):
        read_copy(tmp_path / NAME)
