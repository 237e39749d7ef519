"""deploy/examples/notice on a real API server: objects, rights, and scripts as processes.

The frameworks are stand-ins: a trainer, torchrun with two ranks and a torch of this test, the `ray`
command, and vLLM's metrics. The kubelet's file of annotations is written from the real pod.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.events import EventKind
from aggregator.jobs.notice import READY, REQUESTED
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_kube_drain import aggregator, until, with_notices
from tests.support.yaml_documents import read_yaml

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples" / "notice"
LEFT_WORK = 75
TRAINER = """
import signal, sys, time
from pathlib import Path
def save(*_):
    Path(sys.argv[1]).write_text("saved")
    sys.exit(75)
signal.signal(signal.SIGUSR1, save)
Path(sys.argv[1]).with_suffix(".ready").touch()
while True:
    time.sleep(1)
"""
#: Two ranks on this machine; each collective is a file of each rank.
TORCH = """
import itertools, os, time
from pathlib import Path
from types import SimpleNamespace
cuda = SimpleNamespace(is_available=lambda: False)
numbers = itertools.count()
class tensor:
    def __init__(self, values, device=None):
        self.values = list(values)
    def item(self):
        return self.values[0]
def exchanged(value):
    number, folder, rank = next(numbers), Path(os.environ["RANKS"]), os.environ["RANK"]
    (folder / f"{number}-{rank}.new").write_text(str(value))
    (folder / f"{number}-{rank}.new").rename(folder / f"{number}-{rank}")
    files = [folder / f"{number}-{one}" for one in "01"]
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    return [int(file.read_text()) for file in files]
"""
DISTRIBUTED = """
import os
from types import SimpleNamespace
import torch
ReduceOp = SimpleNamespace(MAX=max)
def init_process_group(backend):
    assert backend == "gloo"
def get_rank():
    return int(os.environ["RANK"])
def broadcast(tensor, src):
    tensor.values[0] = torch.exchanged(tensor.values[0])[src]
def all_reduce(tensor, op):
    tensor.values[0] = op(torch.exchanged(tensor.values[0]))
def barrier():
    torch.exchanged(0)
destroy_process_group = lambda: None
"""
TORCHRUN = """
import os, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, sys.argv[2]], env=os.environ | {"RANK": str(rank)})
    for rank in range(2)
]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""
#: The first list of actors has one that is alive.
RAY = """
import json, os, sys
from pathlib import Path
folder = Path(os.environ["RAY_CALLS"])
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1:3] == ["list", "nodes"]:
    print(json.dumps([{"node_id": "b4d", "state": "ALIVE"}]))
if sys.argv[1:3] == ["list", "actors"]:
    seen = folder / "actors"
    there = json.dumps([{"actor_id": "a", "state": "ALIVE"}])
    print("No resource in the cluster\\n" if seen.exists() else there)
    seen.touch()
"""


@dataclass
class Frameworks:
    """A folder of stand-ins, and the processes that the test has started."""

    folder: Path
    metrics: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, text in (("torchrun", TORCHRUN), ("ray", RAY)):
            self._file(f"bin/{name}", f"#!{sys.executable}\n{text}").chmod(0o755)
        self._file("lib/torch/__init__.py", TORCH)
        self._file("lib/torch/distributed.py", DISTRIBUTED)
        self._file("train.py", TRAINER)
        (self.folder / "ranks").mkdir()

    def _file(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def start(self, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        own = {
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder / "lib"),
            "RANKS": str(self.folder / "ranks"),
            "CHECKPOINTS": str(self.folder),
            "LEFT_FILE": str(self.folder / "left"),
            "BACKEND": "gloo",
            "NOTICE_EVERY": "0.2",
            "RAY_CALLS": str(self.folder),
            "RAY_HEAD": "tune-head-svc",
            "POD_IP": "10.0.0.7",
            "VLLM_METRICS": self.metrics,
        }
        process = subprocess.Popen(command, env=own | environment, start_new_session=True)
        self.started.append(process)
        return process

    def stop(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


class _Metrics(BaseHTTPRequestHandler):
    """vLLM's metrics: one request is left at the first read."""

    left = 1.0

    def do_GET(self) -> None:
        text = (
            f'vllm:num_requests_running{{model_name="m"}} {_Metrics.left}\n'
            'vllm:num_requests_waiting{model_name="m"} 0.0\n'
        )
        _Metrics.left = 0.0
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """No line for each request."""


@pytest.fixture
def frameworks(tmp_path: Path) -> Iterator[Frameworks]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = Frameworks(tmp_path, f"http://127.0.0.1:{server.server_port}/metrics")
    yield made
    made.stop()
    server.shutdown()
    server.server_close()


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = read_yaml((EXAMPLES / name).read_text("utf-8"))
    return found


def placed(template: dict[str, Any], node: str) -> dict[str, Any]:
    """The template with the node that this test drains."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    template["spec"]["affinity"] = {"nodeAffinity": required}
    return template


def create(space: Space, node: str) -> None:
    """Each example as it is shipped. Of the RayCluster a worker, as KubeRay makes it."""
    plane, own = space.plane, space.namespace
    plane.apply(EXAMPLES / "answer-rbac.yaml", namespace=own)
    for name, path in (
        ("checkpoint-job.yaml", f"/apis/batch/v1/namespaces/{own}/jobs"),
        ("torchrun-job.yaml", f"/apis/batch/v1/namespaces/{own}/jobs"),
        ("vllm-deployment.yaml", f"/apis/apps/v1/namespaces/{own}/deployments"),
    ):
        body = example(name)
        placed(body["spec"]["template"], node)
        plane.call("POST", f"{path}?fieldValidation=Strict", body)
    worker = placed(example("ray-cluster.yaml")["spec"]["workerGroupSpecs"][0]["template"], node)
    meta = {"name": "tune-w", "labels": {"ray.io/cluster": "tune", "ray.io/node-type": "worker"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": worker["spec"]}
    plane.call("POST", f"{space.path('pods')}?fieldValidation=Strict", pod)


async def running_pods(space: Space) -> dict[str, dict[str, Any]]:
    """The running pods by the name of their first container."""

    async def read() -> list[dict[str, Any]]:
        answer = await asyncio.to_thread(space.plane.call, "GET", space.path("pods"))
        found: list[dict[str, Any]] = answer["items"]
        return [one for one in found if one["status"].get("phase") == "Running"]

    def name(pod: dict[str, Any]) -> str:
        own: str = pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name", "")
        return own or pod["spec"]["containers"][0]["name"]

    return {name(one): one for one in await until(read, lambda found: len(found) == 4)}


class Kubelet:
    """Writes each pod's annotations where its downward API has them."""

    def __init__(self, space: Space, folder: Path, pods: dict[str, dict[str, Any]]) -> None:
        self._space, self._pods = space, pods
        self.files = {name: folder / f"podinfo-{name}" for name in pods}

    async def write(self) -> None:
        while True:
            for name, pod in self._pods.items():
                path = self._space.path("pods", pod["metadata"]["name"])
                answer = await asyncio.to_thread(self._space.plane.request, "GET", path)
                if answer.status == 200:
                    found = answer.body["metadata"].get("annotations", {})
                    lines = [f"{key}={json.dumps(value)}" for key, value in sorted(found.items())]
                    new = self.files[name].with_suffix(".new")
                    new.write_text("\n".join(lines))
                    new.rename(self.files[name])
            await asyncio.sleep(0.2)

    async def pod_ends(self, name: str, code: int) -> None:
        """As a kubelet reports the end of its container."""
        pod = self._pods[name]
        container = pod["spec"]["containers"][0]
        state = {"terminated": {"exitCode": code, "reason": "Error"}}
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": state,
        }
        path = f"{self._space.path('pods', pod['metadata']['name'])}/status"
        body = {"status": {"phase": "Failed", "containerStatuses": [status]}}
        await asyncio.to_thread(self._space.plane.call, "PATCH", path, body, MERGE_PATCH)


@contextlib.asynccontextmanager
async def writing(kubelet: Kubelet) -> AsyncIterator[None]:
    task = asyncio.create_task(kubelet.write())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def start_all(
    space: Space, frameworks: Frameworks, kubelet: Kubelet, pods: dict[str, dict[str, Any]]
) -> dict[str, subprocess.Popen[bytes]]:
    """The commands of the pods as the manifests have them, with this machine's paths."""
    account = frameworks.folder / "account"
    account.mkdir()
    token = space.plane.token_for(space.namespace, "sickbay-answer", None)
    (account / "token").write_text(token)
    (account / "ca.crt").write_bytes(space.plane.ca_file.read_bytes())
    trainer, saved = str(frameworks.folder / "train.py"), str(frameworks.folder / "checkpoint")
    started = {"checkpoint": frameworks.start([sys.executable, trainer, saved])}
    for name in ("checkpoint", "ray-worker", "vllm"):
        sidecar = pods[name]["spec"]["initContainers"][0]["command"]
        own = {"train.py": trainer}
        words = [own.get(one, one.replace("/sickbay/", f"{EXAMPLES}/")) for one in sidecar]
        words[2:2] = ["--file", str(kubelet.files[name]), "--account", str(account)]
        frameworks.start(
            words,
            POD_NAME=pods[name]["metadata"]["name"],
            POD_NAMESPACE=space.namespace,
            KUBERNETES_SERVICE_HOST="127.0.0.1",
            KUBERNETES_SERVICE_PORT=str(space.plane.port),
        )
    container = pods["torchrun"]["spec"]["containers"][0]
    left = str(frameworks.folder / "left")
    text = container["args"][0].replace("/sickbay/", f"{EXAMPLES}/").replace("/tmp/left", left)
    started["torchrun"] = frameworks.start(
        [*container["command"], text], PODINFO_FILE=str(kubelet.files["torchrun"])
    )
    return started


async def test_each_shipped_example_saves_and_answers(
    kube: KubeCluster, cluster_space: Space, frameworks: Frameworks
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1, gpus=32)
    await asyncio.to_thread(create, space, node)
    pods = await running_pods(space)
    kubelet = Kubelet(space, frameworks.folder, pods)
    async with writing(kubelet):
        processes = await asyncio.to_thread(start_all, space, frameworks, kubelet, pods)
        await until(
            lambda: asyncio.sleep(0, frameworks.folder / "checkpoint.ready"),
            lambda file: file.exists(),
        )
        async with aggregator(kube, space, with_notices(kube, 3600)) as running:
            await running.quarantine_by_hand(node)
            for name, process in processes.items():
                await until(
                    lambda process=process: asyncio.sleep(0, process.poll()),  # type: ignore[misc]
                    lambda code: code is not None,
                )
                assert process.returncode == LEFT_WORK, name
                await kubelet.pod_ends(name, process.returncode)
            await running.until_phase(node, "Drained")
            notices = (await running.status(node))["notices"]
            ended = {one.details["pod"] for one in running.notes.transitions if _is_evicted(one)}
            await running.release(node)
    saved = frameworks.folder
    assert (saved / "checkpoint").read_text() == "saved"
    ranks = [(saved / f"rank-{rank}").read_text() for rank in range(2)]
    assert ranks[0] == ranks[1]  # all left after the same step
    names = {
        f"{space.namespace}/{pods[name]['metadata']['name']}" for name in ("ray-worker", "vllm")
    }
    assert ended == names  # the others had ended by themselves
    answered = [one for one in notices if one["state"] == "Ready"]
    assert {one["message"] for one in answered} == {f"{READY} was set"}
    assert len(answered) == 2
    await _jobs_go_on(space)
    calls = [json.loads(line) for line in (saved / "calls").read_text().splitlines()]
    [drain] = [call for call in calls if call[0] == "drain-node"]
    given = dict(zip(drain[1::2], drain[2::2], strict=True))
    assert (given["--address"], given["--node-id"]) == ("tune-head-svc:6379", "b4d")
    assert given["--reason-message"] == "smells of smoke"
    assert 3000 < int(given["--deadline-remaining-seconds"]) <= 3600
    assert calls[-1][:2] == ["list", "actors"]


def _is_evicted(one: Any) -> bool:
    return bool(one.kind is EventKind.MOVED)


async def _jobs_go_on(space: Space) -> None:
    """No end by a notice counts as a failure of the Job, and a new pod waits for a node."""
    for name in ("checkpoint", "torchrun"):
        base = f"/apis/batch/v1/namespaces/{space.namespace}/jobs/{name}"
        status = await until(
            lambda base=base: asyncio.to_thread(space.plane.call, "GET", base),  # type: ignore[misc]
            lambda found: found["status"].get("active") == 1,
        )
        assert not status["status"].get("failed"), name


def test_the_notice_is_read_as_the_kubelet_writes_it(tmp_path: Path) -> None:
    text = json.dumps({"id": "0" * 16, "reason": 'a "quoted" text\\'})
    (tmp_path / "annotations").write_text(f"a={json.dumps('b')}\n{REQUESTED}={json.dumps(text)}")
    code = "import sys, on_eviction_notice as one; print(one.read_notice(sys.argv[1])['reason'])"
    for file, expected in (("annotations", 'a "quoted" text\\\n'), ("missing", "")):
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path / file],
            cwd=EXAMPLES,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == expected
