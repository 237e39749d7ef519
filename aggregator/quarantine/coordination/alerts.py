"""Alerts people, once, when replicas fail to coordinate for longer than a change among them takes.

Single holds for it are no alerts: they pass within seconds, or all with one cause.
"""

from aggregator.clock import Clocks
from aggregator.events import EventKind, EventSink, Transition
from aggregator.quarantine.decide.uncertainty import NO_UNCERTAINTY, Uncertainty
from aggregator.rfc3339 import span

#: A replica that has not reported its nodes for so long (seconds) will not recover by itself. The
#: largest replica reports within some seconds.
MISSING_FOR = 60.0
#: A rollout that has left replicas differing for so long will not end by itself.
DIFFERING_FOR = 1800.0


class CoordinationAlerts:
    """Checked by the leader, for all."""

    def __init__(self, event_sink: EventSink, clocks: Clocks) -> None:
        self._event_sink = event_sink
        self._clocks = clocks
        self._missing: float | None = None
        self._differing: float | None = None
        self._told = False

    def reset(self) -> None:
        """Another replica leads, and alerts."""
        self._missing = self._differing = None
        self._told = False

    def check_replicas(self, uncertainty: Uncertainty) -> None:
        now = self._clocks.now()
        self._missing = _since(self._missing, uncertainty.missing, now)
        self._differing = _since(self._differing, uncertainty.differing, now)
        if self._told:
            if (uncertainty.missing, uncertainty.differing) == (
                NO_UNCERTAINTY.missing,
                NO_UNCERTAINTY.differing,
            ):
                self._told = False
                self._note(EventKind.REPLICAS_TOGETHER, "the replicas coordinate again")
        elif self._missing is not None and now - self._missing >= MISSING_FOR:
            self.emit_alert(
                f"for {span(MISSING_FOR)} the replicas have not told each other everything, so "
                f"little is admitted: {uncertainty.missing}"
            )
        elif self._differing is not None and now - self._differing >= DIFFERING_FOR:
            self.emit_alert(
                f"for {span(DIFFERING_FOR)} replicas have differed, so no new quarantine is "
                f"admitted: {uncertainty.differing}"
            )

    def emit_alert(self, text: str) -> None:
        self._told = True
        self._note(EventKind.REPLICAS_APART, text)

    def _note(self, kind: EventKind, text: str) -> None:
        self._event_sink.record_event(Transition(self._clocks.wall(), kind, "", text))


def _since(before: float | None, trouble: str, now: float) -> float | None:
    if not trouble:
        return None
    return now if before is None else before
