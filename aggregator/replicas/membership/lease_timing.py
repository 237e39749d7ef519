"""The times of the Leases, and the arithmetic that makes them fit. docs/shards.md builds on them.

All times are measured on each replica's own monotonic clock, and only the speeds of two clocks are
ever compared. The margins (`expiry` over `certain`, `wait` over `fresh`) are 2 s in 10: two clocks
may run apart by a fifth, or a write may be in flight for 2 s after the last read of the clock,
before two replicas act for one node at one moment. Beyond that the fences of the cluster hold
(docs/fences.md).

    certain < expiry   a replica that could not renew stops before another takes over
    fresh < wait       a replica with an old list stops before the newcomer begins
    tick + deadline < fresh        one lost request interrupts no view
    2 * deadline + tick < certain  two lost requests in a row let no Lease lapse

From a replica's death until its nodes have new owners, with one request lost at either end:

    tick + deadline    until the others have seen its last renewal       6 s
    expiry             until the missing renewal counts                 12 s
    tick + deadline    until the next list, which shows that             6 s
                                                                        ----
                                                                        24 s, of 30
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """All in seconds. Every replica must run with the same ones, or two of them may act at once."""

    tick: float = 3.0
    """Our Lease is renewed, and then all of them are listed, at this interval."""
    deadline: float = 3.0
    """For the answer of one request."""
    retry: float = 1.0
    """After a request that failed at once."""
    fresh: float = 7.0
    """We act for so long after a list was asked for. Lists further apart leave a gap in the
    view.
    """
    certain: float = 10.0
    """We act for so long after our last renewal was sent. The holder of a Lease that is renewed
    later than that may have been taken for dead, so it joins again.
    """
    expiry: float = 12.0
    """A Lease that was not renewed for so long in an uninterrupted view has expired."""
    wait: float = 9.0
    """A newcomer takes no action on its own nodes for so long after it joined."""

    def __post_init__(self) -> None:
        wrong = [
            text
            for text, holds in (
                ("certain must be under expiry", self.certain < self.expiry),
                ("fresh must be under wait", self.fresh < self.wait),
                ("tick + deadline must be under fresh", self.tick + self.deadline < self.fresh),
                (
                    "tick + 2 deadlines must be under certain",
                    self.tick + 2 * self.deadline < self.certain,
                ),
            )
            if not holds
        ]
        if wrong:
            raise ValueError("; ".join(wrong))

    @property
    def takeover(self) -> float:
        """From a replica's death until its nodes have new owners, at most, while lists succeed."""
        return 2 * (self.tick + self.deadline) + self.expiry

    def scaled(self, by: float) -> "LeaseTiming":
        """The same proportions, faster or slower: for tests on a real clock."""
        return LeaseTiming(
            tick=self.tick * by,
            deadline=self.deadline * by,
            retry=self.retry * by,
            fresh=self.fresh * by,
            certain=self.certain * by,
            expiry=self.expiry * by,
            wait=self.wait * by,
        )


TIMES = LeaseTiming()
