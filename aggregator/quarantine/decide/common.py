"""Common causes: what is wrong with many nodes at once is not those nodes'. Pure.

Counted over all nodes as they report, before anything is proposed. A cause is open when more nodes
show the same sign than chance gives, all of them having begun within one window:
- the whole fleet: one check, or the faults of one rule;
- a target: one component of a check that several nodes look at;
- a place: nodes that share a label (rack, leaf switch, fabric clique);
- a version: nodes that share driver, kernel or agent, and that do worse than the others.

The window is laid over the times at which the evidence began, wherever it lies: a restart that
derives all anew finds the same causes, hours later. What fails here and there over weeks is none.

Faults that a node's own hardware tells of are never put down to a place: a rack makes no driver
say that a GPU has left the bus. A version can, and so can we; NVLink has another end.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aggregator.quarantine.decide.admission import OpenCause
from aggregator.quarantine.decide.signs import NVLINK, SILENCE, Sign
from aggregator.quarantine.times import span

#: Fewer nodes than these are chance, whatever share of a small fleet, version or place they are.
LEAST = 5
LEAST_IN_PLACE = 3
LEAST_IN_CLIQUE = 2
#: A place or version is suspect when its nodes do so many times worse than all others.
CONTRAST = 4.0
#: A cause is over when it has not held for so long (seconds).
SETTLE = 60.0
#: A sign of more nodes than these is counted anew as they change, or so often (seconds).
MANY, AGAIN = 200, 5.0
#: What explains so much of what the broadest explains may be the cause, if it is more exact.
NEARLY = 0.8
#: Causes of one sign at most; what is left then is many small things.
_MOST_CAUSES = 32
_NAMED = 10
_REMEMBERED = 32

SCOPES = ("check", "target", "place", "version", "agents")
#: Any sign that a rule acts on: what a new agent version is judged by.
FLAGS = "flags"
VERSIONS = ("driver", "kernel", "agent")


@dataclass(frozen=True, slots=True)
class CommonLimits:
    """What is too many. ``window`` in seconds; percentages are of those who could show the sign.

    More than ``percent`` of a check's observers, or more than ``nodes``, whichever is less, is one
    cause of the fleet; more than ``domain_percent`` of a place or version is its own.
    """

    percent: float = 10.0
    nodes: int = 50
    window: float = 600.0
    domain_percent: float = 20.0
    domain_labels: tuple[str, ...] = ()
    clique_label: str = "nvidia.com/gpu.clique"


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
    sample: tuple[str, ...]
    since: float = 0.0
    faded: float | None = None

    @property
    def fleetwide(self) -> bool:
        return self.scope in ("check", "target")

    def for_admission(self) -> OpenCause:
        return OpenCause(self.limit, self.value, self.reason, self.fleetwide)


@dataclass(slots=True)
class _Signs:
    """All nodes that show one sign, with the time it began there; and per component."""

    nodes: dict[str, float] = field(default_factory=dict)
    targets: dict[str, dict[str, float]] = field(default_factory=dict)
    found: dict[str, CommonCause] = field(default_factory=dict)
    changes: int = 0
    looked: float = float("-inf")

    def is_due(self, now: float) -> bool:
        """Whether to count anew: at once; for many nodes when a fiftieth of them has changed."""
        if not self.changes:
            return False
        return self.changes * 50 >= len(self.nodes) - MANY or now - self.looked >= AGAIN


@dataclass(slots=True)
class _Node:
    signs: frozenset[Sign] = frozenset()
    groups: tuple[Group, ...] = ()
    checks: frozenset[str] = frozenset()
    #: What may explain a sign: asked at every look at what is held; groups alone change it.
    suspects: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)


class CommonCauses:
    """Counts what it is told, and says which causes are open.

    ``sees`` counts the nodes that look at a component of a check: asked for seldom.
    """

    def __init__(self, limits: CommonLimits, sees: Callable[[str, str], int]) -> None:
        self._limits = limits
        self._sees = sees
        self._nodes: dict[str, _Node] = {}
        self._sizes: Counter[Group] = Counter()
        self._observers: Counter[str] = Counter()
        self._signs: dict[str, _Signs] = {}
        self._silent = (0, 0)
        #: What is open, by id.
        self.open: dict[str, CommonCause] = {}

    # -- what is told ----------------------------------------------------------------------

    def told(
        self,
        node: str,
        signs: frozenset[Sign],
        groups: tuple[Group, ...],
        checks: frozenset[str],
    ) -> None:
        """All that is known of a node that reports: replaces what was."""
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = _Node()
        if groups != known.groups:
            self._sizes.subtract(known.groups)
            self._sizes.update(groups)
            known.groups = groups
            known.suspects.clear()
        if checks != known.checks:
            self._observers.subtract(known.checks)
            self._observers.update(checks)
            known.checks = checks
        if signs != known.signs:
            before, known.signs = known.signs, signs
            self._count(node, before, signs)

    def gone(self, node: str) -> None:
        """The node is no more."""
        if node in self._nodes:
            self.told(node, frozenset(), (), frozenset())
            del self._nodes[node]

    def silence(self, silent: int, of: int) -> None:
        """How many of the agents that were heard are silent now."""
        self._silent = (silent, of)

    def _count(self, node: str, before: frozenset[Sign], after: frozenset[Sign]) -> None:
        for what in {sign.what for sign in before ^ after}:
            earlier = [sign for sign in before if sign.what == what]
            self._show(node, what, earlier, [sign for sign in after if sign.what == what])
        flags = [
            [Sign(FLAGS, "", sign.since, acting=True) for sign in signs if sign.acting]
            for signs in (before, after)
        ]
        if any(flags):
            self._show(node, FLAGS, *flags)

    def _show(self, node: str, what: str, before: Sequence[Sign], after: Sequence[Sign]) -> None:
        shown = self._signs.setdefault(what, _Signs())
        shown.changes += 1
        shown.nodes.pop(node, None)
        for sign in before:
            nodes = shown.targets.get(sign.component, {})
            nodes.pop(node, None)
            if not nodes:
                shown.targets.pop(sign.component, None)
        for sign in after:
            shown.nodes[node] = max(sign.since, shown.nodes.get(node, sign.since))
            if sign.component:
                shown.targets.setdefault(sign.component, {})[node] = sign.since

    # -- what follows ------------------------------------------------------------------------

    def suspects(self, node: str, what: str, component: str) -> frozenset[str]:
        """The ids of all causes that would explain this sign of this node."""
        known = self._nodes.get(node) or _Node()
        found = known.suspects.get((what, component))
        if found is None:
            if len(known.suspects) >= _REMEMBERED:
                known.suspects.clear()
            found = self._suspects(known.groups, what, component)
            known.suspects[what, component] = found
        return found

    def _suspects(self, groups: tuple[Group, ...], what: str, component: str) -> frozenset[str]:
        ids = {what}
        if component:
            ids.add(_target(what, component))
        ids |= {_domain(group, what) for group in groups if self._may_explain(group, what)}
        ids |= {_domain(group, FLAGS) for group in groups if self._may_explain(group, FLAGS)}
        return frozenset(ids)

    def look(self, now: float) -> tuple[list[CommonCause], list[CommonCause]]:
        """Count anew where something has changed. Returns what opened and what is over."""
        found: dict[str, CommonCause] = {}
        for what, shown in self._signs.items():
            if shown.is_due(now):
                shown.found = {cause.id: cause for cause in self._causes(what, shown)}
                shown.changes, shown.looked = 0, now
            found |= shown.found
        silence = self._silence()
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
                if cause.what in self._signs:  # it is not held to half the number any more
                    self._signs[cause.what].changes += 1
        for cause in opened:
            self.open[cause.id] = cause
        return opened, ended

    def _causes(self, what: str, shown: _Signs) -> list[CommonCause]:
        """The causes of one sign: the one that explains most nodes first, then of the rest."""
        left = dict(shown.nodes)
        causes: list[CommonCause] = []
        while len(left) >= LEAST_IN_CLIQUE and len(causes) < _MOST_CAUSES:
            candidates = list(self._candidates(what, shown, left))
            if not candidates:
                break
            best = self._best(candidates)
            causes.append(best.cause(what))
            left = {node: since for node, since in left.items() if node not in best.nodes}
        return causes

    def _best(self, candidates: Sequence["_Candidate"]) -> "_Candidate":
        """Of those that explain (nearly) most: one that is open already, then the most exact."""
        enough = NEARLY * max(len(one.nodes) for one in candidates)
        return max(
            (one for one in candidates if len(one.nodes) >= enough),
            key=lambda one: (one.id in self.open, one.exactness, len(one.nodes), one.id),
        )

    def _candidates(
        self, what: str, shown: _Signs, left: Mapping[str, float]
    ) -> Iterator["_Candidate"]:
        if what != FLAGS:
            yield from self._whole(what, left)
        for component, nodes in shown.targets.items():
            if len(nodes) >= LEAST:
                yield from self._target(what, component, _only(nodes, left))
        members: dict[Group, list[str]] = {}
        for node in left:
            for group in self._nodes[node].groups:
                if self._may_explain(group, what):
                    members.setdefault(group, []).append(node)
        for group, names in members.items():
            if len(names) >= LEAST_IN_CLIQUE:
                yield from self._group(what, group, {node: left[node] for node in names}, left)

    def _may_explain(self, group: Group, what: str) -> bool:
        """Whether nodes may show this sign because they share this."""
        label = group[0]
        if label == "agent" or what == FLAGS:
            return (label, what) == ("agent", FLAGS)
        if label in VERSIONS:
            return True
        if label == self._limits.clique_label:
            return what == NVLINK
        return not what.startswith("rule:")

    def _whole(self, what: str, left: Mapping[str, float]) -> Iterator["_Candidate"]:
        kind, _, name = what.partition(":")
        total = self._observers[name] if kind == "check" else 0
        total = max(total or len(self._nodes), len(left))
        if self._too_many(what, left, self._most(total)):
            subject = f"check {name} fails" if kind == "check" else f"faults of rule {name}"
            subject = "NVLink evidence" if what == NVLINK else subject
            yield self._fleetwide(what, "check", subject, left, total)

    def _target(
        self, what: str, component: str, nodes: Mapping[str, float]
    ) -> Iterator["_Candidate"]:
        if len(nodes) < LEAST:
            return
        check = what.partition(":")[2]
        ident = _target(what, component)
        total = max(self._sees(check, component), len(nodes))
        if self._too_many(ident, nodes, self._most(total)):
            subject = f"check {check} fails for {component}"
            yield self._fleetwide(ident, "target", subject, nodes, total)

    def _fleetwide(
        self, ident: str, scope: str, subject: str, nodes: Collection[str], total: int
    ) -> "_Candidate":
        limits = self._limits
        if limits.nodes < total * limits.percent / 100:
            limit, value = "limits.common_cause_nodes", str(limits.nodes)
            text = f"more than {limits.nodes} within {span(limits.window)} are one cause"
        else:
            limit, value = "limits.common_cause_percent", f"{limits.percent:g}%"
            text = f"more than {value} within {span(limits.window)} are one cause"
        reason = f"{subject} on {len(nodes)} of {total} nodes; {text}"
        return _Candidate(ident, scope, limit, value, reason, frozenset(nodes), total)

    def _group(
        self, what: str, group: Group, nodes: Mapping[str, float], left: Mapping[str, float]
    ) -> Iterator["_Candidate"]:
        label, value = group
        limits, size = self._limits, max(self._sizes[group], len(nodes))
        ident = _domain(group, what)
        subject = f"{label} {value}" if label in VERSIONS else f"{label}={value}"
        told = {NVLINK: "NVLink evidence", FLAGS: "what rules act on"}.get(
            what, what.replace(":", " ")
        )
        if label == limits.clique_label:
            if _within(nodes.values(), limits.window) >= LEAST_IN_CLIQUE:
                reason = (
                    f"{subject}: {told} on {len(nodes)} of {size} nodes; two of one clique "
                    f"within {span(limits.window)} are the clique's"
                )
                yield _Candidate(
                    ident, "place", "limits.clique_label", label, reason, frozenset(nodes), size
                )
            return
        least = LEAST if label in VERSIONS else LEAST_IN_PLACE
        most = max(least - 1, int(size * limits.domain_percent / 100 + 1e-9))
        others, theirs = len(self._nodes) - size, len(left) - len(nodes)
        if others < LEAST or len(nodes) * others < CONTRAST * theirs * size:
            return
        if self._too_many(ident, nodes, most):
            reason = (
                f"{subject}: {told} on {len(nodes)} of {size} nodes, and on {theirs} of "
                f"{others} others; more than {limits.domain_percent:g}% within "
                f"{span(limits.window)} are one cause"
            )
            scope = "version" if label in VERSIONS else "place"
            yield _Candidate(
                ident,
                scope,
                "limits.domain_percent",
                f"{limits.domain_percent:g}%",
                reason,
                frozenset(nodes),
                size,
            )

    def _most(self, total: int) -> int:
        """How many of ``total`` may show a sign without being one cause."""
        share = int(total * self._limits.percent / 100 + 1e-9)
        return max(LEAST - 1, min(share, self._limits.nodes))

    def _too_many(self, ident: str, nodes: Mapping[str, float], most: int) -> bool:
        """More than ``most`` at once; once open, more than half of it, whenever they began."""
        if ident in self.open:
            return len(nodes) > most // 2
        return len(nodes) > most and _within(nodes.values(), self._limits.window) > most

    def _silence(self) -> CommonCause | None:
        silent, of = self._silent
        most = self._most(of)
        if silent <= (most // 2 if SILENCE in self.open else most):
            return None
        reason = f"{silent} of {of} agents are silent; nobody is quarantined for it"
        made = self._fleetwide(SILENCE, "agents", "", (), max(of, 1))
        return replace(made.cause(SILENCE), reason=reason, nodes=silent)


@dataclass(frozen=True, slots=True)
class _Candidate:
    id: str
    scope: str
    limit: str
    value: str
    reason: str
    nodes: frozenset[str]
    total: int

    @property
    def exactness(self) -> int:
        return ("agents", "check", "version", "place", "target").index(self.scope)

    def cause(self, what: str) -> CommonCause:
        return CommonCause(
            id=self.id,
            scope=self.scope,
            what=what,
            limit=self.limit,
            value=self.value,
            reason=self.reason,
            nodes=len(self.nodes),
            total=self.total,
            sample=tuple(sorted(self.nodes)[:_NAMED]),
        )


def _within(times: Iterable[float], window: float) -> int:
    """The most of these times that lie in one window."""
    ordered = sorted(times)
    first = most = 0
    for last, at in enumerate(ordered):
        while at - ordered[first] > window:
            first += 1
        most = max(most, last - first + 1)
    return most


def _only(nodes: Mapping[str, float], left: Mapping[str, float]) -> dict[str, float]:
    return {node: since for node, since in nodes.items() if node in left}


def _target(what: str, component: str) -> str:
    return f"{what} {component[:200]}"


def _domain(group: Group, what: str) -> str:
    return f"{group[0]}={group[1]} {what}"
