"""The latch: all that the agent knows, and which entries have changed since they were last sent.

It is the spool too: no message waits anywhere. A message is built from the changed keys when the
stream can take it. So a burst of 40,000 lines about four GPUs is four entries with large counts,
and a new stream needs only a snapshot.

Pure: no clock, no disk, no wire. Invariants:

- Absence clears no fault. A fault leaves by a clearing, by expiry (which is one), or with its boot.
- A sighting that was applied before has no effect, also after its fault was cleared.
- Its size is bounded for any input; a dropped entry is reported (``Loss`` of source "latch").
- ``digest`` covers the evidence sent, so it equals the digest of an aggregator that received all of
  it in order.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from hashlib import blake2b

from nodeagent.dataclass import dataclass
from nodeagent.evidence.bounds import bounded, bounded_details, component_name, cut, identifier
from nodeagent.evidence.entries import (
    ENDS,
    WINDOW,
    ComponentEntry,
    ComponentKey,
    FaultEntry,
    FaultKey,
    details_size,
)
from nodeagent.evidence.unacked import UnackedEvents
from nodeagent.model import (
    Batch,
    ClearedBy,
    Clearing,
    Evidence,
    FaultSighting,
    Gone,
    Loss,
    Observation,
    Status,
)
from sickbay.v1 import limits as contract

#: Whole runs in a row without a component after which it is dropped. One run may have missed it.
ABSENT_RUNS = 2
#: Seconds for which the new words of a component that is not failing may wait for a message that is
#: sent anyway. "Answers in 0.9 ms" is another text at every look, and no rule depends on it.
WORDS_WAIT = 900.0


@dataclass(frozen=True, slots=True)
class LatchLimits:
    """How much the latch holds: all that one message takes, far above any healthy machine."""

    components: int = contract.MAX_COMPONENTS
    faults: int = contract.MAX_FAULTS
    components_bytes: int = contract.MAX_COMPONENTS_BYTES
    faults_bytes: int = contract.MAX_FAULTS_BYTES


#: An entry that was cut or left out is reported once, for this number of causes; further causes are
#: not.
_MOST_REPORTED = 64


@dataclass(slots=True)
class Outgoing:
    """The content of one message. The entries are the latch's own: encode before it changes."""

    seq: int
    components: list[ComponentEntry]
    faults: list[FaultEntry]
    clearings: list[Clearing]
    losses: list[Loss]
    gone: list[Gone] = field(default_factory=list)


class Latch:
    """One boot's evidence. Times are boottime seconds and come in with each call."""

    def __init__(self, *, boot_id: str, epoch: str, limits: LatchLimits | None = None) -> None:
        self.boot_id = boot_id
        #: Names this line of sequence numbers; another one was lost with its state file.
        self.epoch = epoch
        self.last_seq = 0
        self.last_acked = 0
        #: Whether a change waits that should be sent at once: a new fault, a status, a clearing.
        self.urgent = False
        self.components: dict[ComponentKey, ComponentEntry] = {}
        self.faults: dict[FaultKey, FaultEntry] = {}
        self.unacked = UnackedEvents()
        #: Per source the last sequence applied in this boot.
        self.applied: dict[str, int] = {}
        self._limits = limits or LatchLimits()
        self._changed_components: set[ComponentKey] = set()
        #: Components of which the words alone have changed, and since when that was not sent.
        self._reworded: dict[ComponentKey, float] = {}
        self._changed_faults: set[FaultKey] = set()
        #: The latest sighting of each fault that is within the bounds: the next may be equal.
        self._fit: dict[FaultKey, FaultSighting] = {}
        self._sent: dict[tuple[str, ...], bytes] = {}
        #: The digest of the evidence sent, until that changes: each heartbeat carries it.
        self._digest: int | None = None
        self._components_bytes = 0
        self._held: dict[str, int] = {}  # components, by check
        self._faults_bytes = 0
        #: The causes that were reported as left out or cut. They are reported again after there was
        #: room.
        self._reported: set[str] = set()

    def restore(self, components: Iterable[ComponentEntry], faults: Iterable[FaultEntry]) -> None:
        """Hold an earlier agent's entries, as far as they fit: its bounds may have been wider."""
        limits = self._limits
        latched = [_bounded_fault(fault) for fault in faults]
        if not _all_fit(latched, limits.faults, limits.faults_bytes):
            latched.sort(key=_worth, reverse=True)
        for fault in latched:
            if self._fault_fits(fault.weight) and fault.key not in self.faults:
                self._put_fault(fault)
            else:
                self._lost_to_limits(f"more faults than fit; {fault.code} was dropped")
        entries = [_bounded_component(entry) for entry in components]
        if not _all_fit(entries, limits.components, limits.components_bytes):
            entries.sort(key=lambda entry: entry.status is Status.OK)
        for entry in entries:
            if self._component_fits(entry.weight) and entry.key not in self.components:
                self._put_component(entry)
            else:
                self._report_full()

    # -- taking evidence in ------------------------------------------------------------------

    def apply(self, batch: Batch, now: float, *, run_of: str = "") -> bool:
        """Take in a batch; whether any entry changed.

        Sightings of one record may share a sequence number, but must come in one batch: a number at
        or below the last applied one of its source is a replay. ``run_of`` names the check of
        which this batch is one whole look, so that the components that it left out are counted as
        absent.
        """
        marks = dict(self.applied)
        named = set()
        changed = False
        for given in batch:
            # First, because nearly every observation equals the one before it.
            if isinstance(given, Observation) and self._repeats(given):
                named.add(given.component)
                continue
            same = isinstance(given, FaultSighting) and self._has_known_words(given)
            item = given if same else self._within_bounds(given)
            if isinstance(item, Observation):
                named.add(item.component)
            match item:
                case Observation():
                    changed |= self._observe(item, now)
                case FaultSighting():
                    changed |= self._sight(item, marks.get(item.source, -1), same=same)
                case Clearing():
                    changed |= self._clear(item)
                case Loss():
                    self.unacked.add_loss(item)
                    self.urgent = changed = True
                case Gone():
                    changed |= self._go(self.components.get((item.check, item.component)))
        if run_of:
            changed |= self._count_absent(run_of, named)
        return changed

    def clearable(self, components: Iterable[str]) -> list[str]:
        """The codes of faults and checks of absent parts that a person can clear, in order.

        An empty component is every one.
        """
        codes: set[str] = set()
        for component in components:
            faults, absent = self._clearable(component, "")
            codes |= {fault.code for fault in faults} | {entry.check for entry in absent}
        return sorted(codes)

    def clear_by_operator(self, *, component: str, code: str) -> int:
        """Remove a fault that a person reports as over; returns the number of entries removed.

        An empty ``component`` is every one of the code, an empty ``code`` every one of the
        component. Failed components that their check no longer names leave too.
        """
        faults, absent = self._clearable(component, code)
        for fault in faults:
            self._end(fault, "operator")
        for entry in absent:
            self._drop_component(entry)
        return len(faults) + len(absent)

    def _clearable(
        self, component: str, code: str
    ) -> tuple[list[FaultEntry], list[ComponentEntry]]:
        faults = [
            fault
            for fault in self.faults.values()
            if component in ("", fault.component) and code in ("", fault.code)
        ]
        absent = [
            entry
            for entry in self.components.values()
            if entry.absent and component in ("", entry.component) and code in ("", entry.check)
        ]
        return faults, absent

    def expire(self, now: float) -> bool:
        """End the entries that end by time: EXPIRY faults a day after their last occurrence."""
        over = [
            fault
            for fault in self.faults.values()
            if fault.cleared_by is ClearedBy.EXPIRY and fault.last <= now - WINDOW
        ]
        for fault in over:
            self._end(fault, "expiry")
        return bool(over)

    def keep_checks(self, names: Collection[str]) -> bool:
        """Drop the components of checks that no longer run, except failed ones."""
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
        """Whether any entry, urgent or not, has changed since it was last sent."""
        changed = self._changed_components or self._changed_faults
        return bool(changed) or self.unacked.has_unsent

    def snapshot(self, now: float) -> Outgoing:
        """All of it, as the next message; afterwards no change is pending."""
        seq = self._next_seq()
        clearings, losses, gone = self.unacked.carry(seq, everything=True)
        components, faults = list(self.components.values()), list(self.faults.values())
        self._forget_changes()
        self._sent.clear()
        self._mark_sent(components, faults, now)
        return Outgoing(seq, components, faults, clearings, losses, gone)

    def delta(self, now: float) -> Outgoing | None:
        """The changes as the next message, or None when there are none."""
        if not self.pending:
            return None
        seq = self._next_seq()
        clearings, losses, gone = self.unacked.carry(seq, everything=False)
        components = [
            self.components[key] for key in sorted(self._changed_components | self._reworded.keys())
        ]
        faults = [self.faults[key] for key in sorted(self._changed_faults)]
        self._forget_changes()
        for one in gone:
            self._sent.pop(("c", *one.key), None)
        for clearing in clearings:
            self._sent.pop(("f", clearing.code, clearing.component), None)
        self._mark_sent(components, faults, now)
        return Outgoing(seq, components, faults, clearings, losses, gone)

    def acknowledge(self, seq: int) -> bool:
        """Messages up to ``seq`` are safe; whether that freed any entry. Never frees a fault."""
        if not self.last_acked < seq <= self.last_seq:
            return False
        self.last_acked = seq
        return self.unacked.acknowledged(seq)

    def digest(self) -> int:
        """64 bits over the evidence sent, as docs/contract.md lays down."""
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
        if (entry.status, entry.reason) == (seen.status, seen.reason):
            return self._reword(entry, seen.message, now)
        if entry.status is not seen.status:
            entry.since = now
            entry.recent.append((seen.status, now))
            entry.trim(now)
        # The reason alone is no transition either, but policy may match it.
        self.urgent |= entry.status is not seen.status or entry.reason != seen.reason
        entry.status, entry.reason, entry.message = seen.status, seen.reason, seen.message
        self._changed_components.add(entry.key)
        return True

    def _repeats(self, seen: Observation) -> bool:
        """Whether it changes nothing in the latch: its component's entry is the same."""
        if not (
            type(seen.check) is type(seen.component) is str
            and type(seen.reason) is type(seen.message) is str
        ):
            return False  # third-party code gave a value that is no text
        entry = self.components.get((seen.check, seen.component))
        if (
            entry is None
            or entry.status is not seen.status
            or entry.message != seen.message
            or entry.reason != seen.reason
            or entry.key in self._reworded  # it may have waited long enough
        ):
            return False
        entry.absent = 0
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

    def _within_bounds(self, item: Evidence | Gone) -> Evidence | Gone | None:
        """The item as the contract's bounds allow, if at all; a cut is reported once."""
        fits, trouble = bounded(item)
        if trouble:
            self._report_once(trouble)
        if isinstance(fits, FaultSighting):
            if len(self._fit) >= self._limits.faults:
                self._fit.clear()
            self._fit[fits.code, fits.component] = fits
        return fits

    def _has_known_words(self, seen: FaultSighting) -> bool:
        """Whether its texts are those of the sighting before it: the same objects, in a storm."""
        if not (type(seen.code) is str and type(seen.component) is str):
            return False  # third-party code gave a value that is no text
        fit = self._fit.get((seen.code, seen.component))
        return (
            fit is not None
            and (seen.message is fit.message and seen.details is fit.details)
            and (seen.check, seen.source) == (fit.check, fit.source)
        )

    def _report_once(self, trouble: str) -> None:
        if trouble not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(trouble)
            self._lost_to_limits(trouble)

    def _admit(self, entry: ComponentEntry) -> bool:
        while not self._component_fits(entry.weight):
            self._report_full()
            well = (e for e in self.components.values() if e.status is Status.OK)
            oldest = min(well, key=lambda e: e.since, default=None)
            if oldest is None or entry.status is Status.OK:
                return True
            self._drop_component(oldest)
        self._put_component(entry)
        self.unacked.drop_gone(entry.key)
        self._changed_components.add(entry.key)
        self.urgent = True
        return True

    def _component_fits(self, weight: int) -> bool:
        return (
            len(self.components) < self._limits.components
            and self._components_bytes + weight <= self._limits.components_bytes
        )

    def _put_component(self, entry: ComponentEntry) -> None:
        self.components[entry.key] = entry
        self._components_bytes += entry.weight
        self._held[entry.check] = self._held.get(entry.check, 0) + 1
        if len(self.components) * 10 < self._limits.components * 9:
            self._reported.discard(self._full)

    @property
    def _full(self) -> str:
        return f"more than {self._limits.components} components, or too long names; new ones go"

    def _report_full(self) -> None:
        # Once, and not in every run of the check that has too many.
        self._report_once(self._full)

    def _sight(self, seen: FaultSighting, mark: int, *, same: bool) -> bool:
        """``same``: its words are those of the sighting before it."""
        if seen.source_seq <= mark:
            return False
        self.applied[seen.source] = max(seen.source_seq, self.applied.get(seen.source, -1))
        key = (seen.code, seen.component)
        entry = self.faults.get(key)
        if entry is None or (entry.historical and not seen.historical):
            if entry is not None:
                self._drop_fault(entry)
            fresh = FaultEntry.first_of(seen, self.boot_id)
            while self.faults and not self._fault_fits(fresh.weight):
                self._make_room()
            self._put_fault(fresh)
            self.urgent = True
        elif seen.historical and not entry.historical:
            return True  # the mark has moved; history does not change a live fault
        else:
            before = entry.details
            self.urgent |= entry.again(seen, same=same and seen.message is entry.message)
            if entry.details is not before:
                self._faults_bytes += details_size(entry.details) - details_size(before)
            if self._faults_bytes > self._limits.faults_bytes:
                self._faults_bytes -= details_size(entry.details)
                entry.details = {}
                self._report_once(f"check {entry.check}: details of its faults do not fit")
        self._changed_faults.add(key)
        return True

    def _fault_fits(self, weight: int) -> bool:
        return (
            len(self.faults) < self._limits.faults
            and self._faults_bytes + weight <= self._limits.faults_bytes
        )

    def _put_fault(self, fault: FaultEntry) -> None:
        self.faults[fault.key] = fault
        self._faults_bytes += fault.weight

    def _drop_fault(self, fault: FaultEntry) -> None:
        del self.faults[fault.key]
        self._faults_bytes -= fault.weight
        self._changed_faults.discard(fault.key)

    def _make_room(self) -> None:
        """Drop the fault that matters least. It was not cleared, so no message reports that it
        was.
        """
        least = min(self.faults.values(), key=_worth)
        self._drop_fault(least)
        self._lost_to_limits(f"more than {self._limits.faults} faults; {least.code} was dropped")

    def _lost_to_limits(self, why: str) -> None:
        self.unacked.add_loss(Loss("latch", 1, why))
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
        # Sent even if no entry here ends, because this latch may have been lost: the aggregator may
        # still hold the fault.
        self.unacked.clear(sign)
        self.urgent = True
        if sign.how in ("named", "replaced"):  # no check will see it well under that name
            for entry in [e for e in self.components.values() if e.component == sign.component]:
                self._drop_component(entry)
        return True

    def _end(self, fault: FaultEntry, how: str) -> None:
        self._drop_fault(fault)
        self.unacked.clear(Clearing(fault.component, how, fault.code))
        self.urgent = True

    def _go(self, entry: ComponentEntry | None) -> bool:
        if entry is None:
            return False
        if entry.last_known is Status.FAILED:
            # A component that failed and was then taken away has not been shown to be well.
            entry.absent = max(entry.absent, 1)
            return False
        self._drop_component(entry)
        return True

    def _count_absent(self, check: str, named: Collection[str]) -> bool:
        """Components of ``check`` that this whole look left out are missed, then dropped."""
        if sum((check, each) in self.components for each in named) == self._held.get(check, 0):
            return False  # without reading the components of all other checks
        dropped = False
        for entry in self._absentees(check, named):
            entry.absent += 1
            # Unknown is no evidence, so no evidence is lost with it: it may be "hung" of yesterday.
            if entry.absent >= ABSENT_RUNS or entry.status is Status.UNKNOWN:
                dropped |= self._go(entry)
        return dropped

    def _absentees(self, check: str, named: Collection[str]) -> list[ComponentEntry]:
        entries = self.components.values()
        return [e for e in entries if e.check == check and e.component not in named]

    def _drop_component(self, entry: ComponentEntry) -> None:
        del self.components[entry.key]
        self._components_bytes -= entry.weight
        self._held[entry.check] -= 1
        if not self._held[entry.check]:
            del self._held[entry.check]
        self._changed_components.discard(entry.key)
        self._reworded.pop(entry.key, None)
        matters = any(status is not Status.OK for status, _ in entry.recent)
        self.unacked.take_gone(Gone(*entry.key), matters=matters)
        self.urgent = True

    def _next_seq(self) -> int:
        self.last_seq += 1
        return self.last_seq

    def _forget_changes(self) -> None:
        self._changed_components.clear()
        self._reworded.clear()
        self._changed_faults.clear()
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


def _worth(fault: FaultEntry) -> tuple[bool, bool, float]:
    """The sort key by which the fault that matters least is found."""
    return not fault.historical, fault.cleared_by is not ClearedBy.EXPIRY, fault.last


def _all_fit(entries: Sequence[ComponentEntry | FaultEntry], most: int, most_bytes: int) -> bool:
    return len(entries) <= most and sum(entry.weight for entry in entries) <= most_bytes


def _bounded_fault(fault: FaultEntry) -> FaultEntry:
    fault.code, fault.check = identifier(fault.code), identifier(fault.check)
    fault.component, fault.source = component_name(fault.component), identifier(fault.source)
    fault.message = cut(fault.message, contract.MAX_TEXT)
    fault.details = dict(bounded_details(fault.details))
    return fault


def _bounded_component(entry: ComponentEntry) -> ComponentEntry:
    entry.check, entry.component = identifier(entry.check), component_name(entry.component)
    entry.reason = cut(entry.reason, contract.MAX_NAME)
    entry.message = cut(entry.message, contract.MAX_TEXT)
    return entry
