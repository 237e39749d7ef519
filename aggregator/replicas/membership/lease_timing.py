"""The times of the Leases, and the arithmetic that makes them fit. docs/shards.md builds on them.

All times are measured on each replica's own monotonic clock, and only the speeds of two clocks are
ever compared. Three names are those of client-go's leader election. The margins (`lease_duration`
over `renew_deadline`, `takeover_wait` over `list_max_age`) are 2 s in 10: two clocks may run apart
by a fifth, or a write may be in flight for 2 s after the last read of the clock, before two
replicas act for one node at one moment. Beyond that the fences of the cluster hold
(docs/fences.md).

    renew_deadline < lease_duration  a replica that could not renew stops before another takes over
    list_max_age < takeover_wait     a replica with an old list stops before the newcomer begins
    retry_period + deadline < list_max_age        one lost request interrupts no view
    2 * deadline + retry_period < renew_deadline  two lost requests in a row let no Lease lapse

From a replica's death until its nodes have new owners, with one request lost at either end:

    retry_period + deadline    until the others have seen its last renewal       6 s
    lease_duration             until the missing renewal counts                 12 s
    retry_period + deadline    until the next list, which shows that             6 s
                                                                                ----
                                                                                24 s, of 30
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """All in seconds. Every replica must run with the same ones, or two of them may act at once."""

    retry_period: float = 3.0
    """Our Lease is renewed, and then all of them are listed, at this interval."""
    deadline: float = 3.0
    """For the answer of one request."""
    failure_pause: float = 1.0
    """After a request that failed at once."""
    list_max_age: float = 7.0
    """We act for so long after a list was asked for. Lists further apart leave a gap in the
    view.
    """
    renew_deadline: float = 10.0
    """We act for so long after our last renewal was sent. The holder of a Lease that is renewed
    later than that may have been taken for dead, so it joins again.
    """
    lease_duration: float = 12.0
    """A Lease that was not renewed for so long in an uninterrupted view has expired."""
    takeover_wait: float = 9.0
    """A newcomer takes no action on its own nodes for so long after it joined."""

    def __post_init__(self) -> None:
        wrong = [
            text
            for text, holds in (
                (
                    "renew_deadline must be under lease_duration",
                    self.renew_deadline < self.lease_duration,
                ),
                (
                    "list_max_age must be under takeover_wait",
                    self.list_max_age < self.takeover_wait,
                ),
                (
                    "retry_period + deadline must be under list_max_age",
                    self.retry_period + self.deadline < self.list_max_age,
                ),
                (
                    "retry_period + 2 deadlines must be under renew_deadline",
                    self.retry_period + 2 * self.deadline < self.renew_deadline,
                ),
            )
            if not holds
        ]
        if wrong:
            raise ValueError("; ".join(wrong))

    @property
    def takeover(self) -> float:
        """From a replica's death until its nodes have new owners, at most, while lists succeed."""
        return 2 * (self.retry_period + self.deadline) + self.lease_duration

    def scaled(self, by: float) -> "LeaseTiming":
        """The same proportions, faster or slower: for tests on a real clock."""
        return LeaseTiming(
            retry_period=self.retry_period * by,
            deadline=self.deadline * by,
            failure_pause=self.failure_pause * by,
            list_max_age=self.list_max_age * by,
            renew_deadline=self.renew_deadline * by,
            lease_duration=self.lease_duration * by,
            takeover_wait=self.takeover_wait * by,
        )


TIMES = LeaseTiming()
