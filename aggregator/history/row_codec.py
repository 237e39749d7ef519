"""Transitions as rows, and back. Pure."""

from collections.abc import Mapping
from typing import Any

from aggregator.events import Transition, kind_named
from aggregator.runtime.text import truncate

#: Characters. A text by a pod's owner or a driver must not make a row of megabytes.
MAX_TEXT = 4_000
MAX_NAME = 253
MAX_INCIDENT = 64
MAX_DETAILS = 32

_EPOCH = 1_577_836_800.0  # 2020: leaves 41 bits of milliseconds until 2089
#: Bits of a row's number that count; the rest are milliseconds.
SPREAD = 22


class IdGenerator:
    """Row ids: milliseconds and a count. Ordered by time, and apart between processes by ``start``.

    ``start`` is any number; where several processes share a database it should be random.
    """

    def __init__(self, start: int) -> None:
        self._count = start % (1 << SPREAD)

    def next(self, at: float) -> int:
        """A 63-bit id for an event ``at`` (wall clock seconds)."""
        self._count = (self._count + 1) % (1 << SPREAD)
        milliseconds = min(max(0, int((at - _EPOCH) * 1000)), (1 << 41) - 1)
        return (milliseconds << SPREAD) | self._count


def to_row(ident: int, transition: Transition, replica: str = "") -> dict[str, Any]:
    """A row that every database takes, with any texts."""
    details = list(transition.details.items())[:MAX_DETAILS]
    return {
        "id": ident,
        "at": transition.at,
        "kind": transition.kind.value,
        "node": node_text(transition.node),
        "incident": incident_text(transition.incident),
        "summary": _text(transition.summary, MAX_TEXT),
        "details": {_text(k, MAX_NAME): _text(v, MAX_TEXT) for k, v in details},
        "replica": _text(replica, MAX_NAME),
    }


def evidence_row(
    ident: int, at: float, node: str, kind: str, body: Mapping[str, Any], replica: str = ""
) -> dict[str, Any]:
    """A row of an agent's evidence; its texts are as bounded as the wire format left them."""
    return {
        "id": ident,
        "at": at,
        "node": node_text(node),
        "kind": kind,
        "body": _clean(body),
        "replica": _text(replica, MAX_NAME),
    }


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value, MAX_TEXT)
    if isinstance(value, Mapping):
        return {_text(str(key), MAX_NAME): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def size_of(value: Any) -> int:
    """About how many bytes of text a row, or a part of it, has."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, Mapping):
        return sum(len(name) + 4 + size_of(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return 16


def from_row(row: Mapping[str, Any]) -> Transition | None:
    """The transition, or None for a kind that this version doesn't know."""
    kind = kind_named(row["kind"])
    if kind is None:
        return None
    return Transition(
        at=row["at"],
        kind=kind,
        node=row["node"],
        summary=row["summary"],
        incident=row["incident"],
        details=row["details"] or {},
    )


def node_text(node: str) -> str:
    """A node's name as rows have it; for a query too, since a reader of the page sends any text."""
    return _text(node, MAX_NAME)


def incident_text(incident: str) -> str:
    """An incident's id as rows have it; for a query too."""
    return _text(incident, MAX_INCIDENT)


def _text(text: str, most: int) -> str:
    """No NUL (PostgreSQL refuses it), no half characters (UTF-8 has none), bounded."""
    if len(text) <= most and text.isascii() and "\0" not in text:
        return text
    cut = truncate(text, most).replace("\0", "\ufffd")
    return cut.encode("utf-8", "replace").decode("utf-8")
