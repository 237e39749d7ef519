"""Which pod uses which GPU: a real gRPC server, the real pynvml, made-up processes."""

import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from aggregator.ingest import codec as received
from aggregator.jobs.gpu_report import GpuReport
from nodeagent.repair import gpu_pods
from nodeagent.repair.gpu_use import GpuUse
from nodeagent.repair.pod_gpu import PodGpu, PodGpus
from nodeagent.repair.pod_resources import SOCKET
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.kubelet_devices import CHECKPOINT, PODS
from nodeagent.sources.pod_processes import LOGS
from nodeagent.uplink import codec as sent
from sickbay.v1.limits import MAX_POD_GPUS
from tests.nvml import gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench
from tests.support.pod_resources import Kubelet, container, pod_resources, uses
from tests.support.waiting import PATIENCE

A, B = "0a1b2c3d-0001-4000-8000-00000000000a", "0a1b2c3d-0002-4000-8000-00000000000b"
SLICE = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-1.scope"


class Node:
    """A node with four GPUs, a kubelet's files and its socket."""

    def __init__(self, folder: Path, kubelet: Kubelet, bench: Bench) -> None:
        self.root = folder / "root"
        self.proc = folder / "proc"
        self.kubelet, self.bench = kubelet, bench
        self.own_namespace = True

    def process(self, pid: int, cgroup: str) -> None:
        (self.proc / str(pid)).mkdir(parents=True)
        (self.proc / str(pid) / "cgroup").write_text(f"{cgroup}\n")

    def pod(self, namespace: str, name: str, uid: str, *gpus: str) -> None:
        """Its folders, and its devices in the kubelet's record."""
        (self.root / PODS.lstrip("/") / uid).mkdir(parents=True)
        (self.root / LOGS.lstrip("/") / f"{namespace}_{name}_{uid}").mkdir(parents=True)
        path = self.root / CHECKPOINT.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text())["Data"]["PodDeviceEntries"] if path.exists() else []
        entry = {
            "PodUID": uid,
            "ContainerName": "c",
            "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": {"0": list(gpus)},
        }
        path.write_text(json.dumps({"Data": {"PodDeviceEntries": [*known, entry]}}))

    def minors(self) -> None:
        for index in range(4):
            folder = self.proc / f"driver/nvidia/gpus/{pci_of(index)}.0"
            folder.mkdir(parents=True)
            text = f"Model: \t\t NVIDIA H100\nDevice Minor: \t {3 - index}\n"
            (folder / "information").write_text(text)

    async def found(self) -> PodGpus:
        machine = self.bench.machine
        gpus = GpuMap(machine, {pci_of(index): uuid_of(index) for index in range(4)})
        return await gpu_pods.find_pod_gpus(
            machine, gpus, self.bench.nvml, own_namespace=self.own_namespace
        )


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: the kernel takes 107 bytes for a socket's."""
    with tempfile.TemporaryDirectory(prefix="pr-") as path:
        yield Path(path)


@pytest.fixture
async def node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    for name in ("_KUBELET", "_DRIVER"):
        monkeypatch.setattr(gpu_pods, name, PATIENCE)
    (folder / "proc").mkdir()
    async with (
        pod_resources(folder / "root" / SOCKET.lstrip("/")) as kubelet,
        Bench(folder, [gpu(n) for n in range(4)], proc=folder / "proc", deadline=PATIENCE) as bench,
    ):
        yield Node(folder, kubelet, bench)


async def test_the_kubelet_names_the_gpus_of_each_container_and_nvml_its_processes(
    node: Node,
) -> None:
    node.pod("ml", "a", A, uuid_of(0))
    node.pod("ml", "b", B, uuid_of(1))
    node.minors()
    node.kubelet.pods = [
        uses("ml", "a", container("c", uuid_of(0)), container("sidecar")),
        uses("ml", "b", container("c", uuid_of(1))),
        uses("ml", "dra", container("d", claims=("gpu-0", "gpu-7"))),
        uses("kube-system", "none", container("x")),
    ]
    node.process(70, SLICE.format(A.replace("-", "_")))  # on its own GPU
    node.process(71, f"0::/kubepods/burstable/pod{B}/abc")  # cgroupfs; on a GPU of no pod
    node.process(72, "0::/system.slice/slurmstepd.service")  # of no pod
    node.bench.gpus.write([gpu(0, pids=(70, 72)), gpu(1), gpu(2, pids=(71, 71 + 900)), gpu(3)])
    found = await node.found()
    assert (found.unknown, found.processes_unknown) == ("", "")
    assert found.pods == (
        PodGpu("ml", "a", A, "c", uuid_of(0), processes=1),
        PodGpu("ml", "b", B, "c", uuid_of(1)),
        PodGpu("ml", "dra", "", "d", uuid_of(3), "claim-gpu-0"),  # minor 0 is the fourth GPU
        PodGpu("ml", "dra", "", "d", "gpu.nvidia.com/n1/gpu-7", "claim-gpu-7"),
        PodGpu("ml", "b", B, "", uuid_of(2), allocated=False, processes=1),
    )
    # Over the wire, and back.
    message = sent.gpu_use("7", GpuUse(pods=found))
    assert len(message.SerializeToString()) < 1000
    number, use = received.gpu_use(message.gpu_use)
    assert number == "7"
    assert [(one.pod, one.gpu, one.allocated, one.processes) for one in use.pods.pods] == [
        (one.pod, one.gpu, one.allocated, one.processes) for one in found.pods
    ]
    # A pod that ended and stays in the kubelet's record: PodResources decides, and no uid is named.
    (node.root / PODS.lstrip("/") / A).rmdir()
    assert (await node.found()).pods[0].pod_uid == ""


@pytest.mark.parametrize("what", ["no socket", "refuses", "hangs"])
async def test_without_an_answer_of_the_kubelet_the_allocations_are_unknown(
    node: Node, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.pod("ml", "a", A, uuid_of(0))
    node.process(70, SLICE.format(A.replace("-", "_")))
    node.bench.gpus.write([gpu(0, pids=(70,)), gpu(1)])
    match what:
        case "no socket":
            (node.root / SOCKET.lstrip("/")).unlink()
            expected = f"there is no socket {SOCKET}"
        case "refuses":
            node.kubelet.refuse = grpc.StatusCode.RESOURCE_EXHAUSTED
            expected = "PodResources of the kubelet: RESOURCE_EXHAUSTED: rate of requests exceeded"
        case _:
            monkeypatch.setattr(gpu_pods, "_KUBELET", 0.2)
            node.kubelet.hang = True
            expected = "PodResources of the kubelet: DEADLINE_EXCEEDED"
    found = await node.found()
    assert found.unknown.startswith(expected)
    assert found.pods == (PodGpu("ml", "a", A, "", uuid_of(0), allocated=False, processes=1),)


async def test_without_an_answer_of_the_driver_the_processes_are_unknown(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.pod("ml", "a", A, uuid_of(0))
    node.kubelet.pods = [uses("ml", "a", container("c", uuid_of(0)))]
    allocated = (PodGpu("ml", "a", A, "c", uuid_of(0)),)
    call = "nvmlDeviceGetComputeRunningProcesses_v3"
    node.bench.gpus.fail(call, 1, code=15)
    assert await node.found() == PodGpus(allocated, "", f"NVML gives no processes of {uuid_of(1)}")
    node.own_namespace = False  # and this /proc is not the host's
    assert "PID namespace" in (await node.found()).processes_unknown or (
        "cannot be read" in (await node.found()).processes_unknown
    )
    node.own_namespace = True
    node.bench.nvml.deadline_is_far = True
    node.bench.gpus.fail(call, 0, hang=True)
    monkeypatch.setattr(gpu_pods, "_DRIVER", 0.2)
    found = await node.found()
    assert found == PodGpus(allocated, "", "NVML gave no answer in time, or there is no NVML")


async def test_entries_over_the_bound_make_the_report_unknown_and_end_no_stream(node: Node) -> None:
    many = [uuid_of(index) for index in range(MAX_POD_GPUS + 1)]
    node.kubelet.pods = [uses("ml", "a", container("c", *many))]
    found = await node.found()
    assert len(found.pods) == MAX_POD_GPUS
    assert f"{MAX_POD_GPUS + 1} GPUs of pods" in found.unknown

    def report(*entries: PodGpu) -> GpuReport:
        message = sent.gpu_use("1", GpuUse(pods=PodGpus(entries)))
        return received.gpu_use(message.gpu_use)[1].pods

    good = PodGpu("ml", "a", A, "c", uuid_of(0))
    assert report(good).unknown == ""
    odd = report(replace(good, gpu="GPU-\n"), good)
    assert len(odd.pods) == 1
    assert "pods[0].gpu" in odd.unknown
    message = sent.gpu_use("1", GpuUse(pods=PodGpus((good,)))).gpu_use
    message.pods.extend([message.pods[0]] * MAX_POD_GPUS)
    assert "at most" in received.gpu_use(message)[1].pods.unknown
