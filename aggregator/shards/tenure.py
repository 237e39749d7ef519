"""One replica's seat among the others: renews its Lease, lists all of them, tells of changes."""

import asyncio
import logging
from collections.abc import Callable

from aggregator.shards.board import BoardError, LeaseBoard, Missing, Taken
from aggregator.shards.council import Council, Member
from aggregator.shards.membership import STARTING, Membership
from aggregator.shards.timing import TIMES, Times
from aggregator.together import together

_LOG = logging.getLogger("sickbay.shards")

#: A write that somebody came before is tried so often in one turn, each on a list of its own.
_TRIES = 3
#: A board that asks for more patience than this (seconds) gets this.
_LONGEST_PAUSE = 60.0
#: What passes by itself (a view grows old, a wait ends) is noticed within a tick's so many-th part.
_LOOKS_A_TICK = 6
#: Owners that are remembered: more nodes than a cluster has.
_REMEMBERED = 100_000


class Tenure:
    """Implements `Shards`. ``clock`` is monotonic and goes on while the machine is suspended
    (CLOCK_BOOTTIME); ``wall`` is the time for people. Both in seconds.

    `run` keeps it until it is cancelled; `leave` ends it in order.
    """

    def __init__(
        self,
        me: Member,
        board: LeaseBoard,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        times: Times = TIMES,
    ) -> None:
        self._board = board
        self._clock = clock
        self._wall = wall
        self._times = times
        self._membership = Membership(me, times)
        self._one_at_a_time = asyncio.Lock()
        self._calls: list[Callable[[], None]] = []
        self._council = self._membership.council(clock())
        self._owners: dict[str, str] = {}
        self._problem = ""

    # -- Shards ---------------------------------------------------------------------

    @property
    def council(self) -> Council:
        """As of the last turn, or a fraction of a tick ago."""
        return self._council

    @property
    def problem(self) -> str:
        """What the board said when it was asked last; empty: all is well."""
        return self._problem

    def owns(self, node: str) -> bool:
        """See the protocol."""
        return self._owner(node) in {"", self._council.me}

    def may_act(self, node: str) -> bool:
        """See the protocol."""
        return self._membership.certain(self._clock()) and self._owner(node) == self._council.me

    def home(self, node: str) -> str:
        """See the protocol."""
        owner = self._owner(node)
        if owner in {"", self._council.me}:
            return ""
        return self._council.members[owner].address

    def leads(self) -> bool:
        """See the protocol."""
        leader = self._council.leader
        if leader is None or leader.name != self._council.me:
            return False
        return self._membership.certain(self._clock())

    def on_change(self, call: Callable[[], None]) -> None:
        """See the protocol."""
        self._calls.append(call)

    # -- the work -------------------------------------------------------------------

    async def run(self) -> None:
        """Keep our Lease and look at the others', for ever. A board that is away is waited for."""
        await together(shards=self._turns(), shards_watch=self._watch())

    async def leave(self) -> bool:
        """Tell the others that we go: they take over at their next look. Comes after our last act.

        Whether they could be told; if not, they take over when our Lease has expired.
        """
        self._membership.leave()
        self._tell()
        try:
            async with asyncio.timeout(3 * self._times.deadline), self._one_at_a_time:
                await self._renew()
        except (BoardError, TimeoutError) as error:
            _LOG.warning(
                "the other replicas could not be told that this one stops, and wait for its Lease",
                extra={"error": str(error) or "no answer in time"},
            )
            return False
        _LOG.info("left the other replicas in order", extra={"replica": self._council.me})
        return True

    async def _turns(self) -> None:
        while True:
            began = self._clock()
            async with self._one_at_a_time:
                failure = await self._turn()
            self._say(failure)
            next_at = began + (self._times.tick if failure is None else self._times.retry)
            if failure is not None and failure.retry_after is not None:
                patience = min(failure.retry_after, _LONGEST_PAUSE)
                next_at = max(next_at, self._clock() + patience)
            await asyncio.sleep(max(0.0, next_at - self._clock()))

    async def _turn(self) -> BoardError | None:
        """Renew, then list; the first that went wrong. The very first write comes after a list."""
        failure: BoardError | None = None
        for act in (self._renew, self._list):
            try:
                await act()
            except BoardError as error:
                failure = failure or error
        return failure

    async def _list(self) -> None:
        asked = self._clock()
        leases = await self._board.list()
        self._membership.listed(leases, asked=asked, answered=self._clock())
        self._tell()  # at once: `may_act` trusts the council to be as young as the list

    async def _renew(self) -> None:
        """Write our Lease, if there is anything to write; listed anew where that is called for."""
        if self._membership.council(self._clock()).frozen == STARTING:
            await self._list()
        for last in (False,) * (_TRIES - 1) + (True,):
            draft = self._membership.draft(now=self._clock(), wall=self._wall())
            if draft is None:
                return
            sent = self._clock()
            try:
                lease = await self._board.write(draft.member, draft.version, leaving=draft.leaving)
            except Missing:
                if last:
                    raise
                self._membership.missing()
            except Taken:
                if last:
                    raise
                await self._list()
            else:
                self._membership.wrote(lease, sent=sent, answered=self._clock())
                self._tell()
                return

    async def _watch(self) -> None:
        while True:
            self._tell()
            await asyncio.sleep(self._times.tick / _LOOKS_A_TICK)

    # -- telling --------------------------------------------------------------------

    def _tell(self) -> None:
        before, now = self._council, self._membership.council(self._clock())
        if now == before:
            return
        self._council = now
        if now.members.keys() != before.members.keys():
            self._owners.clear()
        _log_changes(before, now)
        for call in self._calls:
            call()

    def _say(self, failure: BoardError | None) -> None:
        problem = str(failure) if failure is not None else ""
        if problem and problem != self._problem:
            _LOG.warning("the replicas' Leases can't be used", extra={"error": problem})
        elif self._problem and not problem:
            _LOG.info("the replicas' Leases can be used again")
        self._problem = problem

    def _owner(self, node: str) -> str:
        """The name of whose it is; empty: nobody is known."""
        found = self._owners.get(node)
        if found is None:
            owner = self._council.owner(node)
            found = owner.name if owner is not None else ""
            if len(self._owners) >= _REMEMBERED:
                self._owners.clear()
            self._owners[node] = found
        return found


def _log_changes(before: Council, now: Council) -> None:
    for name in sorted(now.members.keys() - before.members.keys()):
        member = now.members[name]
        _LOG.info(
            "a replica joined",
            extra={"replica": name, "address": member.address, "version": member.version},
        )
    for name in sorted(before.members.keys() - now.members.keys()):
        _LOG.info("a replica left", extra={"replica": name})
    if now.frozen and now.frozen != before.frozen:
        _LOG.warning("membership is frozen, nothing is done", extra={"reason": now.frozen})
    if before.frozen and not now.frozen:
        _LOG.info("membership is current again", extra={"replicas": len(now.members)})
    if now.settled and not now.frozen and (before.frozen or not before.settled):
        _LOG.info("this replica may act for its nodes")
    if _leader(before) != _leader(now):
        _LOG.info("the leader changed", extra={"leader": _leader(now)})
    if now.differing and now.differing != before.differing:
        _LOG.warning("replicas differ, nothing new is admitted", extra={"reason": now.differing})


def _leader(council: Council) -> str:
    return council.leader.name if council.leader is not None else ""
