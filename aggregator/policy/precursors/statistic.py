"""Whether the rises of one part's counter are more than a healthy part's. Pure.

Where a counter is zero on nearly all parts, median and deviation are zero, and any floor is a
guess. So rises are compared as rare events: the likelihood of a part's rises if it is sick, over
their likelihood if it is healthy.

An occurrence is a slot of five minutes with a rise; the size of the rise does not count, because
one event may count once or a thousand times. Healthy parts are of two kinds, both fitted to the
fleet: nearly all have a rise in `QUIET_RATE` days or less, and a few are noisy. A finding needs a
likelihood ratio of `series x months' windows`. So a healthy fleet has less than one false finding a
month, however large it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Minutes of one slot.
SLOT = 5
DAY = 24 * 60
#: Windows (minutes) in which occurrences are counted. A sick part's rate in each: an occurrence
#: every 20 minutes, every 6 hours, every day.
_WINDOWS = ((60, 3.0), (DAY, 4.0), (7 * DAY, 7.0))
LONGEST = _WINDOWS[-1][0]
#: The occurrences a day of a noisy healthy part, and the share of noisy parts before any is seen.
#: Rates of facts published for links: q 1e-5 to 1e-4 a day, 0.1 % of the links at 1e-2.
_NOISY_RATE = 1e-2
_NOISY_SHARE = 1e-3
QUIET_RATE = 1e-4
#: The weight of these assumptions: days of all parts, parts, and days of noisy parts.
_RATE_WEIGHT = 1e5
_SHARE_WEIGHT = 1e3
_NOISY_WEIGHT = 100.0
#: A counter that was above zero before its first rise: this share of sick parts.
_HISTORY_OF_SICK = 0.5
#: A rise is common where one part of this number has one, and more than a few of a small fleet;
#: parts of one node share a cause, so they are common only where no other node is compared.
_COMMON, _FEW = 5, 2
#: Evaluations of each series a month: as many as its windows of an hour.
_EVALUATIONS = 30 * 24
#: Months of a healthy fleet without a false finding of one counter.
_MONTHS = 50


@dataclass(frozen=True, slots=True)
class Background:
    """All parts of one kind. ``days`` is the sum of the days for which each was seen."""

    series: int
    days: float
    occurrences: int
    """Of all parts without the busiest thousandth, within the longest window."""
    noisy: int
    """Parts with an occurrence, or a count from earlier, without the busiest thousandth."""
    rising: int = 0
    """Parts with an occurrence within the longest window, without the busiest thousandth."""
    is_one_node: bool = False
    """Whether these are parts of one node of several."""

    @property
    def is_common(self) -> bool:
        """Whether too many parts have occurrences for one more to be evidence about a part."""
        return self.rising > max(_FEW, self.series // _COMMON) and not self.is_one_node

    @property
    def quiet_rate(self) -> float:
        """Occurrences a day of a healthy part that is not noisy."""
        return (QUIET_RATE * _RATE_WEIGHT + self.occurrences) / (_RATE_WEIGHT + self.days)

    @property
    def noisy_share(self) -> float:
        """The share of healthy parts that are noisy."""
        return (_NOISY_SHARE * _SHARE_WEIGHT + self.noisy) / (_SHARE_WEIGHT + self.series)

    @property
    def noisy_rate(self) -> float:
        """Occurrences a day of a noisy part, as the fleet's noisy parts have them."""
        seen = self.noisy * self.days / max(1, self.series)
        fitted = (_NOISY_RATE * _NOISY_WEIGHT + self.occurrences) / (_NOISY_WEIGHT + seen)
        return max(fitted, 10 * self.quiet_rate)

    @property
    def threshold(self) -> float:
        """The logarithm of the likelihood ratio of a finding."""
        return math.log(max(self.series, 1) * _EVALUATIONS * _MONTHS)


def score(occurrences: Sequence[int], now: int, fleet: Background, *, had_counted: bool) -> float:
    """The highest log likelihood ratio of the windows, sick over healthy; minus infinity without
    an occurrence.

    ``occurrences`` and ``now`` are minutes; ``had_counted``: the counter was above zero before.
    """
    best = -math.inf
    for minutes, sick in _WINDOWS:
        count = len({at // SLOT for at in occurrences if now - at < minutes})
        if not count:
            continue
        days = minutes / DAY
        quiet = _log_poisson(count, fleet.quiet_rate * days) + math.log1p(-fleet.noisy_share)
        noisy = _log_poisson(count, fleet.noisy_rate * days) + math.log(fleet.noisy_share)
        if had_counted:
            quiet += math.log(min(1.0, fleet.quiet_rate * 100))
            noisy += math.log(min(1.0, fleet.noisy_rate * 100))
        healthy = max(quiet, noisy) + math.log1p(math.exp(-abs(quiet - noisy)))
        history = math.log(_HISTORY_OF_SICK) if had_counted else math.log1p(-_HISTORY_OF_SICK)
        best = max(best, _log_poisson(count, max(sick, count)) + history - healthy)
    return best


def _log_poisson(count: int, mean: float) -> float:
    return count * math.log(mean) - mean - math.lgamma(count + 1)
