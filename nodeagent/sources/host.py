"""Where the machine is read: a root that a test, or the pod's ``/host``, can replace."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from nodeagent.clock import Clock
from nodeagent.dataclass import dataclass


class NotMounted(Exception):
    """``proc`` or ``sys`` is another folder than the kernel's; the text states why."""

    def __init__(self, name: str, path: Path, why: object) -> None:
        super().__init__(f"{why}; is {name} mounted?")
        self.name = name
        self.path = path


@dataclass(frozen=True, slots=True)
class HostRoots:
    """The machine's filesystems and clock.

    ``root`` is the host's root as this process sees it. ``/proc`` and ``/sys`` are the kernel's
    and not a namespace's where it matters (host PID namespace, host network). So they have roots of
    their own that default to this process's.
    """

    clock: Clock
    root: Path = Path("/")
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")

    def host(self, path: str) -> Path:
        """The host's ``path`` (absolute) as this process can open it."""
        return self.root / path.lstrip("/")

    @contextmanager
    def psutil_here(self) -> Iterator[None]:
        """Within it psutil reads this machine's ``/proc``; its path is the whole process's."""
        usual, psutil.PROCFS_PATH = psutil.PROCFS_PATH, str(self.proc)
        try:
            yield
        finally:
            psutil.PROCFS_PATH = usual

    def boot_id(self) -> str:
        """The kernel's boot id. It differs after every boot and has no order.

        Raises NotMounted, also for an empty ``sys``: checks would be off, as without any device.
        """
        try:
            found = (self.proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError as error:
            raise NotMounted("proc", self.proc, f"the boot id cannot be read: {error}") from error
        try:
            if any(self.sys.iterdir()):
                return found
        except OSError as error:
            raise NotMounted("sys", self.sys, f"it cannot be read: {error}") from error
        raise NotMounted("sys", self.sys, f"{self.sys} is empty")
