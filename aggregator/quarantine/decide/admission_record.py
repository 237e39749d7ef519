"""The admission record of nodes in quarantine. One JSON text, changed by compare-and-set.

The record is the authority, not the replica that writes it: a quarantine acts only while its entry
is here, and the entry leaves after its node is undone. Times are wall clock seconds, for they
outlive the process.

Each change has the next generation. So a record of another object, of a lower generation, or of the
same one with another content, was deleted, rolled back or edited. An admission by it that was not
begun is void: in the rebuilt record only nodes whose Quarantine is in force have an entry.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import msgspec

from aggregator.cluster.port import Phase, Quarantine
from aggregator.policy.repairs import TEST


class RecordUnreadable(Exception):
    """The record can't be parsed. No node is admitted until a person fixes it."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One admitted node. ``incident`` is empty for a quarantine that was made by hand.

    ``pool`` is the value of ``limits.pool_label``, ``policy_pool`` the pool of the section
    ``pools`` that the node was admitted in; empty: there was none.
    """

    node: str
    incident: str
    pool: str
    at: float
    policy_pool: str = ""


#: The pool of the nodes that no pool of the section ``pools`` selects. It has no limits.
DEFAULT_POOL = "default"
#: Bounds of the record: 5,000 times with short names of pools are some 150 KiB of its object, 100
#: cooldowns some 35 KiB.
MOST_ADMISSIONS = 5000
MOST_COOLDOWNS = 100
#: The id of the cooldown of the whole fleet.
FLEET = ""
#: The id of a pool's cooldown begins with it; no common cause has such an id.
POOL_COOLDOWN = "pool/"
_MOST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Cooldown:
    """A limit tripped ``at`` this time; ``because`` names it, for people.

    ``spare``: where a rate tripped, how many of the admissions that it counted may be withdrawn
    before it would not have tripped, or None for any other limit.
    """

    at: float
    because: str
    spare: int | None = None


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The record was made anew from the Quarantines in force, in the object with this ``uid``.

    ``at`` is wall clock seconds; ``because`` states how the one before was lost, for people.
    """

    at: float
    because: str
    uid: str


#: The kinds of tests of nodes that are in no quarantine. They have limits of their own.
NEW_NODE_TEST, IDLE_TEST = "new-node-test", "idle-test"
_NODE_TESTS = (NEW_NODE_TEST, IDLE_TEST)


@dataclass(frozen=True, slots=True)
class RunningOperation:
    """A repair, or a test of a node, that was reserved and has not ended.

    It counts for the limits until it is taken out, or until ``until`` where no attempt holds it;
    both times are of the clock that wrote them. ``pool`` is the value of ``limits.pool_label``;
    ``domains`` are the node's failure domains, as "LABEL=VALUE".
    """

    node: str
    operation: str
    kind: str
    at: float
    until: float
    pool: str = ""
    domains: tuple[str, ...] = ()

    @property
    def is_node_test(self) -> bool:
        """Whether it is the test of a node in no quarantine."""
        return self.kind in _NODE_TESTS

    def replaces(self, other: "RunningOperation") -> bool:
        """Whether the other one has ended where this one begins: a node has one of each sort."""
        return self.node == other.node and self.is_node_test is other.is_node_test


class PastRepair(NamedTuple):
    """One attempt on a node, by whatever quarantine. ``at`` is when it was reserved."""

    at: float
    repair: str
    operation: str


#: Nodes with attempts that the record remembers; with more no repair is reserved, since the bound
#: of attempts would forget.
MOST_REPAIRED_NODES = 1000
#: Attempts that are remembered of one node.
MOST_PAST_REPAIRS = 20


@dataclass(frozen=True, slots=True)
class Record:
    """All entries by node, the recent admissions (newest last), and what cools down.

    ``admissions``: the time of each, and its pool of the section ``pools``. ``cooldowns`` are by
    the id of the common cause that tripped; an empty id is the whole fleet.
    ``generation`` counts the writes: a record whose generation went back was rolled back.
    ``past_repairs`` are the attempts on each node. ``operations`` are the repairs and tests that
    run, by their ids.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    admissions: tuple[tuple[float, str], ...] = ()
    cooldowns: Mapping[str, Cooldown] = field(default_factory=dict)
    generation: int = 0
    rebuilt: Rebuilt | None = None
    past_repairs: Mapping[str, tuple[PastRepair, ...]] = field(default_factory=dict)
    operations: Mapping[str, RunningOperation] = field(default_factory=dict)

    @property
    def repairs(self) -> dict[str, RunningOperation]:
        """Those that run in a quarantine, by node."""
        return {one.node: one for one in self.operations.values() if not one.is_node_test}

    @property
    def node_tests(self) -> dict[str, RunningOperation]:
        """The tests of nodes without a quarantine that run, by node."""
        return {one.node: one for one in self.operations.values() if one.is_node_test}

    def tests_of_others(self, node: str) -> list[RunningOperation]:
        """The tests of `node_tests` on other nodes."""
        return [one for one in self.node_tests.values() if one.node != node]

    def enter(self, entries: Iterable[Entry]) -> "Record":
        """With these entries; one that is there already keeps its time and is no new admission."""
        in_force = dict(self.entries)
        fresh = []
        for entry in entries:
            known = in_force.get(entry.node)
            if known is None:
                fresh.append((entry.at, entry.policy_pool))
                in_force[entry.node] = entry
            else:
                # A node that has moved to another pool stays counted where it was admitted.
                pool = known.policy_pool or entry.policy_pool
                changed = msgspec.structs.replace(entry, at=known.at, policy_pool=pool)
                in_force[entry.node] = changed
        admissions = (*self.admissions, *fresh)[-MOST_ADMISSIONS:]
        return replace(self, entries=in_force, admissions=admissions)

    def forget_nodes(self, entries: Iterable[Entry]) -> "Record":
        """Without these entries; their admission times stay.

        A later entry of the same node stays: a superseded replica must not take out its successor's
        newer entry.
        """
        gone = {entry.node for entry in entries if self._has(entry)}
        if not gone:
            return self
        kept = {name: entry for name, entry in self.entries.items() if name not in gone}
        return replace(self, entries=kept)

    def withdraw(self, entries: Iterable[Entry]) -> "Record":
        """Without these entries, and as if they had never been admitted.

        For nodes that were admitted and not begun: they must not use up the rate of others. A
        cooldown of a rate that would not have tripped without them ends.
        """
        gone = [self.entries[entry.node] for entry in entries if self._has(entry)]
        if not gone:
            return self
        admissions, cooldowns = list(self.admissions), dict(self.cooldowns)
        for entry in gone:
            if (admission := (entry.at, entry.policy_pool)) in admissions:
                admissions.remove(admission)
                _give_back(cooldowns, FLEET)
                _give_back(cooldowns, f"{POOL_COOLDOWN}{entry.policy_pool}")
        kept = self.forget_nodes(gone)
        return replace(kept, admissions=tuple(admissions), cooldowns=cooldowns)

    def _has(self, entry: Entry) -> bool:
        """Whether it is here, and is no later one: its time identifies the admission."""
        known = self.entries.get(entry.node)
        return known is not None and known.at == entry.at

    def cool(self, ident: str, at: float, because: str, spare: int | None = None) -> "Record":
        """With this cooldown, begun now; of too many the oldest cause's is dropped, the fleet's and
        the pools' never. ``spare`` as in `Cooldown`.
        """
        cooldowns = {**self.cooldowns, ident: Cooldown(at, because[:_MOST_TEXT], spare)}
        causes = sorted(
            (k for k in cooldowns if k and not k.startswith(POOL_COOLDOWN)),
            key=lambda k: cooldowns[k].at,
        )
        for oldest in causes[: max(0, len(cooldowns) - MOST_COOLDOWNS)]:
            del cooldowns[oldest]
        return replace(self, cooldowns=cooldowns)

    def begin(self, wanted: RunningOperation) -> "Record":
        """With this operation under way; a repair is remembered as an attempt on its node.

        A test is no repair: the bound of attempts does not remember it.
        """
        kept = {k: one for k, one in self.operations.items() if not wanted.replaces(one)}
        begun = replace(self, operations={**kept, wanted.operation: wanted})
        if wanted.is_node_test or wanted.kind == TEST:
            return begun
        earlier = self.past_repairs.get(wanted.node, ())
        past = [one for one in earlier if one.operation != wanted.operation]
        this = PastRepair(wanted.at, wanted.kind, wanted.operation)
        attempts = (*past, this)[-MOST_PAST_REPAIRS:]
        return replace(begun, past_repairs={**self.past_repairs, wanted.node: attempts})

    def restore(self, lost: RunningOperation) -> "Record":
        """With this operation under way, unless another one has taken its place."""
        taken = any(lost.replaces(one) for one in self.operations.values())
        return self if taken else self.begin(lost)

    def without_old_attempts(self, now: float, window: float) -> "Record":
        """Without attempts that count no more.

        An attempt in the future counts, unless it is further away than the window: a clock was
        wrong then, and must not hold the node for ever.
        """
        past = {
            node: kept
            for node, attempts in self.past_repairs.items()
            if (kept := tuple(one for one in attempts if abs(now - one.at) < window))
        }
        return replace(self, past_repairs=past)

    def without_operations(self, over: Collection[str]) -> "Record":
        """Without the operations under way that have these ids; the attempts stay."""
        kept = {key: one for key, one in self.operations.items() if key not in over}
        return replace(self, operations=kept) if len(kept) < len(self.operations) else self

    def withdraw_operations(self, refused: Collection[str]) -> "Record":
        """Without these, and as if they had never been attempted: none has begun."""
        past = {
            node: kept
            for node, attempts in self.past_repairs.items()
            if (kept := tuple(one for one in attempts if one.operation not in refused))
        }
        return replace(self.without_operations(refused), past_repairs=past)

    def pruned(self, now: float, *, window: float, cooldown: float) -> "Record":
        """Without the times and cooldowns that count no more.

        A clock that was set back must not hold the fleet until it has caught up: a time further
        ahead than the window or cooldown is dropped as well.
        """
        if not (self.admissions or self.cooldowns):
            return self
        admissions = _within(self.admissions, now, window)
        cooldowns = {k: c for k, c in self.cooldowns.items() if abs(now - c.at) < cooldown}
        if (admissions, cooldowns) == (self.admissions, self.cooldowns):
            return self  # as in nearly every round
        return replace(self, admissions=admissions, cooldowns=cooldowns)

    def in_pool(self, pool: str) -> int:
        return sum(1 for entry in self.entries.values() if entry.pool == pool)


def _within(
    admissions: tuple[tuple[float, str], ...], now: float, window: float
) -> tuple[tuple[float, str], ...]:
    """Those that are less than ``window`` away: all of them, as a rule."""
    if not admissions or (now - min(admissions)[0] < window and max(admissions)[0] - now < window):
        return admissions
    return tuple(one for one in admissions if abs(now - one[0]) < window)


def _give_back(cooldowns: dict[str, Cooldown], ident: str) -> None:
    """One of the admissions that this cooldown's rate may have counted was withdrawn."""
    found = cooldowns.get(ident)
    if found is None or found.spare is None:
        return
    if found.spare > 0:
        cooldowns[ident] = replace(found, spare=found.spare - 1)
    else:
        del cooldowns[ident]


#: The parts of the text that are lists, and the field that is the key of each item in the record.
_KEYS = {"entries": "node", "operations": "operation"}
_NEEDED = ("entries", "admissions")


def parse_record(text: str) -> Record:
    """Read a record. An empty text is an empty record. Raises `RecordUnreadable`."""
    if not text:
        return Record()
    try:
        # Not by json: it reads NaN and halves of surrogate pairs, which can't be written again.
        data = msgspec.json.decode(text)
        parts = {**data, **{name: data[name] for name in _NEEDED}}
        for name, key in _KEYS.items():
            parts[name] = {one[key]: one for one in parts.get(name, ())}
        return msgspec.convert(parts, Record)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise RecordUnreadable(_what(error)) from error


def _what(error: Exception) -> str:
    """The error in the text, for the person who edited it."""
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing in it"
    return f"it is not as sickbay writes it: {str(error)[:_MOST_TEXT]}"


def dump_record(record: Record) -> str:
    """The record's text: JSON, all keys in order. The same record gives the same text."""
    parts = {one.name: getattr(record, one.name) for one in fields(record)}
    for name in _KEYS:
        parts[name] = [parts[name][key] for key in sorted(parts[name])]
    return msgspec.json.encode(parts, order="deterministic").decode()


@dataclass(frozen=True, slots=True)
class Known:
    """The last record known to be whole: its object's uid, its text, and its parsed form."""

    uid: str
    text: str
    record: Record


def discontinuity(
    known: Known | None, uid: str, text: str, record: Record, *, newest: int = 0
) -> str:
    """How the record fails to continue the known one; empty: it continues it.

    ``newest``: the highest generation by which a Quarantine in force was admitted.
    """
    generation = record.generation
    if generation < newest:
        return f"is older (generation {generation}) than a Quarantine in force ({newest})"
    if known is None or not known.record.generation:
        return ""  # it never admitted a node
    rebuilt = record.rebuilt is not None and record.rebuilt.uid == uid
    if known.uid != uid and not (rebuilt and generation > known.record.generation):
        return "is gone" if not uid and not text else "was deleted and made anew"
    if generation < known.record.generation:
        return f"was rolled back from generation {known.record.generation} to {generation}"
    if generation == known.record.generation and text != known.text:
        return f"has another content in its generation {generation}"
    return ""


def rebuild(
    record: Record,
    known: Known | None,
    in_force: Iterable[Entry],
    *,
    rebuilt: Rebuilt,
    newest: int,
    repairs: Iterable[RunningOperation] = (),
) -> Record:
    """The record made anew, with the entries of the Quarantines in force and no others.

    Times of admissions and cooldowns are those of both records, so that no known one is forgotten.
    ``newest`` as for `discontinuity`. ``repairs``: those under way by Quarantines in force.
    """
    before = known.record if known is not None else Record()
    old = {**before.entries, **record.entries}
    entries = {entry.node: old.get(entry.node) or entry for entry in in_force}
    known_ones = Counter(before.admissions) | Counter(record.admissions)
    new = [(entry.at, entry.policy_pool) for node, entry in entries.items() if node not in old]
    cooldowns = {**before.cooldowns}
    for ident, one in record.cooldowns.items():
        if ident not in cooldowns or cooldowns[ident].at < one.at:
            cooldowns[ident] = one
    running = record
    for lost in (*before.operations.values(), *repairs):  # the later record's come first
        running = running.restore(lost)
    past = {
        node: tuple(
            sorted(
                {*before.past_repairs.get(node, ()), *record.past_repairs.get(node, ())},
                key=lambda one: one.at,
            )
        )[-MOST_PAST_REPAIRS:]
        for node in {*before.past_repairs, *record.past_repairs}
    }
    return replace(
        record,
        operations=running.operations,
        past_repairs=past,
        entries=entries,
        admissions=tuple(sorted([*known_ones.elements(), *new])),
        cooldowns=cooldowns,
        generation=max(record.generation, before.generation, newest),
        rebuilt=rebuilt,
    )


def takes_a_place(quarantine: Quarantine) -> bool:
    """Whether it counts for the limits although the record has no entry of it.

    One that is being released is counted by its entry alone, which leaves when its node is undone.
    """
    phase = quarantine.status.phase
    return not quarantine.problem and phase not in (Phase.RELEASING, Phase.INVALID)


def has_begun(quarantine: Quarantine) -> bool:
    """Whether a rebuilt record has an entry of it: of one in release too, until it is undone."""
    in_release = quarantine.status.phase is Phase.RELEASING and quarantine.status.cordoned_at > 0
    return in_release or takes_a_place(quarantine)
