"""Evidence that the recorder adds to that of the checks."""

from pathlib import Path

from nodeagent.evidence.disk_backup import DiskBackup
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State
from nodeagent.evidence.store import NAME, Store
from nodeagent.model import ClearedBy, Clearing, FaultSighting
from nodeagent.recorder import EvidenceRecorder
from nodeagent.sources.fabric import FabricMembership
from nodeagent.sources.gpus import GpuMap
from tests.agent.kernel_log import GPU, OTHER_GPU, UUID, HandClock, gpu_machine


async def test_a_reset_ends_the_faults_that_a_gpu_had_before_it_had_a_name(tmp_path: Path) -> None:
    """The driver could not start the GPU at the boot, so that NVML has named it later only."""
    clock = HandClock(1000.0)
    gpus = GpuMap(gpu_machine(tmp_path / "machine", clock))
    recorder = EvidenceRecorder(
        State(Latch(boot_id="boot", epoch="e"), None, {}),
        store=Store(run_dir=tmp_path, state_dir=tmp_path, clock=clock),
        copy=DiskBackup(tmp_path / NAME, tmp_path),
        gpus=gpus,
        fabric=FabricMembership(),
        clock=clock,
        wake=lambda: True,
    )
    for number, address in enumerate((GPU, OTHER_GPU)):
        recorder.take_log(
            [
                FaultSighting(
                    "nvidia-driver:init-failed",
                    "nvidia-driver",
                    gpus.component(address),
                    "RmInitAdapter failed!",
                    "kmsg",
                    number,
                    900.0,
                    ClearedBy.GPU_RESET,
                )
            ],
            None,
        )
    gpus.learn(GPU, UUID)
    recorder.record_observations([Clearing(UUID, "gpu-reset", "xid:48")])
    assert len(recorder.latch.faults) == 2, "another code"
    recorder.record_observations([Clearing(UUID, "gpu-reset")])
    assert [fault.component for fault in recorder.latch.faults.values()] == [f"pci:{OTHER_GPU}"]
