"""The words of each kind of cluster, for people: one table. Pure.

Every surface and every message takes them from the cluster that it is about.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWords:
    """Sentences, some with fields in braces.

    ``one`` and ``many`` name the work that a drain waits for. ``marked`` begins the event of a
    quarantine that is in force, ``in_force`` is its status then, and ``moved`` the event of work
    that has left. ``cordoned`` is the name of the phase Cordoned; ``phases`` describe the
    phases of a quarantine, ``modes`` the modes cordon and drain. ``holds`` and ``blocked`` are
    next steps that differ from those on Kubernetes. ``record`` has the record of
    admission, and ``forget_note`` removes unreadable notes (``keys``).
    """

    kind: str
    one: str
    many: str
    marked: str
    in_force: str
    moved: str
    cordoned: str
    phases: Mapping[str, str]
    modes: Mapping[str, str]
    stays: str
    mode_keeps: str
    draining: str
    empty: str
    empty_again: str
    gone: str
    left_alone: str
    late: str
    late_forced: str
    late_kept: str
    returned: str
    not_moved: str
    blockers_title: str
    blocked: str
    drain_question: str
    stopped: str
    taken_out: str
    recordoned: str
    kept_away: str
    before_us: str
    release: str
    nodes: str
    record: str
    forget_note: str
    tool: str
    read_only: str
    holds: Mapping[str, str] = field(default_factory=dict)

    def phase(self, name: str) -> str:
        """The name of a phase for people."""
        return self.cordoned if name == "Cordoned" else name

    def count(self, number: int) -> str:
        """So much work: "1 pod", "4 jobs"."""
        return f"{number} {self.one if number == 1 else self.many}"


_PHASES = {
    "Releasing": "What sickbay did to the node is being undone.",
    "Invalid": "Its Quarantine can't be understood: no step is taken until it is corrected.",
}

KUBERNETES = ClusterWords(
    kind="kubernetes",
    one="pod",
    many="pods",
    marked="cordoned",
    in_force="{node} is tainted and unschedulable",
    moved="evicted {one}",
    cordoned="Cordoned",
    phases={
        **_PHASES,
        "Admitted": "The node gets its taint and its cordon next.",
        "Cordoned": "No new pod is placed on it.",
        "Draining": "Its pods are evicted, as fast as disruption budgets allow.",
        "Drained": "No pod is left on it that would go. No new pod is placed on it.",
    },
    modes={
        "cordon": "Bad nodes are tainted; no pod is evicted.",
        "drain": "Bad nodes are tainted and drained.",
    },
    stays="Pods that run on it stay.",
    mode_keeps="Mode {mode} evicts no pod: its pods stay until the mode is drain.",
    draining="evicting pods",
    empty="no pods are left that would go",
    empty_again="no pods are left that would go: those that came after the drain are gone",
    gone="the node is gone: no pods are left to drain",
    left_alone="left alone, no pod is evicted: {why}",
    late="past its deadline: {count} still there after {span}",
    late_forced=", and deleted by force",
    late_kept=", no pod is deleted by force; a person must decide",
    returned="it was drained, and has {count} on it again: {named}; no further pod is evicted",
    not_moved="{one} is not evicted: {reason}",
    blockers_title="Pods that may not be evicted now",
    blocked="Waiting for {count} that may not be evicted now. Ask their owners, or let the budget "
    "heal; pods are deleted by force only where drain.namespaces sets it.",
    drain_question="A drain evicts the pods of {node}, and their work is lost. Go on?",
    stopped="No new quarantine and no eviction; releases go on.",
    taken_out="uncordoned at {at}",
    recordoned="cordoned again",
    kept_away="the taint still keeps new pods away",
    before_us="it was cordoned before, and stays so when sickbay lets go",
    release="sickbay release {node}, or kubectl delete quarantine {node}",
    nodes="kubectl get nodes",
    record="ConfigMap sickbay-record",
    forget_note="kubectl annotate node {node} {keys}",
    tool="kubectl",
    read_only="kubectl, or the command sickbay with your own kubeconfig",
)

#: Without Kubernetes the notes on a node are a row of the aggregator's own database.
_RECORD = "the aggregator's database"
_FORGET_NOTE = "sickbay release {node}, and then sickbay forget {node}, with --local"

SLURM = ClusterWords(
    kind="slurm",
    one="job",
    many="jobs",
    marked="DRAIN",
    in_force="{node} is in DRAIN",
    moved="{one} has ended",
    cordoned="DRAIN set",
    phases={
        **_PHASES,
        "Admitted": "Slurm's node is set to DRAIN next.",
        "Cordoned": "Slurm's node is in DRAIN: no new job begins on it.",
        "Draining": "Slurm's node is in DRAIN: its jobs run to their end, and no new one begins.",
        "Drained": "Slurm's node is in DRAIN, and no job is left on it.",
    },
    modes={
        "cordon": "Bad nodes are set to DRAIN.",
        "drain": "Bad nodes are set to DRAIN; their jobs run to their end.",
    },
    stays="Jobs that run on it go on.",
    mode_keeps="Mode {mode} does not wait for its jobs.",
    draining="jobs run to their end",
    empty="no job is left",
    empty_again="no job is left: those that came after the drain have ended",
    gone="Slurm has no such node any more: no job is left to wait for",
    left_alone="left alone: {why}",
    late="past its deadline: {count} still at work after {span}",
    late_forced="",
    late_kept="; no job is cancelled, and a person must decide",
    returned="it was drained, and has {count} on it again: {named}",
    not_moved="{one} goes on: {reason}",
    blockers_title="Jobs that still run",
    blocked="Waiting for {count}: DRAIN lets jobs end. To end one sooner: scancel JOBID, after a "
    "word with its user.",
    drain_question="A drain sets {node} to DRAIN, and its jobs run to their end. Go on?",
    stopped="No new quarantine and no new DRAIN; releases go on.",
    taken_out="out of DRAIN at {at}",
    recordoned="set to DRAIN again",
    kept_away="new jobs can begin on it",
    before_us="it was in DRAIN before, and stays so when sickbay lets go",
    release="sickbay release {node}",
    nodes="sinfo -N",
    record=_RECORD,
    forget_note=_FORGET_NOTE,
    tool="scontrol",
    read_only="scontrol, or the command sickbay with --local on the aggregator's machine",
    holds={
        "no-node": "The agent's node is none of Slurm's: sinfo -N lists their names. Set node in "
        "its agent.toml to the NodeName, map it (docs/slurm.md#names), or end the agent if the "
        "node was taken away. A name that several nodes have is left out; the log names it.",
    },
)

LOCAL = ClusterWords(
    kind="local",
    one="drain command",
    many="drain commands",
    marked="cordoned",
    in_force="{node} is cordoned: the command cordon has run, if one is set",
    moved="{one} has succeeded",
    cordoned="Cordoned",
    phases={
        **_PHASES,
        "Admitted": "The command cordon runs next, if one is set.",
        "Cordoned": "The command cordon has run, if one is set.",
        "Draining": "The command drain runs until it succeeds.",
        "Drained": "The command drain has succeeded.",
    },
    modes={
        "cordon": "For bad nodes the command cordon runs.",
        "drain": "For bad nodes the command cordon runs, and then drain.",
    },
    stays="Work that runs on it stays.",
    mode_keeps="Mode {mode} runs no drain command.",
    draining="running the drain command",
    empty="the drain command has succeeded",
    empty_again="the drain command has succeeded again",
    gone="the node is gone: no drain command runs",
    left_alone="left alone, no drain command runs: {why}",
    late="past its deadline: {count} not done after {span}",
    late_forced=", and runs once more",
    late_kept="; a person must decide",
    returned="it was drained, and has {count} to run again: {named}",
    not_moved="{one} is not done: {reason}",
    blockers_title="Drain commands that did not succeed",
    blocked="Waiting for the drain command of cluster.local.commands: it runs again until it "
    "succeeds. Correct what its last output names.",
    drain_question="A drain runs the drain command of {node}. Go on?",
    stopped="No new quarantine, and no command cordon or drain; releases go on.",
    taken_out="not cordoned any more at {at}",
    recordoned="cordoned again",
    kept_away="the site's scheduler decides on new work",
    before_us="it was cordoned before, and stays so when sickbay lets go",
    release="sickbay release {node}",
    nodes="sickbay nodes",
    record=_RECORD,
    forget_note=_FORGET_NOTE,
    tool="your scheduler's own tools",
    read_only="the command sickbay with --local on the aggregator's machine",
)

WORDS: Mapping[str, ClusterWords] = {one.kind: one for one in (KUBERNETES, SLURM, LOCAL)}
