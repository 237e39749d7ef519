"""The next step, in a sentence, for a person on call. Pure.

Each sentence names a command or a place; no code depends on it. ``how``: the options without which
a command would act on another cluster than this one (`Fleet.how`); ``words``: the cluster's.
"""

import re
from collections.abc import Collection, Iterable, Sequence

from aggregator.cluster.port import (
    BUSY,
    NAMESPACE_DELETED,
    Blocker,
    HookState,
    Phase,
    Quarantine,
    RepairStatus,
)
from aggregator.cluster.words import ClusterWords
from aggregator.quarantine.decide.drain_plan import TERMINATING
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.verdicts import is_about_tests
from aggregator.quarantine.state.fleet import UNREAD_STATUS, NodeSummary
from aggregator.runtime.text import shell_quoted

_CLEARS = {
    "reboot": "reboot the node",
    "gpu_reset": "reset the GPU (nvidia-smi --gpu-reset) or reboot the node",
    "expiry": "wait, it expires by itself",
    "operator": "repair it, then clear it by hand",
    "": "fix the fault that the check names",
}

_CAUSE = "Repair what they share; no node is quarantined for it. "
_CAUSES = {
    "check": _CAUSE + "If the check itself is wrong, turn it off or change its rule.",
    "target": _CAUSE + "Check the target first, then the way to it.",
    "place": _CAUSE + "Check the switch, power and cooling of the place.",
    "version": _CAUSE + "Stop the rollout, or roll it back.",
    "agents": "Silence is no fault. Check the aggregator, the network between, certificates, and "
    "whether the agents run.",
    "network": "Repair what the nodes share: the rack's switch or gateway, the target, the link "
    "between two halves. docs/network.md explains how it was found.",
}
_POOL_FULL = (
    "This pool has lost as many nodes as its own limit allows. Repair or release some of them, or "
    "find what they share."
)
#: In these texts {how} is replaced by the options, {nodes} and {record} by words of the cluster.
_SHARED = "Find the common cause with sickbay status, and repair what the nodes share."
_RATE = "Many nodes failed at once: find out what they share while no new quarantine is admitted."

HOLDS = {
    "limits.common_cause_percent": _SHARED,
    "limits.common_cause_nodes": _SHARED,
    "limits.domain_percent": _SHARED,
    "limits.clique_label": _SHARED,
    "fabric": _SHARED,
    "eviction": "Reset the node's GPUs: the processes that the drain ended had NVLink channels "
    "open, and its evidence ends by a reset.",
    "fabric-follower": "Reset the node's GPUs: its links failed when the origin's did, and its "
    "evidence ends by that.",
    "limits.fabric_hold": "Wait: in seconds it is clear whether other nodes of its NVLink fabric "
    "show the same.",
    "limits.cooldown": "Wait, and find what the nodes that tripped it share.",
    "limits.after_upgrade": "Wait: in two minutes it is clear whether the new version causes it.",
    "limits.new_per_window": _RATE,
    "limits.new_per_window_percent": _RATE,
    "record": "Wait 15 seconds: it is rebuilt by itself. If the hold returns, find the program "
    "that writes to {record}.",
    "installation": "Check the other installation of sickbay, which has this node in quarantine. "
    "Two that both act are seldom intended.",
    UNREAD_STATUS: "Run the version of sickbay that wrote the Quarantine on every replica. Before "
    "a release read sickbay repair NODE: a repair may be under way.",
    "stop": "Find out why it was stopped. To go on: sickbay resume{how}",
    "limits.quorum_percent": "Wait for the agents to report. If they don't, see whether they run "
    "(systemctl status sickbay-agent, of a service), and check the network, before you trust any "
    "verdict.",
    "limits.concurrent": "Repair or release nodes in quarantine (sickbay quarantines). If many "
    "fail at once, suspect a common cause first; else raise limits.concurrent.",
    "limits.concurrent_percent": "Repair or release nodes in quarantine (sickbay quarantines). If "
    "many fail at once, suspect a common cause first.",
    "no-node": "The agent reports for a node that {nodes} does not have: end it if the "
    "node was taken away; else see that both go by one name.",
    "maintenance": "No step is needed while another tool or person is at work on the node: it is "
    "read again.",
    "stale-mark": "Find out whether that tool is still at work on the node, and remove its mark if "
    "not. maintenance.on_stale: act ignores stale marks.",
    "pools": "The node's labels are read again soon. If this stays, compare the replicas' "
    "configurations.",
    "pools.limits.concurrent": _POOL_FULL,
    "pools.limits.concurrent_percent": _POOL_FULL,
    "pools.limits.new_per_window": "The pool cools down now, the others go on: find what the "
    "nodes that were just admitted share.",
    "limits.pool_percent": "This pool has lost as many nodes as it may. Repair or release some of "
    "them, or find what they share.",
}


#: Holds that a person's command passes, with the words before it.
_PASSED_BY_HAND = {
    "maintenance": "To act on it all the same",
    "stale-mark": "To act on the node now",
}


def for_evidence(clears: Iterable[str]) -> str:
    """The sign that ends evidence of these kinds; only the strongest remedy."""
    found = set(clears)
    for kind in ("operator", "reboot", "gpu_reset", "", "expiry"):
        if kind in found:
            return _CLEARS[kind]
    return ""


def for_incident(
    node_summary: NodeSummary, clears: Collection[str], action: str, mode: str, how: str
) -> str:
    """A person's options for an open incident. ``mode`` is the node's."""
    remedy = for_evidence(clears)
    if not remedy:
        return (
            "No step is needed: its evidence is over, and it closes once the node has stayed well."
        )
    sentence = remedy[0].upper() + remedy[1:]
    if action == "observe":
        if set(clears) == {"expiry"}:
            return "No step is needed: by policy it is only watched, and it expires by itself."
        return f"{sentence} when it suits; by policy it is only watched."
    if node_summary.quarantine is None and node_summary.decision.hold is not None:
        limit = node_summary.decision.hold.limit
        return f"{sentence}. No mark keeps work off this node while {limit} holds it."
    if node_summary.quarantine is None and node_summary.decision.would:
        if mode == "observe":
            return f"{sentence}. In mode observe no mark keeps work off this node."
        command = by_hand(node_summary, mode, how)
        return f"{sentence}. No mark keeps work off this node yet; to do it by hand: {command}"
    if node_summary.quarantine is None:
        return f"{sentence}."
    if node_summary.quarantine.spec.requester != "sickbay":
        command = f"sickbay release {node_summary.node}{how}"
        return f"{sentence}, then: {command} (a person made the quarantine)"
    return f"{sentence}. The node is released by itself once it has stayed well."


def by_hand(node_summary: NodeSummary, mode: str, how: str, reason: str = "") -> str:
    """The command that quarantines a node regardless of the limits. Only mode drain drains.
    ``reason``: for a node without an incident.
    """
    action = "drain" if mode == "drain" else "cordon"
    found = sorted(node_summary.decision.incidents.values(), key=lambda one: one.since)
    reason = shell_quoted(found[0].summary if found else reason)
    return f"sickbay quarantine {node_summary.node} --action {action} --reason {reason}{how}"


def for_hold(
    node_summary: NodeSummary, hold: Held, mode: str, how: str, words: ClusterWords
) -> str:
    """The step that lifts a hold. ``mode`` is the node's."""
    text = lift(hold.limit, how, words)
    if not text:
        return f"Check {hold.limit} in the aggregator's configuration."
    passed = _PASSED_BY_HAND.get(hold.limit, "")
    if not passed or mode == "observe":
        return text
    return f"{text} {passed}: {by_hand(node_summary, mode, how)}"


def lift(limit: str, how: str, words: ClusterWords) -> str:
    """The step that lifts a hold of this name; empty: it has no step of its own."""
    text = words.holds.get(limit) or HOLDS.get(limit, "")
    return text.format(how=how, nodes=words.nodes, record=words.record)


def for_cause(scope: str) -> str:
    """The next step for a cause that many nodes share."""
    return _CAUSES[scope]


def for_mode(node_summary: NodeSummary, mode: str, how: str) -> str:
    """A person's options where the mode keeps us from acting."""
    if mode == "observe":
        return (
            'Mode observe does no more. To have sickbay act: set "mode" in the aggregator\'s '
            "configuration."
        )
    return (
        f"Mode {mode} allows no more. To act on this node alone: "
        f"{by_hand(node_summary, mode, how)}. "
        'For all: set "mode" in the aggregator\'s configuration.'
    )


def for_exempt(node_summary: NodeSummary, mode: str, how: str) -> str:
    """A person's options where people have exempted the node."""
    text = (
        "A person wants this node left alone. To let sickbay act again: "
        f"sickbay unexempt {node_summary.node}{how}"
    )
    if mode == "observe":
        return text
    return f"{text}. To act all the same: {by_hand(node_summary, mode, how)}"


#: By whether the quarantine ends.
_FAILING = {
    False: "The last step failed and is tried again. If its error stays, fix what it names.",
    True: "The release failed and is tried again. If its error stays, fix what it names: until "
    "then the node keeps its marks.",
}


def _for_unclear(quarantine: Quarantine, how: str, words: ClusterWords) -> str:
    node = quarantine.node
    end = f"sickbay release {node}{how}" if how else words.release.format(node=node)
    if quarantine.unread:
        return f"{HOLDS[UNREAD_STATUS]} To release: {end}"
    return f"The object makes no sense. Fix it, or: {end}"


def for_quarantine(
    node_summary: NodeSummary,
    quarantine: Quarantine,
    clears: Iterable[str],
    how: str,
    words: ClusterWords,
) -> str:
    """A person's options for a node in quarantine, or the step that it waits for."""
    status, node = quarantine.status, quarantine.node
    ends = status.phase is Phase.RELEASING or quarantine.deleting
    if quarantine.problem or status.phase is Phase.INVALID or (quarantine.unread and not ends):
        return _for_unclear(quarantine, how, words)
    if node_summary.work.last_error:
        return _FAILING[ends]
    if ends:
        return "No step is needed: it is being undone."
    held = node_summary.quarantine_view.release_held or status.release_held
    if held:
        unpin = f"sickbay unpin {node}{how} to let it go by itself, or " * held.startswith("pinned")
        return (
            f"Its cause is over, and it is held: {held}. To do: {unpin}sickbay release {node}{how}"
        )
    if status.phase is Phase.DRAINING and status.blockers:
        return _for_blockers(status.blockers, words)
    hook = status.pre_evict
    if status.phase is Phase.DRAINING and hook is not None and hook.state is HookState.RUNNING:
        if hook.ended_at:
            return (
                "drain.pre_evict was not done in its time, and the drain waits until it is. See "
                f"to its message; or give the node back: sickbay release {node}{how}"
            )
        return "No step is needed yet: drain.pre_evict is called until it is done."
    if status.phase in (Phase.ADMITTED, Phase.DRAINING):
        return "No step is needed yet: it is under way."
    repair = status.repair
    busy = [one.repair for one in repair.attempts if one.state in BUSY]
    if busy:
        return (
            f"No step is needed yet: {busy[-1]} is under way. To take it back: "
            f"sickbay repair {node} --cancel{how}"
        )
    if quarantine.spec.requester != "sickbay":
        return f"Made by a person, ended by a person: sickbay release {node}{how}"
    remedy = for_evidence(clears)
    if not remedy:
        return _for_no_evidence(node, repair, how)
    sentence = remedy[0].upper() + remedy[1:]
    if repair.exhausted:
        sentence = f"sickbay repairs it no further (sickbay repair {node}{how}). {sentence}"
    return (
        f"{sentence}; it is released once it has stayed well. Sooner: sickbay release {node}{how}"
    )


def _for_no_evidence(node: str, repair: RepairStatus, how: str) -> str:
    if repair.exhausted and is_about_tests(repair):
        return (
            f"A person decides on it: sickbay repair {node}{how}. To give it back: "
            f"sickbay release {node}{how}"
        )
    return "No step is needed: its evidence is over. It is released once the node has stayed well."


#: The API server's words about a closed budget.
_BUDGET = re.compile(r"needs (\d+) healthy pods and has (\d+) currently")


def _short_of_healthy(reason: str) -> bool:
    """Whether a budget is closed by pods that are not Ready, and not by evictions alone."""
    found = _BUDGET.search(reason)
    return found is not None and int(found[2]) < int(found[1])


def _for_blockers(blockers: Sequence[Blocker], words: ClusterWords) -> str:
    if all(one.reason.startswith(TERMINATING) for one in blockers):
        return (
            "No step is needed yet: the kubelet is not Ready, and its pods in Terminating are "
            "waited for until the time in their reasons. To end it sooner, start the kubelet; or "
            "power the machine off, and then run kubectl delete pod --force."
        )
    if all(one.reason == NAMESPACE_DELETED for one in blockers):
        return (
            "No step is needed yet: the deletion of their namespace removes the pods. If it stays, "
            "read the conditions of the namespace: kubectl get namespace NAMESPACE -o yaml"
        )
    if any(_short_of_healthy(one.reason) for one in blockers):
        return (
            f"Waiting for {words.count(len(blockers))}: a disruption budget has fewer healthy pods "
            "than it needs. Where this node broke them, the budget can't heal: its owner sets "
            "unhealthyPodEvictionPolicy: AlwaysAllow on the budget, and broken pods are evicted."
        )
    return words.blocked.format(count=words.count(len(blockers)))
