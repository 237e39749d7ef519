"""The counters that the agent sends for comparison with the fleet."""

from pathlib import Path

import pytest

from nodeagent.checks.error_counters import (
    SETTLED,
    count,
    count_dimm_errors,
    count_gpu_errors,
)
from nodeagent.sources.gpu_sample import EccCounts, Gpu, GpuSample, NvLinks, RemappedRows
from nodeagent.sources.host import HostRoots
from nodeagent.sources.measurements import Measurements
from tests.agent.kernel_log import HandClock

AT = SETTLED + 60


def sample(*gpus: Gpu, at: float = AT) -> GpuSample:
    return GpuSample(at=at, driver="580.1", gpus=gpus)


def current(measurements: Measurements) -> dict[tuple[str, str], int]:
    return {(one.measure, one.component): one.value for one in measurements.current(AT)}


def test_each_counter_that_a_gpu_has_is_sent_under_its_uuid() -> None:
    measurements = Measurements()
    links = NvLinks((True, True), {"replay": {0: 1, 1: 2}, "link-recovery": {0: 505}})
    gpu = Gpu(
        index=0,
        uuid="GPU-1",
        pci="0000:3b:00",
        name="NVIDIA GB200",
        ecc=EccCounts(17_700, 0),
        rows=RemappedRows(8, 1, pending=False, failure=False),
        links=links,
    )
    count_gpu_errors(sample(gpu), measurements)
    assert current(measurements) == {
        ("ecc-corrected", "GPU-1"): 17_700,
        ("row-remaps", "GPU-1"): 9,
        ("nvlink-recoveries", "GPU-1"): 505,
        ("nvlink-replays", "GPU-1"): 3,
    }


def test_a_gpu_without_a_counter_sends_none() -> None:
    measurements = Measurements()
    gpu = Gpu(index=0, uuid="GPU-1", pci="0000:3b:00", links=NvLinks((True,), None))
    count_gpu_errors(sample(gpu), measurements)
    assert current(measurements) == {}


def test_nothing_is_sent_in_the_minutes_after_a_boot() -> None:
    measurements = Measurements()
    count(measurements, "pcie-errors", "GPU-1", 7, at=SETTLED - 1)
    assert current(measurements) == {}


@pytest.mark.parametrize("value", [2**31, 54_700_000_000])
def test_a_large_counter_is_sent_modulo_its_width(value: int) -> None:
    measurements = Measurements()
    count(measurements, "ecc-corrected", "GPU-1", value, at=AT)
    assert current(measurements) == {("ecc-corrected", "GPU-1"): value % 2**31}


@pytest.mark.parametrize("kind", ["dimm", "rank"])
def test_corrected_errors_are_sent_for_each_dimm_by_its_label(tmp_path: Path, kind: str) -> None:
    for number, (label, errors) in enumerate([("CPU0_DIMM_A1", "3"), ("", "0"), ("x", "junk")]):
        dimm = tmp_path / "devices/system/edac/mc/mc0" / f"{kind}{number}"
        dimm.mkdir(parents=True)
        (dimm / "dimm_label").write_text(f"{label}\n")
        (dimm / "dimm_ce_count").write_text(f"{errors}\n")
    measurements = Measurements()
    count_dimm_errors(HostRoots(clock=HandClock(), sys=tmp_path), measurements, at=AT)
    assert current(measurements) == {
        ("dimm-corrected", "CPU0_DIMM_A1"): 3,
        ("dimm-corrected", f"mc0 {kind}1"): 0,
    }
