"""The fleet-wide stop switch as this process knows it, and the guard that acting requests take.

A person sets it in an object of its own, and a watch reports that. The watch may be behind, so each
acting request has the switch read anew immediately before it is sent: one read for all that wait,
and no reads while no request acts.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    ClusterError,
    GuardRefused,
    GuardUnreadable,
    SharedObjects,
    StopText,
    is_older,
)

#: A read of the switch counts for acts within this number of seconds after it was begun.
FRESH = 0.5
#: After this number of seconds without a read no request has acted: see `check_meanwhile`.
REST = 5.0

NOT_CONTROLLER = "this replica may not be the controller any more"
_GONE = "; the object that held it was deleted since: `sickbay resume` ends it"


class StopUnreadable(GuardUnreadable):
    """The switch can't be read now, so no new action begins."""


class StopListener(Protocol):
    """`ClusterEventHandler`, as the switch uses it."""

    def stop_changed(self) -> None:
        """`StopSwitch.reason` has changed."""


@define(eq=False, repr=False, slots=False)
class StopSwitch:
    """``may_act``: whether we are the controller at this moment.

    A switch that was set stays set until a person turns it off explicitly: deleting or emptying its
    object does not turn it off.
    """

    _cluster: SharedObjects
    _clocks: Clocks = field(kw_only=True)
    may_act: Callable[[], bool] = field(default=lambda: True, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._now = self._clocks.now
        #: It is called at each change of `reason`.
        self.listener: StopListener | None = None
        #: Why everything is stopped; empty: it is not.
        self.reason = ""
        self._set = self._version = ""
        #: The first event after a gap in the watch may have any version.
        self._any_version = True
        self._reading: asyncio.Task[None] | None = None
        self._read_at = float("-inf")
        self._failed = False

    def lost(self) -> str:
        """Why nothing may begin, by what is known; empty: it may."""
        if self.reason:
            return f"the stop switch is set: {self.reason}"
        return "" if self.may_act() else NOT_CONTROLLER

    # -- the cluster's state -----------------------------------------------------------

    def apply_seen(self, stop: StopText) -> None:
        """The switch's own object, by the watch or by a read. An older one is ignored."""
        older = is_older(stop.version, self._version) and not self._any_version
        self._any_version = False
        if older or (stop.version == self._version and stop.version):
            return
        before, self._version = self.reason, stop.version
        if stop.reason is None:
            self.reason = f"{self._set}{_GONE}" if self._set else ""
        else:
            self.reason = self._set = stop.reason
        if self.reason != before and self.listener is not None:
            self.listener.stop_changed()

    def view_lost(self) -> None:
        """A new list counts, even if its versions are lower: the store was restored."""
        self._any_version = True

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    # -- before an act ---------------------------------------------------------------------

    async def check(self) -> None:
        """Return where the switch is off by a read that is `FRESH`, or was begun after the call.

        Raises `GuardRefused` where it is set or we are not the controller, `StopUnreadable` where
        the switch can't be read.
        """
        self._refuse()
        requested_at = self._now()
        while self._read_at < requested_at - FRESH:
            self.begin_check()
            assert self._reading is not None
            await asyncio.shield(self._reading)
        self._refuse()

    async def check_meanwhile(self) -> None:
        """`check`, for the record's writes; after a rest only by what is known, with a read begun.

        An entry alone touches no node, and the steps after it wait for that read. So the first
        quarantine after a rest does not wait for two answers one after the other.
        """
        if self._failed or self._now() - self._read_at <= REST:
            await self.check()
            return
        self._refuse()
        self.begin_check()

    def require_place(self) -> None:
        """Raises `GuardRefused` where we are not the controller; the switch may be set."""
        if not self.may_act():
            raise GuardRefused(NOT_CONTROLLER)

    async def check_place(self) -> None:
        """`require_place`, for a `Guard`."""
        self.require_place()

    def begin_check(self) -> None:
        """Have it read, if it was not just read: the next act then waits less."""
        if self._reading is not None and not self._reading.done():
            return
        if self._read_at < self._now() - FRESH:
            self._reading = asyncio.create_task(self._read(), name="stop switch")
            self._reading.add_done_callback(_seen)

    def _refuse(self) -> None:
        why = self.lost()
        if why:
            raise GuardRefused(why)

    async def _read(self) -> None:
        begun_at = self._now()
        try:
            self.apply_seen(await self._cluster.read_stop())
        except ClusterError as error:
            self._failed = True
            raise StopUnreadable(
                f"no new action begins, as the stop switch can't be read: {error}",
                status=error.status,
                retry_after=error.retry_after,
            ) from error
        self._failed = False
        self._read_at = begun_at


def _seen(reading: "asyncio.Task[None]") -> None:
    """Retrieve the error: all waiters may have gone, and asyncio would log it."""
    if not reading.cancelled():
        reading.exception()
