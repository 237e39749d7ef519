"""The admission record: who may be in quarantine now. One JSON text, changed by compare-and-set.

The record is the authority, not whoever writes it: a quarantine acts only while its entry stands
here, and the entry leaves after its node is undone. Times are wall clock seconds, for they outlive
the process.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


class RecordUnreadable(Exception):
    """The record holds something that is not ours. Nothing is admitted until a person mends it."""


#: One encoder: to make it costs more than most of what it writes.
_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Entry:
    """One admitted node. ``incident`` is empty for a quarantine that was made by hand."""

    node: str
    incident: str
    pool: str
    action: str
    at: float


#: What the record keeps at most: 5,000 times and 100 cooldowns are some 60 KiB of its object.
MOST_ADMISSIONS = 5000
MOST_COOLDOWNS = 100
_MOST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Cooldown:
    """Something tripped ``at`` this time; ``because`` says what, for people."""

    at: float
    because: str


@dataclass(frozen=True, slots=True)
class Record:
    """All entries by node, the times of recent admissions (newest last), and what cools down.

    ``cooldowns`` are by the id of the common cause that tripped; an empty id is the whole fleet.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    admissions: tuple[float, ...] = ()
    policy_hash: str = ""
    cooldowns: Mapping[str, Cooldown] = field(default_factory=dict)

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
        admissions = (*self.admissions, *fresh)[-MOST_ADMISSIONS:]
        return replace(self, entries=standing, admissions=admissions, policy_hash=policy_hash)

    def forget(self, entries: Iterable[Entry]) -> "Record":
        """Without these entries; their admission times stay.

        A later entry of the same node stays: who was superseded must not take out what its heir
        has had admitted since.
        """
        gone = {entry.node for entry in entries if self._has(entry)}
        kept = {name: entry for name, entry in self.entries.items() if name not in gone}
        return replace(self, entries=kept)

    def withdraw(self, entries: Iterable[Entry]) -> "Record":
        """Without these entries, and as if they had never been admitted.

        For what was admitted and not begun: it must not use up what others may.
        """
        gone = [entry for entry in entries if self._has(entry)]
        times = list(self.admissions)
        for entry in gone:
            if entry.at in times:
                times.remove(entry.at)
        return replace(self.forget(gone), admissions=tuple(times))

    def _has(self, entry: Entry) -> bool:
        """Whether it stands, and is no later one: its time says which admission it is."""
        known = self.entries.get(entry.node)
        return known is not None and known.at == entry.at

    def cool(self, ident: str, at: float, because: str) -> "Record":
        """With this cooldown, begun now; of too many the oldest is dropped, the fleet's never."""
        cooldowns = {**self.cooldowns, ident: Cooldown(at, because[:_MOST_TEXT])}
        while len(cooldowns) > MOST_COOLDOWNS:
            del cooldowns[min((k for k in cooldowns if k), key=lambda k: cooldowns[k].at)]
        return replace(self, cooldowns=cooldowns)

    def pruned(self, now: float, *, window: float, cooldown: float) -> "Record":
        """Without the times and cooldowns that count no more.

        A clock that was set back must not hold the fleet until it has caught up: what lies further
        ahead than it could is dropped as well.
        """
        return replace(
            self,
            admissions=tuple(at for at in self.admissions if abs(now - at) < window),
            cooldowns={k: c for k, c in self.cooldowns.items() if abs(now - c.at) < cooldown},
        )

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
        cooldowns = {
            str(ident): Cooldown(float(one["at"]), str(one["because"]))
            for ident, one in data.get("cooldowns", {}).items()
        }
        return Record(entries, admissions, str(data["policyHash"]), cooldowns)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise RecordUnreadable(_what(error)) from error


def _what(error: Exception) -> str:
    """What is wrong with the text, for whoever edited it."""
    match error:
        case json.JSONDecodeError():
            return f"it is no JSON: {error.msg}, line {error.lineno}, column {error.colno}"
        case KeyError():
            return f"{error.args[0]!r} is missing in it"
        case _:
            return f"it is not as sickbay writes it: {str(error)[:_MOST_TEXT]}"


class Scribe:
    """Writes one record after the other: of what stood in the last one, only what is new.

    The same record gives the same text, whatever was written before it.
    """

    def __init__(self) -> None:
        self._lines: dict[str, tuple[Entry, str]] = {}

    def dump(self, record: Record) -> str:
        """The record's text: JSON, all keys in order."""
        before, self._lines = self._lines, {}
        for name in sorted(record.entries):
            entry = record.entries[name]
            known = before.get(name)
            self._lines[name] = known if known and known[0] == entry else (entry, _line(entry))
        cooldowns = {
            ident: {"at": one.at, "because": one.because} for ident, one in record.cooldowns.items()
        }
        entries = ",".join(line for _, line in self._lines.values())
        return (
            f'{{"admissions":{_json(list(record.admissions))},"cooldowns":{_json(cooldowns)},'
            f'"entries":{{{entries}}},"policyHash":{_json(record.policy_hash)},"version":1}}'
        )


def dump_record(record: Record) -> str:
    """The record's text; the same record gives the same text."""
    return Scribe().dump(record)


def _line(entry: Entry) -> str:
    value = {
        "incident": entry.incident,
        "pool": entry.pool,
        "action": entry.action,
        "at": entry.at,
    }
    return _json({entry.node: value})[1:-1]
