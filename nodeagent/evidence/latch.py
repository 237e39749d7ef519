"""The latch: all that the agent knows, and what of it has changed since it was last sent.

It is the spool too: no message waits anywhere. A message is built from the changed keys when the
stream can take it, so a burst of 40,000 lines about four GPUs is four entries with large counts,
and a new stream needs nothing but a snapshot.

Pure: no clock, no disk, no wire. Invariants:

- Absence clears nothing. A fault leaves by a clearing, by expiry (which is one), or with its boot.
- A sighting that was applied before changes nothing, also after its fault was cleared.
- Bounded, whatever comes; what had to go is said (``Loss`` of source "latch").
- ``digest`` covers what was sent, so it equals the digest of whoever received all of it in order.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from nodeagent.evidence.entries import (
    ENDS,
    WINDOW,
    ComponentEntry,
    ComponentKey,
    FaultEntry,
    FaultKey,
    in_utf8,
)
from nodeagent.evidence.owed import Owed
from nodeagent.model import (
    Batch,
    ClearedBy,
    Clearing,
    FaultSighting,
    Gone,
    Loss,
    Observation,
    Status,
)

#: Whole looks in a row without a component after which it is dropped. One look may have missed it.
ABSENT_LOOKS = 2
#: Seconds for which the new words of a component that is not failing may wait for a message that is
#: sent anyway. "Answers in 0.9 ms" is another text at every look, and moves nobody.
WORDS_WAIT = 900.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the latch holds: far above any healthy machine, and some MiB at most."""

    components: int = 2048
    faults: int = 1024


@dataclass(slots=True)
class Outgoing:
    """The content of one message. The entries are the latch's own: encode before it changes."""

    seq: int
    components: list[ComponentEntry]
    faults: list[FaultEntry]
    clearings: list[Clearing]
    losses: list[Loss]
    gone: list[ComponentEntry] = field(default_factory=list)


class Latch:
    """One boot's evidence. Times are boottime seconds and come in with each call."""

    def __init__(self, *, boot_id: str, epoch: str, limits: Limits | None = None) -> None:
        self.boot_id = boot_id
        #: Names this line of sequence numbers; another one was lost with its state file.
        self.epoch = epoch
        self.last_seq = 0
        self.last_acked = 0
        #: Whether something waits that should be sent at once: a new fault, a status, a clearing.
        self.urgent = False
        self.components: dict[ComponentKey, ComponentEntry] = {}
        self.faults: dict[FaultKey, FaultEntry] = {}
        self.owed = Owed()
        #: Per source the last sequence applied in this boot.
        self.applied: dict[str, int] = {}
        self._limits = limits or Limits()
        self._changed_components: set[ComponentKey] = set()
        #: Components of which the words alone have changed, and since when that was not sent.
        self._reworded: dict[ComponentKey, float] = {}
        self._changed_faults: set[FaultKey] = set()
        self._gone: dict[ComponentKey, ComponentEntry] = {}
        self._sent: dict[tuple[str, ...], bytes] = {}
        #: Of what was sent, as long as that stays: each heartbeat tells it.
        self._digest: int | None = None
        self._said_full = False

    # -- taking evidence in ------------------------------------------------------------------

    def apply(self, batch: Batch, now: float, *, look_of: str = "") -> bool:
        """Take in a batch; whether anything changed.

        Sightings of one record may share a sequence number, but must come in one batch: what is at
        or below the last applied one of its source is a replay. ``look_of`` names the check of
        which this batch is one whole look, so that what it left out is counted as absent.
        """
        batch = [in_utf8(item) for item in batch]
        marks = dict(self.applied)
        changed = False
        for item in batch:
            match item:
                case Observation():
                    changed |= self._observe(item, now)
                case FaultSighting():
                    changed |= self._sight(item, marks.get(item.source, -1))
                case Clearing():
                    changed |= self._clear(item)
                case Loss():
                    self.owed.lose(item)
                    self.urgent = changed = True
                case Gone():
                    changed |= self._go(self.components.get((item.check, item.component)))
        if look_of:
            changed |= self._count_absent(look_of, batch)
        return changed

    def clear_by_operator(self, *, component: str, code: str) -> int:
        """A person says that it is over; how many entries left.

        An empty ``component`` is every one of the code, an empty ``code`` every one of the
        component. Failed components that their check no longer names leave too.
        """
        faults = [
            fault
            for fault in self.faults.values()
            if component in ("", fault.component) and code in ("", fault.code)
        ]
        for fault in faults:
            self._end(fault, "operator")
        absent = [
            entry
            for entry in self.components.values()
            if entry.absent and component in ("", entry.component) and code in ("", entry.check)
        ]
        for entry in absent:
            self._drop_component(entry)
        return len(faults) + len(absent)

    def expire(self, now: float) -> bool:
        """End what ends by time: EXPIRY faults a day after their last occurrence."""
        over = [
            fault
            for fault in self.faults.values()
            if fault.cleared_by is ClearedBy.EXPIRY and fault.last <= now - WINDOW
        ]
        for fault in over:
            self._end(fault, "expiry")
        return bool(over)

    def keep_checks(self, names: Collection[str]) -> bool:
        """Let go of components of checks that no longer run, but for failed ones."""
        changed = False
        for entry in list(self.components.values()):
            changed |= entry.check not in names and self._go(entry)
        return changed

    def known(self, check: str) -> list[str]:
        """The components that ``check`` has reported."""
        return [entry.component for entry in self.components.values() if entry.check == check]

    # -- sending -----------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether anything, urgent or not, has changed since it was last sent."""
        changed = self._changed_components or self._changed_faults or self._gone
        return bool(changed) or self.owed.untold

    def snapshot(self, now: float) -> Outgoing:
        """All of it, as the next message; nothing is pending afterwards."""
        seq = self._next_seq()
        clearings, losses = self.owed.carry(seq, everything=True)
        components, faults = list(self.components.values()), list(self.faults.values())
        self._forget_changes()
        self._sent.clear()
        self._mark_sent(components, faults, now)
        return Outgoing(seq, components, faults, clearings, losses)

    def delta(self, now: float) -> Outgoing | None:
        """What has changed, as the next message; None when nothing has."""
        if not self.pending:
            return None
        seq = self._next_seq()
        clearings, losses = self.owed.carry(seq, everything=False)
        components = [
            self.components[key] for key in sorted(self._changed_components | self._reworded.keys())
        ]
        faults = [self.faults[key] for key in sorted(self._changed_faults)]
        gone = list(self._gone.values())
        self._forget_changes()
        for entry in gone:
            self._sent.pop(("c", *entry.key), None)
        for clearing in clearings:
            self._sent.pop(("f", clearing.code, clearing.component), None)
        self._mark_sent(components, faults, now)
        return Outgoing(seq, components, faults, clearings, losses, gone)

    def acknowledge(self, seq: int) -> bool:
        """Messages up to ``seq`` are safe; whether that freed anything. Never frees a fault."""
        if not self.last_acked < seq <= self.last_seq:
            return False
        self.last_acked = seq
        return self.owed.acknowledged(seq)

    def digest(self) -> int:
        """64 bits over what was sent, as docs/contract.md lays down."""
        if self._digest is None:
            digest = blake2b(digest_size=8)
            for line in sorted(self._sent.values()):
                digest.update(line)
            self._digest = int.from_bytes(digest.digest(), "big")
        return self._digest

    # -- the parts of the above ----------------------------------------------------------------

    def _observe(self, seen: Observation, now: float) -> bool:
        entry = self.components.get((seen.check, seen.component))
        if entry is None:
            return self._admit(ComponentEntry.first(seen, now))
        entry.absent = 0
        fresh = ComponentEntry.first(seen, now)
        if (entry.status, entry.reason) == (seen.status, seen.reason):
            return self._reword(entry, fresh.message, now)
        if entry.status is not seen.status:
            entry.since = now
            entry.recent.append((seen.status, now))
            entry.trim(now)
        # The reason alone is no transition either, but policy may match it.
        self.urgent |= entry.status is not seen.status or entry.reason != seen.reason
        entry.status, entry.reason, entry.message = seen.status, seen.reason, fresh.message
        self._changed_components.add(entry.key)
        return True

    def _reword(self, entry: ComponentEntry, message: str, now: float) -> bool:
        """Whether the words of ``entry`` are others and worth a message of their own."""
        if entry.message != message:
            entry.message = message
            self._reworded.setdefault(entry.key, now)
        waited = now - self._reworded.get(entry.key, now)
        calm = entry.status in (Status.OK, Status.UNKNOWN) and waited < WORDS_WAIT
        if entry.key not in self._reworded or calm:
            return False
        self._changed_components.add(entry.key)
        return True

    def _admit(self, entry: ComponentEntry) -> bool:
        if len(self.components) >= self._limits.components:
            self._say_full()
            well = (e for e in self.components.values() if e.status is Status.OK)
            oldest = min(well, key=lambda e: e.since, default=None)
            if oldest is None or entry.status is Status.OK:
                return True
            self._drop_component(oldest)
        else:
            self._said_full = False
        self.components[entry.key] = entry
        self._gone.pop(entry.key, None)
        self._changed_components.add(entry.key)
        self.urgent = True
        return True

    def _say_full(self) -> None:
        # Once, and not at every look of the check that has so many.
        if not self._said_full:
            self._lost_to_limits(f"more than {self._limits.components} components; new ones go")
        self._said_full = True

    def _sight(self, seen: FaultSighting, mark: int) -> bool:
        if seen.source_seq <= mark:
            return False
        self.applied[seen.source] = max(seen.source_seq, self.applied.get(seen.source, -1))
        key = (seen.code, seen.component)
        entry = self.faults.get(key)
        if entry is None or (entry.historical and not seen.historical):
            if entry is None and len(self.faults) >= self._limits.faults:
                self._make_room()
            self.faults[key] = FaultEntry.first_of(seen, self.boot_id)
            self.urgent = True
        elif seen.historical and not entry.historical:
            return True  # the mark has moved; news about the past says nothing of a live fault
        elif entry.again(seen):
            self.urgent = True
        self._changed_faults.add(key)
        return True

    def _make_room(self) -> None:
        """Drop the fault that matters least. It was not cleared, so nothing says that it was."""

        def worth(fault: FaultEntry) -> tuple[bool, bool, float]:
            return not fault.historical, fault.cleared_by is not ClearedBy.EXPIRY, fault.last

        least = min(self.faults.values(), key=worth)
        del self.faults[least.key]
        self._changed_faults.discard(least.key)
        self._lost_to_limits(f"more than {self._limits.faults} faults; {least.code} was dropped")

    def _lost_to_limits(self, why: str) -> None:
        self.owed.lose(Loss("latch", 1, why))
        self.urgent = True

    def _clear(self, sign: Clearing) -> bool:
        ended = ENDS.get(sign.how, frozenset())
        about = [
            fault
            for fault in self.faults.values()
            if fault.component == sign.component and sign.code in ("", fault.code)
        ]
        for fault in about:
            if fault.cleared_by in ended:
                self._end(fault, sign.how)
        if sign.code and about:
            return about[0].cleared_by in ended
        # Nothing here to end may mean that this latch was lost: the aggregator may know better.
        self.owed.clear(sign)
        self.urgent = True
        return True

    def _end(self, fault: FaultEntry, how: str) -> None:
        del self.faults[fault.key]
        self._changed_faults.discard(fault.key)
        self.owed.clear(Clearing(fault.component, how, fault.code))
        self.urgent = True

    def _go(self, entry: ComponentEntry | None) -> bool:
        if entry is None:
            return False
        if entry.status is Status.FAILED:
            # What failed and was then taken away has not been shown to be well.
            entry.absent = max(entry.absent, 1)
            return False
        self._drop_component(entry)
        return True

    def _count_absent(self, check: str, batch: Batch) -> bool:
        """Components of ``check`` that this whole look left out are missed, then dropped."""
        dropped = False
        for entry in self._absentees(check, batch):
            entry.absent += 1
            # Unknown says nothing, so nothing is lost with it: it may be "hung" of yesterday.
            if entry.absent >= ABSENT_LOOKS or entry.status is Status.UNKNOWN:
                dropped |= self._go(entry)
        return dropped

    def _absentees(self, check: str, batch: Batch) -> list[ComponentEntry]:
        named = {item.component for item in batch if isinstance(item, Observation)}
        entries = self.components.values()
        return [e for e in entries if e.check == check and e.component not in named]

    def _drop_component(self, entry: ComponentEntry) -> None:
        del self.components[entry.key]
        self._changed_components.discard(entry.key)
        self._reworded.pop(entry.key, None)
        self._gone[entry.key] = entry
        self.urgent = True

    def _next_seq(self) -> int:
        self.last_seq += 1
        return self.last_seq

    def _forget_changes(self) -> None:
        self._changed_components.clear()
        self._reworded.clear()
        self._changed_faults.clear()
        self._gone.clear()
        self.urgent = False

    def _mark_sent(
        self, components: Iterable[ComponentEntry], faults: Iterable[FaultEntry], now: float
    ) -> None:
        self._digest = None
        for entry in components:
            entry.trim(now)
            self._sent[("c", *entry.key)] = entry.line()
        for fault in faults:
            fault.trim()
            self._sent[("f", *fault.key)] = fault.line()
