"""Leader election by one Lease: client-go's algorithm, names and durations. Pure.

Clocks are never compared: ``now`` is each replica's own monotonic clock, and the Lease's times are
for people. Beyond client-go:

- a renewal counts from when it was sent, so that a late answer prolongs nothing;
- a Lease that is missing counts as one without renewals: the others wait `lease_duration` out, and
  the holder makes it anew at its next renewal;
- a Lease counts as without renewals only in a view without a gap: while the API server is away no
  replica is taken for dead, and afterwards the holder has the time to renew;
- a process that starts takes the Lease over at once from an earlier one of its name: a StatefulSet
  runs one pod of a name, so the earlier process is dead, or fails at its next renewal;
- a holder that could not renew in time continues when a renewal *at its own version* succeeds: that
  proves that nobody has held the Lease meanwhile.

Why at most one may act. Let X hold the Lease, and Y take it. Y's write was accepted at the version
of X's last renewal R, so R is the last one that was accepted before it; a renewal of X that
arrives later is refused. Y first read R after X had sent it, and for `lease_duration` of Y's clock
since then in reads without a gap. X may act for `renew_deadline` of X's clock since it sent R.
Both clocks are monotonic and run while a machine is suspended; they may differ in pace by a
fifth, for 10 / 0.8 is 15 / 1.2. Y does not wait in three cases: X had released the Lease after its
last act, X is an earlier, dead process of Y's name, or there was no Lease at Y's first read.

Left to the fences (docs/replicas.md): that last case where X lives, since a person deleted the
Lease as Y started; a restored, older etcd in which the Lease is another's or released; an earlier
process of Y's name that lives. Each ends with X's next renewal, or with its deadline.

    renew_deadline < lease_duration  a holder that could not renew stops before another takes over
    retry_period + 2 * deadline < renew_deadline  two lost requests in a row stop no holder
"""

from dataclasses import dataclass

from aggregator.leader.lease import Candidate, Draft, Lease


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """All in seconds. Every replica must run with the same ones, or two of them may act at once."""

    lease_duration: float = 15.0
    """A Lease that was not renewed for this long in a view without a gap may be taken."""
    renew_deadline: float = 10.0
    """The holder acts for this long after its last renewal was sent."""
    retry_period: float = 2.0
    """The Lease is renewed, or read, at this interval."""
    deadline: float = 3.0
    """For the answer of one request."""
    gap: float = 8.0
    """Two reads that are further apart leave a gap in the view."""

    def __post_init__(self) -> None:
        # No asserts: an optimized interpreter drops them, and then two replicas may act at once.
        if not self.renew_deadline < self.lease_duration:
            raise ValueError("renew_deadline must be under lease_duration")
        if not self.retry_period + 2 * self.deadline < self.renew_deadline:
            raise ValueError("retry_period with two deadlines must be under renew_deadline")
        if not self.retry_period + self.deadline < self.gap:
            raise ValueError("retry_period with a deadline must be under gap")


TIMES = LeaseTiming()


class Election:
    """One replica's view of the Lease, and its next write."""

    def __init__(self, me: Candidate, times: LeaseTiming = TIMES, *, starts: bool = True) -> None:
        """``starts``: no earlier election of this process was lost."""
        self._me = me
        self._times = times
        self._lease: Lease | None = None  # as it was last read or written
        self._seen_at: float | None = None  # when the last read was answered
        self._unrenewed_since = (
            0.0  # when the Lease was first seen as it is, in a view without a gap
        )
        self._changed_at: float | None = None  # when another's renewal was last seen
        self._renewed = float("-inf")  # when our last renewal was sent
        self._held = False  # the Lease was ours at our last word of it
        self._leaves = False
        self._starts = starts
        #: The version at which an earlier process of our name has left it.
        self._earlier: str | None = None
        #: Another process has held the Lease since we acquired it.
        self.lost = False

    # -- what it knows -----------------------------------------------------------

    @property
    def holder(self) -> Candidate | None:
        """The replica that the Lease named last, alive or not."""
        return self._lease.holder if self._lease is not None else None

    @property
    def holds(self) -> bool:
        """Whether the Lease is ours as far as we know, renewed in time or not."""
        return self._held and not self.lost and not self._leaves

    def may_act(self, now: float) -> bool:
        """Whether no other replica can have taken the Lease."""
        return self.holds and now - self._renewed < self._times.renew_deadline

    def renewed_by_another(self, now: float, *, within: float) -> bool:
        """Whether another replica was seen to renew the Lease ``within`` seconds ago or later."""
        return (
            self._changed_at is not None
            and self.holder is not None
            and not self._is_ours(self.holder)
            and now - self._changed_at <= within
        )

    def renewal_seen_ago(self, now: float) -> float | None:
        """How long ago another replica was seen to renew the Lease; None: it never was."""
        return None if self._changed_at is None else now - self._changed_at

    def still_for(self) -> float:
        """For how long another's Lease had no renewal until the last read of it, in seconds."""
        lease = self._lease
        if self._held or lease is None or lease.holder is None or self._seen_at is None:
            return 0.0
        return self._seen_at - self._unrenewed_since

    def expires_at(self) -> float:
        """When another's Lease may be taken, if it has no renewal until then."""
        return self._unrenewed_since + self._times.lease_duration

    # -- what it writes ------------------------------------------------------------

    @property
    def must_read(self) -> bool:
        """Whether the next request is a read. The holder's are renewals at its own version."""
        return not self._held

    def next_write(self, now: float) -> Draft | None:
        """The write that is due now, None if there is none."""
        lease = self._lease
        if self._leaves or self.lost:
            return None
        if self._held:
            assert lease is not None
            return Draft(self._me, lease.version, lease.transitions, acquires=False)
        if self._seen_at is None:
            return None
        if lease is None:
            return Draft(self._me, "", 0, acquires=True)
        if not self._may_take(now):
            return None
        return Draft(self._me, lease.version, lease.transitions + 1, acquires=True)

    def leave(self) -> None:
        """We act no more."""
        self._leaves = True

    def last_write(self) -> Draft | None:
        """The write that gives the Lease up, None if it is not ours."""
        lease = self._lease
        if not self._held or self.lost or lease is None:
            return None
        return Draft(None, lease.version, lease.transitions, acquires=False)

    # -- the answers ---------------------------------------------------------------

    def wrote(self, lease: Lease, *, sent: float) -> None:
        """A write of ours was accepted."""
        anew = self._lease is not None and self._lease.uid not in ("", lease.uid)
        if self._held and anew and sent - self._renewed >= self._times.renew_deadline:
            # Deleted and made anew while we could not renew: another may have held it in between.
            self.lost = True
        self._lease, self._held = lease, True
        self._renewed = sent

    def read(self, lease: Lease | None, *, answered: float) -> None:
        """The Lease as the store has it. None: there is none."""
        first = self._seen_at is None
        gap = self._seen_at is None or answered - self._seen_at > self._times.gap
        self._seen_at = answered
        if self._held:
            self._read_as_holder(lease)
            return
        if lease is None:
            # Known before: it has no renewal. Never seen: there was no holder.
            if gap:
                self._unrenewed_since = answered
            if self._may_take(answered):
                self._lease = None
            return
        if first and self._starts and lease.holder is not None:
            self._earlier = lease.version if lease.holder.name == self._me.name else None
        before, self._lease = self._lease, lease
        if before is None or before.version != lease.version:
            self._unrenewed_since = answered
            if before is not None:
                self._changed_at = answered
        elif gap:
            self._unrenewed_since = answered

    def _read_as_holder(self, lease: Lease | None) -> None:
        """After a conflict. Our own write that came late is no other's."""
        if lease is None:
            return  # the next renewal makes it anew
        if lease.holder is not None and self._is_ours(lease.holder):
            self._lease = lease
            return
        self._lease, self._held, self.lost = lease, False, True

    def missing(self) -> None:
        """A write met no Lease: the next one makes it, if it is ours."""
        if self._held and self._lease is not None:
            self._lease = Lease(self._me, "", "missing", self._lease.transitions)

    def _may_take(self, now: float) -> bool:
        lease = self._lease
        if lease is None or lease.holder is None or lease.version == self._earlier:
            return True
        if self._is_ours(lease.holder):
            return True  # its answer was lost, and nobody else has held it since
        return now - self._unrenewed_since >= self._times.lease_duration

    def _is_ours(self, holder: Candidate) -> bool:
        return (holder.name, holder.epoch) == (self._me.name, self._me.epoch)
