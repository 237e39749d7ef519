"""One node as the controller works on it: its summary, and the controller's own state."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from aggregator.cluster.port import Action, Node, Quarantine, is_older
from aggregator.policy.evaluate import Incident, evaluate
from aggregator.policy.node_rules import reweighed
from aggregator.policy.rules import Policy
from aggregator.policy.silent_agent import silent_match
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import OURS, incidents_of, wanted_of
from aggregator.quarantine.decide.node_marks import words_of
from aggregator.quarantine.decide.operator_requests import NONE, describe
from aggregator.quarantine.decide.overrides import Override, may_be_open
from aggregator.quarantine.decide.uncordon import UncordonRules, is_release
from aggregator.quarantine.state.cluster_view import OthersMarks
from aggregator.quarantine.state.fleet import NodeSummary


@dataclass(slots=True)
class NodeState(NodeSummary):
    """The controller's side of a node.

    ``now``: monotonic seconds, for ages that are shown. ``held``: all held nodes of the registry.
    ``others`` reads the marks of other tools.
    """

    now: Callable[[], float] = field(kw_only=True)
    held: dict[str, "NodeState"] = field(default_factory=dict, repr=False, compare=False)
    others: OthersMarks = field(default_factory=OthersMarks, repr=False, compare=False)

    def set_hold(self, hold: Held | None) -> None:
        """The answer to a proposal; None: no limit holds it, or there is none any more."""
        self.decision.hold = hold
        if hold is not None:
            self.held[self.node] = self
        else:
            self.held.pop(self.node, None)

    @property
    def acting(self) -> bool:
        """Whether an open incident calls for more than observation."""
        return any(incident.action != "observe" for incident in self.decision.incidents.values())

    def take_read(
        self, quarantine: Quarantine, policy: Policy, now: float, *, before: Quarantine | None
    ) -> None:
        """The object as a consistent read or a fresh list has it. It counts whatever its version.

        ``before`` is the state known when the read began. Versions move backwards when etcd is
        restored, so they are compared only where an event came while the read was under way.
        """
        known = self.quarantine
        if known is not None and known is not before and _is_past(quarantine, known):
            return
        let_go = quarantine.deleting and not quarantine.has_finalizer
        if quarantine.uid == self.quarantine_view.ended and known is None and not let_go:
            self.quarantine_view.ended = ""
        self.take_quarantine(quarantine, policy, now)

    def take_quarantine(self, quarantine: Quarantine, policy: Policy, now: float) -> None:
        """The object as it is now: the caller compares a watch's event by `is_news` first.

        Its evidence comes back into memory when it is first seen, and where another has written it
        since. Until the agent has reported here, there is no other evidence than the object's.
        """
        if quarantine.uid == self.quarantine_view.ended:
            return
        if not self.quarantine_view.take(quarantine):
            return
        if quarantine.foreign:
            return  # its evidence is another installation's
        before, found = self.decision.incidents, incidents_of(quarantine, policy, now)
        if self.agent.health is None:
            joined = {
                ident: replace(one, since=before[ident].since) if ident in before else one
                for ident, one in found.items()
            }
        else:
            joined = {**before} | {
                ident: _joined(before[ident], one) if ident in before else one
                for ident, one in found.items()
            }
        self.decision.incidents = joined

    def is_news(self, quarantine: Quarantine) -> bool:
        """Whether it is newer than the known one: our own writes come back as watch events.

        A person's request for an operation, and the deletion of its last one, leave the version of
        the quarantine as it was.
        """
        known = self.quarantine
        if known is None or known.uid != quarantine.uid:
            return True
        if known.version == quarantine.version:
            return _has_news_of_people(quarantine, known)
        return not _is_past(quarantine, known)

    def wrote(self, quarantine: Quarantine) -> None:
        """The object as we have just written it.

        Events of later changes may have come before the answer: that it is gone, or that a person
        has deleted it, which no other event would report again.
        """
        known = self.quarantine
        if known is not None and _is_past(quarantine, known):
            return
        if quarantine.uid != self.quarantine_view.ended:
            self.quarantine_view.write(quarantine)

    def bears_out(self, node: Node | None) -> bool:
        """Whether a read that may be old shows only what is known of the node already.

        Such a read may serve for a patch that its version fences; see docs/fences.md.
        """
        cluster, agent = self.cluster, self.agent
        if node is None or self.quarantine is not None or cluster.node_gone or agent.misnamed:
            return False
        if agent.claimed not in ("", node.uid) or cluster.maintained:
            return False
        return cluster.has_others_marks_of(node, self.others) and cluster.has_notes_of(node)

    @property
    def evictions_are_forbidden(self) -> bool:
        """Whether another tool's mark keeps the pods where they are, in our own quarantine."""
        quarantine = self.quarantine
        ours = quarantine is not None and quarantine.spec.requester == OURS
        return ours and bool(self.cluster.evictions_forbidden)

    def take_node(self, node: Node | None) -> None:
        """The node as just read: changes by people are found from it."""
        quarantine = self.quarantine
        self.cluster.take_node(node, quarantine, self.now(), self.others)
        self.agent.compare_uid(node.uid if node is not None else None)
        self.quarantine_view.take_node(node)

    def discard_evidence(self, policy: Policy, now: float) -> None:
        """Discard evidence by the agent of another Node of this name, as it is not this node's.

        The quarantine's evidence stays: it is durable, and may be of the same machine and boot.
        """
        self.agent.discard()
        self.decision.forget_evidence()
        self.quarantine_view.forget_evidence()
        quarantine = self.quarantine
        if quarantine is not None:
            self.take_quarantine(quarantine, policy, now)

    def show_requests(self, wall: float) -> tuple[str, ...]:
        """Update the operators' requests that are shown. Returns the new ones."""
        before, requests = self.decision.requests, self.cluster.operator_requests
        if requests is NONE and not before:
            return ()  # nearly every node
        self.decision.take_requests(describe(requests, wall), exempt=requests.exempt(wall))
        new = tuple(one for one in self.decision.requests if one not in before)
        over = bool(before and not self.decision.requests)
        return new or ("no request of a person is on it any more",) * over

    @property
    def is_unforced(self) -> bool:
        """Whether the annotation of a person's force is gone, by the last read of the node."""
        cluster = self.cluster
        known = cluster.operator_requests_known and not cluster.operator_requests.force_requested
        return cluster.node_gone or known

    def is_released_by_uncordon(self, rules: UncordonRules) -> bool:
        """Whether the node, as last read, was uncordoned by a person who ends its quarantine."""
        view = self.quarantine_view
        return view.quarantine is not None and is_release(view.uncordoned, view.quarantine, rules)

    @property
    def release_held(self) -> str:
        """Why it is not released although its cause is over; empty: no check holds it."""
        quarantine = self.quarantine
        if quarantine is None:
            return ""
        return self.quarantine_view.release_held or quarantine.status.release_held

    def hasten_repair(self) -> None:
        """What its repair waits for has changed: it need not wait for the next poll."""
        if self.quarantine is not None:
            self.quarantine_view.repair_poll = self.now()

    def note_recovery(self) -> None:
        """No incident acts any more: the test before its release may be next."""
        if self.quarantine is not None:
            self.quarantine_view.note_recovery(self.now())

    def hasten_release_check(self, after: float) -> None:
        """Its checks have changed: what holds its release is checked again after this long
        (seconds) at most.
        """
        if self.release_held:
            self.quarantine_view.hasten_release_check(self.now() + after)

    def evaluate(
        self, policy: Policy, mode: Action, now: float, *, silent_action: str = "observe"
    ) -> tuple[list[Incident], float | None]:
        """Evaluate anew. Returns the closed incidents, and when time may change the result."""
        health = self.agent.health
        if health is None:
            return [], None
        more = []
        if self.agent.silent_failing:
            since = self.agent.silent_failing_since
            more.append(silent_match(health, self.agent.silent_failing, since, silent_action))
        quarantine = self.quarantine
        has_begun = quarantine is not None and quarantine.spec.requester == OURS
        before = self.decision.incidents
        evaluation = evaluate(
            policy,
            health,
            before if has_begun or not policy.selecting else reweighed(before, policy),
            now,
            reporting=self.agent.is_fresh,
            more=more,
        )
        if self.agent.is_fresh:
            degraded, words = policy.acting_on_degraded, self.cluster.overruled
            self.cluster.end_overrides({w for w in words if not may_be_open(w, health, degraded)})
        overruled = frozenset(word.key for word in self.cluster.overruled)
        wanted = wanted_of(evaluation.incidents, overruled, mode, policy.hash)
        self.decision.update(evaluation.incidents, wanted)
        return list(evaluation.closed), evaluation.evaluate_again

    def overrule(self, remembered: frozenset[Override] = frozenset()) -> frozenset[Override]:
        """All evidence of the quarantine that is not over, as overruled by a person.

        ``remembered`` is the same by the node's marks. Evidence that has recovered, and waits for
        its release, is not overruled: that would silence the next fault.
        """
        quarantine = self.quarantine
        recovered = self.agent.is_fresh and not self.acting
        spec = quarantine.spec.evidence if quarantine is not None and not recovered else ()
        wanted = self.decision.wanted.spec.evidence if self.decision.wanted is not None else ()
        latest = {(item.code, item.component): item for item in (*spec, *wanted)}
        over = {item.key for item in self.decision.evidence if item.over}
        words = words_of(latest.values()) | remembered
        return frozenset(word for word in words if word.key not in over)


def _is_past(one: Quarantine, other: Quarantine) -> bool:
    """Whether one is an earlier version of the same object."""
    return one.uid == other.uid and is_older(one.version, other.version)


def _has_news_of_people(one: Quarantine, other: Quarantine) -> bool:
    """Whether one has the same attempts as the other, the last of them deleted since, or people
    have made or deleted requests.
    """
    mine, before = (each.status.repair for each in (one, other))
    names = ([each.operation for each in found.attempts] for found in (mine, before))
    if next(names) != next(names):
        return False
    deleted = any(each.deleted for each in mine.attempts[-1:])
    news = deleted and not before.attempts[-1].deleted
    return news or mine.requests != before.requests


def _joined(mine: Incident, remembered: Incident) -> Incident:
    """My incident, with all that is remembered: evidence, and signs. A fault that is there again,
    after its sign, is in force as soon as it is evaluated.
    """
    ended = {item.key: item.over for item in remembered.evidence}
    known = {item.key for item in mine.evidence}
    more = tuple(item for item in remembered.evidence if item.key not in known)
    signed = tuple(
        replace(item, over=item.over or ended.get(item.key, "")) for item in mine.evidence
    )
    return replace(
        mine,
        boot_id=remembered.boot_id,
        since=min(mine.since, remembered.since),
        evidence=(*signed, *more),
        healthy_for=max(mine.healthy_for, remembered.healthy_for),
        remembered=False,
    )
