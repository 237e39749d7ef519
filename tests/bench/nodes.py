"""The cost of nodes as such: replicas that each know all Nodes of the cluster, and few agents.

Node objects on the real API server, labelled and annotated as those of GPU machines are, and three
replicas at each size. Run by `make bench-nodes`. BENCH_NODES sets the sizes, each on the same
control plane (10000,25000,50000); the largest one's figures have the plain names, and each size's
are in the rows `*_SIZE`, where those of earlier runs stay. BENCH_SECONDS is the time over which the
cost at rest is taken (60).

`start_to_act_s` is the slowest of three replicas that start at the same time on two cores: from the
start of the processes until each has its view of the cluster, knows the others and may act. A
replica that may act answers `/healthz` at once; its slowest answer, `stall_ms`, is the longest time
that its event loop was busy, with a list of the nodes among it.
"""

import asyncio
import http.client
import os
import random
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Self

import psutil

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import NodeMeta
from aggregator.health.node import NodeHealth
from aggregator.quarantine.decide.admission import Limits, Proposal
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from tests.bench import planes, small
from tests.bench.figures import percentile, read, table, write
from tests.bench.parts import LIFTED, WARM
from tests.bench.planes import in_memory
from tests.bench.simulated_agents import Crowd
from tests.bench.small import small_or, start_quickly
from tests.bench.trials import Trials
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.record_writers import record_writer_of
from tests.support.replica import hello, snapshot
from tests.support.replica_processes import TRUSTING_TLS, Replicas
from tests.support.stack import NAMESPACE, install

SIZES = small_or((12,), (10_000, 25_000, 50_000))
REPLICAS = 3
#: Nodes with an agent: for the faults.
AGENTS = small_or(4, 60)
FAULTS = small_or(1, 30)
ADMISSIONS = small_or(5, 100)
#: Changes of Nodes a second while the cost of the watches is taken: 50,000 kubelets write a status
#: every five minutes, 167 a second; a client of one thread writes fewer, and the cost is scaled.
WRITES_S = small_or(0.2, 20.0)
#: The API server's processes are not the ones to be measured, so its start and list are waited for.
PATIENCE = 300.0
_MIB = 2**20
_RECORD = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-record"
#: The labels of a machine with GPUs, of the kubelet, the operators and a cloud: 1.6 KiB.
LABELS = {
    "node.kubernetes.io/instance-type": "gpu-h100-8x",
    "topology.kubernetes.io/region": "region-1",
    "topology.kubernetes.io/zone": "region-1-a",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/cuda.driver-version.full": "570.124.06",
    "nvidia.com/cuda.runtime-version.full": "12.8",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.strategy": "single",
    "nvidia.com/gpu.deploy.driver": "true",
    "nvidia.com/gpu.deploy.dcgm": "true",
    "nvidia.com/gpu.deploy.dcgm-exporter": "true",
    "nvidia.com/gpu.deploy.device-plugin": "true",
    "feature.node.kubernetes.io/cpu-hardware_multithreading": "true",
    "feature.node.kubernetes.io/cpu-model.vendor_id": "AMD",
    "feature.node.kubernetes.io/kernel-version.full": "6.8.0-60-generic",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-15b3.present": "true",
    "feature.node.kubernetes.io/rdma.available": "true",
    "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
}
ANNOTATIONS = {
    "node.alpha.kubernetes.io/ttl": "300",
    "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    "csi.volume.kubernetes.io/nodeid": '{"disk.csi.example.com":"i-0123456789abcdef0"}',
    "nfd.node.kubernetes.io/feature-labels": ",".join(sorted(LABELS)),
}

#: Key, what it is, unit, aim (0: none).
ROWS: list[tuple[str, str, str, float]] = [
    ("nodes", "Node objects", "", 50_000),
    ("rss_mib_per_replica", "resident memory of a replica, at rest", "MiB", 0),
    ("gateway_rss_mib", "of a gateway, which knows no node", "MiB", 200),
    ("rss_peak_mib_per_replica", "its highest since the start", "MiB", 0),
    ("start_to_act_s", "three replicas start at once: until the last may act", "s", 40),
    ("restart_to_act_s", "one of three starts again: until it may act", "s", 0),
    ("admission_ms", "one admission with its write of the record, p50", "ms", 5),
    ("admission_p99_ms", "p99", "ms", 0),
    ("admission_cpu_ms", "its CPU in the replica", "ms", 0),
    ("taint_p50_ms", "a fault to its taint, p50", "ms", 0),
    ("list_s", "one list of all nodes, every three minutes, by a replica's client", "s", 0),
    ("list_cpu_s", "its CPU in the replica", "s", 0),
    ("list_server_cpu_s", "its CPU in the API server", "s", 0),
    ("idle_cpu_percent", "CPU of one core of a replica, at rest", "%", 0),
    ("watch_cpu_ms_per_1000", "CPU of a replica for 1,000 changes of Nodes", "ms", 0),
    (
        "watch_server_cpu_ms_per_1000",
        "CPU of the API server for them, the writes included",
        "ms",
        0,
    ),
    ("stall_ms", "slowest answer of /healthz, a list of the nodes among it", "ms", 0),
]

Figures = dict[str, float]


def main() -> int:
    text = os.environ.get("BENCH_NODES", "")
    try:
        sizes = sorted(int(size) for size in text.split(",")) if text else list(SIZES)
    except ValueError:
        sys.stderr.write(f"BENCH_NODES={text!r}: expected numbers of nodes, as in 10000,50000\n")
        return 2
    if sizes[0] < AGENTS:
        sys.stderr.write(f"BENCH_NODES={text!r}: expected {AGENTS} nodes or more\n")
        return 2
    seconds = small.seconds("BENCH_SECONDS", 60.0, 0.3)
    start_quickly()
    figures: dict[str, float | int | str] = {
        key: value for key, value in read("nodes").items() if key.rpartition("_")[2].isdigit()
    }
    try:
        with _plane() as (plane, folder):
            made: list[str] = []
            for size in sizes:
                made += _create(plane, size - len(made), start=len(made))
                found = _measure(plane, folder / str(size), made, seconds)
                figures |= {f"{key}_{size}": value for key, value in found.items()}
                figures |= {"nodes": size, **found}
    finally:  # figures of the sizes before one failed took minutes: keep them
        path = write("nodes", figures)
        print(table(f"bench-nodes: {path}", _rows(figures)), flush=True)
    return 0


def _rows(figures: dict[str, float | int | str]) -> list[tuple[str, str, str]]:
    rows = []
    for key, what, unit, aim in ROWS:
        if key in figures:
            measured = f"{figures[key]:,} {unit}".strip()
            rows.append((f"{what} ({key})", measured, f"{aim:,} {unit}".strip() if aim else ""))
    return rows


@contextmanager
def _plane() -> Iterator[tuple[ControlPlane, Path]]:
    """Without controllers: those annotate each Node anew, for minutes after many were made."""
    with (
        in_memory() as memory,
        planes.plane(
            folder=memory / "plane", kwok=False, scheduler=False, controller_manager=False
        ) as plane,
    ):
        install(plane)
        yield plane, memory


def _create(plane: ControlPlane, count: int, *, start: int) -> list[str]:
    began = time.monotonic()
    names = plane.create_nodes(count, "gpu", start=start, labels=LABELS, annotations=ANNOTATIONS)
    spent = time.monotonic() - began
    print(f"bench-nodes: {start + count:,} nodes, in {spent:.0f} s", file=sys.stderr, flush=True)
    return names


def _measure(plane: ControlPlane, folder: Path, nodes: Sequence[str], seconds: float) -> Figures:
    """All figures at this size."""
    figures = asyncio.run(_client(plane, nodes))
    plane.request("DELETE", _RECORD)
    more = {**LIFTED, **TRUSTING_TLS}
    with Replicas(plane, folder / "replicas", count=REPLICAS, more=more) as replicas:
        began = time.monotonic()
        for replica in replicas.replicas.values():
            replica.start()
        _until_it_acts(replicas)
        figures["start_to_act_s"] = round(time.monotonic() - began, 1)
        where: list[str | Path] = ["--aggregator", replicas.address]
        where += ["--ca-file", replicas.authority.certificate]
        (folder / "crowd").mkdir()
        with Crowd(folder / "crowd", where, before=replicas.before) as crowd:
            chosen = random.Random(len(nodes)).sample(list(nodes), AGENTS)
            crowd.come(chosen)
            figures |= _at_rest(plane, replicas, nodes, seconds)
            trials = Trials(plane, crowd, chosen)
            trials.singles(WARM)
            figures["taint_p50_ms"] = round(median(trials.singles(FAULTS)), 1)
            trials.until_quiet()
        one = replicas.replicas[replicas.controller()]
        one.kill()
        began = time.monotonic()
        one.start()
        _until_it_acts(replicas)
        figures["restart_to_act_s"] = round(time.monotonic() - began, 1)
    _clean(plane)
    return figures


def _until_it_acts(replicas: Replicas) -> None:
    controller = replicas.until_served(timeout_s=PATIENCE)
    wait_until(
        lambda: bool(replicas.metrics(controller).get("sickbay_view_up")),
        what=lambda: f"the controller to act: {replicas.standings()}",
        timeout_s=PATIENCE,
        every_s=0.25,
    )


def _at_rest(
    plane: ControlPlane, replicas: Replicas, nodes: Sequence[str], seconds: float
) -> Figures:
    controller = replicas.controller()
    by_name = {
        name: psutil.Process(replica.process.pid)
        for name, replica in replicas.replicas.items()
        if replica.process is not None
    }
    processes = list(by_name.values())
    with _Stalls(replicas) as stalls:
        # Each replica lists the nodes every three minutes; after a gain of nodes it lists at once.
        before = [_cpu(process) for process in processes]
        began = time.monotonic()
        time.sleep(seconds)
        spent = time.monotonic() - began
        idle = [(_cpu(p) - b) / spent for p, b in zip(processes, before, strict=True)]
        rss = {name: process.memory_info().rss / _MIB for name, process in by_name.items()}
    peak = [_peak_mib(process.pid) for process in processes]
    written, server, each = _writes(plane, processes, nodes, idle)
    return {
        "rss_mib_per_replica": round(max(rss.values())),
        "gateway_rss_mib": round(max(mib for name, mib in rss.items() if name != controller)),
        "rss_peak_mib_per_replica": round(max(peak)),
        "idle_cpu_percent": round(100 * max(idle), 1),
        "watch_cpu_ms_per_1000": round(1e6 * each / written),
        "watch_server_cpu_ms_per_1000": round(1e6 * server / written),
        "stall_ms": round(1000 * max(stalls.seconds)),
    }


def _writes(
    plane: ControlPlane, processes: list[psutil.Process], nodes: Sequence[str], idle: list[float]
) -> tuple[int, float, float]:
    """Changes of Nodes as kubelets make them: how many, CPU seconds of the server, of a replica."""
    apiserver = psutil.Process(plane.apiserver.pid)
    before, server = [_cpu(process) for process in processes], _cpu(apiserver)
    began, written = time.monotonic(), 0
    while time.monotonic() - began < WRITES_S:
        name = nodes[written % len(nodes)]
        change = {"metadata": {"annotations": {"sickbay.test/heartbeat": str(written)}}}
        plane.call("PATCH", f"/api/v1/nodes/{name}", change, MERGE_PATCH)
        written += 1
    spent = time.monotonic() - began
    each = [
        _cpu(process) - then - share * spent
        for process, then, share in zip(processes, before, idle, strict=True)
    ]
    return written, _cpu(apiserver) - server, max(0.0, *each)


class _Stalls:
    """Asks each replica's /healthz all the time, over a connection that stays open."""

    def __init__(self, replicas: Replicas) -> None:
        self.seconds: list[float] = []
        self._replicas = replicas
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(name,), daemon=True)
            for name in replicas.running
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, name: str) -> None:
        replica = self._replicas.replicas[name]
        trust = ssl.create_default_context(cafile=str(self._replicas.authority.certificate))
        page = http.client.HTTPSConnection(
            replica.host, replica.web_port, context=trust, timeout=60
        )
        page.connect()
        while not self._over.wait(0.02):
            began = time.monotonic()
            page.request("GET", "/healthz")
            page.getresponse().read()
            self.seconds.append(time.monotonic() - began)
        page.close()


async def _client(plane: ControlPlane, nodes: Sequence[str]) -> Figures:
    """One list, and admissions, by the aggregator's client and rights, in this process."""
    kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, "sickbay-aggregator")
    most = LIFTED["cluster"]
    cluster = KubeCluster(
        kubeconfig=str(kubeconfig), qps=most["requests_per_second"], burst=most["burst"]
    )
    apiserver = psutil.Process(plane.apiserver.pid)
    await cluster.start()
    try:
        while len(await cluster.list_nodes()) < len(nodes):  # the server's cache follows the copies
            pass
        server, own, began = _cpu(apiserver), time.process_time(), time.monotonic()
        metas = await cluster.list_nodes()
        listed = {
            "list_s": round(time.monotonic() - began, 2),
            "list_cpu_s": round(time.process_time() - own, 2),
            "list_server_cpu_s": round(_cpu(apiserver) - server, 2),
        }
        assert len(metas) == len(nodes), f"{len(metas)} of {len(nodes)} nodes listed"
        return listed | await _admissions(cluster, metas)
    finally:
        await cluster.close()


async def _admissions(cluster: KubeCluster, metas: list[NodeMeta]) -> Figures:
    """All nodes have reported. Each admission waits for its own write of the record."""
    registry = NodeRegistry(FleetState(), "")
    registry.listed(metas)
    for meta in metas:
        node_state = registry.node_state(meta.name)
        node_state.agent.health = NodeHealth(hello(meta.name))
        node_state.agent.health.snapshot(snapshot())
        registry.count(node_state.node)
    assert registry.size().reported == len(metas)
    writer = record_writer_of(
        cluster,
        limits=Limits(
            concurrent=1000,
            concurrent_percent=100.0,
            new_per_window=1000,
            new_per_window_percent=100.0,
        ),
        size=registry.size,
        wall=time.time,
    )
    await writer.read()
    took, own = [], 0.0
    for number, meta in enumerate(metas[: ADMISSIONS + WARM]):
        began, cpu = time.monotonic(), time.process_time()
        held = await writer.propose(Proposal(meta.name, f"{number:016x}", ""))
        assert held is None, held
        if number >= WARM:
            took.append(1000 * (time.monotonic() - began))
            own += time.process_time() - cpu
    return {
        "admission_ms": round(median(took), 2),
        "admission_p99_ms": round(percentile(took, 99), 2),
        "admission_cpu_ms": round(1000 * own / ADMISSIONS, 2),
    }


def _clean(plane: ControlPlane) -> None:
    """The next size begins without Quarantines and marks."""
    paths = "/apis/sickbay.dev/v1alpha1/quarantines"
    for item in plane.call("GET", paths)["items"]:
        name = item["metadata"]["name"]
        plane.call("PATCH", f"{paths}/{name}", {"metadata": {"finalizers": []}}, MERGE_PATCH)
        plane.request("DELETE", f"{paths}/{name}")
        plane.delete_nodes([name])
        plane.create_nodes(
            1,
            name.rpartition("-")[0],
            start=int(name.rpartition("-")[2]),
            labels=LABELS,
            annotations=ANNOTATIONS,
        )
    plane.request("DELETE", _RECORD)
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    for item in plane.call("GET", leases)["items"]:
        plane.request("DELETE", f"{leases}/{item['metadata']['name']}")


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main())
