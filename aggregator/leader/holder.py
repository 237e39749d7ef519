"""Renews the Lease while it is ours, and reads it while it is another's."""

import asyncio
import logging
from collections.abc import Callable

from attrs import define, field

from aggregator.leader.election import TIMES, Election, LeaseTiming
from aggregator.leader.lease import (
    Candidate,
    LeaseConflict,
    LeaseNotFound,
    LeaseStore,
    LeaseStoreError,
)

log = logging.getLogger("sickbay.leader")

#: After a request that failed at once (seconds).
_FAILURE_PAUSE = 1.0
#: Another's Lease is read again this long after it has expired: not a rounding error too early.
_JUST_AFTER = 0.01
#: The holder renews after this long at most (seconds), whatever pause the server named: until then
#: no release is carried out, by any replica.
_RENEWED_WITHIN = 5.0
#: A write that another writer preceded is tried this often in one turn.
_TRIES = 2
#: A Lease that can't be read for this long (seconds) shows nothing about others any more.
UNREADABLE_FOR = 60.0


@define(eq=False, repr=False, slots=False)
class LeaseHolder:
    """The guard's question is `may_act`. ``clock`` is monotonic and runs while the machine is
    suspended (CLOCK_BOOTTIME). ``starts``: no earlier holder of this process has lost the Lease.

    `run` takes part in the election until another has taken the Lease from us; `release` gives it
    up in order.
    """

    me: Candidate
    _store: LeaseStore
    _clock: Callable[[], float] = field(kw_only=True)
    _times: LeaseTiming = field(default=TIMES, kw_only=True)
    _starts: bool = field(default=True, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._election = Election(self.me, self._times, starts=self._starts)
        self._one_at_a_time = asyncio.Lock()
        self._calls: list[Callable[[], None]] = []
        self._reported: tuple[Candidate | None, bool] = (None, False)
        self._reached = self._clock()  # when the store last answered
        self._acquired = asyncio.Event()
        #: The store's last error; empty: it answers.
        self.problem = ""

    # -- what others call ----------------------------------------------------------

    def may_act(self) -> bool:
        """Whether this replica is the controller at this moment. The clock is read each time, so
        that a process that was paused does not act on waking.
        """
        return self._election.may_act(self._clock())

    @property
    def holds(self) -> bool:
        """Whether the Lease is ours as far as we know, renewed in time or not."""
        return self._election.holds

    def other(self) -> Candidate | None:
        """The other replica that the Lease names; None: there is none, or it is ours."""
        holder = self._election.holder
        ours = self._election.holds or (holder is not None and holder.epoch == self.me.epoch)
        return None if ours else holder

    def renewed_within(self, seconds: float) -> bool:
        """Whether another replica was seen to renew the Lease ``seconds`` seconds ago or later;
        also where the Lease can't be read for long enough that this replica counts as the one that
        is cut off.
        """
        now = self._clock()
        unreadable = now - self._reached >= UNREADABLE_FOR
        return self._election.renewed_by_another(now, within=seconds) or unreadable

    def renewal_seen_ago(self) -> float | None:
        """Seconds since another replica was seen to renew the Lease; None: it never was."""
        return self._election.renewal_seen_ago(self._clock())

    def still_for(self) -> float:
        """For how long another's Lease had no renewal until the last read of it, in seconds."""
        return self._election.still_for()

    def on_change(self, call: Callable[[], None]) -> None:
        """Have it called, in the event loop, when `other` or `holds` has changed."""
        self._calls.append(call)

    async def acquired(self) -> None:
        """Until this replica holds the Lease."""
        await self._acquired.wait()

    # -- the work -------------------------------------------------------------------

    async def run(self) -> None:
        """Until another has held the Lease since we acquired it. A store that is away is waited
        for.
        """
        while not self._election.lost:
            began = self._clock()
            async with self._one_at_a_time:
                failure = await self._turn()
            self._report(failure)
            next_at = began + (self._times.retry_period if failure is None else _FAILURE_PAUSE)
            earliest = began
            if failure is not None and failure.retry_after is not None:
                longest = _RENEWED_WITHIN if self._election.holds else failure.retry_after
                earliest = self._clock() + min(failure.retry_after, longest)
                next_at = max(next_at, earliest)
            if earliest < (expired := self._election.expires_at() + _JUST_AFTER) < next_at:
                next_at = expired
            await asyncio.sleep(max(0.0, next_at - self._clock()))

    async def release(self) -> None:
        """Give the Lease up, so that another takes it at once. After our last act."""
        self._election.leave()
        self._report(None)
        try:
            async with asyncio.timeout(3 * self._times.deadline), self._one_at_a_time:
                draft = self._election.last_write()  # a renewal may have been under way
                if draft is None:
                    return
                await self._store.write(draft)
        except (LeaseStoreError, TimeoutError) as error:
            log.warning(
                "the Lease could not be given up; another replica waits until it has expired",
                extra={
                    "event": "leader.not_released",
                    "error": str(error) or "no answer in time",
                },
            )
        else:
            log.info("the Lease is given up", extra={"event": "leader.released"})

    async def _turn(self) -> LeaseStoreError | None:
        try:
            if self._election.must_read:
                await self._read()
            await self._write()
        except LeaseStoreError as error:
            return error
        return None

    async def _read(self) -> None:
        lease = await self._store.read()
        self._reached = self._clock()
        self._election.read(lease, answered=self._reached)

    async def _write(self) -> None:
        for _ in range(_TRIES):
            sent = self._clock()
            draft = self._election.next_write(sent)
            if draft is None:
                return
            try:
                lease = await self._store.write(draft)
            except LeaseNotFound:
                self._election.missing()
            except LeaseConflict:
                await self._read()  # another was faster, or a write of ours came late
            else:
                self._reached = self._clock()
                self._election.wrote(lease, sent=sent)
                return

    # -- reporting -------------------------------------------------------------------

    def _report(self, failure: LeaseStoreError | None) -> None:
        problem = str(failure) if failure is not None else ""
        if problem and not self.problem:
            log.warning(
                "the Lease can't be used",
                extra={"event": "leader.lease_unusable", "error": problem},
            )
        elif self.problem and not problem:
            log.info("the Lease can be used again", extra={"event": "leader.lease_usable"})
        self.problem = problem
        if self._election.holds:
            self._acquired.set()
        state = (self.other(), self._election.holds)
        if state == self._reported:
            return
        before, self._reported = self._reported, state
        if state[1] and not before[1]:
            log.info(
                "this replica is the controller",
                extra={"event": "leader.acquired", "replica": self.me.name},
            )
        elif before[1] and not state[1]:
            log.warning(
                "this replica is not the controller any more",
                extra={"event": "leader.lost", "holder": state[0].name if state[0] else ""},
            )
        elif state[0] is not None:
            log.info(
                "another replica is the controller",
                extra={"event": "leader.changed", "holder": state[0].name},
            )
        for call in self._calls:
            call()
