"""Gives triangulation what the agents say, and judging what follows from it.

A verdict about a node becomes level evidence of that node, which rules may act on; one about a
target or a domain is shown and told once, and concerns no node. Judged in batches, a moment after
something has changed: what is blamed has lasted for a minute and more.

Of several replicas the leader judges, over what all of them have heard; each puts to its own nodes
what the leader finds.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from aggregator.health.model import Component, Delta, Snapshot, Status
from aggregator.policy.network.triangulate import Triangulation
from aggregator.policy.network.verdict import CHECK, UNREACHABLE_SILENT, Finding, Verdict
from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.case import Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.cluster import NodeMeta
from aggregator.quarantine.decide.blame import LEAST
from aggregator.quarantine.decide.sayings import Saying, Seen
from aggregator.quarantine.elsewhere import Elsewhere, Unsaid
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.ledger import Kind, Ledger, Transition

#: The checks whose word is evidence of the network.
CHECKS = frozenset({"peers", "reach", "dns", "pod-network"})
#: Seconds in which changes are gathered.
GATHER = 1.0
#: A node that nobody reaches and whose agent is silent is told of after so many seconds: one that
#: boots is so for some minutes.
SILENT_FOR = 300.0


@dataclass(slots=True)
class _Word:
    """What is known of one node: where it is looked for, whether it speaks, and what it sees."""

    address: str = ""
    speaking: bool = False
    sees: dict[tuple[str, str], Status] = field(default_factory=dict)


class Triangulating:
    """``labels`` are the node labels that name racks and switches; ``judge`` judges a node anew.

    ``owns`` tells whether a node is ours to speak of, ``elsewhere`` has the others, ``unsaid`` is
    marked where something about one of ours has changed.
    """

    def __init__(
        self,
        *,
        census: Census,
        fleet: Fleet,
        ledger: Ledger,
        clocks: Clocks,
        labels: Iterable[str],
        judge: Callable[[Case], None],
        owns: Callable[[str], bool],
        elsewhere: Elsewhere,
        unsaid: Unsaid,
    ) -> None:
        self._census = census
        self._fleet = fleet
        self._ledger = ledger
        self._clocks = clocks
        self._labels = tuple(labels)
        self._judge = judge
        self._network = Triangulation()
        self._owns = owns
        self._elsewhere = elsewhere
        self._unsaid = unsaid
        #: Whether we judge for all, and since when we may (monotonic).
        self._leading, self._from = True, float("-inf")
        #: The leader's findings of nodes of ours, where another one judges or did until now.
        self._told_findings: dict[str, Finding] = {}
        #: Told of what has changed of another replica's node.
        self.tell_owner: Callable[[str], None] = lambda _: None
        self._words: dict[str, _Word] = {}
        self._places: dict[str, list[str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._lost: dict[str, float] = {}  # unreachable and silent, since when
        self._told: set[str] = set()  # of these, those that were told of

    def placed(self, node: str, address: str) -> None:
        self._place(node, address)
        self._unsaid.mark(node)
        self._soon()

    def heard(self, node: str, evidence: Snapshot | Delta) -> None:
        """The agent speaks; what its network checks say are edges."""
        told = {one.key: one.status for one in evidence.components if one.check in CHECKS}
        word = self._word(node)
        gone: Iterable[tuple[str, str]] = ()
        if isinstance(evidence, Snapshot):
            gone = word.sees.keys() - told.keys()
            self._speak(node, speaking=True)
            self._unsaid.mark(node)
            self._soon()
        elif evidence.gone:
            gone = word.sees.keys() & set(evidence.gone)
        self._see(node, told, gone)

    def silent(self, node: str) -> None:
        """The agent's stream has ended: what it said is no evidence until it speaks again.

        Of a node that has another owner now, what it said stands for the moment.
        """
        if self._owns(node):
            self._speak(node, speaking=False)
            self._unsaid.mark(node)
            self._soon()

    def unfind(self, node: str) -> None:
        """The node was another's, or may have been: what the leader found since, it told that one.

        By the time that its agent is back the leader speaks of it again; an older finding would act
        at once, as it looks as if it had stood for all that time.
        """
        self._told_findings.pop(node, None)

    def told(self, saying: Saying) -> None:
        """What another replica says of a node of its own."""
        node = saying.node
        self._place(node, saying.address)
        self._speak(node, speaking=saying.speaking)
        told = {(one[0], one[1]): one[2] for one in saying.sees if one[0] in CHECKS}
        self._see(node, told, self._word(node).sees.keys() - told.keys())
        self._soon()

    def untold(self, node: str) -> None:
        """Nobody speaks of the node any more."""
        if node in self._words:
            self._see(node, {}, list(self._words[node].sees))
            self._speak(node, speaking=False)
            self._soon()

    def word(self, node: str) -> tuple[str, bool, tuple[Seen, ...]]:
        """What we have to say of the node: address, whether it speaks, and what it sees."""
        word = self._words.get(node)
        if word is None:
            return "", False, ()
        sees = tuple((check, what, status) for (check, what), status in word.sees.items())
        return word.address, word.speaking, sees

    def _word(self, node: str) -> _Word:
        found = self._words.get(node)
        if found is None:
            found = self._words[node] = _Word()
        return found

    def _place(self, node: str, address: str) -> None:
        word = self._word(node)
        word.address = address
        if self._leading:
            self._network.place(node, address)

    def _speak(self, node: str, *, speaking: bool) -> None:
        self._word(node).speaking = speaking
        if self._leading:
            self._network.speak(node, speaking=speaking)

    def _see(
        self,
        node: str,
        told: Mapping[tuple[str, str], Status],
        gone: Iterable[tuple[str, str]],
    ) -> None:
        """The node's edges; what is so already costs next to nothing."""
        word, changed = self._word(node), False
        for key in list(gone):
            changed = True
            del word.sees[key]
            if self._leading:
                self._network.see(node, *key, None)
        for key, status in told.items():
            changed |= word.sees.get(key) is not status
            word.sees[key] = status
            if self._leading:
                self._network.see(node, *key, status)
        if changed:
            self._unsaid.mark(node)
            self._soon()

    def lead(self, since: float) -> None:
        """From ``since`` on we judge for all: anew, for what we found when we last did is old."""
        self._from = since
        if self._leading:
            return
        self._leading, self._network = True, Triangulation()
        for node, places in self._places.items():
            self._network.label(node, places)
        for node, word in self._words.items():
            self._network.place(node, word.address)
            self._network.speak(node, speaking=word.speaking)
            for key, status in word.sees.items():
                self._network.see(node, *key, status)
        self._soon()

    def follow(self) -> None:
        """Another one judges. What was found last stands until it says otherwise."""
        if self._leading:
            self._leading, self._network = False, Triangulation()
            self._lost.clear()
            self._told.clear()

    def answered(self, findings: Mapping[str, Finding]) -> None:
        """What the leader has found of nodes of ours."""
        for node, finding in findings.items():
            if not self._leading and self._owns(node):
                self._told_findings[node] = finding
                self._put(node, finding)

    def finding(self, node: str) -> Finding | None:
        """As we judged last, or as we were told."""
        found = self._network.finding(node) if self._leading else None
        return found or self._told_findings.get(node)

    def listed(self, nodes: Iterable[NodeMeta]) -> None:
        """The cluster's nodes, with their labels."""
        for meta in nodes:
            places = [f"{name}={meta.labels[name]}" for name in self._labels if name in meta.labels]
            if places or meta.name in self._places:
                self._places[meta.name] = places
            if self._leading:
                self._network.label(meta.name, places)
        self._soon()

    def forget(self, node: str) -> None:
        self._told_findings.pop(node, None)
        if node in self._elsewhere:
            return  # it is for its replica to forget it
        self._network.forget(node)
        self._words.pop(node, None)
        self._places.pop(node, None)
        self._lost.pop(node, None)
        self._told.discard(node)
        self._soon()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def renew(self, case: Case) -> None:
        """Put what others say of the node to its health, which may be another object now."""
        finding = self.finding(case.node)
        health = case.patient.health
        if finding is not None and health is not None and health.inferred is None:
            health.inferred = _component(finding)

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
        """Judge what has changed, where we are the one that judges."""
        self._timer = None
        if not self._leading:
            return
        if self._clocks.now() < self._from:
            self._soon()
            return
        self._told_findings.clear()
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
        if node in self._elsewhere:
            self.tell_owner(node)
        else:
            self._put(node, finding)

    def _put(self, node: str, finding: Finding) -> None:
        """Make it evidence of the node."""
        case = self._census.known(node)
        health = case.patient.health if case is not None else None
        if case is None or health is None:
            return
        before = health.inferred
        if before is not None and (before.status, before.reason) == (
            finding.status,
            finding.reason,
        ):
            finding = replace(finding, since=min(finding.since, before.since))  # by another's word
        health.inferred = _component(finding)
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
