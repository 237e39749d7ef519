"""The latest measurements of the node's parts, which checks take as they look.

They are no evidence: the aggregator compares them with those of the same parts of other nodes, and
a lost one does no harm.
"""

from nodeagent.dataclass import dataclass

#: Seconds for which a value holds without a newer one: twice the longest shipped interval.
FRESH = 300.0
#: Series of one node; those beyond are not kept.
_MOST = 256
#: Values above are as good as this one.
_MOST_VALUE = 2**31


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement of one part. ``model`` distinguishes parts of different kinds."""

    measure: str
    component: str
    model: str
    value: int


class Measurements:
    """The latest value of each series by measure, component and model.

    ``machine`` is the kind of machine, as far as it is known: "8 NVIDIA H200".
    """

    def __init__(self) -> None:
        self.machine = ""
        self._latest: dict[tuple[str, str, str], tuple[float, int]] = {}

    def put(
        self, measure: str, component: str, value: float | None, *, at: float, model: str = ""
    ) -> None:
        """Take a value, at least 0, of boottime ``at``; None: there is none now (no load)."""
        key = (measure, component, model)
        if value is None or not component:
            self._latest.pop(key, None)
        elif key in self._latest or len(self._latest) < _MOST:
            self._latest[key] = (at, round(min(max(value, 0), _MOST_VALUE)))

    def current(self, now: float) -> list[Measured]:
        """The values that are no older than `FRESH`; the others are dropped."""
        self._latest = {
            key: found for key, found in self._latest.items() if now - found[0] <= FRESH
        }
        return [Measured(*key, value) for key, (_, value) in self._latest.items()]


def rounded(value: float) -> int:
    """Two significant digits: a value that hardly differs is not sent again."""
    number = round(value)
    digits = len(str(number)) - 2
    return int(round(number, -digits)) if digits > 0 else number
