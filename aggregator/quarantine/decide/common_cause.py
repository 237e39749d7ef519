"""Common causes: a fault of many nodes at once is not a fault of each node. Pure.

Symptoms are counted over all nodes as they report, before a quarantine is proposed. `CauseSearch`
finds the cause that explains one symptom on many nodes, as exact as possible; `CommonCauses` keeps
which causes are open, since when, and when they are over.

A cause is found where more nodes than chance gives show the symptom, and all began within one
window:
- the whole fleet: one check, or the faults of one rule;
- a target: one component of a check that several nodes check;
- a place: nodes that share a label (rack, leaf switch, fabric clique) or an NVLink fabric;
- a version: nodes that share driver, kernel or agent, and that do worse than the others.

Faults that a node's own hardware reports are never attributed to a place: a rack makes no driver
report that a GPU has left the bus. A version can, and so can sickbay itself; an NVLink has another
end.

The window is laid over the times at which the evidence began, wherever it lies: a restart that
derives all anew finds the same causes, hours later. Single failures spread over weeks are no common
cause.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple, Protocol

from attrs import define
from pydantic import Field

from aggregator.configfile.section import Positive, SectionDataclass
from aggregator.configfile.values import Duration, LabelKey, LabelKeys, Share
from aggregator.quarantine.decide.admission import OpenCause, Window
from aggregator.quarantine.decide.held import limit_text
from aggregator.quarantine.decide.symptoms import FABRIC, FABRIC_BY_LABEL, NVLINK, SILENCE, Symptom
from aggregator.rfc3339 import span

#: Fewer nodes than these are chance, whatever share of a small fleet, version or place they are.
LEAST = 5
LEAST_IN_PLACE = 3
LEAST_IN_CLIQUE = 2
#: A place or version is suspect when its nodes do this many times worse than all others.
CONTRAST = 4.0
#: A cause that explains this share of the broadest cause's nodes may win, if it is more exact.
NEARLY = 0.8
#: Causes of one symptom at most; the nodes left then have many small causes.
_MOST_CAUSES = 32
#: Targets of one symptom that are examined, those first that most nodes fail to reach.
_MOST_TARGETS = 64
_NAMED = 10
#: A symptom of more nodes than these is counted anew as they change, or this often (seconds).
MANY, AGAIN = 200, 5.0

SCOPES = ("check", "target", "place", "version", "agents")
#: Any symptom that a rule acts on: a new agent version is evaluated by this.
FLAGS = "flags"
VERSIONS = ("driver", "kernel", "agent")


@dataclass(frozen=True)
class CommonLimits(SectionDataclass):
    """The thresholds of a common cause: a part of the section ``limits``.

    ``window`` in seconds; percentages are of the nodes that could show the symptom. More than
    ``common_cause_percent`` of a check's observers, or more than ``common_cause_nodes``, whichever
    is less, is one cause of the fleet; more than ``domain_percent`` of a place or version is its
    own. ``domain_labels`` are the node labels whose value names a place: a rack, a leaf switch; the
    value of ``clique_label`` names a node's NVLink clique (empty: there are none). NVLink evidence
    of a node in a fabric waits ``fabric_hold`` (seconds) for that of others.
    """

    common_cause_percent: Share = 10.0
    """A check (or the faults of one rule, or one target) that fails on more than this share of the
    nodes that run it is one cause of the fleet: alerted once, and no node is quarantined for it.
    ``"100%"``: never by share.
    """
    common_cause_nodes: Positive = 50
    """The same from more than this many nodes, however large the fleet is. Never of fewer than
    five.
    """
    window: Window = 600.0
    """Of the new quarantines and their share, and the time that counts as at once."""
    domain_percent: Share = 20.0
    """A check that fails on more than this share of a place, and far more rarely elsewhere, is
    blamed on the place. A symptom on this share of the nodes of one driver, kernel or agent
    version, and far more rarely on others, is blamed on the version.
    """
    domain_labels: LabelKeys = ()
    clique_label: LabelKey = "nvidia.com/gpu.clique"
    """The node label that names the NVLink clique: NVLink evidence on two of its nodes is blamed on
    the clique. Empty: no label is used. Without the label the agent's report of its NVLink fabric
    counts; with it, the label alone (docs/security.md).
    """
    fabric_hold: Annotated[Duration, Field(le=600)] = 15.0
    """On a node of an NVLink fabric or clique, NVLink evidence and the driver's verdicts wait for
    this long for those of other nodes. ``0s``: they do not wait.
    """


#: A property that nodes share: a label, or the name of a version, and its value.
Group = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CommonCause:
    """One cause that many nodes share. ``since`` is monotonic; ``sample`` names some of them.

    ``total`` is how many could show it.
    """

    id: str
    scope: str
    what: str
    limit: str
    value: str
    reason: str
    nodes: int
    total: int
    sample: tuple[str, ...] = ()
    since: float = 0.0
    faded: float | None = None

    @property
    def fabric(self) -> bool:
        """Whether it is an NVLink fabric or clique."""
        return self.limit in ("fabric", "limits.clique_label")

    @property
    def fleetwide(self) -> bool:
        return self.scope in ("check", "target")

    def for_admission(self) -> OpenCause:
        return OpenCause(self.limit, self.value, self.reason, self.fleetwide)


class _Candidate(NamedTuple):
    """A cause, and all nodes that it explains."""

    cause: CommonCause
    nodes: frozenset[str]

    @property
    def exactness(self) -> tuple[int, bool]:
        """A rack or a leaf switch around an NVLink fabric has the same nodes with NVLink evidence,
        and carries no NVLink.
        """
        scopes = ("agents", "check", "version", "place", "target")
        return scopes.index(self.cause.scope), self.cause.fabric


@dataclass(frozen=True, slots=True)
class _Unexplained:
    """Nodes that show a symptom and have no cause yet, with the time of its begin; all of them, and
    those of each group and each target.
    """

    nodes: dict[str, float]
    members: Mapping[Group, dict[str, float]]
    targets: Mapping[str, dict[str, float]]
    #: How many nodes check each of these targets.
    seen_by: Mapping[str, int]
    #: The nodes on which a rule acts on the symptom.
    acting: Container[str]

    def drop(self, node: str, groups: Iterable[Group]) -> None:
        """The node has a cause."""
        del self.nodes[node]
        for group in groups:
            if group in self.members:
                del self.members[group][node]
        for seen in self.targets.values():
            seen.pop(node, None)


@dataclass(slots=True)
class Signs:
    """All nodes that show one symptom, with the time it began there; and per component.

    ``acting``: those of the nodes on which a rule acts on it.
    """

    nodes: dict[str, float] = field(default_factory=dict)
    targets: dict[str, dict[str, float]] = field(default_factory=dict)
    acting: set[str] = field(default_factory=set)
    found: dict[str, CommonCause] = field(default_factory=dict)
    changes: int = 0
    counted_at: float = float("-inf")

    def is_due(self, now: float) -> bool:
        """Whether to count anew: at once; for many nodes when a fiftieth of them has changed."""
        if not self.changes:
            return False
        return self.changes * 50 >= len(self.nodes) - MANY or now - self.counted_at >= AGAIN


@dataclass(slots=True)
class Population:
    """The nodes that report: the groups that each is of, and how many there are of each.

    ``observers`` counts by check the nodes that run it.
    """

    groups: dict[str, tuple[Group, ...]] = field(default_factory=dict)
    sizes: Counter[Group] = field(default_factory=Counter)
    observers: Counter[str] = field(default_factory=Counter)


class Observers(Protocol):
    """`NodeRegistry`, as far as it is used here."""

    def observers(self, check: str, components: Collection[str]) -> Mapping[str, int]:
        """By component, the number of nodes that check it, of these components of one check."""


@define(eq=False, repr=False, slots=False)
class CauseSearch:
    """Looks for the causes of symptoms in a population that the caller keeps up to date.

    ``sees`` is called seldom: it goes through all nodes. ``open_now`` has the ids of the causes
    that are open: these need half as many nodes to stay so.
    """

    _limits: CommonLimits
    _crowd: Population
    _sees: Observers
    _open_now: Container[str]

    def suspects(self, groups: Sequence[Group], what: str, component: str) -> frozenset[str]:
        """The ids of all causes that would explain this symptom of a node of these groups."""
        ids = {what}
        if component:
            ids.add(_target(what, component))
        ids |= {_domain(group, what) for group in groups if self._may_explain(group, what)}
        ids |= {_domain(group, FLAGS) for group in groups if self._may_explain(group, FLAGS)}
        return frozenset(ids)

    def causes(self, what: str, shown: Signs) -> list[CommonCause]:
        """The causes of one symptom: the one that explains most nodes first, then of the rest."""
        if len(shown.nodes) < LEAST_IN_CLIQUE:
            return []
        left = self._unexplained(what, shown)
        causes: list[CommonCause] = []
        while len(left.nodes) >= LEAST_IN_CLIQUE and len(causes) < _MOST_CAUSES:
            candidates = list(self._candidates(what, left))
            if not candidates:
                break
            best = self._best(candidates)
            causes.append(replace(best.cause, sample=tuple(sorted(best.nodes)[:_NAMED])))
            for node in best.nodes:
                left.drop(node, self._crowd.groups[node])
        return causes

    def _unexplained(self, what: str, shown: Signs) -> "_Unexplained":
        """All nodes, grouped by shared properties. Done once: a mass event has many causes."""
        # Nodes of the same groups share one tuple: each of its groups is handled once for all.
        alike: dict[int, tuple[tuple[Group, ...], dict[str, float]]] = {}
        for node, since in shown.nodes.items():
            groups = self._crowd.groups[node]
            alike.setdefault(id(groups), (groups, {}))[1][node] = since
        may: dict[Group, dict[str, float]] = {}
        for groups, members in alike.values():
            for group in groups:
                if self._may_explain(group, what):
                    may.setdefault(group, {}).update(members)
        many = sorted(
            (component for component, seen in shown.targets.items() if len(seen) >= LEAST),
            key=lambda component: (-len(shown.targets[component]), component),
        )[:_MOST_TARGETS]
        at = {component: dict(shown.targets[component]) for component in many}
        seen_by = self._sees.observers(what.partition(":")[2], many) if many else {}
        return _Unexplained(dict(shown.nodes), may, at, seen_by, shown.acting)

    def _best(self, candidates: Sequence[_Candidate]) -> _Candidate:
        """Of those that explain (nearly) most: one that is open already, then the most exact."""
        enough = NEARLY * max(len(one.nodes) for one in candidates)
        return max(
            (one for one in candidates if len(one.nodes) >= enough),
            key=lambda one: (
                one.cause.id in self._open_now,
                one.exactness,
                len(one.nodes),
                one.cause.id,
            ),
        )

    def _candidates(self, what: str, left: "_Unexplained") -> Iterator[_Candidate]:
        if what != FLAGS:
            yield from self._whole(what, left.nodes)
        for component, nodes in left.targets.items():
            yield from self._target(what, component, nodes, left.seen_by)
        for group, nodes in left.members.items():
            if len(nodes) >= LEAST_IN_CLIQUE:
                yield from self._group(what, group, nodes, left)

    def _may_explain(self, group: Group, what: str) -> bool:
        """Whether nodes may show this symptom because they share this."""
        label = group[0]
        if label == "agent" or what == FLAGS:
            return (label, what) == ("agent", FLAGS)
        if label in VERSIONS:
            return True
        if label in (self._limits.clique_label, FABRIC, FABRIC_BY_LABEL):
            return what == NVLINK
        return not what.startswith("rule:")

    def _whole(self, what: str, left: Mapping[str, float]) -> Iterator[_Candidate]:
        kind, _, name = what.partition(":")
        total = self._crowd.observers[name] if kind == "check" else 0
        total = max(total or len(self._crowd.groups), len(left))
        if self._too_many(what, left, self._most(total)):
            subject = f"check {name} fails" if kind == "check" else f"faults of rule {name}"
            subject = "NVLink evidence" if what == NVLINK else subject
            yield self._fleetwide(what, what, "check", subject, left, total)

    def _target(
        self, what: str, component: str, nodes: Mapping[str, float], seen_by: Mapping[str, int]
    ) -> Iterator[_Candidate]:
        if len(nodes) < LEAST:
            return
        check = what.partition(":")[2]
        ident = _target(what, component)
        total = max(seen_by.get(component, 0), len(nodes))
        if self._too_many(ident, nodes, self._most(total)):
            subject = f"check {check} fails for {component}"
            yield self._fleetwide(what, ident, "target", subject, nodes, total)

    def _fleetwide(
        self, what: str, ident: str, scope: str, subject: str, nodes: Collection[str], total: int
    ) -> _Candidate:
        limits = self._limits
        by_count = limits.common_cause_nodes < total * limits.common_cause_percent / 100
        key = "common_cause_nodes" if by_count else "common_cause_percent"
        limit, value = f"limits.{key}", limit_text(limits, key)
        text = f"more than {value} within {span(limits.window)} are one cause"
        reason = f"{subject} on {len(nodes)} of {total} nodes; {text}"
        cause = CommonCause(ident, scope, what, limit, value, reason, len(nodes), total)
        return _Candidate(cause, frozenset(nodes))

    def _group(
        self, what: str, group: Group, nodes: Mapping[str, float], left: "_Unexplained"
    ) -> Iterator[_Candidate]:
        label, value = group
        limits, size = self._limits, max(self._crowd.sizes[group], len(nodes))
        ident = _domain(group, what)
        subject = f"{label} {value}" if label in VERSIONS else f"{label}={value}"
        names = {NVLINK: "NVLink evidence", FLAGS: "actionable evidence"}
        evidence = names.get(what, what.replace(":", " "))
        many = f"{evidence} on {len(nodes)} of {size} nodes"
        if label in (limits.clique_label, FABRIC, FABRIC_BY_LABEL):
            if not self._are_one_fabrics(nodes, left.acting):
                return
            limit, at, one = "limits.clique_label", label, "clique"
            if label != limits.clique_label:
                subject, limit, at, one = f"NVLink fabric {value}", "fabric", value, "fabric"
            why = f"two of one {one} within {span(limits.window)} are the {one}'s"
        else:
            least = LEAST if label in VERSIONS else LEAST_IN_PLACE
            most = max(least - 1, int(size * limits.domain_percent / 100 + 1e-9))
            others, theirs = len(self._crowd.groups) - size, len(left.nodes) - len(nodes)
            if others < LEAST or len(nodes) * others < CONTRAST * theirs * size:
                return
            if not self._too_many(ident, nodes, most):
                return
            limit, at = "limits.domain_percent", limit_text(limits, "domain_percent")
            many += f", and on {theirs} of {others} others"
            why = f"more than {at} within {span(limits.window)} are one cause"
        scope, reason = "version" if label in VERSIONS else "place", f"{subject}: {many}; {why}"
        cause = CommonCause(ident, scope, what, limit, at, reason, len(nodes), size)
        yield _Candidate(cause, frozenset(nodes))

    def _are_one_fabrics(self, nodes: Mapping[str, float], acting: Container[str]) -> bool:
        """Whether the fabric is the cause: a rule acts on two nodes, or three show it, at once.

        The word of one node, on which no rule acts, must not hold the quarantine of another.
        """
        window = self._limits.window
        if _within(nodes.values(), window) > LEAST_IN_CLIQUE:
            return True
        acted = [since for node, since in nodes.items() if node in acting]
        return _within(acted, window) >= LEAST_IN_CLIQUE

    def _most(self, total: int) -> int:
        """How many of ``total`` may show a symptom without being one cause."""
        share = int(total * self._limits.common_cause_percent / 100 + 1e-9)
        return max(LEAST - 1, min(share, self._limits.common_cause_nodes))

    def _too_many(self, ident: str, nodes: Mapping[str, float], most: int) -> bool:
        """More than ``most`` at once; once open, more than half of it, whenever they began."""
        if ident in self._open_now:
            return len(nodes) > most // 2
        return len(nodes) > most and _within(nodes.values(), self._limits.window) > most

    def silence(self, silent: int, of: int) -> CommonCause | None:
        """The cause of ``silent`` silent agents, of those that have reported, or None if few
        are.
        """
        most = self._most(of)
        if silent <= (most // 2 if SILENCE in self._open_now else most):
            return None
        reason = f"{silent} of {of} agents are silent; no node is quarantined for it"
        made = self._fleetwide(SILENCE, SILENCE, "agents", "", (), max(of, 1))
        return replace(made.cause, reason=reason, nodes=silent)


def _within(times: Iterable[float], window: float) -> int:
    """The most of these times that lie in one window."""
    ordered = sorted(times)
    first = most = 0
    for last, at in enumerate(ordered):
        while at - ordered[first] > window:
            first += 1
        most = max(most, last - first + 1)
    return most


def _target(what: str, component: str) -> str:
    return f"{what} {component[:200]}"


def fabric_cause(group: Group) -> str:
    """The id of the cause that this NVLink fabric or clique would be."""
    return _domain(group, NVLINK)


def _domain(group: Group, what: str) -> str:
    return f"{group[0]}={group[1]} {what}"


#: A cause is over when it has not held for this long (seconds).
SETTLE = 60.0


@dataclass(slots=True)
class _Node:
    signs: frozenset[Symptom] = frozenset()
    checks: frozenset[str] = frozenset()


class CommonCauses:
    """Counts reported symptoms, and returns which causes are open.

    ``sees`` is called seldom: it goes through all nodes.
    """

    def __init__(self, limits: CommonLimits, sees: Observers) -> None:
        self._crowd = Population()
        self._nodes: dict[str, _Node] = {}
        self._signs: dict[str, Signs] = {}
        self._silent = (0, 0)
        #: The open causes, by id.
        self.open: dict[str, CommonCause] = {}
        self._blame = CauseSearch(limits, self._crowd, sees, self.open)

    # -- input ----------------------------------------------------------------------

    def set_symptoms(
        self,
        node: str,
        signs: frozenset[Symptom],
        groups: tuple[Group, ...],
        checks: frozenset[str],
    ) -> None:
        """All that is known of a node that reports: replaces its earlier state."""
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = _Node()
            self._crowd.groups[node] = ()
        before = self._crowd.groups[node]
        if groups != before:
            self._crowd.sizes.subtract(before)
            self._crowd.sizes.update(groups)
            self._crowd.groups[node] = groups
        if checks != known.checks:
            self._crowd.observers.subtract(known.checks)
            self._crowd.observers.update(checks)
            known.checks = checks
        if signs != known.signs:
            shown, known.signs = known.signs, signs
            self._count(node, shown, signs)

    def gone(self, node: str) -> None:
        """The node is no more."""
        if node in self._nodes:
            self.set_symptoms(node, frozenset(), (), frozenset())
            del self._nodes[node], self._crowd.groups[node]

    def silence(self, silent: int, of: int) -> None:
        """How many of the agents that have reported are silent now."""
        self._silent = (silent, of)

    def _count(self, node: str, before: frozenset[Symptom], after: frozenset[Symptom]) -> None:
        earlier, later = _by_what(before), _by_what(after)
        for what in {sign.what for sign in before ^ after}:
            self._show(node, what, earlier.get(what, ()), later.get(what, ()))
        flags = [
            [Symptom(FLAGS, "", sign.since, acting=True) for sign in signs if sign.acting]
            for signs in (before, after)
        ]
        if any(flags):
            self._show(node, FLAGS, *flags)

    def _show(
        self, node: str, what: str, before: Sequence[Symptom], after: Sequence[Symptom]
    ) -> None:
        shown = self._signs.setdefault(what, Signs())
        shown.changes += 1
        shown.nodes.pop(node, None)
        shown.acting.discard(node)
        for sign in before:
            nodes = shown.targets.get(sign.component, {})
            nodes.pop(node, None)
            if not nodes:
                shown.targets.pop(sign.component, None)
        for sign in after:
            shown.nodes[node] = max(sign.since, shown.nodes.get(node, sign.since))
            if sign.acting:
                shown.acting.add(node)
            if sign.component:
                shown.targets.setdefault(sign.component, {})[node] = sign.since
        if not (shown.nodes or shown.found):
            del self._signs[what]

    # -- results ------------------------------------------------------------------------

    def suspects(self, node: str, what: str, component: str) -> frozenset[str]:
        """The ids of all causes that would explain this symptom of this node."""
        return self._blame.suspects(self._crowd.groups.get(node, ()), what, component)

    def known(self, node: str) -> tuple[frozenset[Symptom], tuple[Group, ...], frozenset[str]]:
        """The node's last reported symptoms, groups and checks. All empty for an unknown node."""
        known = self._nodes.get(node)
        if known is None:
            return frozenset(), (), frozenset()
        return known.signs, self._crowd.groups[node], known.checks

    def find_causes(self, now: float) -> tuple[list[CommonCause], list[CommonCause]]:
        """Count anew where symptoms have changed. Returns opened causes, and those that ended."""
        if not (self._signs or self.open or self._silent[0]):
            return [], []  # of a fleet that is well
        found: dict[str, CommonCause] = {}
        for what, shown in list(self._signs.items()):
            if shown.is_due(now):
                causes = self._blame.causes(what, shown)
                shown.found = {cause.id: cause for cause in causes}
                shown.changes, shown.counted_at = 0, now
                if not (shown.nodes or shown.found):
                    del self._signs[what]  # no node shows it any more
            found |= shown.found
        silence = self._blame.silence(*self._silent)
        if silence is not None:
            found[SILENCE] = silence
        new = found.keys() - self.open.keys()
        opened = [replace(found[ident], since=now) for ident in sorted(new)]
        ended = []
        for ident, cause in list(self.open.items()):
            latest = found.get(ident)
            if latest is not None:
                self.open[ident] = replace(latest, since=cause.since)
            elif cause.faded is None:
                self.open[ident] = replace(cause, faded=now)
            elif now - cause.faded >= SETTLE:
                ended.append(self.open.pop(ident))
                if cause.what in self._signs:  # half the number no longer suffices for it
                    self._signs[cause.what].changes += 1
        for cause in opened:
            self.open[cause.id] = cause
        return opened, ended


def _by_what(signs: Iterable[Symptom]) -> Mapping[str, Sequence[Symptom]]:
    """The symptoms by ``what``: a node may show very many."""
    found: dict[str, list[Symptom]] = {}
    for sign in signs:
        found.setdefault(sign.what, []).append(sign)
    return found
