"""The tools of these tests, as far as they need no GPU."""

import dataclasses
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from nodeagent.sources.gpu_sample import (
    EccCounts,
    Fabric,
    Gpu,
    GpuLimits,
    Mode,
    RemappedRows,
    RowReserve,
)
from tests.gpu import cuda_program, measure, worker_memory
from tests.gpu.conftest import DEVICE
from tests.gpu.facts import FACTS
from tests.gpu.nvidia_smi import Smi, SmiGpu
from tests.gpu.real_agent import ROOT
from tests.nvml import FakeGpus, gpu, uuid_of
from tests.support.bytecode import BYTECODE

#: Of an H200 with driver 580.159.04 in a virtual machine; without its serial numbers and the
#: clocks that it supports.
_REAL = Path(__file__).with_name("nvidia-smi.xml").read_text()

_H200 = Gpu(
    index=0,
    uuid=uuid_of(0),
    pci="0000:00:06",
    name="NVIDIA H200",
    ecc=EccCounts(0, 0, 0, 0),
    rows=RemappedRows(0, 0, pending=False, failure=False),
    recovery_action=0,
    clocks=1,
    sm_clock=345,
    load=0,
    replays=0,
    reserve=RowReserve(3072, 0, 0, 0, 0),
    sram_threshold_exceeded=False,
    mig=Mode(enabled=False, pending=False),
    temperature=37,
    memory_temperature=38,
    margin=50,
    power=78,
    limits=GpuLimits(power=700, persistence=True),
)

#: Answers of a GPU that has more to tell.
_OTHER = {
    "ecc_errors/volatile/sram_correctable": "1",
    "ecc_errors/volatile/sram_uncorrectable_parity": "2",
    "ecc_errors/volatile/sram_uncorrectable_secded": "3",
    "ecc_errors/volatile/dram_correctable": "4",
    "ecc_errors/volatile/dram_uncorrectable": "5",
    "ecc_errors/aggregate/dram_correctable": "9",
    "remapped_rows/remapped_row_unc": "1",
    "remapped_rows/remapped_row_pending": "Yes",
    ".//row_remapper_histogram_max": "3071 bank(s)",
    ".//row_remapper_histogram_high": "1 bank(s)",
    "mig_mode/pending_mig": "Enabled",
    "pci/replay_counter": "3",
    "clocks_event_reasons/clocks_event_reason_sw_power_cap": "Active",
    "utilization/gpu_util": "7 %",
    "fabric/state": "Completed",
}
_GPU = dataclasses.replace(
    _H200,
    ecc=EccCounts(5, 10, 9, 0),
    rows=RemappedRows(0, 1, pending=True, failure=False),
    clocks=5,
    load=7,
    replays=3,
    reserve=RowReserve(3071, 1, 0, 0, 0),
    fabric=Fabric(3, 0, 0, 1, "0" * 32, 0),
    mig=Mode(enabled=False, pending=True),
)


def _other() -> SmiGpu:
    root = ET.fromstring(_REAL)
    for path, text in _OTHER.items():
        found = root.find(f"gpu/{path}")
        assert found is not None, path
        found.text = text
    return Smi(ET.tostring(root, encoding="unicode")).gpu(_GPU.uuid)


@pytest.mark.parametrize("name", FACTS)
def test_a_real_gpus_answers_agree_with_nvidia_smis(name: str) -> None:
    assert FACTS[name].agree(_H200, Smi(_REAL).gpu(_H200.uuid))


@pytest.mark.parametrize("name", FACTS)
def test_equal_answers_agree(name: str) -> None:
    assert FACTS[name].agree(_GPU, _other())


@pytest.mark.parametrize("name", FACTS)
def test_a_gpu_that_answers_otherwise_does_not_agree(name: str) -> None:
    """An empty Gpu has no number where nvidia-smi has one; "no retired pages" is the exception."""
    if name == "retired-pages-single-bit":
        pytest.skip("None on both sides: the GPU retires no pages")
    assert not FACTS[name].agree(Gpu(index=0), _other())


def test_an_element_that_is_missing_is_named() -> None:
    other = Smi(_REAL.replace("replay_counter", "replays"))
    with pytest.raises(LookupError, match="replay_counter"):
        FACTS["pcie-replays"].theirs(other.gpu(uuid_of(0)))


def _environment(gpus: FakeGpus) -> dict[str, str]:
    path = f"{ROOT}:{ROOT / 'proto'}"
    return {**gpus.env, **BYTECODE, "PYTHONPATH": path, "PATH": "/usr/bin:/bin"}


def test_the_times_of_nvml_have_each_call(tmp_path: Path) -> None:
    gpus = FakeGpus(tmp_path, [gpu(0), gpu(1)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.nvml_times"],
        check=True,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=_environment(gpus),
    )
    found = json.loads(done.stdout)
    assert found["gpus"] == 2
    assert {"rows", "ecc", "clocks", "wait"} <= found["quick_calls_ms"].keys()
    assert "reserve" not in found["quick_calls_ms"]
    assert {"reserve", "links", "fabric"} <= found["slow_calls_ms"].keys()
    assert found["errors"][uuid_of(0)] == {"pages": 3}


def test_clocks_and_temperature_of_healthy_gpus_are_told_by_their_shared_row() -> None:
    results = [
        {"check": "gpu-ecc", "component": uuid_of(0), "message": "0 uncorrectable"},
        {"check": "gpu-clocks", "component": "", "message": "0x4 (SW Power Cap)"},
        {"check": "gpu-thermal", "component": uuid_of(1), "message": "87 degrees"},
    ]
    assert measure.clocks_and_temperature(results) == [
        "gpu-clocks: 0x4 (SW Power Cap)",
        "gpu-thermal: 87 degrees",
    ]


def test_the_workers_memory_is_told_by_step_and_by_mapping(tmp_path: Path) -> None:
    gpus = FakeGpus(tmp_path / "gpus", [gpu(0)])
    env = _environment(gpus)
    command = [sys.executable, "-m", "tests.gpu.worker_memory", str(tmp_path / "memory"), "base"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)
    head, base, *_ = done.stdout.splitlines()
    steps = dict(zip(head.split()[2:9], map(float, base.split()[1:8]), strict=True))
    assert 1 < steps["python"] < steps["pynvml"] <= steps["later"] < 100
    assert "libnvidia-ml.so.1" in done.stdout


def test_an_anonymous_mapping_behind_a_files_is_named_after_it() -> None:
    smaps = """\
7f00-7f10 rw-p 00000000 08:01 5                          /usr/lib/libnvidia-ml.so.1
Pss:                   8 kB
VmFlags: rd wr
7f10-7f20 rw-p 00000000 00:00 0
Pss:                  20 kB
7f30-7f40 rw-p 00000000 00:00 0
Pss:                  30 kB
"""
    found = [(each.name, each.sizes) for each in worker_memory.regions(smaps)]
    assert found == [
        ("/usr/lib/libnvidia-ml.so.1", {"Pss": 8}),
        ("behind libnvidia-ml.so.1", {"Pss": 20}),
        ("", {"Pss": 30}),
    ]


def test_the_program_says_so_where_there_is_no_cuda() -> None:
    if DEVICE.exists():
        pytest.skip("there is a GPU")
    command = [sys.executable, cuda_program.__file__, "trap"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == cuda_program.MISSING
    assert "no CUDA here" in done.stderr
