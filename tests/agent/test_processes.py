"""Zombies and processes that hang in the kernel: made-up trees, and real ones."""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import processes
from nodeagent.clock import SystemClock
from nodeagent.model import Status
from nodeagent.sources import gpu_users as users_of_gpus
from nodeagent.sources.gpu_users import gpu_users
from nodeagent.sources.host import HostRoots
from nodeagent.sources.proc_stat import parse_stat, read_stat
from nodeagent.sources.process_state import read_state
from nodeagent.sources.processes import Processes
from tests.agent.kernel_log import HandClock
from tests.agent.machines import (
    built,
    made_up,
    observations,
    options,
    sources,
    this_machine,
    verdicts,
)
from tests.agent.real_disks import MARKS, ext4, frozen, hold, write_now
from tests.support.present import present
from tests.support.waiting import PATIENCE, until

OK = (Status.OK, "")


def process(machine: HostRoots, pid: int, **what: object) -> None:
    """A process as procfs shows it, or what has become of it."""
    known: dict[str, object] = {
        "state": "S",
        "name": "sh",
        "parent": 1,
        "started": 7,
        "switches": 5,
    }
    known |= {"wchan": "0"} | what
    folder = machine.proc / str(pid)
    folder.mkdir(exist_ok=True)
    zeros = " ".join(["0"] * 17)
    head = f"{pid} ({known['name']}) {known['state']} {known['parent']} {zeros}"
    (folder / "stat").write_text(f"{head} {known['started']} {zeros}\n")
    (folder / "comm").write_text(f"{known['name']}\n")
    (folder / "wchan").write_text(str(known["wchan"]))
    (folder / "status").write_text(
        f"Name:\tsh\nvoluntary_ctxt_switches:\t{known['switches']}\n"
        "nonvoluntary_ctxt_switches:\t99\n"
    )


def gone(machine: HostRoots, pid: int) -> None:
    for file in (machine.proc / str(pid)).iterdir():
        file.unlink()
    (machine.proc / str(pid)).rmdir()


@pytest.fixture
def clock() -> HandClock:
    return HandClock(1000.0)


@pytest.fixture
def machine(tmp_path: Path, clock: HandClock) -> HostRoots:
    return made_up(tmp_path, clock)


def check_of(machine: HostRoots, **settings: object) -> processes.ProcessesCheck:
    check: processes.ProcessesCheck = built(
        processes.SPEC, sources(machine), options(processes.SPEC, **settings)
    )
    return check


@given(
    name=st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")),
    state=st.sampled_from("RSDZTI"),
)
def test_a_sweep_sees_the_states_that_it_asks_for_whatever_the_names(name: str, state: str) -> None:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_text(f"7 ({name[:40]}) {state} 1 {'0 ' * 17}9 0\n", "utf-8")
        found = read_stat(file.name, b"ZD")
        whole = read_stat(file.name)
    assert whole is not None
    assert whole.state == state
    if state in "ZD":
        assert found is not None
        assert (found.name, found.state, found.started) == (whole.name, state, 9)
    else:
        assert found is None


async def test_one_wait_is_stuck_and_many_short_ones_are_not(
    machine: HostRoots, clock: HandClock
) -> None:
    process(machine, 10, state="D", switches=5, wchan="nfs_wait", name="train")
    process(machine, 11, state="D", switches=5)
    check = check_of(machine)
    for look in range(4):
        process(machine, 11, state="D", switches=5 + look)  # a busy disk
        found = observations(await check.run_check())["stuck"]
        assert found.status is (Status.OK if look < 2 else Status.DEGRADED), look
        clock.now += 60
    assert found.reason == "stuck"
    assert found.message == "1 hang in the kernel, in nfs_wait (1): train (pid 10)"
    process(machine, 10, state="S")
    assert verdicts(await check.run_check())["stuck"] == OK


async def test_another_process_of_the_same_pid_is_not_stuck(
    machine: HostRoots, clock: HandClock
) -> None:
    check = check_of(machine)
    for started in (7, 8, 9, 10):
        process(machine, 10, state="D", switches=5, started=started)
        assert verdicts(await check.run_check())["stuck"] == OK
        clock.now += 120


async def test_zombies_are_told_by_their_parents(machine: HostRoots) -> None:
    process(machine, 1, name="init")
    process(machine, 2, name="launcher (x) y")
    for pid in range(10, 20):
        process(machine, pid, state="Z", parent=2 if pid > 12 else 1)
    assert verdicts(await check_of(machine, zombies=11).run_check())["zombies"] == OK
    found = observations(await check_of(machine, zombies=10).run_check())["zombies"]
    assert (found.status, found.reason) == (Status.DEGRADED, "zombies")
    assert "7 of launcher (x) y (pid 2), 3 of init (pid 1)" in found.message


async def test_no_procfs_is_unknown(machine: HostRoots, tmp_path: Path) -> None:
    (tmp_path / "proc").rename(tmp_path / "elsewhere")
    assert verdicts(await check_of(machine).run_check()) == {"": (Status.UNKNOWN, "no-procfs")}
    made_up(tmp_path)
    assert verdicts(await check_of(machine).run_check()) == {"": (Status.UNKNOWN, "no-procfs")}


def test_each_look_is_bounded_and_all_are_seen_in_turn(machine: HostRoots) -> None:
    for pid in range(1, 31):
        process(machine, pid, state="Z")
    found = Processes(machine, most=10)
    counts = [sum(found.sample().zombies.values()) for _ in range(3)]
    assert counts == [10, 20, 30]
    for pid in range(1, 26):
        gone(machine, pid)
    assert sum(found.sample().zombies.values()) == 5


def test_what_is_remarkable_is_bounded_too(machine: HostRoots, clock: HandClock) -> None:
    for pid in range(1, 31):
        process(machine, pid, state="D")
    found = Processes(machine, most=10)
    for _ in range(6):
        last = found.sample()
        clock.now += 60
    assert len(last.stuck) == 30
    assert all(60 <= each.seconds <= 300 for each in last.stuck)


@pytest.mark.parametrize("name", ["sh", "a b", "x) R 1", "((", ""])
def test_a_name_may_hold_anything(name: str) -> None:
    rest = " ".join(["0"] * 17)
    raw = f"12 ({name}) D 3 {rest} 77 1 2 3\n".encode()
    stat = present(parse_stat(raw))
    assert (stat.name, stat.state, stat.parent, stat.started) == (name, "D", 3, 77)


@given(st.binary(max_size=300))
def test_garbage_is_no_process(garbage: bytes) -> None:
    assert parse_stat(garbage) is None or b") " in garbage


def test_a_process_that_ends_in_mid_look_is_no_error(machine: HostRoots) -> None:
    process(machine, 10, state="D")
    (machine.proc / "10/status").unlink()
    (machine.proc / "11").mkdir()
    found = Processes(machine).sample()
    assert (found.processes, found.stuck) == (2, [])


# -- real ones ---------------------------------------------------------------------------------


@contextlib.contextmanager
def dead_children(count: int) -> Iterator[int]:
    """The pid of a process that does not reap its children."""
    script = (
        "import os, sys\n"
        f"for _ in range({count}):\n  if os.fork() == 0: os._exit(0)\n"
        "print('ready', flush=True)\nsys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    try:
        yield parent.pid
    finally:
        parent.kill()
        parent.communicate()


async def test_real_zombies() -> None:
    with dead_children(40) as parent:
        check = check_of(this_machine(), zombies=40)
        until = time.monotonic() + PATIENCE
        found = observations(await check.run_check())["zombies"]
        # A round over a busy machine's processes takes several looks, and a request waits for one.
        while f"40 of python (pid {parent})" not in found.message and time.monotonic() < until:
            found = observations(await check.run_check())["zombies"]
        assert found.reason == "zombies"
        assert f"40 of python (pid {parent})" in found.message


async def test_a_look_at_two_thousand_processes_stays_cheap() -> None:
    with dead_children(2000):
        check, spent = check_of(this_machine()), [1.0]
        while min(spent) >= 0.1 and len(spent) < 20:  # a busy machine's processor is slower
            before = time.process_time()
            for _ in range(5):
                await check.run_check()
            spent.append((time.process_time() - before) / 5)
    assert min(spent) < 0.1, "0.03 s at rest"


@pytest.mark.root
@MARKS[1]
async def test_a_writer_to_a_frozen_disk_is_stuck_and_shown_with_where(tmp_path: Path) -> None:
    with ext4(tmp_path / "disk") as point:
        holder = hold(point / "file")
        try:
            with frozen(point):
                write_now(holder)
                check = check_of(only(tmp_path / "proc", holder.pid), stuck_for=0.2)
                until = time.monotonic() + PATIENCE
                found = observations(await check.run_check())["stuck"]
                while f"(pid {holder.pid})" not in found.message and time.monotonic() < until:
                    await asyncio.sleep(0.1)
                    found = observations(await check.run_check())["stuck"]
                assert found.status is Status.DEGRADED
                assert f"(pid {holder.pid})" in found.message
                assert "percpu_rwsem_wait" in found.message
        finally:
            holder.kill()
            holder.communicate()


def only(proc: Path, pid: int) -> HostRoots:
    """This machine with one process: others that hang are of other tests, or of its disks."""
    proc.mkdir()
    for name in (str(pid), "stat"):
        (proc / name).symlink_to(f"/proc/{name}")
    return HostRoots(clock=SystemClock(), proc=proc)


_LEADER_ENDS = """
import ctypes, os, sys, threading
held = open(sys.argv[1])
def hold():
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=hold).start()
ctypes.CDLL(None).pthread_exit(None)
"""


async def test_a_thread_that_has_a_gpu_open_is_seen_after_its_processs_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    monkeypatch.setattr(users_of_gpus, "_DEVICES", (str(device),))
    pipe = subprocess.PIPE
    program = (sys.executable, "-c", _LEADER_ENDS, str(device))
    user = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe)
    assert user.stdout is not None
    assert user.stdin is not None
    assert await user.stdout.readline() == b"ready\n"
    machine = HostRoots(SystemClock())
    await until(lambda: read_state(user.pid).state == "Z")
    [found] = gpu_users(machine, own_namespace=True)
    assert (found.pid, found.file) == (user.pid, str(device))
    user.stdin.close()
    await user.wait()
    assert gpu_users(machine, own_namespace=True) == []
