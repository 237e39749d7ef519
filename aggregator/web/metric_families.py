"""Metric families with their values, in one call each."""

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from aggregator.runtime.histogram import Histogram

#: The value of a family's one label, or those of its labels.
Labels = str | tuple[str, ...]

_FamilyT = TypeVar("_FamilyT", GaugeMetricFamily, CounterMetricFamily)
_LabelsT = TypeVar("_LabelsT", bound=tuple[str, ...])


def gauge(
    name: str, text: str, labels: list[str], values: Mapping[Labels, float]
) -> GaugeMetricFamily:
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def counter(
    name: str, text: str, labels: list[str], values: Mapping[Labels, float]
) -> CounterMetricFamily:
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def _filled(family: _FamilyT, values: Mapping[Labels, float]) -> _FamilyT:
    for of, value in values.items():
        family.add_metric([of] if isinstance(of, str) else of, value)
    return family


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
