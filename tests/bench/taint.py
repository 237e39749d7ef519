"""From a line in the kernel log to the taint, seen through a watch on the real API server.

One aggregator, one real agent at a time, TLS and tokens, the real /dev/kmsg. Each trial is a node
of its own with a job of two pods on it. The control plane's own files are in memory, for etcd's
disk is not a node's; so are the agent's /run, which is a tmpfs on a node, and the logs, which are
pipes there. All else of agent and aggregator is on the disk that is made busy. Run by
`make bench-taint`; BENCH_TRIALS sets the trials.

After each trial the same requests are sent alone, to a control plane of their own: the record, the
Quarantine, the read and the patch of the node, until a watch sees the taint. That is the least time
that this machine needs at that moment.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Self

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import UNGUARDED, Node
from aggregator.quarantine.decide.admission_record import Entry, Record, dump_record
from tests.bench import planes
from tests.bench.figures import percentile, table, write
from tests.bench.limit import expected_nodes, quarantine
from tests.bench.parts import plane_in_memory
from tests.bench.planes import in_memory
from tests.bench.small import number, small_or, start_quickly
from tests.bench.trials import until_rest
from tests.bench.watcher import Watcher, marked
from tests.controlplane.plane import ControlPlane
from tests.support.stack import HAS_AGENT, NAMESPACE, Stack, start_job, write_real_kmsg

#: A real cluster's TTL controller annotates each node; here it does not run.
_ANNOTATIONS = {"node.alpha.kubernetes.io/ttl": "0"}
#: The first trials load libraries; they are no part of the figures.
WARM = small_or(0, 5)
#: Writes and syncs without end. A megabyte at a time: with sixteen it moves 6 GB/s on a fast disk,
#: and the figure would measure the memory's bandwidth.
_BUSY = """
import os, sys
f = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
block = os.urandom(1 << 20)
while True:
    os.pwrite(f, block, 0)
    os.fsync(f)
"""


@contextlib.contextmanager
def busy_disk(folder: Path) -> Iterator[None]:
    """A process that syncs to the disk under ``folder`` while it lasts."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY, str(folder / "busy")])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _evicted(line: bytes) -> list[str]:
    event = json.loads(line)
    pod = event["object"]
    going = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
    return [pod["metadata"]["name"]] if going else []


class Bench:
    """Trials on one plane with one aggregator."""

    def __init__(self, plane: ControlPlane, stack: Stack, namespace: str, memory: Path) -> None:
        self._plane = plane
        self._memory = memory
        self._stack = stack
        self._namespace = namespace
        self._taints = Watcher(plane, "/api/v1/nodes?watch=true", marked)
        self._pods = Watcher(plane, f"/api/v1/namespaces/{namespace}/pods?watch=true", _evicted)

    def trial(self, node: str) -> tuple[float, float]:
        """Milliseconds to the taint, and to the last evicted pod."""
        path = f"/api/v1/namespaces/{self._namespace}/pods?labelSelector=job%3D{node}"
        start_job(self._plane, self._namespace, node, node)
        pods = [pod["metadata"]["name"] for pod in self._plane.call("GET", path)["items"]]
        agent = self._stack.agent(node, start=False)
        agent.reads_the_real_kernel_log()
        agent.keep_in_memory(self._memory / node)
        agent.start()
        self._stack.attached(agent)
        time.sleep(1.0)  # its first looks are over: a trial is of a steady agent
        begun = time.monotonic()
        write_real_kmsg(f"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=bench, trial {node}")
        tainted = self._taints.when(node)
        evicted = max(self._pods.when(pod) for pod in pods)
        agent.close()
        self._stack.agents.remove(agent)
        self._end_job(node)
        return (tainted - begun) * 1000, (evicted - begun) * 1000

    def _end_job(self, name: str) -> None:
        """Its ranks wait for a node for ever, and the scheduler tries them at each node's change.

        Here that work is on the two cores that a later trial is measured on, and grows with them.
        """
        path = f"/apis/batch/v1/namespaces/{self._namespace}/jobs/{name}"
        self._plane.call("DELETE", f"{path}?propagationPolicy=Background")


class RequestsAlone:
    """The requests of one quarantine by the aggregator's own client, without an aggregator."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._taints = Watcher(plane, "/api/v1/nodes?watch=true", marked)
        self._runner = asyncio.Runner()
        self._record = Record()
        self._expected: dict[str, Node] = {}
        self._cluster: KubeCluster | None = None

    def __enter__(self) -> Self:
        account = self._plane.kubeconfig_for_service_account(NAMESPACE, "sickbay-aggregator")
        self._runner.run(self._start(str(account)))
        return self

    async def _start(self, kubeconfig: str) -> None:
        self._cluster = KubeCluster(kubeconfig=kubeconfig)
        await self._cluster.start()
        self._stored = await self._cluster.read_record()

    def trial(self, node: str) -> float:
        """Milliseconds from the first request to the taint."""
        begun = time.monotonic()
        self._runner.run(self._send(node))
        return (self._taints.when(node) - begun) * 1000

    async def _send(self, node: str) -> None:
        assert self._cluster is not None
        entry = Entry(node, "0123456789abcdef", "", time.time())
        self._record = replace(self._record, entries={**self._record.entries, node: entry})
        text = dump_record(self._record)
        self._stored = await self._cluster.write_record(text, self._stored.version, guard=UNGUARDED)
        if node not in self._expected:  # the nodes are made after the client has started
            self._expected = await expected_nodes(self._cluster)
        await quarantine(self._cluster, self._expected[node])

    def __exit__(self, *_: object) -> None:
        if self._cluster is not None:
            self._runner.run(self._cluster.close())
        self._runner.close()


def main() -> None:
    trials = number("BENCH_TRIALS", 100, 1)
    start_quickly()
    namespace = "bench"
    with (
        tempfile.TemporaryDirectory(prefix="sickbay-bench-", ignore_cleanup_errors=True) as folder,
        in_memory() as memory,
        planes.plane(folder=memory / "plane") as plane,
        plane_in_memory() as (apart, _),
        RequestsAlone(apart) as requests,
    ):
        plane.create_namespace(namespace)
        # Before the aggregator lists them: limits are shares of the nodes that it knows.
        # With the label of an agent's pod: a node whose labels have changed since the last list is
        # read before it is marked.
        labels = {HAS_AGENT: "true"}
        calm = plane.create_nodes(trials + WARM, "quiet", labels=labels, annotations=_ANNOTATIONS)
        beside = plane.create_nodes(
            max(1, trials // 2), "busy", labels=labels, annotations=_ANNOTATIONS
        )
        free = apart.create_nodes(trials + WARM, "alone", annotations=_ANNOTATIONS)
        # A node that a controller changes later would differ from what the aggregator has listed.
        for one in (plane, apart):
            until_rest(one)
        with Stack(plane, Path(folder)) as stack:
            stack.aggregator.log_path = memory / "aggregator.log"
            stack.aggregator.start().ready()
            bench = Bench(plane, stack, namespace, memory)
            pairs = [
                (bench.trial(node), requests.trial(alone))
                for node, alone in zip(calm, free, strict=True)
            ]
            quiet, limits = [ours for ours, _ in pairs[WARM:]], [alone for _, alone in pairs[WARM:]]
            with busy_disk(Path(folder)):
                busy = [bench.trial(node) for node in beside]
    taints = [taint for taint, _ in quiet]
    figures: dict[str, float | int | str] = {
        "taint_p50_ms": round(median(taints), 1),
        "taint_p99_ms": round(percentile(taints, 99), 1),
        "limit_p50_ms": round(median(limits), 1),
        "limit_p99_ms": round(percentile(limits, 99), 1),
        "beyond_p50": round(median(taints) / median(limits), 2),
        "evicted_p50_ms": round(median([evicted for _, evicted in quiet]), 1),
        "taint_busy_disk_p50_ms": round(median([taint for taint, _ in busy]), 1),
        "taint_busy_disk_p99_ms": round(percentile([taint for taint, _ in busy], 99), 1),
        "trials": trials,
    }
    path = write("taint", figures)
    rows = [
        ("kernel line to taint, p50", f"{figures['taint_p50_ms']} ms", "20 ms"),
        ("p99", f"{figures['taint_p99_ms']} ms", "45 ms"),
        ("the same requests alone, p50", f"{figures['limit_p50_ms']} ms", "-"),
        ("p99", f"{figures['limit_p99_ms']} ms", "-"),
        ("kernel line to taint, as a ratio to these", f"{figures['beyond_p50']}", "1.2"),
        ("kernel line to last evicted pod, p50", f"{figures['evicted_p50_ms']} ms", "-"),
        ("beside a busy disk, p50", f"{figures['taint_busy_disk_p50_ms']} ms", "-"),
        ("beside a busy disk, p99", f"{figures['taint_busy_disk_p99_ms']} ms", "60 ms"),
        ("trials", str(trials), "100"),
    ]
    print(table(f"bench-taint: {path}", rows))


if __name__ == "__main__":
    main()
