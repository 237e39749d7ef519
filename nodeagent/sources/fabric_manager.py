"""The fabric manager's process and its command port, by the host's ``/proc``."""

import os
from dataclasses import dataclass

from nodeagent.sources.host import HostRoots
from nodeagent.sources.proc_stat import read_stat

#: The kernel keeps the first 15 characters of nv-fabricmanager.
_NAME = "nv-fabricmanage"
#: FM_CMD_PORT_NUMBER of fabricmanager.cfg, as /proc/net/tcp writes ports; state 0A is "listens".
_PORT = f"{6666:04X}"
_LISTENS = "0A"
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FabricManagerState:
    """``pid`` is None when no such process runs. ``is_listening``: on its command port."""

    pid: int | None
    is_listening: bool


class FabricManager:
    """Remembers the pid: all processes are read only while none is known."""

    def __init__(self, machine: HostRoots) -> None:
        self._machine = machine
        self._pid: int | None = None

    def sample(self) -> FabricManagerState | None:
        """None where the host's processes are not visible: an absence would prove nothing."""
        if not self._sees_host():
            return None
        if self._pid is None or not self._is_manager(self._pid):
            self._pid = self._find()
        return FabricManagerState(self._pid, self._is_listening())

    def _sees_host(self) -> bool:
        stat = read_stat(f"{self._machine.proc}/2/stat")
        return stat is not None and stat.name == "kthreadd"

    def _find(self) -> int | None:
        names = os.listdir(self._machine.proc)  # noqa: PTH208  # a Path for each costs ten times it
        pids = sorted(int(name) for name in names if name.isdigit())
        return next((pid for pid in pids if self._is_manager(pid)), None)

    def _is_manager(self, pid: int) -> bool:
        stat = read_stat(f"{self._machine.proc}/{pid}/stat")
        return stat is not None and stat.name == _NAME and stat.state not in ("Z", "X")

    def _is_listening(self) -> bool:
        """In the network namespace of the host's first process, which the manager shares."""
        try:
            with (self._machine.proc / "1/net/tcp").open("rb") as file:
                lines = file.read(_MOST_BYTES).decode("ascii", "replace").splitlines()[1:]
        except OSError:
            return False
        rows = (line.split(None, 4) for line in lines)
        return any(
            len(row) > 3 and row[1].endswith(f":{_PORT}") and row[3] == _LISTENS for row in rows
        )
