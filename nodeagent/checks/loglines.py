"""Code that the kernel log checks share: a sighting from a record, its bytes as text for people."""

from collections.abc import Mapping

from nodeagent.model import ClearedBy, FaultSighting
from nodeagent.sources.kmsg import SOURCE, Record

LONGEST_MESSAGE = 512
#: A detail is a name, a number, an address, or a GPU's registers.
LONGEST_DETAIL = 256


def text(raw: bytes) -> str:
    """The text for people, exactly as the kernel gave it, escapes included."""
    return raw.decode("ascii", "backslashreplace").strip()


def names_pci_device(line: bytes) -> bool:
    """Whether a line may be of a PCI device's driver ("nvme 0000:3d:00.0: ..."): a cheap test for
    checks that know drivers by no name. Domains have four digits, those of Intel VMD five.
    """
    at = line.find(b" ", 1, 42)
    return line[at + 5 : at + 9 : 3] == b"::" or line[at + 6 : at + 10 : 3] == b"::"


def words_at(line: bytes) -> int:
    """Where the words after a name are, in a line that begins with one ("eth0: link is down")."""
    return line.find(b": ", 1, 52) + 2


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
