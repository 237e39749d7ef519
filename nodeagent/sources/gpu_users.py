"""Processes that have a GPU's device file open: a reset under them ends them, a reboot too.

``/proc/*/fd`` of the host's PID namespace. In another namespace other processes cannot be seen, and
no answer is given: it must not read as "no process has one open".
"""

import os
from collections.abc import Collection

from nodeagent.configfile.units import counted
from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.proc_stat import read_stat

__all__ = ["GpuUser", "GpuUsersUnknown", "check_namespace", "gpu_users"]

_DEVICES = ("/dev/nvidia", "/dev/kfd")
#: The kernel's number of the first PID namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h).
_HOST_NAMESPACE = "pid:[4026531836]"
_MOST = 20
#: SIGKILL in a mask of pending signals. The kernel keeps it until the process ends.
_KILLED = 1 << 8
_PENDING = (b"SigPnd:", b"ShdPnd:")


class GpuUsersUnknown(Exception):
    """It cannot be seen which processes use a GPU; the text states why and what to do."""


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process with a device file open."""

    pid: int
    name: str
    file: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}) has {self.file} open"


def gpu_users(
    machine: HostRoots,
    *,
    leave_out: Collection[str] = (),
    children_of: int = 0,
    own_namespace: bool = False,
    killed: bool = True,
) -> list[GpuUser]:
    """At most 20 of them, without processes whose name is in ``leave_out``.

    Processes with the parent ``children_of`` (the agent's own NVML worker) are left out, too.
    ``own_namespace``: this PID namespace is the whole machine. ``killed``: with those that SIGKILL
    has ended, which wait for the driver. Raises GpuUsersUnknown.
    """
    if not own_namespace:
        check_namespace(machine)
    # The kernel cuts a process's name to 15 bytes.
    names = {name[:15] for name in leave_out}
    found: list[GpuUser] = []
    unreadable = 0
    for entry in os.listdir(machine.proc):  # noqa: PTH208  # a Path for each costs ten times it
        if not entry.isdigit():
            continue
        folder = f"{machine.proc}/{entry}"
        file = _device_of(f"{folder}/fd")
        stat = read_stat(f"{folder}/stat")
        if stat is not None and stat.state in "ZX":
            file = _device_of_threads(f"{folder}/task")
        if file is None:
            unreadable += 1
        elif file and stat is not None:
            if stat.name in names or (children_of and stat.parent == children_of):
                continue
            if not killed and _is_killed(f"{folder}/status"):
                continue
            found.append(GpuUser(int(entry), stat.name, file))
            if len(found) >= _MOST:
                break
    if unreadable and not found:
        raise GpuUsersUnknown(
            f"the open files of {counted(unreadable, 'process', 'processes')} cannot be read; "
            "run the agent as root"
        )
    return found


def check_namespace(machine: HostRoots) -> None:
    """Raises GpuUsersUnknown where this ``/proc`` does not show all processes of the host."""
    try:
        namespace = os.readlink(machine.proc / "1/ns/pid")  # noqa: PTH115
    except OSError as error:
        raise GpuUsersUnknown(
            f"{machine.proc}/1/ns/pid cannot be read: {error.strerror}; run the agent as root"
        ) from error
    if namespace != _HOST_NAMESPACE:
        raise GpuUsersUnknown(
            f"{machine.proc} shows the PID namespace of a container, not the host's: set hostPID, "
            "or proc to the host's (or, where this container is the whole machine, "
            "repair.insecure_own_pid_namespace = true)"
        )


def _is_killed(path: str) -> bool:
    """Whether SIGKILL is pending for the process: it does no more work, however long it hangs."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # as the readers above
            lines = file.read().splitlines()
        masks = [int(line.split()[1], 16) for line in lines if line.startswith(_PENDING)]
    except (OSError, ValueError, IndexError):
        return False
    return any(mask & _KILLED for mask in masks)


def _device_of_threads(folder: str) -> str | None:
    """That of the threads of a process whose first thread has ended, which has no files then."""
    try:
        threads = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return ""  # it has ended
    return next(filter(None, (_device_of(f"{folder}/{one}/fd") for one in threads)), "")


def _device_of(folder: str) -> str | None:
    """The first device file of a GPU among the open files; it is None when they cannot be read."""
    try:
        numbers = os.listdir(folder)  # noqa: PTH208
    except PermissionError:
        return None
    except OSError:
        return ""  # it has ended
    for number in numbers:
        try:
            target = os.readlink(f"{folder}/{number}")  # noqa: PTH115
        except OSError:
            continue
        if target.startswith(_DEVICES):
            return target
    return ""
