"""A recorded history through another policy: the difference in incidents. Pure.

Only the evaluation is replayed. Limits, overrides by people and the state of the cluster are not: a
quarantine here is an incident that calls for one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aggregator.health.model import Component, Delta, Hello, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import Incident, evaluate
from aggregator.policy.rules import ACTIONS, Policy

#: Seconds. Times that differ by less are the same.
_SAME = 1.0

Word = Hello | Snapshot | Delta | None


@dataclass(frozen=True, slots=True)
class ReplayEvent:
    """An agent's message ``at`` this second of any one clock, or None for the end of its stream.

    A `Snapshot` is a base: components that it does not name were healthy.
    """

    at: float
    word: Word


@dataclass(slots=True)
class Episode:
    """One incident's life. ``ended`` is None where it had not at the end of the record.

    ``action`` is the strongest that it called for, ``rules`` and ``codes`` are of its evidence.
    """

    node: str
    kind: str
    action: str
    began: float
    ended: float | None
    summary: str
    rules: set[str] = field(default_factory=set)
    codes: set[str] = field(default_factory=set)

    @property
    def acts(self) -> bool:
        return self.action != "observe"


@dataclass(frozen=True, slots=True)
class Difference:
    """``what`` is "appears", "vanishes" or "changes"; ``how`` describes the change."""

    what: str
    before: Episode | None
    after: Episode | None
    how: str = ""

    @property
    def shown(self) -> Episode:
        found = self.after or self.before
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class Totals:
    """Of the episodes that act: by action, the most nodes at one time, and node-hours."""

    by_action: Mapping[str, int]
    nodes_at_once: int
    node_hours: float


def live(policy: Policy, node: str, events: Iterable[ReplayEvent], until: float) -> list[Episode]:
    """The incidents of one node under a policy. ``events`` are in the order of time."""
    life = _Life(policy, node)
    for event in events:
        life.pass_time(event.at)
        life.apply_event(event)
    life.pass_time(until)
    return life.episodes


class _Life:
    def __init__(self, policy: Policy, node: str) -> None:
        self._policy = policy
        self._node = node
        self._health: NodeHealth | None = None
        self._reporting: bool = False
        self._incidents: Mapping[str, Incident] = {}
        self._again: float | None = None
        self._open: dict[str, Episode] = {}
        self.episodes: list[Episode] = []

    def pass_time(self, until: float) -> None:
        """Evaluate whenever time alone may have changed the result."""
        while self._again is not None and self._again <= until:
            self._evaluate(self._again)

    def apply_event(self, event: ReplayEvent) -> None:
        match event.word:
            case Hello() as hello:
                if self._health is None:
                    self._health = NodeHealth(hello)
                else:
                    self._health.greet(hello)
                self._reporting = False
            case None:
                self._reporting = False
            case Snapshot() as base if self._health is not None:
                self._health.snapshot(_filled_up(base, self._health, event.at))
                self._reporting = True
            case Delta() as change if self._health is not None:
                self._health.delta(change)
                self._reporting = True
        self._evaluate(event.at)

    def _evaluate(self, now: float) -> None:
        if self._health is None:
            return
        evaluated = evaluate(
            self._policy, self._health, self._incidents, now, reporting=self._reporting
        )
        self._incidents, self._again = evaluated.incidents, evaluated.evaluate_again
        for incident in evaluated.closed:
            closed = self._open.pop(incident.id, None)
            if closed is not None:
                closed.ended = now
        for ident in self._open.keys() - evaluated.incidents.keys():
            self._open.pop(ident).ended = now  # an observed incident acts now, as another incident
        for incident in evaluated.incidents.values():
            self._follow(incident)

    def _follow(self, incident: Incident) -> None:
        episode = self._open.get(incident.id)
        if episode is None:
            episode = Episode(
                self._node, incident.kind, incident.action, incident.since, None, incident.summary
            )
            self._open[incident.id] = episode
            self.episodes.append(episode)
        if ACTIONS.index(incident.action) > ACTIONS.index(episode.action):
            episode.action, episode.summary = incident.action, incident.summary
        episode.rules |= {item.rule for item in incident.evidence}
        episode.codes |= {item.code for item in incident.evidence}


def _filled_up(base: Snapshot, health: NodeHealth, at: float) -> Snapshot:
    named = {one.key for one in base.components}
    well = tuple(
        Component(check, of, Status.OK, "", "", at)
        for check, of in health.components
        if (check, of) not in named
    )
    return replace(base, components=(*base.components, *well))


def compare(before: Sequence[Episode], after: Sequence[Episode]) -> list[Difference]:
    """The differences between the episodes of one node under two policies, by time."""
    found: list[Difference] = []
    left, right = list(before), list(after)
    for one, other in (*_pairs(left, right, alike=True), *_pairs(left, right, alike=False)):
        how = _how(one, other)
        if how:
            found.append(Difference("changes", one, other, how))
    found += [Difference("vanishes", one, None) for one in left]
    found += [Difference("appears", None, one) for one in right]
    return sorted(found, key=lambda one: (one.shown.began, one.what))


def _pairs(
    left: list[Episode], right: list[Episode], *, alike: bool
) -> Iterator[tuple[Episode, Episode]]:
    """Take out the pairs that belong together: of one kind, at the same time, over the same
    evidence.
    """
    for one in list(left):
        for other in right:
            if one.kind != other.kind or not _overlap(one, other) or not one.codes & other.codes:
                continue
            if (one.acts == other.acts) == alike:
                left.remove(one)
                right.remove(other)
                yield one, other
                break


def _overlap(one: Episode, other: Episode) -> bool:
    return (one.ended is None or other.began <= one.ended) and (
        other.ended is None or one.began <= other.ended
    )


def _how(before: Episode, after: Episode) -> str:
    words = []
    if before.action != after.action:
        words.append(f"{before.action} becomes {after.action}")
    moved = after.began - before.began
    if abs(moved) >= _SAME:
        words.append(f"begins {abs(moved):.0f}s {'later' if moved > 0 else 'sooner'}")
    if (before.ended is None) != (after.ended is None):
        words.append("does not end any more" if after.ended is None else "ends")
    elif before.ended is not None and after.ended is not None:
        longer = after.ended - before.ended
        if abs(longer) >= _SAME:
            words.append(f"ends {abs(longer):.0f}s {'later' if longer > 0 else 'sooner'}")
    return ", ".join(words)


def totals(episodes: Iterable[Episode], until: float) -> Totals:
    """Sums over the whole fleet's episodes."""
    by_action: dict[str, int] = {}
    turns: list[tuple[float, int, str]] = []
    hours = 0.0
    for one in episodes:
        if not one.acts:
            continue
        by_action[one.action] = by_action.get(one.action, 0) + 1
        ended = until if one.ended is None else one.ended
        hours += max(0.0, ended - one.began) / 3600
        turns += [(one.began, 1, one.node), (ended, -1, one.node)]
    return Totals(by_action, _most_nodes(turns), round(hours, 2))


def _most_nodes(turns: list[tuple[float, int, str]]) -> int:
    most, held = 0, dict[str, int]()
    for _, step, node in sorted(turns, key=lambda turn: (turn[0], -turn[1])):
        held[node] = held.get(node, 0) + step
        if not held[node]:
            del held[node]
        most = max(most, len(held))
    return most
