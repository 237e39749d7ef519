"""What repairs do while replicas pause, are cut off or killed, and clocks differ: counted.

Each schedule is random, and played in virtual time: three replicas with the real Lease logic and
the real controller, wall clocks up to a day apart, orders that wait 0 to 60 s in the connect.
Every act is checked against the invariants when it arrives (tests/support/invariants.py).
"""

import logging
import random
from collections import Counter
from dataclasses import dataclass, field

from tests.aggregator.replica_schedules import ACTS, HOSTS, NODES, PAUSES, REPAIRING, Event, play

#: The invariant whose breach each figure counts.
BREACHES = {
    "the_sender_holds_its_place": "orders_after_lost_place",
    "no_work_is_interrupted": "busy_node_acted_on",
    "a_cancellation_ends_the_order": "cancel_lost",
    "limits_hold": "cap_exceeded",
}
#: Breaches of any other invariant, and schedules that did not settle.
OTHER = "fence_breaches_other"
#: Repairs come of faults, and their hard moments of these acts: drawn more often than the rest.
_OFTEN = ("fault", "fault", "fault", "pause", "wake", "wake", "cut", "mend", "mend", "cancel")
_KINDS = (*_OFTEN, *_OFTEN, "pod bound", "clock jumps", "person releases", *sorted(ACTS))
_EVENTS = (10, 40)


@dataclass
class Fences:
    """The breaches in words, and what the schedules did."""

    wrong: list[str] = field(default_factory=list)
    orders: int = 0
    cancelled: int = 0

    def figures(self) -> dict[str, int]:
        """Breaches by figure."""
        found = Counter(figure_of(one) for one in self.wrong)
        return {name: found[name] for name in (*BREACHES.values(), OTHER)} | {
            "fence_orders": self.orders,
            "fence_cancelled": self.cancelled,
        }


def figure_of(wrong: str) -> str:
    """The figure that counts this breach; its text is "TIME INVARIANT: WHAT"."""
    name = wrong.partition(" ")[2].partition(":")[0]
    return BREACHES.get(name, OTHER)


def play_schedules(schedules: int, rng: random.Random) -> Fences:
    """Play so many schedules; each ends with all that was broken mended."""
    found = Fences()
    logging.disable(logging.CRITICAL)  # each played outage would be a line
    try:
        for _ in range(schedules):
            sim = play(rng.getrandbits(32), _events(rng), REPAIRING)
            found.wrong += sim.wrong
            found.orders += sim.world.facts.ordered.total()
            found.cancelled += len(sim.world.facts.cancelled)
    finally:
        logging.disable(logging.NOTSET)
    return found


def _events(rng: random.Random) -> list[Event]:
    return [
        (rng.choice(PAUSES), rng.choice(_KINDS), rng.choice(HOSTS), rng.choice(NODES))
        for _ in range(rng.randint(*_EVENTS))
    ]
