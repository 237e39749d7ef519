"""The disk checks on real filesystems: filled, remounted, broken by an error, frozen."""

import asyncio
import os
import posix
import time
from collections.abc import AsyncIterator
from errno import EDQUOT
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from nodeagent import child_process
from nodeagent.checks import disk_readonly, disk_space, disk_write
from nodeagent.child_process import ChildProcess, python
from nodeagent.clock import SystemClock
from nodeagent.model import Status
from nodeagent.sources import Sources, disk_child
from nodeagent.sources.disk_child import NAME
from nodeagent.sources.disk_probe import DiskProbe, Hung, NotProbed, ProbeRefused, Space, Written
from nodeagent.sources.host import HostRoots
from tests.agent.kernel_log import HandClock
from tests.agent.machines import built, observations, options, sources, this_machine, verdicts
from tests.agent.real_disks import (
    MARKS,
    alive,
    collect,
    ext4,
    frozen,
    hold,
    names_in,
    probe_children,
    run,
    tmpfs,
    write_now,
)
from tests.support.present import of_type, present
from tests.support.text_files import text_file
from tests.support.waiting import patiently

pytestmark = MARKS

OK = (Status.OK, "")
DEADLINE = 5.0  # of healthy probes too: they take 10 ms, and much longer on a busy machine
PROBE_FILE = NAME.decode()


@pytest.fixture
async def disks() -> AsyncIterator[Sources]:
    found = sources(this_machine(), deadline=DEADLINE)
    yield found
    await found.disk.close()


async def until_gone(pid: int) -> None:
    """Bounded: the kernel ends it as soon as it can."""
    for _ in patiently():
        if not alive(pid):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"process {pid} is still there")


async def until_probed() -> None:
    for _ in patiently():
        if probe_children():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no probe was begun")


async def test_a_tmpfs_fills_up_and_empties(tmp_path: Path, disks: Sources) -> None:
    with tmpfs(tmp_path / "t", "size=4m", "nr_inodes=100") as point:
        check = built(disk_space.SPEC, disks, options(disk_space.SPEC, mounts=(str(point),)))
        assert verdicts(await check.run_check())[str(point)] == OK
        (point / "log").write_bytes(b"x" * (4 << 20))
        assert verdicts(await check.run_check())[str(point)] == (Status.FAILED, "full")
        (point / "log").write_bytes(b"x" * int(3.75 * (1 << 20)))
        assert verdicts(await check.run_check())[str(point)] == (Status.DEGRADED, "full")
        (point / "log").unlink()
        assert verdicts(await check.run_check())[str(point)] == OK
        for number in range(98):
            (point / str(number)).touch()
        assert verdicts(await check.run_check())[str(point)] == (Status.FAILED, "inodes")
    assert verdicts(await check.run_check())[str(point)] == (Status.FAILED, "not-mounted")


async def test_a_pod_looks_at_the_host_below_its_root(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "host", "size=4m") as host, tmpfs(host / "data", "size=1m") as data:
        (data / "log").write_bytes(b"x" * (1 << 20))
        pod = sources(HostRoots(clock=SystemClock(), root=host))
        check = built(disk_space.SPEC, pod, options(disk_space.SPEC, mounts=("/", "/data")))
        assert verdicts(await check.run_check()) == {"/": OK, "/data": (Status.FAILED, "full")}


async def test_a_tmpfs_or_a_loop_device_is_watched_only_by_name(
    tmp_path: Path, disks: Sources
) -> None:
    with tmpfs(tmp_path / "t", "size=1m") as memory, ext4(tmp_path / "e") as loop:
        check = built(disk_space.SPEC, disks, options(disk_space.SPEC))
        seen = verdicts(await check.run_check())
        assert "/" in seen
        assert seen.keys().isdisjoint((str(memory), str(loop)))


async def test_space_is_what_df_says(tmp_path: Path, disks: Sources) -> None:
    with ext4(tmp_path / "e") as point:
        (point / "data").write_bytes(os.urandom(5 << 20))
        df = run("df", "-B1", "--output=size,used,avail,itotal,iavail", point)
        expected = Space(*map(int, df.splitlines()[1].split()))
        assert (await disks.disk.space([str(point)]))[str(point)] == expected


async def test_a_remount_is_seen_at_the_next_look(tmp_path: Path, disks: Sources) -> None:
    with ext4(tmp_path / "e") as point:
        name = str(point)
        check = built(disk_readonly.SPEC, disks, options(disk_readonly.SPEC, mounts=(name,)))
        write = built(disk_write.SPEC, disks, options(disk_write.SPEC, paths=(name,)))
        assert verdicts(await check.run_check())[name] == OK
        assert verdicts(await write.run_check())[name] == OK
        run("mount", "-o", "remount,ro", point)
        by_hand = (Status.DEGRADED, "read-only")  # no error is counted
        assert verdicts(await check.run_check())[name] == by_hand
        assert verdicts(await write.run_check())[name] == by_hand
        run("mount", "-o", "remount,rw", point)
        assert verdicts(await check.run_check())[name] == OK
        assert verdicts(await write.run_check())[name] == OK


async def test_a_read_only_bind_mount_is_nobodys_failure(tmp_path: Path, disks: Sources) -> None:
    with ext4(tmp_path / "e") as point:
        bind = tmp_path / "bind"
        bind.mkdir()
        run("mount", "--bind", point, bind)
        try:
            run("mount", "-o", "remount,bind,ro", bind)
            named = options(disk_readonly.SPEC, mounts=(str(bind),), writable=(str(bind),))
            check = built(disk_readonly.SPEC, disks, named)
            write = built(disk_write.SPEC, disks, options(disk_write.SPEC, paths=(str(bind),)))
            assert verdicts(await check.run_check())[str(bind)] == OK
            assert verdicts(await write.run_check())[str(bind)] == (
                Status.UNKNOWN,
                "read-only-mount",
            )
        finally:
            run("umount", bind)


async def test_a_full_disk_is_capacity_and_no_fault(tmp_path: Path, disks: Sources) -> None:
    with tmpfs(tmp_path / "t", "size=1m") as point:
        check = built(disk_write.SPEC, disks, options(disk_write.SPEC, paths=(str(point),)))
        assert verdicts(await check.run_check())[str(point)] == OK
        (point / "data").write_bytes(b"x" * (1 << 20))
        assert verdicts(await check.run_check())[str(point)] == (Status.DEGRADED, "no-space")
        assert names_in(point) == ["data"]


async def test_the_probe_leaves_nothing_and_tells_a_missing_directory(
    tmp_path: Path, disks: Sources
) -> None:
    paths = (str(tmp_path), str(tmp_path / "nothing"))
    check = built(disk_write.SPEC, disks, options(disk_write.SPEC, paths=paths))
    found = verdicts(await check.run_check())
    assert found == {paths[0]: OK, paths[1]: (Status.UNKNOWN, "no-directory")}
    assert names_in(tmp_path) == []


async def test_the_probe_never_writes_into_somebody_elses_file(
    tmp_path: Path, disks: Sources
) -> None:
    precious = text_file(tmp_path / "precious", "mine")
    for plant in (Path.symlink_to, Path.hardlink_to):
        folder = tmp_path / "shared"
        folder.mkdir()
        plant(folder / PROBE_FILE, precious)
        assert isinstance((await disks.disk.write([str(folder)]))[str(folder)], ProbeRefused)
        assert precious.read_text() == "mine"
        (folder / PROBE_FILE).unlink()
        folder.rmdir()


async def test_a_frozen_disk_hangs_its_own_probe_and_nothing_else(
    tmp_path: Path, disks: Sources
) -> None:
    with ext4(tmp_path / "e") as point:
        paths = (str(point), str(tmp_path))
        check = built(disk_write.SPEC, disks, options(disk_write.SPEC, paths=paths))
        with frozen(point):
            found = observations(await check.run_check())
            assert (found[paths[0]].status, found[paths[0]].reason) == (Status.DEGRADED, "hung")
            assert "D in " in found[paths[0]].message
            assert found[paths[1]].status is Status.OK

            outstanding = disks.disk.outstanding()
            assert list(outstanding) == [paths[0]]
            pid = outstanding[paths[0]]

            # Looked at again: no second process, no second wait, and the others go on.
            began = time.monotonic()
            results = [await disks.disk.write(paths) for _ in range(5)]
            took = time.monotonic() - began
            assert took < 4 * DEADLINE, "each of the five waited for its deadline again"
            assert disks.disk.outstanding() == {paths[0]: pid}
            assert all(isinstance(result[paths[1]], Written) for result in results)
            ages = [result[paths[0]] for result in results]
            assert all(isinstance(age, Hung) and age.seconds >= DEADLINE for age in ages)
            # statvfs does not write: the space is still reported.
            assert isinstance((await disks.disk.space([paths[0]]))[paths[0]], Space)

        await until_gone(pid)
        assert disks.disk.outstanding() == {}
        assert verdicts(await check.run_check()) == {paths[0]: OK, paths[1]: OK}
        assert PROBE_FILE not in names_in(point)


async def test_two_hung_disks_are_told_apart(tmp_path: Path, disks: Sources) -> None:
    with ext4(tmp_path / "a") as a, ext4(tmp_path / "b") as b:
        paths = [str(a), str(b), str(tmp_path)]
        with frozen(a), frozen(b):
            began = time.monotonic()
            found = await disks.disk.write(paths)
            assert time.monotonic() - began < 2 * DEADLINE, "one deadline for both"
            assert [type(found[path]) for path in paths] == [Hung, Hung, Written]
            pids = set(disks.disk.outstanding().values())
            assert len(pids) == 1
        for pid in pids:
            await until_gone(pid)
        assert all(isinstance(r, Written) for r in (await disks.disk.write(paths)).values())


async def test_a_new_agent_adds_no_second_process_to_a_hung_disk(
    tmp_path: Path, disks: Sources
) -> None:
    """The first agent's probe holds the file; the next finds it locked and says so."""
    with ext4(tmp_path / "e") as point:
        path = str(point)
        holder = hold(point / PROBE_FILE)
        try:
            with frozen(point):
                write_now(holder)
                disk = sources(this_machine(), deadline=3.0).disk
                found = of_type((await disk.write([path]))[path], Hung)
                assert "earlier probe" in found.where
                assert disk.outstanding() == {}
                assert alive(holder.pid)
        finally:
            holder.communicate()
        assert isinstance((await disks.disk.write([path]))[path], Written)


async def test_closing_with_a_hung_probe_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    probe = sources(this_machine(), deadline=0.3).disk
    with ext4(tmp_path / "e") as point:
        with frozen(point):
            await probe.write([str(point)])
            pid = probe.outstanding()[str(point)]
            await probe.close()  # the disk is frozen until the block ends
        # Killed before the thaw, it ends with it (and is this process's zombie, not collected).
        for _ in patiently():
            if collect(pid):
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the probe outlived the thaw")


async def test_callers_at_the_same_time_share_one_probe(tmp_path: Path, disks: Sources) -> None:
    with ext4(tmp_path / "e") as point, frozen(point):
        asked = asyncio.gather(*(disks.disk.write([str(point)]) for _ in range(4)))
        await until_probed()
        assert len(probe_children()) == 1
        results = await asked
    assert all(isinstance(result[str(point)], Hung) for result in results)


async def test_a_probe_that_is_killed_is_not_a_sick_disk(tmp_path: Path, disks: Sources) -> None:
    with ext4(tmp_path / "e") as point, frozen(point):
        asked = asyncio.create_task(disks.disk.write([str(point)]))
        await until_probed()
        pid = disks.disk.outstanding()[str(point)]
        os.kill(pid, 9)
        run("fsfreeze", "--unfreeze", point)
        result = (await asked)[str(point)]
        run("fsfreeze", "--freeze", point)
    assert isinstance(result, NotProbed)


async def kept_child(disks: Sources, path: str) -> int:
    """Two looks within a minute, and not of one beat, keep the child of the second."""
    for _ in range(2):
        disks.disk._gathered_at -= 30.0
        assert isinstance((await disks.disk.write([path]))[path], Written)
    kept = present(disks.disk._kept)
    return kept.pid


async def test_a_child_of_one_look_a_minute_is_not_kept(tmp_path: Path) -> None:
    clock = HandClock()
    disk = DiskProbe(machine=HostRoots(clock=clock), deadline=DEADLINE)
    for gap, kept in ((0, 0), (0.5, 0), (45, 0), (30, 1), (0.5, 1), (45, 0)):
        clock.now += gap
        await disk.space([str(tmp_path)])
        assert (disk._kept is not None) == kept, gap
    for _ in patiently():
        if not probe_children():
            break
        await asyncio.sleep(0.02)
    assert probe_children() == []
    await disk.close()


async def test_a_child_is_kept_from_look_to_look(tmp_path: Path, disks: Sources) -> None:
    path = str(tmp_path)
    pid = await kept_child(disks, path)
    for _ in patiently():
        if probe_children() == [pid]:
            break
        await asyncio.sleep(0.02)
    for _ in range(3):
        assert isinstance((await disks.disk.write([path]))[path], Written)
        assert isinstance((await disks.disk.space([path]))[path], Space)
    assert probe_children() == [pid]
    assert len(psutil.Process(pid).threads()) <= 2, "the threads of done jobs are gone"


async def test_a_child_that_ends_between_two_looks_is_replaced(
    tmp_path: Path, disks: Sources
) -> None:
    path = str(tmp_path)
    pid = await kept_child(disks, path)
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222  # killed
    assert isinstance((await disks.disk.write([path]))[path], Written)
    assert pid not in probe_children()


async def test_a_child_that_waits_for_a_disk_gets_no_other_question(
    tmp_path: Path, disks: Sources
) -> None:
    """It is killed when the first is late, and the others would have no answer."""
    with ext4(tmp_path / "e") as point, frozen(point):
        hangs = asyncio.create_task(disks.disk.write([str(point)]))
        await until_probed()
        pid = disks.disk.outstanding()[str(point)]
        disks.disk._gathered_at -= 30.0
        for _ in range(2):
            assert isinstance((await disks.disk.space([str(tmp_path)]))[str(tmp_path)], Space)
        assert isinstance((await hangs)[str(point)], Hung)
        assert disks.disk._kept is not None
        other = disks.disk._kept.pid
        assert other in probe_children(), "one new child for both"
    await until_gone(pid)
    assert isinstance((await disks.disk.write([str(tmp_path)]))[str(tmp_path)], Written)
    assert disks.disk._kept.pid == other


async def test_a_child_ends_when_its_agent_has_gone(tmp_path: Path) -> None:
    child = ChildProcess(python("disk_child.py"), lambda line: None, listens=True)
    child.end_input()
    assert await child.ended == 0


@pytest.mark.parametrize("grows", [True, False])
async def test_more_questions_than_a_new_pipe_takes_are_answered_or_start_no_second_probe(
    tmp_path: Path, disks: Sources, monkeypatch: pytest.MonkeyPatch, *, grows: bool
) -> None:
    """Where the pipe can't grow, the child has a part of them, and is ended."""
    if not grows:
        monkeypatch.setattr(child_process, "_PIPE", 1 << 30)
    paths = [str(tmp_path / f"{number}{'x' * 200}") for number in range(400)]
    await kept_child(disks, str(tmp_path))
    for _ in range(2):
        found = await disks.disk.space(paths)
        kinds = {type(each) for each in found.values()}
        assert kinds == {ProbeRefused} if grows else kinds <= {NotProbed, ProbeRefused}
    assert isinstance((await disks.disk.space(["/"]))["/"], Space), "the next look is answered"


async def test_a_probe_that_fails_itself_is_no_hung_disk(tmp_path: Path, disks: Sources) -> None:
    """Its child is kept, so its end is no answer."""
    impossible = "/\0"
    pid = await kept_child(disks, str(tmp_path))
    found = of_type((await disks.disk.space([impossible, str(tmp_path)]))[impossible], NotProbed)
    assert "failed ValueError" in found.message
    found = of_type((await disks.disk.write([impossible]))[impossible], NotProbed)
    assert isinstance((await disks.disk.space([str(tmp_path)]))[str(tmp_path)], Space)
    assert pid in probe_children()


def test_an_error_of_a_call_that_is_no_step_has_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(file: int) -> None:
        os.close(file)
        raise OSError(EDQUOT, "as NFS gives it")

    monkeypatch.setattr(disk_child, "posix", SimpleNamespace(**{**vars(posix), "close": close}))
    assert disk_child.answer("write", bytes(tmp_path)) == f"refused {EDQUOT} write"


async def test_what_a_child_says_last_is_kept(tmp_path: Path) -> None:
    lines: list[str] = []
    child = ChildProcess(python("disk_child.py"), lines.append, listens=True)
    assert child.send(b"0 melt 2f\n")
    assert await child.ended == 1
    assert child.last_words == "no such probe: melt"
    assert not child.send(b"1 space 2f\n"), "it has ended"


async def test_questions_of_the_same_moment_share_a_child(disks: Sources, tmp_path: Path) -> None:
    looks = (
        disks.disk.space(["/", str(tmp_path)]),
        disks.disk.write([str(tmp_path)]),
        disks.disk.space([str(tmp_path / "remote")], apart=True),
    )
    asked = asyncio.gather(*looks)
    seen: set[int] = set()
    while not asked.done():
        seen |= set(disks.disk.outstanding().values())
        await asyncio.sleep(0)
    assert len(seen) == 2
    local, written, apart = asked.result()
    assert all(isinstance(result, Space) for result in local.values())
    assert all(isinstance(result, Written) for result in written.values())
    assert [type(result) for result in apart.values()] == [ProbeRefused]
