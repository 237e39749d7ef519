"""How many transitions one node's agent may cause: each is a line, a row and perhaps an alert.

An agent that changes its evidence with every message opens, changes and closes incidents as often.
Actions on a node, and events of the fleet, are never limited. Pure.
"""

from aggregator.events import EventKind, Transition
from aggregator.runtime.byte_budget import Budgets
from aggregator.runtime.text import counted

#: Of one node: this many at once, and then this many a second.
BURST = 200.0
RATE = 1.0
#: Nodes of which it is remembered that events were left out.
_MOST_UNREPORTED = 1_000

#: Events that an agent causes by its reports, or by connecting and disconnecting.
BY_AGENTS = frozenset(
    {
        EventKind.INCIDENT_OPENED,
        EventKind.INCIDENT_CHANGED,
        EventKind.INCIDENT_CLOSED,
        EventKind.EVIDENCE_LOST,
        EventKind.AGENT_SILENT,
        EventKind.AGENT_BACK,
        EventKind.AGENT_CONFLICT,
        EventKind.SILENT_FAILING,
        EventKind.SUPPRESSED,
        EventKind.HELD,
    }
)


class EventLimit:
    """Reports the number of a node's transitions that were left out before its next one."""

    def __init__(self, *, burst: float = BURST, rate: float = RATE) -> None:
        self._budgets = Budgets(burst=burst, rate=rate)
        self._unreported: dict[str, int] = {}

    def admit(self, transition: Transition, now: float) -> tuple[Transition, ...]:
        """The transitions to report: itself, none, or before it the number of those left out.

        ``now`` is monotonic seconds.
        """
        node = transition.node
        if transition.kind not in BY_AGENTS or not node:
            return (transition,)
        if not self._budgets.spend(node, 1.0, now):
            self._unreported[node] = self._unreported.get(node, 0) + 1
            if len(self._unreported) > _MOST_UNREPORTED:
                del self._unreported[next(iter(self._unreported))]
            return ()
        missed = self._unreported.pop(node, 0)
        return (_report(transition, missed), transition) if missed else (transition,)


def _report(later: Transition, missed: int) -> Transition:
    return Transition(
        at=later.at,
        kind=EventKind.EVIDENCE_LOST,
        node=later.node,
        summary=f"{later.node}: {counted(missed, 'transition was', 'transitions were')} not "
        f"recorded, because its agent causes more than {RATE:g} a second; its reports are "
        "evaluated all the same",
        details={"source": "aggregator", "count": str(missed)},
    )


def size_of(transition: Transition) -> int:
    """About how many bytes it takes in memory."""
    details = sum(len(name) + len(text) + 100 for name, text in transition.details.items())
    return 300 + len(transition.summary) + details
