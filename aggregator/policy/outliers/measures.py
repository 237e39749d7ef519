"""The measurements that are compared across the fleet: one row each. Pure.

A measurement of a name that is not here is counted and not evaluated, so an agent may be newer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

#: The check that reports an outlier, in the aggregator's own name. Its reason is the measure.
CHECK = "fleet-outlier"


@dataclass(frozen=True, slots=True)
class Measure:
    """How one kind of measurement is evaluated.

    ``low`` is whether low values are the bad ones. A value deviates that is further from the
    median than `spread.FACTOR` robust standard deviations, than ``floor`` (in ``unit``) and than
    ``share`` of the median. ``minutes`` is how long it must deviate to be a finding.

    ``siblings``: the load determines the value, and a job has the same load on all parts of a node.
    So each value is compared as its ratio to the median of its node, in thousandths. ``each``:
    parts of different names are different things (the duration of each check). ``setting``: a
    node's firmware or settings shift the value of all its parts, and harm none.
    """

    name: str
    what: str
    unit: str
    low: bool
    floor: float
    share: float
    minutes: int
    siblings: bool = False
    each: bool = False
    setting: bool = False


_RATIO = "‰ of its node's median"
_ROWS = (
    # The clock of a GPU that works and is limited by no power cap or setting is its highest:
    # a published slow host took 10 % longer (MegaScale, NSDI 2024, section 5).
    Measure("gpu-clock", "clock under load", "MHz", True, 60, 0.05, 30, setting=True),
    # GPUs at the power cap differ by some per cent for ever (Sinha et al., SC 2022).
    Measure("gpu-clock-capped", "clock at the power cap", _RATIO, True, 60, 0, 60, siblings=True),
    Measure("gpu-temperature", "temperature under load", _RATIO, False, 150, 0, 60, siblings=True),
    Measure("pcie-replays", "PCIe replays", "an hour", False, 60, 1.0, 60),
    Measure("nvlink-errors", "NVLink errors", "an hour", False, 50, 1.0, 60),
    Measure("ib-errors", "InfiniBand port errors", "an hour", False, 60, 1.0, 60),
    # Low light is stable in time and not tied to load (CorrOpt, SIGCOMM 2017). Modules of a part
    # number have lasers of one design; UFM's plugin warns 10 degrees above the usual temperature.
    Measure("optics-rx-power", "received light", "tenths of a dB", True, 30, 0, 60),
    Measure("optics-tx-power", "sent light", "tenths of a dB", True, 30, 0, 60),
    Measure("optics-bias", "bias current of the laser", "uA", False, 2000, 0.3, 60),
    Measure("optics-temperature", "temperature of the module", "degrees", False, 10, 0, 60),
    Measure("disk-latency", "synced write", "ms", False, 100, 4.0, 60),
    Measure("check-duration", "duration of the check", "ms", False, 1000, 4.0, 120, each=True),
)

MEASURES: Mapping[str, Measure] = {row.name: row for row in _ROWS}
