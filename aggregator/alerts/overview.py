"""The state of alerts, for page, API and metrics."""

from dataclasses import dataclass, field

from aggregator.runtime.histogram import Histogram


@dataclass(frozen=True, slots=True)
class RouteState:
    """One route. ``waiting`` alerts are not delivered yet, ``dead`` deliveries are kept; the other
    numbers are counted since the start. ``problem``: why it does not deliver; empty: it does.
    """

    name: str
    kind: str
    receiver: str
    waiting: int
    delivered: int
    failed_attempts: int
    given_up: int
    dead: int
    problem: str
    #: Seconds that each attempt took.
    durations: Histogram | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DeadDelivery:
    """A delivery that was given up. ``at``: wall clock seconds; ``alerts``: how many it had;
    ``summaries`` are some of them.
    """

    route: str
    id: str
    at: float
    because: str
    alerts: int
    summaries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlertOverview:
    """``dead``: the newest dead letters, newest first."""

    routes: tuple[RouteState, ...] = ()
    dead: tuple[DeadDelivery, ...] = ()
