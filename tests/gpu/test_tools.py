"""The tools of these tests, as far as they need no GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.sources.gpu_sample import (
    EccCounts,
    Fabric,
    Gpu,
    GpuLimits,
    MigMode,
    RemappedRows,
    RowReserve,
)
from tests.gpu import cuda_program
from tests.gpu.conftest import DEVICE
from tests.gpu.facts import FACTS
from tests.gpu.nvidia_smi import Smi
from tests.gpu.real_agent import ROOT
from tests.nvml import FakeGpus, gpu, uuid_of

_XML = Path(__file__).with_name("nvidia-smi.xml").read_text()

_GPU = Gpu(
    index=0,
    uuid="GPU-1",
    pci="0000:3b:00",
    name="NVIDIA H100 80GB HBM3",
    ecc=EccCounts(5, 10, 9, 0),
    rows=RemappedRows(0, 1, pending=True, failure=False),
    recovery_action=0,
    clocks=5,
    sm_clock=1980,
    load=7,
    replays=3,
    reserve=RowReserve(2559, 1, 0, 0, 0),
    sram_threshold_exceeded=False,
    fabric=Fabric(3, 0, 0, 1, "0" * 32, 0),
    mig=MigMode(enabled=False, pending=True),
    temperature=30,
    memory_temperature=40,
    margin=59,
    power=75,
    limits=GpuLimits(power=700, persistence=True),
)


@pytest.mark.parametrize("name", FACTS)
def test_equal_answers_agree(name: str) -> None:
    assert FACTS[name].agree(_GPU, Smi(_XML).gpu("GPU-1"))


@pytest.mark.parametrize("name", FACTS)
def test_a_gpu_that_answers_otherwise_does_not_agree(name: str) -> None:
    """An empty Gpu has no number where nvidia-smi has one; "no retired pages" is the exception."""
    if name == "retired-pages-single-bit":
        pytest.skip("None on both sides: the GPU retires no pages")
    assert not FACTS[name].agree(Gpu(index=0), Smi(_XML).gpu("GPU-1"))


def test_an_element_that_is_missing_is_named() -> None:
    other = Smi(_XML.replace("replay_counter", "replays"))
    with pytest.raises(LookupError, match="replay_counter"):
        FACTS["pcie-replays"].theirs(other.gpu("GPU-1"))


def test_the_times_of_nvml_have_each_call(tmp_path: Path) -> None:
    gpus = FakeGpus(tmp_path, [gpu(0), gpu(1)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.nvml_times"],
        check=True,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**dict(gpus.env), "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "PATH": "/usr/bin:/bin"},
    )
    found = json.loads(done.stdout)
    assert found["gpus"] == 2
    assert {"rows", "ecc", "clocks", "wait"} <= found["quick_calls_ms"].keys()
    assert "reserve" not in found["quick_calls_ms"]
    assert {"reserve", "links", "fabric"} <= found["slow_calls_ms"].keys()
    assert found["errors"][uuid_of(0)] == {"pages": 3}


def test_the_program_says_so_where_there_is_no_cuda() -> None:
    if DEVICE.exists():
        pytest.skip("there is a GPU")
    command = [sys.executable, cuda_program.__file__, "trap"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == cuda_program.MISSING
    assert "no CUDA here" in done.stderr
