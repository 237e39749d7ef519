"""Real filesystems for the tests: a tmpfs, an ext4 on a loop device, and a frozen one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import psutil
import pytest


def run(*command: str | Path) -> str:
    """Run the command; returns its output. The output of a failure is in the exception."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr or done.stdout}"
    return done.stdout


@cache
def why_not() -> str:
    """Why this machine cannot mount; empty when it can."""
    if os.geteuid() != 0:
        return "needs root to mount"
    missing = [tool for tool in ("mkfs.ext4", "fsfreeze", "losetup") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed: tests/setup-debian.sh"
    free = subprocess.run(["losetup", "-f"], capture_output=True, text=True, check=False)
    return f"no loop device: {free.stderr.strip()}" if free.returncode else ""


MARKS = [pytest.mark.root, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


@contextmanager
def tmpfs(point: Path, *options: str) -> Iterator[Path]:
    point.mkdir()
    run("mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", point)
    try:
        yield point
    finally:
        run("umount", "--lazy", point)


@contextmanager
def ext4(point: Path, *options: str, size: int = 16 << 20) -> Iterator[Path]:
    image = point.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size)
    run("mkfs.ext4", "-q", "-m", "0", image)
    point.mkdir()
    run("mount", "-o", ",".join(["loop", *options]), image, point)
    try:
        yield point
    finally:
        run("umount", "--lazy", point)


@contextmanager
def frozen(point: Path) -> Iterator[None]:
    """Every write to it hangs in state D until the end."""
    run("fsfreeze", "--freeze", point)
    try:
        yield
    finally:
        run("fsfreeze", "--unfreeze", point)


@contextmanager
def freezer(point: Path) -> Iterator[Callable[[], None]]:
    """A frozen ext4 at ``point``; gives what thaws it, once, at the latest at the end.

    A process that creates a file there meanwhile waits in state D, and no signal ends it.
    """
    with ext4(point), ExitStack() as cold:
        cold.enter_context(frozen(point))
        yield cold.close


def loop_of(point: Path) -> str:
    return Path(run("findmnt", "-no", "SOURCE", point).strip()).name


def provoke_error(point: Path) -> None:
    """Make ext4 find an error, through its own switch for tests."""
    trigger = Path("/sys/fs/ext4", loop_of(point), "trigger_fs_error")
    if not trigger.exists():
        pytest.skip("this kernel's ext4 has no trigger_fs_error")
    trigger.write_text("made by a test")


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid)


def collect(pid: int) -> bool:
    """Whether this child of ours has ended; takes its exit status then."""
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def probe_children() -> list[int]:
    """The probes that this process has running."""
    return [child.pid for child in psutil.Process().children() if _is_probe(child)]


def _is_probe(child: psutil.Process) -> bool:
    try:
        return "disk_child" in " ".join(child.cmdline())
    except psutil.Error:  # it has ended: another test's child, say
        return False


_HOLD = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR)
os.lockf(file, os.F_LOCK, 0)
print("locked", flush=True)
sys.stdin.readline()
os.write(file, b"x")
"""


def hold(file: Path) -> subprocess.Popen[bytes]:
    """A process that has locked the file; a line on its input makes it write."""
    file.touch()
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    return process


def write_now(holder: subprocess.Popen[bytes]) -> None:
    assert holder.stdin is not None
    holder.stdin.write(b"\n")
    holder.stdin.flush()
