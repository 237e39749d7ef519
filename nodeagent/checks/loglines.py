"""Code that the kernel log checks share: a sighting from a record, its bytes as text for people."""

from collections.abc import Mapping

from nodeagent.model import ClearedBy, FaultSighting
from nodeagent.sources.kmsg import SOURCE, Record

LONGEST_MESSAGE = 512
#: A detail is a name, a number or an address.
LONGEST_DETAIL = 128


def text(raw: bytes) -> str:
    """The text for people, exactly as the kernel gave it, escapes included."""
    return raw.decode("ascii", "backslashreplace").strip()


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
