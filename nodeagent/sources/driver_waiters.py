"""Threads that wait in the NVIDIA driver and cannot be killed, and who they are.

All threads of the machine are read, which takes 12 us each: a caller reads them only while it has
another reason to suspect the driver. *Waits* is exact: a thread in state D at two readings whose
count of voluntary context switches has not moved has waited all the time between them.

/proc/PID/stack would name the module. It is not read, because it takes the lock that an exec holds
(exec_update_lock). An exec that unmaps a wedged driver's memory holds it for good.
"""

import asyncio
import os
from collections.abc import Collection, Iterator

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.proc_stat import read_stat
from nodeagent.sources.small_file import read_whole, small_text

__all__ = ["DriverWaiter", "DriverWaiters"]

#: Threads read in one look; a machine has fewer, unless a program runs away.
MOST = 20_000
#: Threads read before the event loop has its turn: 6 ms.
_AT_ONCE = 500
#: Open files of one process: those of the driver are among the first.
_MOST_FILES = 1024
#: Functions of the driver's modules: proprietary builds export "_nv012345rm". "nvme_" is another's.
_DRIVER = ("nvidia_", "nv_", "_nv0", "nvkms_", "nvswitch_", "nvlink_", "os_acquire_", "rm_", "uvm_")
#: The kernel's own ways to wait for a lock or a time, in which the driver waits too.
_GENERIC = (
    "down",
    "__down",
    "rwsem_down",
    "mutex_lock",
    "__mutex_lock",
    "msleep",
    "schedule_timeout",
    "wait_for_completion",
)


@dataclass(frozen=True, slots=True)
class DriverWaiter:
    """A process of which a thread waits in the driver: in ``where``, for ``seconds`` at least."""

    pid: int
    name: str
    where: str
    seconds: float


#: Names one wait: pid, thread, when the thread started, its voluntary switches.
_Wait = tuple[int, int, int, str]


class DriverWaiters:
    """Remembers the waits of the look before. ``machine`` has the ``/proc`` to read."""

    def __init__(self, machine: HostRoots, most: int = MOST) -> None:
        self._machine = machine
        self._most = most
        self._since: dict[_Wait, float] = {}

    def forget(self) -> None:
        """Drop what earlier readings found, so that the next reading is a first one."""
        self._since.clear()

    async def sample(self, not_these: Collection[int]) -> list[DriverWaiter]:
        """Processes with a thread in the driver since an earlier look, the longest first.

        Those in ``not_these`` (pids) are left out, and NVML workers of the agent, also of an
        earlier one that could not be killed. Without a procfs the list is empty.
        """
        now = self._machine.clock.boottime()
        found: dict[_Wait, float] = {}
        waiters: dict[int, DriverWaiter] = {}
        for count, (pid, thread) in enumerate(self._threads(not_these)):
            if count % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            folder = f"{self._machine.proc}/{pid}/task/{thread}"
            stat = read_stat(f"{folder}/stat")
            if stat is None or stat.state != "D" or stat.name.startswith("nvml "):
                continue
            where = small_text(f"{folder}/wchan").strip("\0\n ")[:80]
            if not self._is_driver(pid, where):
                continue
            switches = _switches(f"{folder}/status")
            if not switches:
                continue  # without the count, two short waits would look like one
            wait = (pid, thread, stat.started, switches)
            since = found[wait] = self._since.get(wait, now)
            known = waiters.get(pid)
            if since < now and (known is None or known.seconds < now - since):
                waiters[pid] = DriverWaiter(pid, stat.name, where, now - since)
        self._since = found
        return sorted(waiters.values(), key=lambda each: -each.seconds)

    def _threads(self, not_these: Collection[int]) -> Iterator[tuple[int, int]]:
        left = self._most
        for pid in _numbers(str(self._machine.proc)):
            for thread in () if pid in not_these else _numbers(f"{self._machine.proc}/{pid}/task"):
                if not left:
                    return
                left -= 1
                yield pid, thread

    def _is_driver(self, pid: int, where: str) -> bool:
        """Whether the kernel's function ``where`` is the driver's, or a wait of a GPU's user."""
        if where.startswith(_DRIVER):
            return True
        return where.startswith(_GENERIC) and self._has_gpu_open(pid)

    def _has_gpu_open(self, pid: int) -> bool:
        folder = f"{self._machine.proc}/{pid}/fd"
        for number in _numbers(folder)[:_MOST_FILES]:
            try:
                if os.readlink(f"{folder}/{number}").startswith("/dev/nvidia"):  # noqa: PTH115
                    return True
            except OSError:
                continue
        return False


def _switches(path: str) -> str:
    """The line of a thread's voluntary switches, far behind its groups; empty if unreadable."""
    try:
        lines = read_whole(path).decode("ascii", "replace").splitlines()
    except OSError:
        return ""  # it has ended
    return next((line for line in lines if line.startswith("voluntary_")), "")


def _numbers(folder: str) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())  # noqa: PTH208
    except OSError:
        return []  # it has ended
