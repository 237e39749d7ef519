"""Common causes: a fault of many nodes at once is not a fault of each node. Pure.

Symptoms are counted over all nodes as they report, before a quarantine is proposed. `cause_search`
finds the causes that explain the counts; this module keeps which causes are open, since when, and
when they are over.

The window is laid over the times at which the evidence began, wherever it lies: a restart that
derives all anew finds the same causes, hours later. Single failures spread over weeks are no common
cause.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aggregator.quarantine.decide.cause_search import (
    FLAGS,
    CauseSearch,
    CommonCause,
    CommonLimits,
    Group,
    Population,
    Sees,
)
from aggregator.quarantine.decide.symptoms import SILENCE, Symptom

#: A cause is over when it has not held for so long (seconds).
SETTLE = 60.0
#: A symptom of more nodes than these is counted anew as they change, or so often (seconds).
MANY, AGAIN = 200, 5.0
#: Possible causes are cached for so many symptoms of a node.
_REMEMBERED = 32


@dataclass(slots=True)
class _Signs:
    """All nodes that show one symptom, with the time it began there; and per component.

    ``acting``: those of the nodes on which a rule acts on it.
    """

    nodes: dict[str, float] = field(default_factory=dict)
    targets: dict[str, dict[str, float]] = field(default_factory=dict)
    acting: set[str] = field(default_factory=set)
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
    signs: frozenset[Symptom] = frozenset()
    checks: frozenset[str] = frozenset()
    #: The causes that may explain a symptom: needed at every check of a held node; only groups
    #: change them. It stays None until it is needed: for most nodes it never is.
    suspects: dict[tuple[str, str], frozenset[str]] | None = None


class CommonCauses:
    """Counts reported symptoms, and tells which causes are open.

    ``sees`` counts the nodes that look at components of a check: asked for seldom.
    """

    def __init__(self, limits: CommonLimits, sees: Sees) -> None:
        self._crowd = Population()
        self._nodes: dict[str, _Node] = {}
        self._signs: dict[str, _Signs] = {}
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
            known.suspects = None
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
        shown = self._signs.setdefault(what, _Signs())
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
        known = self._nodes.get(node) or _Node()
        remembered = known.suspects if known.suspects is not None else {}
        found = remembered.get((what, component))
        if found is None:
            if len(remembered) >= _REMEMBERED:
                remembered.clear()
            found = self._blame.suspects(self._crowd.groups.get(node, ()), what, component)
            remembered[what, component] = found
            known.suspects = remembered
        return found

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
                causes = self._blame.causes(what, shown.nodes, shown.targets, shown.acting)
                shown.found = {cause.id: cause for cause in causes}
                shown.changes, shown.looked = 0, now
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
