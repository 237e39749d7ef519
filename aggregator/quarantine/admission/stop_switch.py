"""The fleet-wide stop switch as this process knows it, and the guard that acting requests take.

A person sets it in an object of its own; the older place in the admission record counts as well.
Watches report both. A watch may be behind, so each acting request has the switch read anew
immediately before it is sent: one read for all that wait, and no reads while no request acts.
"""

import asyncio
from collections.abc import Callable

from aggregator.cluster.port import (
    Cluster,
    ClusterError,
    GuardRefused,
    RecordText,
    StopText,
    Unreachable,
    is_older,
)

#: A read of the switch counts for acts of so many seconds after it was begun.
FRESH = 0.5
#: After so many seconds without a read no request has acted: see `check_beside`.
REST = 5.0

_GONE = "; the object that held it was deleted since: `sickbay resume` ends it"


class StopUnreadable(Unreachable):
    """The switch can't be read now, so no new action begins."""


class StopSwitch:
    """``now`` is monotonic, in seconds.

    A switch that was set stays set until a person turns it off explicitly: deleting or emptying its
    object, or the record, does not turn it off.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._now = now
        self._listeners: list[Callable[[], None]] = []
        self._own = self._in_record = ""
        self._own_gone = self._record_gone = False
        self._version = self._record_version = self._record_uid = ""
        #: The first event after a gap in the watch may have any version.
        self._any_version = self._any_record = True
        self._reading: asyncio.Task[None] | None = None
        self._begun_at = self._read_at = self._record_at = float("-inf")
        self._failed = False

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever `reason` has changed."""
        self._listeners.append(listener)

    @property
    def reason(self) -> str:
        """Why everything is stopped; empty: it is not."""
        if self._own:
            return self._own + _GONE * self._own_gone
        return self._in_record + _GONE * (self._record_gone and bool(self._in_record))

    # -- the cluster's state -----------------------------------------------------------

    def apply_seen(self, stop: StopText) -> None:
        """The switch's own object, by the watch or by a read. An older one is ignored."""
        older = is_older(stop.version, self._version) and not self._any_version
        if older or (stop.version == self._version and stop.version):
            return
        before = self.reason
        self._version, self._any_version = stop.version, False
        if stop.reason is None:
            self._own_gone = True
        else:
            self._own, self._own_gone = stop.reason, False
            if not stop.reason and self._record_gone:
                self._in_record, self._record_gone = "", False
        self.log_change(before)

    def take_record(self, stored: RecordText) -> None:
        """The record, in which the switch was kept before it had an object of its own."""
        if is_older(stored.version, self._record_version) and not self._any_record:
            return
        before = self.reason
        self._record_version, self._any_record = stored.version, False
        if stored.stop:
            self._in_record, self._record_uid, self._record_gone = stored.stop, stored.uid, False
        elif stored.version and stored.uid == self._record_uid:
            self._in_record, self._record_gone = "", False
        else:
            self._record_gone = True
        self.log_change(before)

    def now(self) -> float:
        """Monotonic seconds, for `confirm_record`."""
        return self._now()

    def confirm_record(self, begun_at: float) -> None:
        """The record was read, or written against its version, by a request begun at that time."""
        self._record_at = max(self._record_at, begun_at)

    def view_lost(self) -> None:
        """A new list counts, even if its versions are lower: the store was restored."""
        self._any_version = self._any_record = True

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def log_change(self, before: str) -> None:
        if self.reason != before:
            for listener in self._listeners:
                listener()

    # -- before an act ---------------------------------------------------------------------

    async def check(self) -> None:
        """Return where the switch is off by a read that is `FRESH`, or was begun after the call.

        Raises `GuardRefused` where it is set, `StopUnreadable` where that can't be told.
        """
        self._refuse()
        asked_at = self._now()
        while min(self._read_at, self._record_at) < asked_at - FRESH:
            self.begin_check()
            assert self._reading is not None
            await asyncio.shield(self._reading)
        self._refuse()

    async def check_beside(self) -> None:
        """`check`, for the record's writes; after a rest only by what is known, with a read begun.

        An entry alone touches no node, and the steps after it wait for that read. So the first
        quarantine after a rest does not wait for two answers one after the other.
        """
        if self._failed or self._now() - self._read_at <= REST:
            await self.check()
            return
        self._refuse()
        self.begin_check(record=False)  # the write's own answer tells of the record

    def begin_check(self, *, record: bool = True) -> None:
        """Have it read, if it was not just read: the next act then waits less.

        ``record``: in its older place, too.
        """
        if self._reading is not None and not self._reading.done():
            return
        oldest = self._now() - FRESH
        if self._read_at < oldest or (record and self._record_at < oldest):
            self._reading = asyncio.create_task(self._read(record=record), name="stop switch")
            self._reading.add_done_callback(_seen)

    def _refuse(self) -> None:
        if self.reason:
            raise GuardRefused(f"the stop switch is set: {self.reason}")

    async def _read(self, *, record: bool) -> None:
        begun_at = self._now()
        reads = [self._read_own(begun_at)]
        if record:
            reads.append(self._read_record(begun_at))
        try:
            await asyncio.gather(*reads)
        except ClusterError as error:
            self._failed = True
            raise StopUnreadable(
                f"no new action begins, as the stop switch can't be read: {error}",
                status=error.status,
                retry_after=error.retry_after,
            ) from error
        self._failed = False

    async def _read_own(self, begun_at: float) -> None:
        if self._read_at < begun_at - FRESH:
            self.apply_seen(await self._cluster.read_stop())
            self._read_at = begun_at

    async def _read_record(self, begun_at: float) -> None:
        if self._record_at < begun_at - FRESH:
            self.take_record(await self._cluster.read_stop_in_record())
            self._record_at = begun_at


def _seen(reading: "asyncio.Task[None]") -> None:
    """Retrieve the error: all waiters may have gone, and asyncio would log it."""
    if not reading.cancelled():
        reading.exception()
