"""Common causes: what is wrong with many nodes at once is not those nodes'. Pure.

Counted over all nodes as they report, before anything is proposed. `blame` says what explains what
is counted; here it is kept: which causes are open, since when, and when they are over.

The window is laid over the times at which the evidence began, wherever it lies: a restart that
derives all anew finds the same causes, hours later. What fails here and there over weeks is none.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from aggregator.quarantine.decide.blame import FLAGS, Blame, CommonCause, CommonLimits, Crowd, Group
from aggregator.quarantine.decide.signs import SILENCE, Sign

#: A cause is over when it has not held for so long (seconds).
SETTLE = 60.0
#: A sign of more nodes than these is counted anew as they change, or so often (seconds).
MANY, AGAIN = 200, 5.0
#: What may explain a sign is remembered for so many signs of a node.
_REMEMBERED = 32


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
    checks: frozenset[str] = frozenset()
    #: What may explain a sign: asked at every look at what is held; groups alone change it.
    #: None until it is asked for: of most nodes it never is.
    suspects: dict[tuple[str, str], frozenset[str]] | None = None


class CommonCauses:
    """Counts what it is told, and says which causes are open.

    ``sees`` counts the nodes that look at a component of a check: asked for seldom.
    """

    def __init__(self, limits: CommonLimits, sees: Callable[[str, str], int]) -> None:
        self._crowd = Crowd()
        self._nodes: dict[str, _Node] = {}
        self._signs: dict[str, _Signs] = {}
        self._silent = (0, 0)
        #: What is open, by id.
        self.open: dict[str, CommonCause] = {}
        self._blame = Blame(limits, self._crowd, sees, self.open)

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
            self.told(node, frozenset(), (), frozenset())
            del self._nodes[node], self._crowd.groups[node]

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
        remembered = known.suspects if known.suspects is not None else {}
        found = remembered.get((what, component))
        if found is None:
            if len(remembered) >= _REMEMBERED:
                remembered.clear()
            found = self._blame.suspects(self._crowd.groups.get(node, ()), what, component)
            remembered[what, component] = found
            known.suspects = remembered
        return found

    def knows(self, node: str) -> bool:
        return node in self._nodes

    def known(self, node: str) -> tuple[frozenset[Sign], tuple[Group, ...], frozenset[str]]:
        """What was last told of the node: signs, groups, checks. All empty for one that is not."""
        known = self._nodes.get(node)
        if known is None:
            return frozenset(), (), frozenset()
        return known.signs, self._crowd.groups[node], known.checks

    def inherit(self, causes: Iterable[CommonCause]) -> None:
        """These are open, by the word of who counted before us: they end as all others do."""
        for cause in causes:
            self.open.setdefault(cause.id, replace(cause, faded=None))
        for shown in self._signs.values():
            shown.changes += 1  # what is open needs half as many nodes

    def disown(self) -> None:
        """Another one counts from now on; what is open is for it to say."""
        self.open.clear()
        for shown in self._signs.values():
            shown.changes += 1

    def look(
        self, now: float, *, lasting: bool = False
    ) -> tuple[list[CommonCause], list[CommonCause]]:
        """Count anew where something has changed. Returns what opened and what is over.

        ``lasting``: what is open stays so, for not everybody has been counted yet.
        """
        found: dict[str, CommonCause] = {}
        for what, shown in self._signs.items():
            if shown.is_due(now):
                causes = self._blame.causes(what, shown.nodes, shown.targets)
                shown.found = {cause.id: cause for cause in causes}
                shown.changes, shown.looked = 0, now
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
            elif lasting:
                self.open[ident] = replace(cause, faded=None)
            elif cause.faded is None:
                self.open[ident] = replace(cause, faded=now)
            elif now - cause.faded >= SETTLE:
                ended.append(self.open.pop(ident))
                if cause.what in self._signs:  # it is not held to half the number any more
                    self._signs[cause.what].changes += 1
        for cause in opened:
            self.open[cause.id] = cause
        return opened, ended
