"""The fabric manager's process and its command port, by the host's ``/proc``."""

import os
from itertools import islice

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.proc_stat import read_stat

#: The kernel keeps the first 15 characters of nv-fabricmanager.
_NAME = "nv-fabricmanage"
#: FM_CMD_PORT_NUMBER of fabricmanager.cfg, as /proc/net/tcp writes ports; state 0A is "listens".
_PORT = b":%04X" % 6666
_LISTENS = b"0A"
#: Until Linux 4.3 a listener is followed by the connections that it has not accepted yet.
_HALF_OPEN = b"03"
_MOST_ROWS = 16_384


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
        """In the network namespace of the host's first process, which the manager shares.

        The kernel prints the sockets that listen before all others, so the rest is not read.
        """
        try:
            with (self._machine.proc / "1/net/tcp").open("rb") as file:
                for line in islice(file, 1, _MOST_ROWS):
                    row = line.split(None, 4)
                    if len(row) < 4 or row[3] not in (_LISTENS, _HALF_OPEN):
                        return False
                    if row[3] == _LISTENS and row[1].endswith(_PORT):
                        return True
        except OSError:
            pass
        return False
