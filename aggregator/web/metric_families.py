"""Metric families with their values, in one call each."""

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from aggregator.runtime.histogram import Histogram

_LabelsT = TypeVar("_LabelsT", bound=tuple[str, ...])


def gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def counter(name: str, text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=labels)


def single_gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """A gauge without labels."""
    return GaugeMetricFamily(name, text, value=float(value))


def single_counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """A counter without labels."""
    return CounterMetricFamily(name, text, value=float(value))


def histogram(
    name: str, text: str, labels: list[str], values: Mapping[_LabelsT, Histogram]
) -> HistogramMetricFamily:
    """``values`` are the histograms by the values of their labels."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for of, found in sorted(values.items()):
        buckets = [(_le(bound), count) for bound, count in found.cumulative()]
        family.add_metric(list(of), buckets, found.total)
    return family


def _le(bound: float) -> str:
    """A bound as the client libraries write it."""
    return "+Inf" if bound == float("inf") else str(float(bound))
