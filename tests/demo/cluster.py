"""`make demo-cluster`: the same on a real kube-apiserver, its kubelets played by kwok."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aggregator.demo.news import News
from aggregator.demo.processes import Crew
from aggregator.demo.story import BRISK, LEISURELY, POLICY, Stage
from aggregator.demo.terminal import note, print_line
from tests.controlplane.plane import ControlPlane
from tests.support.simulator import Simulator
from tests.support.stack import Stack, protect, start_job

_TRAINING = "training"

#: Loopback needs no TLS, and a browser would not know our CA. Tokens are the API server's own.
_MORE: dict[str, Any] = {
    "listen": {"tls": None},
    "limits": {"concurrent_percent": "10%", "quorum_percent": "50%"},
}

_INTRODUCTION = """\
sickbay, a demo on a real Kubernetes API server: etcd, kube-apiserver, controllers and scheduler on
loopback. kwok plays the kubelets of {count} nodes of 8 GPUs; simulated agents speak for them, each
with a real token. Waits that take minutes in earnest are cut to seconds. Ctrl-C ends it and leaves
nothing behind.
"""

_WATCH = """
  the page   http://127.0.0.1:{web}/

In other terminals:
  export KUBECONFIG={kubeconfig}
  kubectl get quarantines -w
  kubectl get nodes -w -o custom-columns=\
'NODE:.metadata.name,CORDONED:.spec.unschedulable,TAINTS:.spec.taints[*].value'
  kubectl get pods -n training -o wide -w
  kubectl get events -w
"""


def run(*, count: int, once: bool) -> None:
    """Tell the story, and go on until interrupted; with ``once`` return after it.

    Raises NoControlPlane, PlaneError, ChildEnded, NotSeen, NobodyListens, TimeoutError.
    """
    print_line(_INTRODUCTION.format(count=count))
    with Crew() as crew, ControlPlane(progress=note) as plane:
        nodes = plane.create_nodes(count, "gpu")
        note(f"{count} nodes are created")
        stack = Stack(plane, crew.folder, more=_MORE, policy=POLICY)
        aggregator = stack.aggregator.start()
        assert aggregator.process is not None
        crew.guard(aggregator.process.pid)
        crew.adopt("aggregator", aggregator.process, aggregator.log_path)
        aggregator.ready()
        _start_jobs(plane, nodes)
        simulator = _start_agents(crew, stack, nodes)
        news = News(f"127.0.0.1:{aggregator.web_port}", crew.check)
        news.until(
            lambda: news.get("/api/v1/fleet")["attached"] == count, f"{count} agents attached"
        )
        note(f"{count} agents are attached, each with a token bound to its pod")
        print_line(_WATCH.format(web=aggregator.web_port, kubeconfig=plane.kubeconfig))
        stage = Stage(news, simulator.inject, BRISK if once else LEISURELY)
        _run_story(stage, plane, nodes)
        if not once:
            print_line()
            note("That was the story. It goes on as long as you look; Ctrl-C ends it.")
            stage.go_on()


def _run_story(stage: Stage, plane: ControlPlane, nodes: list[str]) -> None:
    pace, news = stage.pace, stage.news
    sick, guarded, busy, full, *rest = nodes
    news.rest(pace.first)
    stage.fault_drains(sick)
    news.rest(pace.between)
    budget = f"/apis/policy/v1/namespaces/{_TRAINING}/poddisruptionbudgets/guarded"
    stage.budget_holds(guarded, lambda: _delete(plane, budget))
    news.rest(pace.between)
    stage.application_fault_does_nothing(busy)
    news.rest(pace.between)
    stage.full_disk_recovers(full)
    news.rest(pace.between)
    stage.storm_is_held(rest[: max(8, len(nodes) // 3)])
    news.rest(pace.between)
    quarantine = f"/apis/sickbay.dev/v1alpha1/quarantines/{sick}"
    stage.person_releases(sick, lambda: _delete(plane, quarantine))


def _delete(plane: ControlPlane, path: str) -> None:
    plane.call("DELETE", path)


def _start_jobs(plane: ControlPlane, nodes: list[str]) -> None:
    plane.create_namespace(_TRAINING)
    for name, node, pods in (("train", nodes[0], 2), ("guarded", nodes[1], 1)):
        start_job(plane, _TRAINING, name, node, pods=pods)
    protect(plane, _TRAINING, "guarded", 1)


def _start_agents(crew: Crew, stack: Stack, nodes: list[str]) -> Simulator:
    """One simulated agent for each node, with the token that its pod would be given."""
    tokens: Path = crew.folder / "tokens"
    tokens.mkdir(mode=0o700)

    def fetch(node: str) -> None:
        (tokens / node).write_text(stack.token(node))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, nodes))
    names = crew.folder / "names"
    names.write_text("\n".join(nodes))
    log = crew.folder / "simulator.log"
    line: list[str | Path] = ["--names", names, "--token-dir", tokens]
    simulator = Simulator(
        [*line, "--aggregator", stack.aggregator.address], log=log, guard=crew.guard
    )
    crew.adopt("simulator", simulator.process, log)
    return simulator
