"""The admission record: who may be in quarantine now. One JSON text, changed by compare-and-set.

The record is the authority, not whoever writes it: a quarantine acts only while its entry stands
here, and the entry leaves after its node is undone. Times are wall clock seconds, for they outlive
the process.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


class RecordUnreadable(Exception):
    """The record holds something that is not ours. Nothing is admitted until a person mends it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One admitted node. ``incident`` is empty for a quarantine that was made by hand."""

    node: str
    incident: str
    pool: str
    action: str
    at: float


@dataclass(frozen=True, slots=True)
class Record:
    """All entries by node, and the times of recent admissions (newest last, bounded)."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    admissions: tuple[float, ...] = ()
    policy_hash: str = ""

    def enter(self, entries: Iterable[Entry], policy_hash: str) -> "Record":
        """With these entries; one that stands already keeps its time and is no new admission."""
        standing = dict(self.entries)
        fresh = []
        for entry in entries:
            known = standing.get(entry.node)
            if known is None:
                fresh.append(entry.at)
                standing[entry.node] = entry
            else:
                standing[entry.node] = replace(entry, at=known.at)
        return Record(standing, (*self.admissions, *fresh)[-1000:], policy_hash)

    def forget(self, nodes: Iterable[str]) -> "Record":
        """Without the entries of these nodes; their admission times stay."""
        gone = set(nodes)
        kept = {name: entry for name, entry in self.entries.items() if name not in gone}
        return replace(self, entries=kept)

    def in_pool(self, pool: str) -> int:
        return sum(1 for entry in self.entries.values() if entry.pool == pool)


def parse_record(text: str) -> Record:
    """Read a record. An empty text is an empty record. Raises `RecordUnreadable`."""
    if not text:
        return Record()
    try:
        data = json.loads(text)
        entries = {
            name: Entry(
                node=name,
                incident=str(entry["incident"]),
                pool=str(entry["pool"]),
                action=str(entry["action"]),
                at=float(entry["at"]),
            )
            for name, entry in data["entries"].items()
        }
        admissions = tuple(float(at) for at in data["admissions"])
        return Record(entries, admissions, str(data["policyHash"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordUnreadable(f"the admission record can't be read: {error!r}") from error


def dump_record(record: Record) -> str:
    """The record's text; the same record gives the same text."""
    data: dict[str, Any] = {
        "version": 1,
        "policyHash": record.policy_hash,
        "admissions": list(record.admissions),
        "entries": {
            name: {
                "incident": entry.incident,
                "pool": entry.pool,
                "action": entry.action,
                "at": entry.at,
            }
            for name, entry in record.entries.items()
        },
    }
    return json.dumps(data, sort_keys=True, separators=(",", ":"))
