"""Turns observed Leases, and their times, into the membership view. Pure: every time comes in.

Three questions are answered here, each against the worst that the others may believe:

- Is another replica gone? When its Lease says so, or when its Lease was not renewed for
  `LeaseTiming.lease_duration` of a view without a gap, at the end of which we could write
  ourselves. Where no replica can renew, a missing renewal is no sign against any of them. A Lease
  that is not in the list counts as not renewed: a Lease that is deleted by hand moves no node to
  another replica.
- May we act? While our last renewal was sent less than `LeaseTiming.renew_deadline` ago, because
  no replica can have seen our Lease without a renewal for `expiry` then; and while our list is
  `fresh`, because a newcomer that an older list does not show waits for longer than that.
- May we act as newcomers? Once `wait` is over since we joined. Where a list that was asked for
  after we had joined shows no other replica, there is none to wait for. (Of two that join at once,
  the later one sees the earlier one in such a list.)

A process whose Lease was not renewed for `certain` may have been taken for dead: it joins again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from aggregator.replicas.membership.lease_store import Lease
from aggregator.replicas.membership.lease_timing import LeaseTiming
from aggregator.replicas.membership.view import Member, MembershipView

#: Why the view is not known to be current, in words for people.
STARTING = "this replica has not joined the others yet"
STALE = "the API server has not shown it the replicas' Leases in time"
LAPSED = "the API server has not taken its own Lease in time"
SUPERSEDED = "another process runs under this replica's name and holds its Lease"
LEFT = "this replica is stopping"


@dataclass(slots=True)
class _Other:
    """A Lease that is not ours, since when it was not renewed, and whether that was long enough."""

    lease: Lease
    still_since: float
    expired: bool = False

    @property
    def alive(self) -> bool:
        return not self.expired and not self.lease.leaving

    def expire_if_unchanged(self, until: float, since: float, expiry: float) -> None:
        """It was unchanged at ``until``, in a view without a gap since ``since``."""
        if until - max(self.still_since, since) >= expiry:
            self.expired = True


@dataclass(frozen=True, slots=True)
class Draft:
    """The next write: the Lease of ``member`` at ``version`` (empty: it is to be created)."""

    member: Member
    version: str
    leaving: bool


class Membership:
    """The knowledge of one replica, ``me``, about all. Times are its own monotonic clock's, in
    seconds.
    """

    def __init__(self, me: Member, times: LeaseTiming) -> None:
        self._me = me
        self._times = times
        self._others: dict[str, _Other] = {}
        self._asked_at: float | None = None  # when the last list that was answered was asked for
        self._whole_since = 0.0  # the view has had no gap since
        self._version = ""  # of our Lease as last known; empty: it does not exist
        self._namesake: _Other | None = None  # the holder of our Lease, when it is not this process
        self._written_at: float | None = None  # when our last accepted write was answered
        self._renewed_at: float | None = None  # when it was sent: others can't know it for longer
        self._joined_at: float | None = None  # when the write that made us join was answered
        self._settled_at: float | None = None
        self._term = 0
        self._leaving = False
        self._left = False

    # -- observations --------------------------------------------------------------

    def listed(self, leases: Iterable[Lease], *, asked: float, answered: float) -> None:
        """A list that was asked for and answered at these times. An overtaken one is ignored."""
        if self._asked_at is not None and asked < self._asked_at:
            return
        if self._asked_at is None or asked - self._asked_at > self._times.list_max_age:
            self._whole_since = answered
        self._asked_at = asked
        found = {lease.member.name: lease for lease in leases}
        self._find_ours(found.pop(self._me.name, None), asked, answered)
        self._find_others(found, asked, answered)
        self._settle(asked)

    def wrote(self, lease: Lease, *, sent: float, answered: float) -> None:
        """Our Lease was written, by a request that was sent and answered at these times."""
        if lease.leaving:
            self._left = True
            return
        broken = (
            self._renewed_at is None or answered - self._renewed_at >= self._times.renew_deadline
        )
        if broken or self._namesake is not None:
            self._joined_at = answered
            self._settled_at = None
            self._whole_since = answered
            self._term += 1
        self._me = lease.member
        self._namesake = None
        self._version = lease.version
        self._renewed_at, self._written_at = sent, answered

    def missing(self) -> None:
        """Our Lease does not exist: it has to be created."""
        self._version = ""

    def leave(self) -> None:
        """From here on this replica takes no action, and its Lease says that it leaves."""
        self._leaving = True

    # -- conclusions ---------------------------------------------------------------

    def next_write(self, *, now: float, wall: float) -> Draft | None:
        """The Lease to write now, or None: we know too little, have left, or another holds it.

        ``wall``: the time for people, in seconds; it becomes `Member.since`.
        """
        if self._asked_at is None or self._left or (self._leaving and self._joined_at is None):
            return None
        if self._superseded and self._namesake is not None and self._namesake.alive:
            return None
        member = self._me
        if self._renewed_at is None or self._lapsed(now) or self._namesake is not None:
            # The youngest of all, with any wall clocks: a newcomer must not lead at once.
            eldest = max((other.lease.member.since for other in self._living()), default=0.0)
            member = replace(member, since=max(wall, eldest + 1.0))
        return Draft(member, self._version, self._leaving)

    def certain(self, now: float) -> bool:
        """Whether no other replica can own our nodes at this moment."""
        return not self._doubt(now) and self._settled_at is not None and self._settled_at <= now

    def membership_view(self, now: float) -> MembershipView:
        """The view as of now."""
        members = {other.lease.member.name: other.lease.member for other in self._living()}
        if self._joined_at is not None and not self._leaving:
            members[self._me.name] = self._me
        return MembershipView(
            me=self._me.name,
            members=MappingProxyType(dict(sorted(members.items()))),
            frozen=self._doubt(now),
            settled=self._settled_at is not None and self._settled_at <= now,
            term=self._term,
        )

    # -- how ------------------------------------------------------------------------

    def _doubt(self, now: float) -> str:
        """Why the view is not known to be current; empty: it is."""
        if self._leaving:
            return LEFT
        if self._superseded:
            return SUPERSEDED
        if self._asked_at is None or self._renewed_at is None:
            return STARTING
        if now - self._asked_at > self._times.list_max_age:
            return STALE
        return LAPSED if self._lapsed(now) else ""

    def _lapsed(self, now: float) -> bool:
        return self._renewed_at is not None and now - self._renewed_at >= self._times.renew_deadline

    def _living(self) -> list[_Other]:
        return [other for other in self._others.values() if other.alive]

    @property
    def _superseded(self) -> bool:
        """Whether another took our Lease over after we had joined: the other one has the
        name now.
        """
        return self._namesake is not None and self._joined_at is not None

    def _find_ours(self, lease: Lease | None, asked: float, answered: float) -> None:
        if self._written_at is not None and asked < self._written_at:
            return  # from before our last write, or beside it
        self._version = lease.version if lease is not None else ""
        if lease is None or lease.member.epoch == self._me.epoch:
            self._namesake = None
            return
        if self._namesake is None or self._namesake.lease.version != lease.version:
            self._namesake = _Other(lease, still_since=answered)
        self._namesake.expire_if_unchanged(asked, self._whole_since, self._times.lease_duration)

    def _find_others(self, found: Mapping[str, Lease], asked: float, answered: float) -> None:
        for name, lease in found.items():
            known = self._others.get(name)
            if known is None or known.lease.version != lease.version:
                self._others[name] = _Other(lease, still_since=answered)
        if self._renewed_at is None:
            return  # we have not shown yet that a replica can write
        for name, other in list(self._others.items()):
            other.expire_if_unchanged(
                min(asked, self._renewed_at), self._whole_since, self._times.lease_duration
            )
            if name not in found and not other.alive:
                del self._others[name]

    def _settle(self, asked: float) -> None:
        if self._joined_at is None or self._settled_at is not None or asked < self._joined_at:
            return
        wait = self._times.takeover_wait if self._living() else 0.0
        self._settled_at = self._joined_at + wait
