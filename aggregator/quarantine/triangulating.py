"""Gives triangulation what the agents say, and judging what follows from it.

A verdict about a node becomes level evidence of that node, which rules may act on; one about a
target or a domain is shown and told once, and concerns no node. Judged in batches, a moment after
something has changed: what is blamed has lasted for a minute and more.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from aggregator.health.model import Component, Delta, Snapshot, Status
from aggregator.policy.network.triangulate import Triangulation
from aggregator.policy.network.verdict import CHECK, UNREACHABLE_SILENT, Finding, Verdict
from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.case import Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.cluster import NodeMeta
from aggregator.quarantine.decide.blame import LEAST
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.ledger import Kind, Ledger, Transition

#: The checks whose word is evidence of the network.
CHECKS = frozenset({"peers", "reach", "dns", "pod-network"})
#: Seconds in which changes are gathered.
GATHER = 1.0
#: A node that nobody reaches and whose agent is silent is told of after so many seconds: one that
#: boots is so for some minutes.
SILENT_FOR = 300.0
_KEY = (CHECK, "")


class Triangulating:
    """``labels`` are the node labels that name racks and switches; ``judge`` judges a node anew."""

    def __init__(
        self,
        *,
        census: Census,
        fleet: Fleet,
        ledger: Ledger,
        clocks: Clocks,
        labels: Iterable[str],
        judge: Callable[[Case], None],
    ) -> None:
        self._census = census
        self._fleet = fleet
        self._ledger = ledger
        self._clocks = clocks
        self._labels = tuple(labels)
        self._judge = judge
        self._network = Triangulation()
        self._said: dict[str, set[tuple[str, str]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._lost: dict[str, float] = {}  # unreachable and silent, since when
        self._told: set[str] = set()  # of these, those that were told of

    def placed(self, node: str, address: str) -> None:
        self._network.place(node, address)
        self._soon()

    def heard(self, node: str, evidence: Snapshot | Delta) -> None:
        """The agent speaks; what its network checks say are edges."""
        told = [one for one in evidence.components if one.check in CHECKS]
        said = self._said.setdefault(node, set())
        gone: set[tuple[str, str]] = set()
        if isinstance(evidence, Snapshot):
            gone = said - {one.key for one in told}
            self._network.speak(node, speaking=True)
            self._soon()
        elif evidence.gone:
            gone = said & set(evidence.gone)
        for check, component in gone:
            self._network.see(node, check, component, None)
        for one in told:
            self._network.see(node, one.check, one.component, one.status)
        said -= gone
        said |= {one.key for one in told}
        if told or gone:
            self._soon()

    def silent(self, node: str) -> None:
        """The agent's stream has ended: what it said is no evidence until it speaks again."""
        self._network.speak(node, speaking=False)
        self._soon()

    def listed(self, nodes: Iterable[NodeMeta]) -> None:
        """The cluster's nodes, with their labels."""
        for meta in nodes:
            places = [f"{name}={meta.labels[name]}" for name in self._labels if name in meta.labels]
            self._network.label(meta.name, places)
        self._soon()

    def forget(self, node: str) -> None:
        self._network.forget(node)
        self._said.pop(node, None)
        self._lost.pop(node, None)
        self._told.discard(node)
        self._soon()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def renew(self, case: Case) -> None:
        """Put what others say of the node to its health, which may be another object now."""
        finding = self._network.finding(case.node)
        health = case.patient.health
        if finding is not None and health is not None and _KEY not in health.inferred:
            health.inferred[_KEY] = _component(finding)

    def go_round(self) -> None:
        """Tell, once, of nodes that have long been unreachable and silent. Costs what is wrong."""
        now = self._clocks.now()
        for node, since in self._lost.items():
            if node not in self._told and now - since >= SILENT_FOR:
                self._told.add(node)
                finding = self._network.finding(node)
                text = finding.message if finding is not None else ""
                self._note(Kind.NODE_LOST, node, f"{node}: {text}", "")

    def settle(self) -> None:
        """Judge what has changed."""
        self._timer = None
        changed, others = self._network.settle(self._clocks.now())
        for node, finding in changed.items():
            self._take(node, finding)
        if others:
            self._tell()

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER, self.settle)

    def _take(self, node: str, finding: Finding) -> None:
        if finding.reason == UNREACHABLE_SILENT:
            self._lost.setdefault(node, finding.since)
        elif finding.status is not Status.UNKNOWN:
            self._lost.pop(node, None)
            if node in self._told:
                self._told.discard(node)
                self._note(Kind.NODE_FOUND, node, f"{node} is reached again, or speaks", "")
        case = self._census.known(node)
        health = case.patient.health if case is not None else None
        if case is None or health is None:
            return
        health.inferred[_KEY] = _component(finding)
        if finding.status is Status.FAILED or case.patient.incidents:
            self._judge(case)

    def _tell(self) -> None:
        """What is blamed now and was not, and what is blamed no more."""
        before = self._fleet.network
        now = {verdict.subject: verdict for verdict in self._network.verdicts()}
        for subject, verdict in now.items():
            if subject in before:
                now[subject] = replace(verdict, since=before[subject].since)
            else:
                self._note_verdict(Kind.NETWORK_BLAMED, verdict, verdict.message)
        for subject in before.keys() - now.keys():
            text = f"{subject} is blamed no more"
            self._note_verdict(Kind.NETWORK_CLEARED, before[subject], text)
        self._fleet.network = now

    def _note_verdict(self, kind: Kind, verdict: Verdict, text: str) -> None:
        details = {"blamed": verdict.kind, "name": verdict.name, "nodes": ", ".join(verdict.nodes)}
        if verdict.kind == "target" and verdict.count >= LEAST:
            details["cause"] = "told as a common cause"  # counted there, too: one alert is enough
        self._ledger.note(
            Transition(self._clocks.wall(), kind, "", f"network: {text}", verdict.subject, details)
        )

    def _note(self, kind: Kind, node: str, text: str, incident: str) -> None:
        self._ledger.note(Transition(self._clocks.wall(), kind, node, text, incident))


def _component(finding: Finding) -> Component:
    edges = ", ".join(f"{edge.observer} to {edge.target}" for edge in finding.edges)
    message = f"{finding.message} ({edges})" if edges else finding.message
    return Component(CHECK, "", finding.status, finding.reason, message, finding.since)
