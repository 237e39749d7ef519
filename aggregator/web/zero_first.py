"""Series of counters that begin at 0, so that Prometheus sees the first increase.

`increase()` knows nothing of a series that appears with 1: the first cause of the day would be
missing. Where the labels' values are not known before, a new series therefore has 0 in its first
scrapes: three, for a pair of Prometheus servers and a person who reads the page.
"""

from prometheus_client.metrics_core import Metric

SCRAPES = 3


class ZeroFirst:
    """Remembers the series that have begun. One for each process: it lasts as long as they do."""

    def __init__(self) -> None:
        self._scrapes: dict[tuple[str, ...], int] = {}

    def begin(self, family: Metric) -> Metric:
        """The family of this scrape, with 0 for each series that is new."""
        for number, sample in enumerate(family.samples):
            key = (sample.name, *sample.labels.values())
            scrapes = self._scrapes.get(key, 0)
            if scrapes < SCRAPES:
                self._scrapes[key] = scrapes + 1
                family.samples[number] = sample._replace(value=0.0)
        return family
