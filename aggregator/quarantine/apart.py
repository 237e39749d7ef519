"""Tells people, once, when replicas fail to confer for longer than a change among them takes.

Single holds for it are no alerts: they pass within seconds, or all with one cause.
"""

from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.decide.doubt import CERTAIN, Doubt
from aggregator.quarantine.ledger import Kind, Ledger, Transition
from aggregator.quarantine.times import span

#: A replica that has not told of its nodes for so long (seconds) does not come by itself. The
#: largest does within some seconds.
MISSING_FOR = 60.0
#: Nor does a rollout end by itself that has left replicas differing for so long.
DIFFERING_FOR = 1800.0


class Apart:
    """Looked at by the leader, for all."""

    def __init__(self, ledger: Ledger, clocks: Clocks) -> None:
        self._ledger = ledger
        self._clocks = clocks
        self._missing: float | None = None
        self._differing: float | None = None
        self._told = False

    def forget(self) -> None:
        """Another one leads, and tells."""
        self._missing = self._differing = None
        self._told = False

    def look(self, doubt: Doubt) -> None:
        now = self._clocks.now()
        self._missing = _since(self._missing, doubt.missing, now)
        self._differing = _since(self._differing, doubt.differing, now)
        if self._told:
            if (doubt.missing, doubt.differing) == (CERTAIN.missing, CERTAIN.differing):
                self._told = False
                self._note(Kind.REPLICAS_TOGETHER, "the replicas confer again")
        elif self._missing is not None and now - self._missing >= MISSING_FOR:
            self._tell(
                f"for {span(MISSING_FOR)} the replicas have not told each other everything, so "
                f"little is admitted: {doubt.missing}"
            )
        elif self._differing is not None and now - self._differing >= DIFFERING_FOR:
            self._tell(
                f"for {span(DIFFERING_FOR)} replicas have differed, so nothing new is admitted: "
                f"{doubt.differing}"
            )

    def _tell(self, text: str) -> None:
        self._told = True
        self._note(Kind.REPLICAS_APART, text)

    def _note(self, kind: Kind, text: str) -> None:
        self._ledger.note(Transition(self._clocks.wall(), kind, "", text))


def _since(before: float | None, trouble: str, now: float) -> float | None:
    if not trouble:
        return None
    return now if before is None else before
