"""The identity of this machine: the firmware's product UUID, else systemd's machine id."""

import re

from nodeagent.evidence.disk_backup import BackupUnreadable, read_copy
from nodeagent.evidence.machine_identity import MachineIdentity
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import small_text

#: UUIDs of boards whose maker set none: the same on all of them.
_UNSET = frozenset(
    {
        "03000200-0400-0500-0006-000700080009",
        "12345678-1234-1234-1234-123456789abc",
        "12345678-1234-5678-90ab-cddeefaabbcc",
    }
)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
#: Seconds for the node's disk, which may hang.
_PATIENCE = 2.0


def identify(machine: HostRoots, node: str) -> MachineIdentity:
    """``node`` is the node's name. Waits `_PATIENCE` for a disk at most, and never fails."""
    uuid = _product_uuid(machine)
    return MachineIdentity(node, uuid, "" if uuid else _machine_id(machine))


def _product_uuid(machine: HostRoots) -> str:
    """Empty where there is no DMI (most ARM machines), or only root may read it and we are not."""
    uuid = small_text(machine.sys / "class/dmi/id/product_uuid").lower()
    unset = uuid in _UNSET or len(set(uuid) - {"-"}) == 1
    return "" if unset or not _UUID.fullmatch(uuid) else uuid


def _machine_id(machine: HostRoots) -> str:
    """It lies on the disk, so a child reads it."""
    try:
        content = read_copy(machine.host("/etc/machine-id"), patience=_PATIENCE)
    except BackupUnreadable:
        return ""
    found = (content or b"").decode("ascii", errors="replace").strip().lower()
    return found if _MACHINE_ID.fullmatch(found) else ""
