"""`make demo-slurm`: a fault on a real Slurm. Its job runs to its end, and the node returns."""

from contextlib import closing
from pathlib import Path

from aggregator.demo.event_poller import EventPoller
from aggregator.demo.processes import ChildProcesses
from aggregator.demo.story import BRISK, LEISURELY, POLICY, Story
from aggregator.demo.terminal import headline, note, print_line
from tests.support.local_aggregator import LocalAggregator
from tests.support.simulator import Simulator
from tests.support.slurm import LACKING, Slurm

NODES = 4
_INTRODUCTION = """\
sickbay, a demo on a real Slurm: munged, slurmctld and {count} slurmd on loopback, with jobs that
run. Simulated agents speak for the nodes. Waits that take minutes in earnest are cut to seconds.
Ctrl-C ends it and leaves nothing behind.

  the page   http://{web}/

In another terminal:
  export SLURM_CONF={conf}
  watch -n 1 'sinfo -N; sinfo -R; squeue'
"""


class NoSlurm(Exception):
    """Slurm is not installed; the text names what is missing."""


def run(*, once: bool) -> None:
    """Tell the story, and go on until interrupted; with ``once`` return after it.

    Raises NoSlurm, ChildEnded, NotSeen, OutputClosed, TimeoutError.
    """
    if LACKING:
        raise NoSlurm(f"{', '.join(LACKING)} not installed; run tests/setup-debian.sh as root")
    with ChildProcesses() as children:
        folder = children.folder / "slurm"
        folder.mkdir()
        with Slurm(folder, working=NODES, silent=0, guard=children.guard) as slurm:
            aggregator = _aggregator(children, slurm)
            with closing(aggregator):
                print_line(_INTRODUCTION.format(count=NODES, web=aggregator.web, conf=slurm.conf))
                simulator = _agents(children, aggregator, slurm)
                events = EventPoller(aggregator.web, children.check)
                story = Story(events, simulator.inject, BRISK if once else LEISURELY)
                _run_story(story, slurm)
                if not once:
                    print_line()
                    note("The story has ended. The programs run on until Ctrl-C.")
                    story.go_on()


def _run_story(story: Story, slurm: Slurm) -> None:
    node, events, pace = slurm.working[0], story.events, story.pace
    events.show_for(pace.first)
    job = slurm.submit(node)
    headline(f"job {job} runs on {node}; its kernel logs Xid 79, a GPU has fallen off the bus")
    story.inject(node=node, fault="xid:79", gpu=3)
    _seen(events, "quarantine.cordoned", node)
    note(f"   Slurm: {node} is {slurm.state(node)}, {slurm.shown(node)['Reason']}")
    _seen(events, "work.blocked", node)
    events.show_for(pace.between)
    other = slurm.submit("")
    headline(f"job {other} is submitted: it runs on {slurm.node_of(other)}, not on {node}")
    events.show_for(pace.between)
    headline(f"job {job} ends, and nothing runs on {node} any more")
    slurm.run("scancel", job)
    _seen(events, "quarantine.drained", node)
    events.show_for(pace.between)
    story.reboot_releases(node)
    events.until(lambda: "DRAIN" not in slurm.state(node), f"{node} to take jobs")
    last = slurm.submit(node)
    note(f"   Slurm: {node} is in service again, and job {last} runs on {slurm.node_of(last)}")


def _seen(events: EventPoller, kind: str, node: str) -> None:
    events.until(lambda: events.of_kind(kind, node), f"{kind} of {node}")


def _aggregator(children: ChildProcesses, slurm: Slurm) -> LocalAggregator:
    folder = children.folder / "aggregator"
    folder.mkdir()
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    options = {"database": str(folder / "cluster.db"), "conf": str(slurm.conf), "poll": "1s"}
    more = {"cluster": {"kind": "slurm", "slurm": options}, "policy": {"file": str(policy)}}
    aggregator = LocalAggregator(folder, more)
    children.guard(aggregator.process.pid)
    children.adopt("aggregator", aggregator.process, aggregator.log_path)
    return aggregator


def _agents(children: ChildProcesses, aggregator: LocalAggregator, slurm: Slurm) -> Simulator:
    names: Path = children.folder / "names"
    names.write_text("\n".join(slurm.working))
    log = children.folder / "simulator.log"
    arguments: list[str | Path] = ["--names", names, "--aggregator", aggregator.address]
    simulator = Simulator(arguments, log=log, guard=children.guard)
    children.adopt("simulator", simulator.process, log)
    return simulator.until_streaming(len(slurm.working))
