"""Feeds triangulation with the agents' evidence, and the evaluation with its verdicts.

A verdict about a node becomes level evidence of that node, which rules may act on; one about a
target or a domain is shown and reported once, and concerns no node. Verdicts are made in batches, a
moment after a change: a blamed fault has lasted for a minute and more.

An agent's reports count only about the addresses that the aggregator assigned to it.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.port import NodeMeta
from aggregator.events import EventKind, EventSink, Transition
from aggregator.health.model import Component, Delta, Snapshot, Status
from aggregator.policy.check_traits import NETWORK
from aggregator.policy.network.triangulate import PEERS, Triangulation
from aggregator.policy.network.verdict import CHECK, UNREACHABLE_SILENT, Finding, NetworkVerdict
from aggregator.quarantine.decide.admission import Limits, quorum
from aggregator.quarantine.decide.common_cause import LEAST
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry

#: Seconds in which changes are gathered.
GATHER = 1.0
#: Where evaluation had to wait until enough of the fleet had reported, it waits these seconds more:
#: by then the first agents, which were assigned each other, have been assigned peers among all.
ASSIGNED_ANEW_WITHIN = 120.0
#: A node that no other reaches and whose agent is silent is reported after this number of seconds:
#: a booting node is in this state for some minutes.
SILENT_FOR = 300.0


#: The results of one node's network checks, by check and component.
_Sees = dict[tuple[str, str], Status]


class Evaluations(Protocol):
    """`WorkQueue`, as far as it is used here."""

    def evaluate(self, node_state: NodeState) -> None:
        """Have the node evaluated anew."""


@define(eq=False, repr=False, slots=False, kw_only=True)
class NetworkTracker:
    """``labels`` are the node labels that name racks and switches.

    Until the quorum of ``limits`` has reported the first agents, which are assigned each other,
    could blame any node.
    """

    _node_registry: NodeRegistry
    _event_sink: EventSink
    _clocks: Clocks
    _labels: Iterable[str]
    _queue: Evaluations
    _limits: Limits

    def __attrs_post_init__(self) -> None:
        self._labels = tuple(self._labels)
        self._network = Triangulation()
        #: Since when we may evaluate (monotonic).
        self._from = float("-inf")
        #: Whether the quorum was reached, and whether we waited for it.
        self._had_quorum = self._waited = False
        self._seen: dict[str, _Sees] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._lost: dict[str, float] = {}  # unreachable and silent, since when
        self._reported: set[str] = set()  # of these, those that were reported

    def placed(self, node: str, address: str) -> None:
        """Other nodes probe the node at ``address``; empty: at none."""
        if not address and node not in self._seen:
            return  # it was forgotten meanwhile
        self._sees(node)
        self._network.place(node, address)
        self._soon()

    def assigned(self, node: str, addresses: tuple[str, ...]) -> None:
        """The node's agent is assigned to probe these addresses, and no others (any more)."""
        if not addresses and node not in self._seen:
            return
        sees = self._sees(node)
        # Results about an address from before its assignment count from now on.
        for address in self._network.assign(node, addresses):
            status = sees.get((PEERS, address))
            if status is not None:
                self._network.set_edge(node, PEERS, address, status)
        self._soon()

    def on_evidence(self, node: str, evidence: Snapshot | Delta) -> None:
        """Take an agent's evidence; the results of its network checks are edges."""
        statuses = {one.key: one.status for one in evidence.components if one.check in NETWORK}
        sees = self._sees(node)
        gone: Iterable[tuple[str, str]] = ()
        if isinstance(evidence, Snapshot):
            gone = sees.keys() - statuses.keys()
            self._network.set_report(node, reporting=True)
            self._soon()
        elif evidence.gone:
            gone = sees.keys() & set(evidence.gone)
        self._see(node, statuses, gone)

    def silent(self, node: str) -> None:
        """The agent's stream has ended: its results are no evidence until it reports again."""
        self._sees(node)
        self._network.set_report(node, reporting=False)
        self._soon()

    def _sees(self, node: str) -> _Sees:
        found = self._seen.get(node)
        if found is None:
            found = self._seen[node] = {}
            self._network.enlist(node, listed=self._node_registry.in_cluster(node))
        return found

    def _see(
        self, node: str, statuses: Mapping[tuple[str, str], Status], gone: Iterable[tuple[str, str]]
    ) -> None:
        """Set the node's edges; unchanged ones cost next to nothing."""
        sees, changed = self._sees(node), False
        for key in list(gone):
            changed = True
            del sees[key]
            self._network.set_edge(node, *key, None)
        for key, status in statuses.items():
            changed |= sees.get(key) is not status
            sees[key] = status
            self._network.set_edge(node, *key, status)
        if changed:
            self._soon()

    def place(self, meta: NodeMeta) -> None:
        """A node of the cluster, with its labels. `listed` follows once all are placed."""
        places = [f"{name}={meta.labels[name]}" for name in self._labels if name in meta.labels]
        self._network.label(meta.name, places)

    def listed(self) -> None:
        """The registry has the nodes that the cluster lists now."""
        for node in self._seen:
            self._network.enlist(node, listed=self._node_registry.in_cluster(node))
        self._soon()

    def forget_node(self, node: str) -> None:
        self._network.forget_node(node)
        self._seen.pop(node, None)
        self._lost.pop(node, None)
        self._reported.discard(node)
        self._soon()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def renew(self, node_state: NodeState) -> None:
        """Add others' results about the node to its health, which may be another object now."""
        finding = self._network.finding(node_state.node)
        health = node_state.agent.health
        if finding is not None and health is not None and health.inferred is None:
            health.inferred = _component(finding)

    def go_round(self) -> None:
        """Report, once, nodes that have long been unreachable and silent. Cost: only such nodes."""
        now = self._clocks.now()
        for node, since in self._lost.items():
            if node not in self._reported and now - since >= SILENT_FOR:
                self._reported.add(node)
                finding = self._network.finding(node)
                text = finding.message if finding is not None else ""
                self._note(EventKind.NODE_LOST, node, f"{node}: {text}")

    def settle(self) -> None:
        """Evaluate the changes."""
        self._timer = None
        if not self._may_evaluate(self._clocks.now()):
            self._soon()
            return
        changed, others = self._network.settle(self._clocks.now())
        for node, finding in changed.items():
            self._take(node, finding)
        if others:
            self.assign_targets()

    def _may_evaluate(self, now: float) -> bool:
        if not self._had_quorum:
            if quorum(self._limits, self._node_registry.size()) is not None:
                self._waited = True
                return False
            self._had_quorum = True
            if self._waited:
                self._from = max(self._from, now + ASSIGNED_ANEW_WITHIN)
        return now >= self._from

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER, self.settle)

    def _take(self, node: str, finding: Finding) -> None:
        if finding.reason == UNREACHABLE_SILENT:
            self._lost.setdefault(node, finding.since)
        elif finding.status is not Status.UNKNOWN:
            self._lost.pop(node, None)
            if node in self._reported:
                self._reported.discard(node)
                self._note(EventKind.NODE_FOUND, node, f"{node} is reached again, or reports")
        # It becomes evidence of the node.
        node_state = self._node_registry.known(node)
        health = node_state.agent.health if node_state is not None else None
        if node_state is None or health is None:
            return
        health.inferred = _component(finding)
        if finding.status is Status.FAILED or node_state.decision.incidents:
            self._queue.evaluate(node_state)

    def assign_targets(self) -> None:
        """Report subjects that are newly blamed, and those that are blamed no more."""
        before = self._node_registry.fleet.network
        now = {verdict.subject: verdict for verdict in self._network.verdicts()}
        for subject, verdict in now.items():
            if subject in before:
                now[subject] = replace(verdict, since=before[subject].since)
            else:
                self._note_verdict(EventKind.NETWORK_BLAMED, verdict, verdict.message)
        for subject in before.keys() - now.keys():
            text = f"{subject} is blamed no more"
            self._note_verdict(EventKind.NETWORK_CLEARED, before[subject], text)
        self._node_registry.fleet.network = now

    def _note_verdict(self, kind: EventKind, verdict: NetworkVerdict, text: str) -> None:
        details = {"blamed": verdict.kind, "name": verdict.name, "nodes": ", ".join(verdict.nodes)}
        if verdict.kind == "target" and verdict.count >= LEAST:
            details["cause"] = "reported as a common cause"  # one alert is enough
        self._event_sink.record_event(
            Transition(self._clocks.wall(), kind, "", f"network: {text}", verdict.subject, details)
        )

    def _note(self, kind: EventKind, node: str, text: str) -> None:
        self._event_sink.record_event(Transition(self._clocks.wall(), kind, node, text))


def _component(finding: Finding) -> Component:
    edges = ", ".join(f"{edge.observer} to {edge.target}" for edge in finding.edges)
    message = f"{finding.message} ({edges})" if edges else finding.message
    return Component(CHECK, "", finding.status, finding.reason, message, finding.since)
