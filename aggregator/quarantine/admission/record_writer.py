"""The one writer of the admission record: batches all waiting requests, by compare-and-set.

A single writer saves requests and is not needed for safety: two that write at once conflict, read
again and decide again, so no interleaving passes a limit.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    BUSY,
    ClusterError,
    Conflict,
    Guard,
    GuardRefused,
    QuarantineSpec,
    RecordText,
    RepairState,
    SharedObjects,
    is_older,
)
from aggregator.quarantine.admission.stop_switch import StopSwitch, StopUnreadable
from aggregator.quarantine.decide.admission import (
    SETTLES,
    AdmissionBatch,
    Limits,
    OpenCause,
    Outcome,
    Proposal,
    lost,
    settling,
)
from aggregator.quarantine.decide.admission_record import (
    Entry,
    Known,
    Rebuilt,
    Record,
    RecordUnreadable,
    RunningOperation,
    discontinuity,
    dump_record,
    has_begun,
    parse_record,
    rebuild,
    takes_a_place,
)
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.pool_budget import PoolBudget
from aggregator.quarantine.decide.repair import lost_reservation
from aggregator.quarantine.decide.reservation import OperationLimits, reserve
from aggregator.quarantine.state.operation_times import OperationTimes
from aggregator.quarantine.state.registry import NodePools, NodeRegistry
from aggregator.rfc3339 import span

log = logging.getLogger("sickbay.quarantine")


@dataclass(frozen=True, slots=True)
class _Request:
    """One of the requests to the record, with the future of its caller.

    ``change`` is made in any case, for all requests of it that follow each other at once, with what
    each is ``about``; ``propose`` or ``reserve`` is decided on. Without any of these the record is
    read once more, and rebuilt where it is lost.
    """

    change: Callable[[Record, list[Any]], Record] | None = None
    about: Any = None
    propose: Proposal | None = None
    reserve: tuple[RunningOperation, OperationLimits] | None = None
    done: "asyncio.Future[Held | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def key(self) -> str:
        """The key of its hold; empty: nothing is decided on."""
        if self.reserve is not None:
            return _operation_key(self.reserve[0])
        return self.propose.node if self.propose is not None else ""


class CauseCount(Protocol):
    """`CommonCauseTracker`, as far as an admission needs it."""

    def causes(self) -> Mapping[str, OpenCause]:
        """The common causes that are open now."""


@define(eq=False, repr=False, slots=False)
class AdmissionRecordWriter:
    """Reads and writes the record. ``switch`` is read once more before an admission is written.

    All methods raise `ClusterError` when the record can't be read or written; no request is half
    done then, for a caller that repeats it finds the entry there or not.
    """

    _cluster: SharedObjects
    _limits: Limits
    _registry: NodeRegistry
    _causes: CauseCount
    _pools: NodePools
    _clocks: Clocks
    switch: StopSwitch

    def __attrs_post_init__(self) -> None:
        #: It must run evenly: a jump would let the record forget recent admissions.
        self._wall = self._clocks.trusted_wall
        self.times = OperationTimes(self._clocks)
        self.quarantine_index = self._registry.quarantine_index
        self._stored: RecordText | None = None
        self._any_version = False
        #: The record as last read or written here.
        self.record = Record()
        #: The last record that was whole.
        self._known: Known | None = None
        #: The reason why the record is lost: by a read of it, or by a watch event that may be old.
        self._lost = self._doubted = ""
        #: The text that the record was read from, or None if it is absent, or can't be read.
        self._text: str | None = None
        #: The text being written, and its record: its watch event may come before the answer.
        self._writing: tuple[str, Record] | None = None
        self._waiting: list[_Request] = []
        #: Writes what waits, or None before the first request.
        self.writing: asyncio.Task[None] | None = None
        #: Why the record can't be used; empty when it can.
        self.problem = ""

    def pool_budget(self) -> PoolBudget:
        """The counts of each pool by the record as last seen."""
        now, limits, unrecorded = self._wall(), self._limits, self._unrecorded(self.record)
        return PoolBudget(
            self._pools.facts({*self.record.entries, *unrecorded}),
            self.record.pruned(now, window=limits.window, cooldown=limits.cooldown),
            unrecorded=frozenset(unrecorded),
            absent=self._registry.size().absent,
            now=now,
            window=limits.window,
        )

    @property
    def trouble(self) -> str:
        """Why the record admits no node, for people; the same text until that is over."""
        rebuilt = self.record.rebuilt if settling(self.record, self._wall()) else None
        because = self._lost or (rebuilt.because if rebuilt is not None else "")
        if self.problem or not because:
            return self.problem
        return (
            f"the admission record {because}: no new quarantine is admitted until it is rebuilt "
            f"from the Quarantines in force, and for {span(SETTLES)} after that"
        )

    def seen(self, stored: RecordText) -> bool:
        """The record as the cluster's watch reports it: another replica's write, or an edit.

        Returns False where it is older than the known one. Events of our own writes come after
        them, and in a storm after the next write: taking those for new would make us write against
        a version that is gone.
        """
        known, self._any_version = None if self._any_version else self._stored, False
        if known is not None and is_older(stored.version, known.version):
            return False
        self._take(stored)
        return True

    def forget_version(self) -> None:
        """The watch stopped: its next event counts, whatever its version is.

        After etcd was restored its versions are lower than those that were known before.
        """
        self._any_version = True

    async def read(self, *, sure: bool = False) -> None:
        """Read it anew, even if it is known. ``sure``: as for `_compare`. Raises `ClusterError`."""
        before = self._stored
        self._take_answer(await self._cluster.read_record(), before, sure=sure)

    def _take_answer(self, found: RecordText, before: RecordText | None, *, sure: bool) -> None:
        """Take an answer, unless a watch event that came before it is newer.

        ``before``: the record as known when the read began.
        """
        now = self._stored
        if now is None or now is before or not is_older(found.version, now.version):
            self._take(found, sure=sure)

    def grants(self, node: str) -> bool:
        """Whether the record, as last read, is whole and has an entry of the node."""
        return not (self._lost or self._doubted) and node in self.record.entries

    def go_round(self) -> None:
        """Have a lost record rebuilt, where that could not be done at once."""
        newest = self.quarantine_index.newest if self.quarantine_index.whole else 0
        if self._stored is not None and not self.problem and self.record.generation < newest:
            self._doubted = self._doubted or "may have been rolled back"
        if (self._lost or self._doubted) and (self.writing is None or self.writing.done()):
            self._begin_repair()

    def _begin_repair(self) -> None:
        """No caller waits for it: it is tried again in the next round."""
        request = _Request()
        request.done.add_done_callback(_logged)
        self._put(request)

    def preview(self, proposals: Sequence[Proposal]) -> Mapping[str, Held]:
        """The holds that these would get now from a leader that knows of all nodes, decided in this
        order; no node is admitted.
        """
        return self._batch(self.record).admit(proposals).held

    def escalation_hold(self, proposal: Proposal) -> Held | None:
        """The hold that keeps an existing cordon from becoming a drain, by the last record."""
        return self._batch_of_counted().escalation_hold(proposal)

    def repair_hold(self, proposal: Proposal) -> Held | None:
        """The hold on the next repair of a node in quarantine, by the last record."""
        return self._batch_of_counted().repair_hold(proposal)

    def _batch_of_counted(self) -> AdmissionBatch:
        """Decisions about nodes that count already, so that the counts are left out."""
        size, causes = self._registry.size(), self._causes.causes()
        return AdmissionBatch(self.record, self._limits, size, now=self._wall(), causes=causes)

    async def propose(self, proposal: Proposal) -> Held | None:
        """Returns None when the record has the node's entry now, else the hold: `UNREAD_NODE` where
        the node has to be read first.
        """
        return await self._submit(_Request(propose=proposal))

    async def enter(self, entry: Entry) -> None:
        """Count a quarantine made by hand. Never refused."""
        await self._submit(_Request(Record.enter, entry))

    async def enter_quarantine(self, node: str, spec: QuarantineSpec) -> None:
        """The same, of a Quarantine that is in force or is about to be made."""
        await self.enter(self._entry_of(node, spec, self._wall()))

    def _entry_of(self, node: str, spec: QuarantineSpec, at: float) -> Entry:
        pool, policy_pool = self._registry.pool_of(node), self._pools.name_of(node)
        return Entry(node, spec.incident, pool, at, policy_pool)

    async def entry(self, node: str) -> Entry | None:
        """The node's entry, to be taken out at the end of the release that begins now, or None.

        A replica that is superseded meanwhile holds an old one, and takes no entry out. An answer
        of None never comes from memory: the record is read once more. While the record can't be
        used, no answer comes from memory.
        """
        if self.problem or node not in self.record.entries:
            await self._submit(_Request())
        return self.record.entries.get(node)

    async def forget_entry(self, entry: Entry | None) -> None:
        """Take the entry out, after its node is undone."""
        if entry is not None:
            await self._submit(_Request(Record.forget_nodes, entry))

    async def withdraw(self, entry: Entry | None) -> None:
        """Take out an entry on which no action was begun, as if it had never been admitted."""
        if entry is not None:
            await self._submit(_Request(Record.withdraw, entry))

    async def reserve(self, proposal: RunningOperation, limits: OperationLimits) -> Held | None:
        """Returns None when the record has the operation under way now, else the hold."""
        return await self._submit(_Request(reserve=(proposal, limits)))

    def hold_of(self, proposal: RunningOperation, limits: OperationLimits) -> Held | None:
        """The hold that an operation would get now, by the last record, if it did not count yet."""
        others = self._counted(self.current_record(), proposal)
        others = others.without_operations({proposal.operation})
        size, now = self._registry.size(), self._wall()
        return reserve(others, proposal, limits, size, now=now, stop=self.switch.reason)[1]

    async def end_operation(self, operation: str) -> None:
        """It has ended, and counts for no limit any more."""
        if operation in self.record.operations:
            await self._submit(_Request(Record.without_operations, operation))

    async def withdraw_operation(self, operation: str) -> None:
        """It was refused before it began, and is no attempt."""
        await self._submit(_Request(Record.withdraw_operations, operation))

    def has_operation(self, node: str, operation: str) -> bool:
        """Whether the record, as last read, is whole and has the operation's reservation."""
        known = self.record.operations.get(operation)
        if known is None or self._lost or self._doubted:
            return False
        return known.node == node and not self.is_over(known)

    async def restore_operation(self, lost: RunningOperation) -> None:
        """Count an operation under way that the record has lost. Never refused."""
        if self.record.restore(lost) is not self.record and not self.is_over(lost):
            await self._submit(_Request(_restored, lost))

    def current_record(self) -> Record:
        """The record as last read or written here, without reservations that are over."""
        return self._without_over(self.record)

    def is_over(self, running: RunningOperation) -> bool:
        """Whether a reservation counts no more: its attempt has ended, or no attempt holds it and
        its time is over. No attempt under way loses its reservation by time.

        The end of one that a release left as `Unknown` is no proof: its order may still act.
        """
        for one in self.quarantine_index.repair_of(running.node).attempts:
            if one.operation == running.operation and one.state is not RepairState.UNKNOWN:
                return one.state not in BUSY
        return self.times.time_of(running.operation, running.at) >= running.until

    def _without_over(self, record: Record) -> Record:
        running = record.operations.items()
        return record.without_operations({key for key, one in running if self.is_over(one)})

    async def _submit(self, request: _Request) -> Held | None:
        self._put(request)
        return await request.done

    def _put(self, request: _Request) -> None:
        self._waiting.append(request)
        if self.writing is None or self.writing.done():
            self.writing = asyncio.create_task(self._work(), name="registrar")

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                held, unread = await self._settle(batch)
            except Exception as error:  # noqa: BLE001 - the task's edge: every waiter must get it
                self._stored = None
                for request in batch:
                    if not request.done.done():
                        request.done.set_exception(error)
                continue
            for request in batch:
                if request.done.done():
                    continue
                if request.key and unread is not None:
                    request.done.set_exception(unread)
                else:
                    request.done.set_result(held.get(request.key))

    async def _settle(
        self, batch: list[_Request]
    ) -> tuple[Mapping[str, Held], ClusterError | None]:
        """Write until it goes through; the batch is decided anew on each record that is read.

        Returns what is held, and why no proposal could be decided: the stop switch can't be read.
        That keeps no entry from being removed: releases continue.
        """
        fresh = False
        unread: ClusterError | None = None
        while True:
            # A record that was deleted is made, empty, before it is rebuilt: to have its uid.
            deleted = self._lost and self._stored is not None and not self._stored.version
            if self._stored is None or self._doubted or deleted:
                await self.read(sure=True)
                fresh = True
            stored = self._stored
            if stored is None or self.problem:
                raise ClusterError(self.problem or "the admission record was not read")
            before = self.record
            after = self._changed(before, stored.uid, batch)
            decidable = batch if unread is None else []
            proposed = [one.propose for one in decidable if one.propose is not None]
            outcome = self._batch(after).admit(proposed)
            outcome = self._reserve(outcome, decidable)
            if not self._lost and _substance(outcome.record) == _substance(before):
                if fresh or not (outcome.admitted or any(not one.key for one in batch)):
                    return outcome.held, unread
                # After a conflict memory proves neither "it is there already" nor "it has left".
                self._stored = None
                continue
            begun = outcome.record.operations.keys() - after.operations.keys()
            admits = bool(begun) or not outcome.admitted <= after.entries.keys()
            try:
                await self._write(outcome.record, stored.version, admits=admits)
            except Conflict:
                self._stored = None
            except GuardRefused:  # decided anew, with the stop known
                self.switch.require_place()
            except StopUnreadable as error:
                unread = error
            else:
                return outcome.held, unread

    def _changed(self, before: Record, uid: str, batch: list[_Request]) -> Record:
        """The record with all that is requested except what is to be decided on."""
        after = self._whole(before, uid) if self._lost else before
        if after.operations:
            after = self._without_over(after)
        changes = [(one.change, one.about) for one in batch if one.change is not None]
        for change, those in groupby(changes, key=itemgetter(0)):
            after = change(after, [about for _, about in those])
        return after

    def _reserve(self, outcome: Outcome, batch: list[_Request]) -> Outcome:
        """The requested operations, after the admissions, in the order given."""
        record, held = outcome.record, dict(outcome.held)
        for request in batch:
            if request.reserve is None:
                continue
            proposal, limits = request.reserve
            size, now, stop = self._registry.size(), self._wall(), self.switch.reason
            counted = self._counted(record, proposal)
            _, hold = reserve(counted, proposal, limits, size, now=now, stop=stop)
            if hold is None:
                record, hold = reserve(record, proposal, limits, size, now=now, stop=stop)
            if hold is not None:
                held[_operation_key(proposal)] = hold
        return Outcome(record, outcome.admitted, held)

    def _whole(self, record: Record, uid: str) -> Record:
        """The rebuild of a lost record from the Quarantines in force."""
        if not self.quarantine_index.whole:
            raise ClusterError(lost(self._lost).reason)
        in_force = [one for one in self.quarantine_index.quarantines() if has_begun(one)]
        entries = [
            self._entry_of(one.node, one.spec, one.status.admitted_at or one.created_at)
            for one in in_force
        ]
        newest, at = self.quarantine_index.newest, self._wall()
        rebuilt, running = Rebuilt(at, self._lost, uid), self._under_way()
        return rebuild(
            record, self._known, entries, rebuilt=rebuilt, newest=newest, repairs=running
        )

    def _under_way(self) -> list[RunningOperation]:
        """The reservations that the Quarantines in force must have."""
        pool_of = self._registry.pool_of
        found = (
            lost_reservation(one.node, one.status.repair, pool_of(one.node))
            for one in self.quarantine_index.quarantines()
            if has_begun(one)
        )
        return [one for one in found if one is not None]

    def _counted(self, record: Record, proposal: RunningOperation) -> Record:
        """The record with each other operation under way: one from an older copy may lack them."""
        for one in self._under_way():
            if one.operation != proposal.operation:
                record = record.restore(one)
        return record

    async def _write(self, record: Record, version: str, *, admits: bool) -> None:
        """Write it against that version. ``admits``: not where the stop switch is set by now.

        The controller alone writes it: a replica that was paused would make a lost record, or count
        an operation, by what was known before its pause: with operations that have ended since.
        """
        record = replace(record, generation=record.generation + 1)
        text, before = dump_record(record), self._stored
        self._writing = (text, record)
        guard = Guard(self.switch.check_meanwhile if admits else self.switch.check_place)
        try:
            written = await self._cluster.write_record(text, version, guard=guard)
            self._take_answer(written, before, sure=True)
        finally:
            self._writing = None

    def _batch(self, record: Record) -> AdmissionBatch:
        """The decisions that begin now, against this record."""
        unrecorded = self._unrecorded(record)
        return AdmissionBatch(
            record,
            self._limits,
            self._registry.size(),
            now=self._wall(),
            stop=self.switch.reason,
            causes=self._causes.causes(),
            unrecorded=unrecorded,
            pools=self._pools.facts({*record.entries, *unrecorded}),
        )

    def _unrecorded(self, record: Record) -> dict[str, str]:
        """The pools, by node, of Quarantines in force of which the record has no entry."""
        return {
            one.node: self._registry.pool_of(one.node)
            for one in self.quarantine_index.quarantines()
            if one.node not in record.entries and takes_a_place(one)
        }

    def _take(self, stored: RecordText, *, sure: bool = False) -> None:
        """A text that we just wrote is not parsed again: in a storm parsing is expensive."""
        if self._writing is not None and stored.text == self._writing[0]:
            self._text, self.record = self._writing
            self.log_change("")
        elif stored.text != self._text:
            self._text = None
            try:
                self.record = parse_record(stored.text)
                self._text = stored.text
            except RecordUnreadable as error:
                place = self._cluster.record_place
                self.log_change(
                    f"the admission record can't be read: {place.where}: {error}. No new "
                    "quarantine is admitted. To have it made anew from the Quarantines in force: "
                    f"{place.empties}"
                )
            else:
                self.log_change("")
        for one in self.record.operations.values():
            self.times.time_of(one.operation, one.at)  # it passes though nothing is written
        self._stored = stored
        if not self.problem:
            self._compare(stored, sure=sure)

    def _compare(self, stored: RecordText, *, sure: bool) -> None:
        """Check that it continues the known record. Unless ``sure``, the text may be an old one."""
        newest = self.quarantine_index.newest if self.quarantine_index.whole else 0
        why = discontinuity(self._known, stored.uid, stored.text, self.record, newest=newest)
        if not why:
            if self._lost:
                log.warning("the admission record is whole again", extra={"event": "record.whole"})
            self._known = Known(stored.uid, stored.text, self.record)
            self._lost = self._doubted = ""
        elif sure:
            if why != self._lost:
                log.error(
                    "the admission record is not the one that was known",
                    extra={"event": "record.lost", "error": why},
                )
            self._lost, self._doubted = why, ""
        elif not self._doubted:
            self._doubted = why
            self._begin_repair()

    def log_change(self, problem: str) -> None:
        """Log each change once: else a reader of the log alone would see a quiet night."""
        if problem and problem != self.problem:
            log.error(
                "the admission record can't be used: no new quarantine is admitted",
                extra={"event": "record.unusable", "error": problem},
            )
        elif self.problem and not problem:
            log.info("the admission record can be read again", extra={"event": "record.usable"})
        self.problem = problem


def _operation_key(proposal: RunningOperation) -> str:
    """The key of its hold next to those of nodes; no node has such a name."""
    return f"operation:{proposal.operation}"


def _substance(record: Record) -> tuple[object, ...]:
    """The parts of a record: a change of any of them makes it be written."""
    return record.entries, record.cooldowns, record.operations


def _restored(record: Record, lost: list[RunningOperation]) -> Record:
    for one in lost:
        record = record.restore(one)
    return record


def _logged(repair: "asyncio.Future[Held | None]") -> None:
    """No caller waits for a repair: it is tried again in the next round."""
    if not repair.cancelled() and repair.exception() is not None:
        log.warning("the admission record is not rebuilt yet: %s", repair.exception())
