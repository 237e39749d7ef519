"""The whole of sickbay on a real control plane: aggregator and agent processes, TLS, tokens.

with Stack(plane, tmp_path) as stack:
    stack.aggregator.start()
    node = stack.agent("node-0")
    node.xid(79)
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from aggregator.demo.ports import free_port
from tests.agent.agent_process import QUIET, AgentProcess
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.aggregator_program import AGGREGATOR
from tests.support.attempts import attempts_of
from tests.support.fork_server import start_program
from tests.support.pki import Authority
from tests.support.text_files import text_file
from tests.support.yaml_documents import read_yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
NAMESPACE = "sickbay"
TAINT = "sickbay.dev/quarantine"
HAS_AGENT = "sickbay.test/agent"

#: Incidents that end as soon as they may: tests turn no clocks of real processes.
QUICK_POLICY = """
rules:
  - {name: gpu-gone, healthyFor: 1s}
  - {name: gpu-fatal, healthyFor: 1s}
  - {name: disk-full, for: 0s, healthyFor: 1s}
"""


#: The agents' DaemonSet, on the nodes that a test gives agents to. Its pods are what tokens are
#: bound to; the processes are started by the test.
AGENTS = f"""
apiVersion: v1
kind: ServiceAccount
metadata: {{name: sickbay-agent, namespace: {NAMESPACE}}}
automountServiceAccountToken: false
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: sickbay-agent, namespace: {NAMESPACE}}}
spec:
  selector: {{matchLabels: {{app: sickbay-agent}}}}
  template:
    metadata: {{labels: {{app: sickbay-agent}}}}
    spec:
      serviceAccountName: sickbay-agent
      nodeSelector: {{{HAS_AGENT}: "true"}}
      tolerations: [{{operator: Exists}}]
      containers: [{{name: agent, image: "example.test/agent:1"}}]
"""

_JOB = """
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  parallelism: {pods}
  completions: {pods}
  backoffLimit: 1000
  template:
    metadata: {{labels: {{job: {name}}}}}
    spec:
      restartPolicy: Never
      nodeSelector: {{kubernetes.io/hostname: {node}}}
      containers: [{{name: rank, image: "example.test/rank:1"}}]
"""


def install(plane: ControlPlane) -> None:
    """The objects of a fresh install by `kubectl apply`, with a DaemonSet of the tests' own."""
    plane.apply(MANIFESTS / "crd.yaml")
    plane.apply(MANIFESTS / "aggregator-rbac.yaml")
    plane.apply(AGENTS)


def start_job(plane: ControlPlane, namespace: str, name: str, node: str, *, pods: int = 2) -> None:
    """A training job on one node, running. Evicted ranks wait for the node to be schedulable."""
    plane.apply(_JOB.format(name=name, namespace=namespace, node=node, pods=pods))

    def running() -> bool:
        phases = [pod["status"].get("phase") for pod in pods_of(plane, namespace, node)]
        return phases.count("Running") >= pods

    wait_until(running, what=f"job {name} to run on {node}", timeout_s=30)


def pods_of(plane: ControlPlane, namespace: str, node: str) -> list[dict[str, Any]]:
    """The pods of a namespace on a node."""
    path = f"/api/v1/namespaces/{namespace}/pods?fieldSelector=spec.nodeName%3D{node}"
    items: list[dict[str, Any]] = plane.call("GET", path)["items"]
    return items


def protect(plane: ControlPlane, namespace: str, job: str, available: int) -> None:
    """A disruption budget over the job's pods, counted by the controllers."""
    plane.apply(
        f"""
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: {job}, namespace: {namespace}}}
spec: {{minAvailable: {available}, selector: {{matchLabels: {{job: {job}}}}}}}
"""
    )
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{job}"

    def counted() -> bool:
        status = plane.call("GET", path).get("status", {})
        return bool(status.get("observedGeneration")) and status["desiredHealthy"] == available

    wait_until(counted, what="the budget to be counted")


def remove_quarantines(plane: ControlPlane, prefix: str) -> None:
    """Finalizers keep none: the aggregator, which would undo the marks, has gone."""
    plane.delete_from_storage(f"sickbay.dev/quarantines/{prefix}")
    plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-record")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one replica of several listens: an address of loopback, and whose certificate it has.

    ``names`` are what its certificate covers beside ``host`` and localhost.
    """

    host: str
    port: int
    web_port: int
    authority: Authority
    names: tuple[str, ...] = ()


class AggregatorProcess:
    """The real aggregator, with a service account's own rights, killed and started at will."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *,
        more: Mapping[str, Any],
        policy: str = QUICK_POLICY,
        place: Place | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if place is None:
            authority = Authority.create(folder / "pki")
            place = Place("127.0.0.1", free_port(), free_port(), authority)
        self.folder = folder
        self.host = place.host
        self.port = place.port
        self.web_port = place.web_port
        self.authority = place.authority
        self.log_path = folder / "aggregator.log"
        self._log_begins = 0
        self.process: subprocess.Popen[bytes] | None = None
        hosts = dict.fromkeys(["localhost", "127.0.0.1", place.host, *place.names])
        pair = self.authority.server(f"aggregator-{place.host}", list(hosts))
        (folder / "policy.yaml").write_text(policy)
        kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, "sickbay-aggregator")
        config: dict[str, Any] = {
            "mode": "drain",
            "cluster": {"kind": "kubernetes", "kubeconfig": str(kubeconfig)},
            "listen": {
                "grpc": f"{self.host}:{self.port}",
                "web": f"{self.host}:{self.web_port}",
                "tls": {"cert_file": str(pair.certificate), "key_file": str(pair.key)},
            },
            "identity": {"kind": "token", "keys_cache": str(folder / "jwks.json")},
            "limits": {
                "quorum_percent": "0%",
                "concurrent": 1000,
                "concurrent_percent": "100%",
                "new_per_window": 5000,
                "new_per_window_percent": "100%",
                "common_cause_percent": "100%",
                "common_cause_nodes": 5000,
                "domain_percent": "100%",
            },
            "policy": {"file": str(folder / "policy.yaml")},
            "history": {"database": f"sqlite:///{folder / 'history.db'}"},
            "alerts": {"outbox": str(folder / "outbox.db")},
        }
        for key, value in more.items():
            section = config.get(key)
            config[key] = {**section, **value} if isinstance(section, dict) else value
        if config["identity"]["kind"] == "certificate":
            config["listen"]["tls"]["client_ca_file"] = str(self.authority.certificate)
        self.config = folder / "aggregator.yaml"
        self.config.write_text(yaml.safe_dump(config))

    @property
    def address(self) -> str:
        host = "localhost" if self.host == "127.0.0.1" else self.host
        return f"{host}:{self.port}"

    def goes_by(self, way: Callable[[Path], Path]) -> None:
        """From its next start it uses what ``way`` makes of its kubeconfig."""
        config = read_yaml(self.config.read_text())
        cluster = config["cluster"]
        cluster["kubeconfig"] = str(way(Path(cluster["kubeconfig"])))
        self.config.write_text(yaml.safe_dump(config))

    def start(self) -> Self:
        with self.log_path.open("ab") as log:
            self.process = start_program(AGGREGATOR, ["--config", self.config], output=log)
        return self

    def ready(self, *, timeout_s: float = 90) -> Self:
        """Wait until it has its view of the cluster and listens."""
        self.wait_for_log('"connected to the cluster"', timeout_s=timeout_s)

        def listens() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            with socket.socket() as probe:
                return probe.connect_ex((self.host, self.port)) == 0

        wait_until(listens, what="the aggregator's port", timeout_s=timeout_s)
        return self

    def wait_for_log(self, text: str, *, timeout_s: float = 30) -> None:
        def said() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            return text in self.log()

        wait_until(said, what=f"{text} in its log", timeout_s=timeout_s)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)

    def close(self) -> None:
        if self.running:
            self.kill()

    def begin_log(self) -> None:
        """From now on `log` has none of what was logged before: another test has seen that."""
        self._log_begins = self.log_path.stat().st_size if self.log_path.exists() else 0

    def log(self) -> str:
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(self._log_begins)
            return log.read().decode()


class NodeAgent(AgentProcess):
    """A real agent that stands for one node, with a token bound to a pod on it."""

    def __init__(
        self,
        stack: "Stack",
        node: str,
        folder: Path,
        *,
        more: str = QUIET,
        replayable: bool = False,
    ) -> None:
        super().__init__(
            folder, aggregator=stack.aggregator.address, more=more, replayable=replayable
        )
        self.node = node
        token = text_file(folder / "token", stack.token(node))
        ca = stack.aggregator.authority.certificate
        self.uplink = f'ca_file = "{ca}"\ntoken_file = "{token}"\n'

    def reads_the_real_kernel_log(self) -> None:
        """From now on: earlier records in the ring are history, and root's own lines count."""
        self.kernel_log = "/dev/kmsg"
        self.more_kernel_log = "insecure_accept_user_records = true"

    def keep_in_memory(self, folder: Path) -> None:
        """From now on: the node's files in memory (/run, the pipe that takes the log) are there."""
        folder.mkdir()
        self.run_dir = folder / "run"
        self.socket = self.run_dir / "agent.sock"
        self.log_path = folder / "agent.log"

    def results(self) -> Any:
        """The results that it would show a person who asks it, or None while it does not answer."""
        try:
            status, body = self._ask("/v1/results", "GET", "")
        except OSError:
            return None
        return json.loads(body) if status == 200 else None

    def write_config(self) -> None:
        super().write_config()
        text = self.config.read_text().replace('node = "node-a"', f'node = "{self.node}"')
        if self.kernel_log == "/dev/kmsg":
            text = text.replace('boot_grace = "3650d"', 'boot_grace = "1s"')
        self.config.write_text(text)


class Stack:
    """One aggregator and any number of agents, all ended at the end."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *,
        more: Mapping[str, Any] | None = None,
        policy: str = QUICK_POLICY,
    ) -> None:
        self.plane = plane
        self.folder = folder
        self.agents: list[NodeAgent] = []
        install(plane)
        self.aggregator = AggregatorProcess(
            plane, folder / "aggregator", more=more or {}, policy=policy
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if error is not None:
            sys.stderr.write(self.aggregator.log()[-6000:])
            for agent in self.agents:
                sys.stderr.write(agent.log()[-2000:])
        self.end_agents()
        self.aggregator.close()

    def end_agents(self) -> None:
        """Kill and forget all agents."""
        while self.agents:
            self.agents.pop().close()

    def token(self, node: str) -> str:
        """A token as the kubelet of the node would project it into the agent's pod."""
        label = {"metadata": {"labels": {HAS_AGENT: "true"}}}
        body = json.dumps(label).encode()
        self.plane.request("PATCH", f"/api/v1/nodes/{node}", body, MERGE_PATCH)
        pods = wait_until(
            lambda: pods_of(self.plane, NAMESPACE, node), what=f"an agent's pod on {node}"
        )
        pod = pods[0]["metadata"]["name"]
        return self.plane.token_for(NAMESPACE, "sickbay-agent", "sickbay", pod=pod)

    def agent(
        self, node: str, *, more: str = QUIET, start: bool = True, replayable: bool = False
    ) -> NodeAgent:
        """``replayable``: a kernel log that can be read again, as the kernel's own ring can."""
        folder = self.folder / node
        folder.mkdir(parents=True)
        agent = NodeAgent(self, node, folder, more=more, replayable=replayable)
        self.agents.append(agent)
        if start:
            agent.start()
            self.attached(agent)
        return agent

    def attached(self, agent: NodeAgent) -> None:
        wait_until(
            lambda: '"stream to the aggregator opened"' in agent.log(),
            what=f"{agent.node} streaming",
            timeout_s=30,
        )

    # -- what the cluster shows --------------------------------------------------------

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.node(name)
        return found

    def taint(self, name: str) -> str | None:
        """The value of our taint on the node."""
        taints = self.node(name)["spec"].get("taints", [])
        return next((taint["value"] for taint in taints if taint["key"] == TAINT), None)

    def quarantine(self, name: str) -> dict[str, Any] | None:
        answer = self.plane.request("GET", f"/apis/sickbay.dev/v1alpha1/quarantines/{name}")
        body: dict[str, Any] | None = answer.body
        return body if answer.status == 200 else None

    def attempts(self, name: str) -> list[dict[str, Any]]:
        """The operations of the node's quarantine that have begun, oldest first."""
        uid = (self.quarantine(name) or {}).get("metadata", {}).get("uid")
        return attempts_of(self.plane).get(uid, [])

    def phase(self, name: str) -> str | None:
        quarantine = self.quarantine(name)
        return quarantine.get("status", {}).get("phase") if quarantine is not None else None

    def until_phase(self, name: str, phase: str | None, *, timeout_s: float = 30) -> None:
        wait_until(
            lambda: self.phase(name) == phase, what=f"{name} to be {phase}", timeout_s=timeout_s
        )

    def until(self, probe: Callable[[], object], what: str, *, timeout_s: float = 30) -> None:
        wait_until(lambda: bool(probe()), what=what, timeout_s=timeout_s)


def write_real_kmsg(text: str) -> None:
    """One record to the real kernel log; reopened each time: its ratelimit is per descriptor."""
    descriptor = os.open("/dev/kmsg", os.O_WRONLY)
    try:
        os.write(descriptor, f"<12>{text}\n".encode())
    finally:
        os.close(descriptor)
