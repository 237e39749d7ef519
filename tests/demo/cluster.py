"""`make demo-cluster`: the same on a real kube-apiserver, its kubelets played by kwok."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aggregator.cluster.port import Action
from aggregator.demo.alert_receiver import AlertReceiver
from aggregator.demo.demo_job import DemoJob
from aggregator.demo.event_poller import EventPoller
from aggregator.demo.processes import ChildProcesses
from aggregator.demo.story import BRISK, LEISURELY, POLICY, Story
from aggregator.demo.terminal import headline, note, print_line
from aggregator.quarantine.settings import Settings, limits_for_people
from tests.controlplane.plane import ControlPlane
from tests.controlplane.servers import FRUGAL
from tests.support.simulator import Simulator
from tests.support.stack import Stack, protect, start_job

_TRAINING = "training"

#: Loopback needs no TLS, and a browser would not know our CA. Tokens are the API server's own.
_MORE: dict[str, Any] = {
    "listen": {"tls": None},
}


def _shipped_limits() -> dict[str, str | int]:
    """The limits of a default install: `Stack` has none, for tests of other things."""
    shown = limits_for_people(Settings(mode=Action.DRAIN))
    return {key: int(text) if text.isdecimal() else text for key, text in shown.items()}


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

    Raises NoControlPlane, PlaneError, ChildEnded, NotSeen, OutputClosed, TimeoutError.
    """
    print_line(_INTRODUCTION.format(count=count))
    with (
        ChildProcesses() as children,
        AlertReceiver() as alerts,
        DemoJob(children.folder / "checkpoint.json") as job,
        ControlPlane(go=FRUGAL, progress=note) as plane,
    ):
        nodes = plane.create_nodes(count, "gpu")
        note(f"{count} nodes are created")
        more = _MORE | {
            "alerts": _alerts(children.folder, alerts.url),
            "limits": _shipped_limits(),
            "drain": {"notice": {"within": "1m", "webhooks": [_webhook(children.folder, job.url)]}},
        }
        stack = Stack(plane, children.folder, more=more, policy=POLICY)
        aggregator = stack.aggregator.start()
        assert aggregator.process is not None
        children.guard(aggregator.process.pid)
        children.adopt("aggregator", aggregator.process, aggregator.log_path)
        aggregator.ready()
        _start_jobs(plane, nodes)
        simulator = _start_agents(children, stack, nodes)
        events = EventPoller(f"127.0.0.1:{aggregator.web_port}", children.check)
        events.until(
            lambda: events.get("/api/v1/fleet")["attached"] == count, f"{count} agents attached"
        )
        note(f"{count} agents are attached, each with a token bound to its pod")
        print_line(_WATCH.format(web=aggregator.web_port, kubeconfig=plane.kubeconfig))
        story = Story(events, simulator.inject, BRISK if once else LEISURELY)
        _run_story(story, plane, nodes, alerts, job)
        if not once:
            print_line()
            note("The story has ended. The programs run on until Ctrl-C.")
            story.go_on()


def _run_story(
    story: Story, plane: ControlPlane, nodes: list[str], alerts: AlertReceiver, job: DemoJob
) -> None:
    pace, events = story.pace, story.events
    sick, guarded, busy, full, *rest = nodes
    events.show_for(pace.first)
    job.node = sick
    story.job_saves_first(sick, job, "drain.notice")
    events.show_for(pace.between)
    quarantine = f"/apis/sickbay.dev/v1alpha1/quarantines/{sick}"
    headline(f"{sick}: a person releases it (kubectl delete quarantine {sick})")
    _delete(plane, quarantine)
    _until_seen(events, "quarantine.released", sick)
    note("   its fault is still latched; the release is in force until the fault changes")
    events.show_for(pace.between)
    budget = f"/apis/policy/v1/namespaces/{_TRAINING}/poddisruptionbudgets/guarded"
    headline(f"{guarded}: Xid 79, a GPU is off the bus; a disruption budget protects a pod")
    story.inject(node=guarded, fault="xid:79", gpu=0)
    _until_seen(events, "work.blocked", guarded)
    events.show_for(pace.between)
    note("   the budget is opened (kubectl delete poddisruptionbudget)")
    _delete(plane, budget)
    _until_seen(events, "quarantine.drained", guarded)
    events.show_for(pace.between)
    story.application_fault_does_nothing(busy)
    events.show_for(pace.between)
    story.reboot_releases(guarded)
    events.show_for(pace.between)
    story.full_disk_recovers(full)
    events.show_for(pace.between)
    story.common_cause_holds(rest[: max(8, len(nodes) // 3)], alerts)


def _until_seen(events: EventPoller, kind: str, node: str) -> None:
    events.until(lambda: events.of_kind(kind, node), f"{kind} of {node}")


def _alerts(folder: Path, url: str) -> dict[str, Any]:
    """The route of a person on call, to the demo's own receiver."""
    webhook = {"url": url, "secret_file": _secret(folder / "alert-secret")}
    route = {"name": "demo", "receiver": "demo", "severity": ["critical"], "group_wait": "0s"}
    return {
        "outbox": str(folder / "outbox.db"),
        "receivers": [{"name": "demo", "webhook": webhook}],
        "routes": [route],
    }


def _webhook(folder: Path, url: str) -> dict[str, str]:
    """The notices to pods of the job go to the demo's own job."""
    return {"match": _TRAINING, "url": url, "secret_file": _secret(folder / "job-secret")}


def _secret(file: Path) -> str:
    file.write_text(secrets.token_hex())
    return str(file)


def _delete(plane: ControlPlane, path: str) -> None:
    plane.call("DELETE", path)


def _start_jobs(plane: ControlPlane, nodes: list[str]) -> None:
    plane.create_namespace(_TRAINING)
    for name, node, pods in (("train", nodes[0], 2), ("guarded", nodes[1], 1)):
        start_job(plane, _TRAINING, name, node, pods=pods)
    protect(plane, _TRAINING, "guarded", 1)


def _start_agents(children: ChildProcesses, stack: Stack, nodes: list[str]) -> Simulator:
    """One simulated agent for each node, with the token that its pod would be given."""
    tokens: Path = children.folder / "tokens"
    tokens.mkdir(mode=0o700)

    def fetch(node: str) -> None:
        (tokens / node).write_text(stack.token(node))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, nodes))
    names = children.folder / "names"
    names.write_text("\n".join(nodes))
    log = children.folder / "simulator.log"
    line: list[str | Path] = ["--names", names, "--token-dir", tokens]
    simulator = Simulator(
        [*line, "--aggregator", stack.aggregator.address], log=log, guard=children.guard
    )
    children.adopt("simulator", simulator.process, log)
    return simulator
