"""NVMe controllers: their state in sysfs, and the health log that the drive itself keeps.

The log is page 2 of the NVMe base specification ("SMART / Health Information"), got by one admin
command in a child process (disk_child): a controller that does not answer keeps it waiting.
"""

from pathlib import Path

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import small_text

__all__ = ["Controller", "Health", "controllers", "parse_health"]

#: Bits of `Health.warning`.
SPARE, TEMPERATURE, RELIABILITY, READ_ONLY, BACKUP = 1, 2, 4, 8, 16
_SIZE = 192  # bytes read of the page's 512
_KELVIN = 273


@dataclass(frozen=True, slots=True)
class Controller:
    """One controller of this machine's PCI bus. ``state`` is the kernel's word: "live", "dead"."""

    name: str
    state: str
    model: str
    serial: str

    @property
    def identity(self) -> str:
        """The part that stays when it gets another name. Few drives have no serial number."""
        return self.serial or self.name


@dataclass(frozen=True, slots=True)
class Health:
    """``spare``, its ``spare_threshold`` and ``used`` are per cent, ``temperature`` Celsius.

    ``warning`` is the byte of critical warnings.
    """

    warning: int
    temperature: int
    spare: int
    spare_threshold: int
    used: int
    media_errors: int


def controllers(machine: HostRoots) -> list[Controller]:
    """Those on PCI, in the order of their names: others are a network's, and come and go with it.

    Raises OSError when ``/sys/class/nvme`` is there and can't be read.
    """
    folder = machine.sys / "class/nvme"
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return []
    return [found for name in names if (found := _controller(folder / name)) is not None]


def _controller(folder: Path) -> Controller | None:
    state = small_text(folder / "state")
    # Kernels before 4.8 have no "state", and a controller that vanishes while we look has none
    # either.
    if not state or small_text(folder / "transport") not in ("", "pcie"):
        return None
    if (folder / "device/physfn").exists():
        return None  # a virtual function, which is its tenant's
    return Controller(
        folder.name, state, small_text(folder / "model"), small_text(folder / "serial")
    )


def parse_health(page: bytes) -> Health:
    """Parses the log page's beginning. Raises ValueError when it is too short, or all zero."""
    if len(page) < _SIZE or not any(page):
        raise ValueError(f"{len(page)} bytes that are no health log")
    return Health(
        warning=page[0],
        temperature=int.from_bytes(page[1:3], "little") - _KELVIN,
        spare=page[3],
        spare_threshold=page[4],
        used=page[5],
        media_errors=int.from_bytes(page[160:176], "little"),
    )
