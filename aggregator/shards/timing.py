"""The times of the shards, and the arithmetic that makes them fit. docs/shards.md argues with them.

Everything is measured on each replica's own monotonic clock; nothing is ever compared between two
clocks but the speed at which they run. The margins (`expiry` over `certain`, `wait` over `fresh`)
are 2 s in 10: two clocks may run apart by a fifth, or a write may be under way for 2 s after the
last look at the clock, before two replicas act for one node at one moment. Past that the fences of
the cluster hold (docs/fences.md).

    certain < expiry   who could not renew stops before anybody takes over
    fresh < wait       who saw an old list stops before the newcomer begins
    tick + deadline < fresh        one lost request interrupts no view
    2 * deadline + tick < certain  two lost requests in a row let no Lease lapse

From a replica's death until its nodes have new owners, with one request lost at either end:

    tick + deadline    until the others have seen its last renewal       6 s
    expiry             that nothing came after it                       12 s
    tick + deadline    until the next list, which says so                6 s
                                                                        ----
                                                                        24 s, of 30
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """All in seconds. Every replica must run with the same ones, or two of them may act at once."""

    tick: float = 3.0
    """Our Lease is renewed, and then all of them are listed, so often."""
    deadline: float = 3.0
    """For the answer of one request."""
    retry: float = 1.0
    """After a request that failed at once."""
    fresh: float = 7.0
    """We act for so long after a list was asked for. Lists further apart are a view with a gap."""
    certain: float = 10.0
    """We act for so long after our last renewal was sent. A Lease that is renewed later than that
    may have been taken for dead: its holder joins anew."""
    expiry: float = 12.0
    """A Lease that stood still for so long in an uninterrupted view has expired."""
    wait: float = 9.0
    """The newcomer's: what is its own by the council it lets alone for so long after it joined."""

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

    def scaled(self, by: float) -> "Times":
        """The same proportions, faster or slower: for tests on a real clock."""
        return Times(
            tick=self.tick * by,
            deadline=self.deadline * by,
            retry=self.retry * by,
            fresh=self.fresh * by,
            certain=self.certain * by,
            expiry=self.expiry * by,
            wait=self.wait * by,
        )


TIMES = Times()
