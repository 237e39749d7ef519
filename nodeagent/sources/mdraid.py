"""Software RAID arrays as ``/sys/block/md*/md`` shows them (the kernel's Documentation/admin-guide/
md.rst). Reading it touches no disk.
"""

from pathlib import Path

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import entry_names, small_text

__all__ = ["Array", "arrays"]

#: How many members each level does without; mirrors do without all except one.
_SPARES = {"raid4": 1, "raid5": 1, "raid6": 2}


@dataclass(frozen=True, slots=True)
class Array:
    """One array. ``state``, ``action`` (resync, recover, check, idle) are the kernel's words.

    ``missing``: members that are not there or not in sync. ``faulty``: the members that the kernel
    has thrown out and that are still named. ``done`` is how far ``action`` is, in per cent.
    """

    name: str
    level: str
    state: str
    members: int
    missing: int
    faulty: tuple[str, ...]
    action: str
    done: float | None

    @property
    def broken(self) -> bool:
        """Whether data is out of reach: more is lost than the level does without."""
        if self.state == "broken":
            return True
        if self.level == "raid1":
            return 0 < self.members <= self.missing
        if self.level == "raid10":  # it is unknown which members: all except one at most
            return 0 < self.members <= self.missing
        if self.level in _SPARES:
            return self.missing > _SPARES[self.level]
        return bool(self.faulty)


def arrays(machine: HostRoots) -> list[Array]:
    """The arrays by name. Raises OSError when ``/sys/block`` can't be read."""
    folders = sorted((machine.sys / "block").iterdir())
    found = (_array(folder) for folder in folders if folder.name.startswith("md"))
    return [array for array in found if array is not None]


def _array(folder: Path) -> Array | None:
    md = folder / "md"
    state = small_text(md / "array_state")
    # A cleared array is only a name. External metadata without a level is a container, which is
    # never active: its arrays are listed next to it.
    if state in ("", "clear"):
        return None
    level = small_text(md / "level")
    if level in ("", "container") and small_text(md / "metadata_version").startswith("external"):
        return None
    return Array(
        name=folder.name,
        level=level,
        state=state,
        members=_number(small_text(md / "raid_disks")),
        missing=_number(small_text(md / "degraded")),
        faulty=_faulty(md),
        action=small_text(md / "sync_action") or "idle",
        done=_share(small_text(md / "sync_completed")),
    )


def _faulty(md: Path) -> tuple[str, ...]:
    members = [name for name in entry_names(md) if name.startswith("dev-")]
    return tuple(m[4:] for m in members if "faulty" in small_text(md / m / "state").split(","))


def _number(word: str) -> int:
    """The number of "4", and of "4 (2)" while an array is being reshaped."""
    first = word.split(" ", 1)[0]
    return int(first) if first.isascii() and first.isdigit() else 0


def _share(word: str) -> float | None:
    """Per cent, of "5000 / 10000" sectors, or None for "none"."""
    done, slash, whole = word.partition(" / ")
    return 100 * _number(done) / _number(whole) if slash and _number(whole) else None
