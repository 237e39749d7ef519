"""Metric families with their values. metrics.yaml has their types, labels and meanings."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from aggregator.policy.shipped_yaml import read_shipped_file
from aggregator.runtime.histogram import Histogram

#: Of a family without labels; else by the value of its one label, or by those of its labels.
Values = float | Histogram | Mapping[Any, float] | Mapping[Any, Histogram]

_TYPES: Mapping[str, type[GaugeMetricFamily] | type[CounterMetricFamily]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
}


def families_of(values: Mapping[str, Values]) -> Iterator[Metric]:
    """The families by their names in metrics.yaml."""
    for name, found in values.items():
        yield family_of(name, found)


def family_of(name: str, values: Values) -> Metric:
    """One family."""
    of_it = declared()[name]
    text, labels = of_it["help"], of_it.get("labels", [])
    given: Mapping[Any, Any] = values if isinstance(values, Mapping) else {(): values}
    by_labels = {(of,) if isinstance(of, str) else of: value for of, value in given.items()}
    if of_it["type"] == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for of, found in sorted(by_labels.items()):
            buckets = [(_le(bound), count) for bound, count in found.cumulative()]
            histogram.add_metric(of, buckets, found.total)
        return histogram
    family = _TYPES[of_it["type"]](name, text, labels=labels)
    for of, value in by_labels.items():
        family.add_metric(of, float(value))
    return family


@cache
def declared() -> Mapping[str, Mapping[str, Any]]:
    """The content of metrics.yaml."""
    found: Mapping[str, Mapping[str, Any]] = read_shipped_file("aggregator.web", "metrics.yaml")
    return found


def _le(bound: float) -> str:
    """A bound as the client libraries write it."""
    return "+Inf" if bound == float("inf") else str(float(bound))
