"""The writer of an admission record, without a fleet."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from aggregator.clock import Clocks
from aggregator.cluster.port import Action, SharedObjects
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.admission.stop_switch import StopSwitch
from aggregator.quarantine.decide.admission import FleetSize, Limits
from aggregator.quarantine.state.registry import QuarantineIndex
from tests.support.replica import all_in_mode


def record_writer_of(
    cluster: SharedObjects,
    *,
    limits: Limits,
    size: Callable[[], FleetSize],
    wall: Callable[[], float],
    quarantine_index: QuarantineIndex | None = None,
    pool: str = "",
) -> AdmissionRecordWriter:
    """``pool``: that of each node, by its label. No common cause is open."""
    registry: Any = SimpleNamespace(
        size=size, pool_of=lambda _: pool, quarantine_index=quarantine_index or QuarantineIndex()
    )
    causes: Any = SimpleNamespace(causes=dict)
    return AdmissionRecordWriter(
        cluster,
        limits=limits,
        registry=registry,
        causes=causes,
        pools=all_in_mode(Action.DRAIN),
        clocks=Clocks(wall, wall),
        switch=StopSwitch(cluster, clocks=Clocks(wall, wall)),
    )
