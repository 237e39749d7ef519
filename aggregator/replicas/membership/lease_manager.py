"""Renews this replica's Lease, lists those of all replicas, and reports changes of membership."""

import asyncio
import logging
from collections.abc import Callable

from aggregator.replicas.membership.lease_store import (
    LeaseConflict,
    LeaseNotFound,
    LeaseStore,
    LeaseStoreError,
)
from aggregator.replicas.membership.lease_timing import TIMES, LeaseTiming
from aggregator.replicas.membership.membership import STARTING, Membership
from aggregator.replicas.membership.view import Member, MembershipView
from aggregator.runtime.tasks import run_until_first_exit

_LOG = logging.getLogger("sickbay.shards")

#: A write that another writer preceded is tried so often in one turn, each time on a new list.
_TRIES = 3
#: The longest pause in seconds, even if the store asks for more.
_LONGEST_PAUSE = 60.0
#: Changes by time alone (a view grows old, a wait ends) are noticed within this fraction of a tick.
_LOOKS_A_TICK = 6
#: Owners that are remembered: more nodes than a cluster has.
_REMEMBERED = 100_000


class LeaseManager:
    """Implements `Ownership`. ``clock`` is monotonic and goes on while the machine is suspended
    (CLOCK_BOOTTIME); ``wall`` is the time for people. Both in seconds.

    `run` renews the Lease until it is cancelled; `leave` ends it in order.
    """

    def __init__(
        self,
        me: Member,
        board: LeaseStore,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        times: LeaseTiming = TIMES,
    ) -> None:
        self._board = board
        self._clock = clock
        self._wall = wall
        self._times = times
        self._membership = Membership(me, times)
        self._one_at_a_time = asyncio.Lock()
        self._calls: list[Callable[[], None]] = []
        self._membership_view = self._membership.membership_view(clock())
        self._owners: dict[str, str] = {}
        self._problem = ""

    # -- Ownership -----------------------------------------------------------------

    @property
    def membership_view(self) -> MembershipView:
        """As of the last turn, or a fraction of a tick ago."""
        return self._membership_view

    @property
    def problem(self) -> str:
        """The store's last error; empty: all is well."""
        return self._problem

    def owns(self, node: str) -> bool:
        """See the protocol."""
        return self._owner(node) in {"", self._membership_view.me}

    def may_act(self, node: str) -> bool:
        """See the protocol."""
        return (
            self._membership.certain(self._clock())
            and self._owner(node) == self._membership_view.me
        )

    def owner_address(self, node: str) -> str:
        """See the protocol."""
        owner = self._owner(node)
        if owner in {"", self._membership_view.me}:
            return ""
        return self._membership_view.members[owner].address

    def leads(self) -> bool:
        """See the protocol."""
        leader = self._membership_view.leader
        if leader is None or leader.name != self._membership_view.me:
            return False
        return self._membership.certain(self._clock())

    def on_change(self, call: Callable[[], None]) -> None:
        """See the protocol."""
        self._calls.append(call)

    # -- the work -------------------------------------------------------------------

    async def run(self) -> None:
        """Keep our Lease and check the others', for ever. A store that is away is waited for."""
        await run_until_first_exit(shards=self._turns(), shards_watch=self._watch())

    async def leave(self) -> bool:
        """Tell the others that we leave: they take over at their next list. Call it after our last
        action.

        Returns whether they could be told; if not, they take over when our Lease has expired.
        """
        self._membership.leave()
        self.log_view()
        try:
            async with asyncio.timeout(3 * self._times.deadline), self._one_at_a_time:
                await self._renew()
        except (LeaseStoreError, TimeoutError) as error:
            _LOG.warning(
                "the other replicas could not be told that this one stops, and wait for its Lease",
                extra={"error": str(error) or "no answer in time"},
            )
            return False
        _LOG.info(
            "left the other replicas in order",
            extra={"event": "replica.resigned", "replica": self._membership_view.me},
        )
        return True

    async def _turns(self) -> None:
        while True:
            began = self._clock()
            async with self._one_at_a_time:
                failure = await self._turn()
            self.log_change(failure)
            next_at = began + (
                self._times.retry_period if failure is None else self._times.failure_pause
            )
            if failure is not None and failure.retry_after is not None:
                patience = min(failure.retry_after, _LONGEST_PAUSE)
                next_at = max(next_at, self._clock() + patience)
            await asyncio.sleep(max(0.0, next_at - self._clock()))

    async def _turn(self) -> LeaseStoreError | None:
        """Renew, then list; returns the first error. The very first write comes after a list."""
        failure: LeaseStoreError | None = None
        for act in (self._renew, self._list):
            try:
                await act()
            except LeaseStoreError as error:
                failure = failure or error
        return failure

    async def _list(self) -> None:
        asked = self._clock()
        leases = await self._board.list()
        self._membership.listed(leases, asked=asked, answered=self._clock())
        self.log_view()  # at once: `may_act` needs the view to be as young as the list

    async def _renew(self) -> None:
        """Write our Lease, if there is a change to write; list again where a conflict calls
        for it.
        """
        if self._membership.membership_view(self._clock()).frozen == STARTING:
            await self._list()
        for last in (False,) * (_TRIES - 1) + (True,):
            draft = self._membership.next_write(now=self._clock(), wall=self._wall())
            if draft is None:
                return
            sent = self._clock()
            try:
                lease = await self._board.write(draft.member, draft.version, leaving=draft.leaving)
            except LeaseNotFound:
                if last:
                    raise
                self._membership.missing()
            except LeaseConflict:
                if last:
                    raise
                await self._list()
            else:
                self._membership.wrote(lease, sent=sent, answered=self._clock())
                self.log_view()
                return

    async def _watch(self) -> None:
        while True:
            self.log_view()
            await asyncio.sleep(self._times.retry_period / _LOOKS_A_TICK)

    # -- reporting ---------------------------------------------------------------

    def log_view(self) -> None:
        before, now = self._membership_view, self._membership.membership_view(self._clock())
        if now == before:
            return
        self._membership_view = now
        if now.members.keys() != before.members.keys():
            self._owners.clear()
        _log_changes(before, now)
        for call in self._calls:
            call()

    def log_change(self, failure: LeaseStoreError | None) -> None:
        problem = str(failure) if failure is not None else ""
        if problem and problem != self._problem:
            _LOG.warning(
                "the replicas' Leases can't be used",
                extra={"event": "replica.leases_unusable", "error": problem},
            )
        elif self._problem and not problem:
            _LOG.info(
                "the replicas' Leases can be used again", extra={"event": "replica.leases_usable"}
            )
        self._problem = problem

    def _owner(self, node: str) -> str:
        """The name of the node's owner; empty while no replica is known."""
        found = self._owners.get(node)
        if found is None:
            owner = self._membership_view.owner(node)
            found = owner.name if owner is not None else ""
            if len(self._owners) >= _REMEMBERED:
                self._owners.clear()
            self._owners[node] = found
        return found


def _log_changes(before: MembershipView, now: MembershipView) -> None:
    for name in sorted(now.members.keys() - before.members.keys()):
        member = now.members[name]
        _LOG.info(
            "a replica joined",
            extra={
                "event": "replica.joined",
                "replica": name,
                "address": member.address,
                "version": member.version,
            },
        )
    for name in sorted(before.members.keys() - now.members.keys()):
        _LOG.info("a replica left", extra={"event": "replica.left", "replica": name})
    if now.frozen and now.frozen != before.frozen:
        _LOG.warning(
            "membership is frozen, no action is taken",
            extra={"event": "replica.frozen", "reason": now.frozen},
        )
    if before.frozen and not now.frozen:
        _LOG.info(
            "membership is current again",
            extra={"event": "replica.current", "replicas": len(now.members)},
        )
    if now.settled and not now.frozen and (before.frozen or not before.settled):
        _LOG.info("this replica may act for its nodes", extra={"event": "replica.settled"})
    if _leader(before) != _leader(now):
        _LOG.info(
            "the leader changed", extra={"event": "replica.leader_changed", "leader": _leader(now)}
        )
    if now.differing and now.differing != before.differing:
        _LOG.warning(
            "replicas differ, no new quarantine is admitted",
            extra={"event": "replica.differing", "reason": now.differing},
        )


def _leader(membership_view: MembershipView) -> str:
    return membership_view.leader.name if membership_view.leader is not None else ""
