"""Which machine a state file is of, so that another machine's evidence is never taken for its own.

A golden image, a disk in another chassis, or a folder that several nodes share brings a file along
that records faults of other hardware.
"""

from collections.abc import Mapping
from typing import Any

from nodeagent.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class MachineIdentity:
    """The node's name, and the ids that distinguish its hardware or system; empty: not known.

    ``product_uuid`` is the firmware's (DMI), ``machine_id`` systemd's. A disk takes the latter
    along, so it is known only where the firmware has no UUID.
    """

    node: str
    product_uuid: str = ""
    machine_id: str = ""

    def difference(self, other: "MachineIdentity") -> str:
        """The difference that makes ``other`` another machine, in words; empty: it may be this one.

        An id that one of them does not know is no difference.
        """
        pairs = (
            ("node", self.node, other.node),
            ("product UUID", self.product_uuid, other.product_uuid),
            ("machine id", self.machine_id, other.machine_id),
        )
        return ", ".join(
            f"{what} {theirs} and not {ours}"
            for what, ours, theirs in pairs
            if ours and theirs and ours != theirs
        )

    def is_other_hardware(self, other: "MachineIdentity") -> bool:
        """Whether ``other`` is surely another machine. One that got another name is not.

        Copies of an image have one machine id, and names of their own.
        """
        if self.product_uuid and other.product_uuid:
            return self.product_uuid != other.product_uuid
        return bool(self.difference(other))

    def dump(self) -> dict[str, str]:
        return {
            "node": self.node,
            "product_uuid": self.product_uuid,
            "machine_id": self.machine_id,
        }


def read_identity(document: Mapping[str, Any]) -> MachineIdentity | None:
    """The identity in a state document, None where it has none. Raises TypeError."""
    found = document.get("machine")
    if found is None:
        return None
    if not isinstance(found, dict):
        raise TypeError(f"machine is {type(found).__name__}, expected an object")
    names = ("node", "product_uuid", "machine_id")
    return MachineIdentity(*(str(found.get(name, "")) for name in names))
