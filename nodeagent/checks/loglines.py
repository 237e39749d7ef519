"""Code that the kernel log checks share: a sighting from a record, its bytes as text for people."""

from collections.abc import Callable, Mapping

from nodeagent.model import ClearedBy, FaultSighting
from nodeagent.sources.gpus import normalise
from nodeagent.sources.kmsg import SOURCE, Record, is_users_line

LONGEST_MESSAGE = 512
#: A detail is a name, a number, an address, or a GPU's registers.
LONGEST_DETAIL = 256


class DriverLines:
    """A check of the NVIDIA driver's lines about a GPU or a switch; ``has``: the node has it.

    ``foreign`` counts lines about parts that the node does not have, ``packets`` lines that were a
    logged packet's prefix, which is an attempted forgery.
    """

    after_name: frozenset[bytes] = frozenset()
    of_pci = False

    def __init__(self, has: Callable[[str], bool]) -> None:
        self.foreign = self.packets = 0
        self._has = has

    def _own(self, line: bytes, raw_address: bytes) -> str | None:
        """The address of the part ("0000:3b:00"), or None where the line is not to be believed."""
        if is_users_line(line):
            self.packets += 1
            return None
        address = normalise(raw_address.decode("ascii"))
        if address is None or not self._has(address):
            self.foreign += 1
            return None
        return address


def text(raw: bytes) -> str:
    """The text for people, exactly as the kernel gave it, escapes included, and no longer than a
    message: 64 KiB of a file that are no ASCII take 2 ms to decode.
    """
    return raw[:LONGEST_MESSAGE].decode("ascii", "backslashreplace").strip()


def names_pci_device(line: bytes) -> bool:
    """Whether a line may be of a PCI device's driver ("nvme 0000:3d:00.0: ..."): a cheap test for
    checks that know drivers by no name. Domains have four digits, those of Intel VMD five.
    """
    at = line.find(b" ", 1, 42)
    return line[at + 5 : at + 9 : 3] == b"::" or line[at + 6 : at + 10 : 3] == b"::"


def words_at(line: bytes) -> int:
    """Where the words after a name are, in a line that begins with one ("eth0: link is down")."""
    return line.find(b": ", 1, 116) + 2  # a driver, its device on another bus, an interface


def sighting(
    record: Record,
    *,
    check: str,
    code: str,
    component: str = "",
    message: str = "",
    cleared_by: ClearedBy = ClearedBy.EXPIRY,
    details: Mapping[str, str] | None = None,
) -> FaultSighting:
    """One occurrence of ``code``. Without a ``message`` the kernel's own words are the message."""
    return FaultSighting(
        code=code,
        check=check,
        component=component,
        message=(message or text(record.text[:LONGEST_MESSAGE]))[:LONGEST_MESSAGE],
        source=SOURCE,
        source_seq=record.seq,
        at=record.at,
        cleared_by=cleared_by,
        historical=record.historical,
        details={key: value[:LONGEST_DETAIL] for key, value in (details or {}).items() if value},
    )
