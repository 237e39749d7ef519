"""Programs of the host: where they are, and how they are run from the agent's container.

An agent in a container sees the host's root below ``host_root``; its programs are run by chroot.
The device files are the container's own, which a privileged pod has.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nodeagent.dataclass import dataclass
from nodeagent.sources.command import CommandProcess, CommandStuck, Outcome

__all__ = ["HostPrograms"]

_CHROOTS = ("/usr/sbin/chroot", "/usr/bin/chroot", "/sbin/chroot", "/bin/chroot")
#: Exit codes of chroot, and the error that the program's start would have had.
_CHROOT_FAILED = {125: None, 126: errno.EACCES, 127: errno.ENOENT}


@dataclass(frozen=True, slots=True)
class HostPrograms:
    """``root`` is the host's root as this process sees it; ``path`` are folders on the host."""

    root: Path
    path: Sequence[str]

    def find(self, name: str, below: Path = Path("/")) -> str | None:
        """The absolute path of a program on the host (in its folder ``below``), or None."""
        for candidate in [name] if name.startswith("/") else [f"{d}/{name}" for d in self.path]:
            here = f"{self.view(below)}{candidate}".replace("//", "/")
            # A link that is absolute leads into this process's root, so a link alone is enough.
            if os.path.islink(here) or os.access(here, os.X_OK):  # noqa: PTH114
                return candidate
        return None

    def view(self, below: Path = Path("/")) -> str:
        """A folder of the host as this process sees it."""
        return str(self.root / str(below).lstrip("/"))

    def line(self, command: Sequence[str], below: Path = Path("/")) -> list[str]:
        """The command line that runs ``command`` with the host's ``below`` as its root."""
        view = self.view(below)
        if view == "/":
            return list(command)
        chroot = next((each for each in _CHROOTS if os.access(each, os.X_OK)), _CHROOTS[0])
        return [chroot, view, *command]

    async def run(
        self,
        command: Sequence[str],
        *,
        limit: float,
        below: Path = Path("/"),
        kept: int = 65536,
        most: int = 16 << 20,
    ) -> Outcome | CommandStuck:
        """Run it to its end or its limit; every process that it started is ended then."""
        process = CommandProcess(
            self.line(command, below),
            time_limit=limit,
            host_root=self.root,
            kept=kept,
            most=most,
        )
        return _without_chroot(await process.run())


def _without_chroot(ended: Outcome | CommandStuck) -> Outcome | CommandStuck:
    """The same as if the program ran without chroot, whose failures are not the program's.

    coreutils and busybox: 125 for chroot's own failure, 126 for a program that may not be executed,
    127 for one that is not there, or has no interpreter there.
    """
    if not isinstance(ended, Outcome) or ended.exit not in _CHROOT_FAILED:
        return ended
    word = ended.err.partition(":")[0]
    if word != "chroot" and word not in _CHROOTS:
        return ended
    number = _CHROOT_FAILED[ended.exit]
    if number is None:
        return replace(ended, exit=None, broken=" ".join(ended.err.split())[:300])
    return replace(ended, exit=None, errno=number)
