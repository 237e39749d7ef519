"""`sickbay demo`: all of it on this machine, without root and without a cluster."""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from aggregator.demo.alert_receiver import AlertReceiver
from aggregator.demo.demo_job import DemoJob
from aggregator.demo.event_poller import EventPoller
from aggregator.demo.ports import free_port
from aggregator.demo.processes import ChildProcesses
from aggregator.demo.story import BRISK, LEISURELY, POLICY, Story
from aggregator.demo.terminal import headline, note, print_line

#: The folder of the programs of this installation.
BIN = Path(sys.executable).parent

_AGGREGATOR = """
mode: drain
cluster: {{kind: local, local: {{database: {folder}/cluster.db}}}}
listen: {{grpc: "127.0.0.1:{grpc}", web: "127.0.0.1:{web}"}}
identity: {{kind: insecure-trust-hello}}
policy: {{file: {folder}/policy.yaml}}
alerts:
  outbox: {folder}/outbox.db
  receivers:
    - name: demo
      webhook: {{url: "{alerts}", secret_file: {folder}/alert-secret}}
  routes: [{{name: demo, receiver: demo, severity: [critical], group_wait: "0s"}}]
history: {{database: "sqlite:///{folder}/history.db"}}
drain:
  pre_evict: {{webhook: {{url: "{job}", secret_file: {folder}/job-secret}}}}
"""

_AGENT = """
node = "{node}"
run_dir = "{folder}/run"
state_dir = "{folder}/state"

[aggregator]
address = "127.0.0.1:{grpc}"

[checks.disk-write]
paths = ["{folder}"]

[checks.reach]    # nothing of the demo leaves this machine
on = false
"""

_INTRODUCTION = """\
sickbay, a demo: an aggregator, this machine's own agent and {count} simulated nodes of 8 GPUs.
Here a cordon or a drain is a row in a temporary database: nothing on this machine is changed.
Waits that take minutes in earnest are cut to seconds. Ctrl-C ends it and leaves nothing behind.
"""

_ADDRESSES = """\
  the page   http://127.0.0.1:{web}/
  the API    http://127.0.0.1:{web}/api/v1/fleet

In another terminal:
  export SICKBAY_URL=http://127.0.0.1:{web}
  {sickbay} status
  {sickbay} explain sim-0001
  {sickbay} history
"""


class Simulator:
    """``sickbay-agent simulate`` with ``count`` nodes; faults are injected as they are wanted."""

    def __init__(self, children: ChildProcesses, count: int, aggregator: str) -> None:
        options = ["--stdin", "--nodes", str(count), "--aggregator", aggregator]
        command: list[str | Path] = [BIN / "sickbay-agent", "simulate", *options]
        self._process = children.start("simulator", command, stdin=subprocess.PIPE)

    def inject(self, **event: Any) -> None:
        """One event, as docs/simulate.md has it; its ``at`` counts from now."""
        self._pipe.write(json.dumps(event).encode() + b"\n")
        self._pipe.flush()

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin


def _ignore(url: str) -> None:
    """The demo as a person starts it takes no picture."""


def run(*, count: int, once: bool, at_cause: Callable[[str], None] = _ignore) -> None:
    """Run the story, and continue until interrupted; with ``once`` return after it.

    ``at_cause`` is called with the page's URL while a common cause holds a third of the nodes.
    Raises ChildEnded, NotSeen, OutputClosed.
    """
    node = _own_name()
    with (
        ChildProcesses() as children,
        AlertReceiver() as alerts,
        DemoJob(children.folder / "checkpoint.json") as job,
    ):
        grpc, web = free_port(), _web_port()
        print_line(_INTRODUCTION.format(count=count))
        _write_files(children.folder, node, grpc, web, alerts=alerts.url, job=job.url)
        config = children.folder / "aggregator.yaml"
        children.start("aggregator", [BIN / "sickbay-aggregator", "run", "--config", config])
        events = EventPoller(f"127.0.0.1:{web}", children.check)
        events.until(lambda: events.get("/api/v1/fleet"), "the aggregator's page")
        print_line(_ADDRESSES.format(web=web, sickbay=BIN / "sickbay"))
        children.start(
            "agent", [BIN / "sickbay-agent", "run", "--config", children.folder / "agent.toml"]
        )
        simulator = Simulator(children, count, f"127.0.0.1:{grpc}")
        _introduce_fleet(events, node, children.folder / "agent.toml", count)
        story = Story(events, simulator.inject, BRISK if once else LEISURELY)
        nodes = [f"sim-{number:04d}" for number in range(1, count + 1)]
        _run_story(story, nodes, alerts, job)
        at_cause(f"http://127.0.0.1:{web}/")
        if not once:
            print_line()
            note("The story has ended. The programs run on until Ctrl-C.")
            story.go_on()


def _run_story(story: Story, nodes: list[str], alerts: AlertReceiver, job: DemoJob) -> None:
    pace, events = story.pace, story.events
    sick, busy, full, *rest = nodes
    events.show_for(pace.first)
    job.node = sick
    story.job_saves_first(sick, job, "drain.pre_evict")
    events.show_for(pace.between)
    story.application_fault_does_nothing(busy)
    events.show_for(pace.between)
    story.reboot_releases(sick)
    events.show_for(pace.between)
    story.full_disk_recovers(full)
    events.show_for(pace.between)
    story.common_cause_holds(rest[: max(8, len(nodes) // 3)], alerts)


def _introduce_fleet(events: EventPoller, node: str, config: Path, count: int) -> None:
    def attached() -> bool:
        return bool(events.get("/api/v1/fleet")["attached"] == count + 1)

    events.until(attached, f"{count + 1} nodes attached")
    note(f"{count + 1} nodes are attached: {count} simulated, and this machine")
    headline("what this machine's own agent reports: sickbay-agent check")
    shown = _settled(events, node, config)
    for line in shown.splitlines():
        print_line(f"             {line}".rstrip())


def _settled(events: EventPoller, node: str, config: Path) -> str:
    """The table, when each check has run once: no result has come in for a second."""
    results: list[list[tuple[str, ...]]] = []

    def same() -> bool:
        results.append(_results(events, node))
        events.show_for(0.5)
        return len(results) > 3 and results[-1] == results[-3] != []

    line: list[str | Path] = [BIN / "sickbay-agent", "check", "--config", config]

    def table() -> str:
        done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout if "by its agent" in done.stdout else ""

    events.until(same, "this machine's first results")
    return str(events.until(table, "this machine's own agent"))


def _results(events: EventPoller, node: str) -> list[tuple[str, ...]]:
    """What the node's agent has reported: a start of its program at each look costs far more."""
    shown = ("check", "component", "status")
    components = events.get(f"/api/v1/nodes/{node}")["components"]
    return [tuple(one[key] for key in shown) for one in components]


def _write_files(folder: Path, node: str, grpc: int, web: int, **urls: str) -> None:
    (folder / "policy.yaml").write_text(POLICY)
    for name in ("alert-secret", "job-secret"):
        (folder / name).write_text(secrets.token_hex())
    (folder / "aggregator.yaml").write_text(
        _AGGREGATOR.format(folder=folder, grpc=grpc, web=web, **urls)
    )
    (folder / "agent.toml").write_text(_AGENT.format(folder=folder, grpc=grpc, node=node))


def _own_name() -> str:
    """The hostname, as far as it can be a node's name."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", os.uname().nodename).strip("-._")
    return plain or "this-machine"


def _web_port() -> int:
    """8080, where people look first; if that is taken, any free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 8080))
        except OSError:
            return free_port()
        return 8080
