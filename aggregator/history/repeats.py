"""What is said again of something that has not changed. Pure.

Incidents, holds and what would be done are levels: a replica that starts, or takes a node over,
derives them anew and says so. An incident's id is the same from every replica, so the one who
reads, or keeps, can tell.
"""

from collections.abc import Iterable, Mapping

from aggregator.quarantine.ledger import Kind, Transition

_INCIDENT = frozenset({Kind.INCIDENT_OPENED, Kind.INCIDENT_CHANGED})
_DONE = frozenset(
    {Kind.ADMITTED, Kind.CORDONED, Kind.RELEASED, Kind.OVERRULED, Kind.INCIDENT_CLOSED}
)
#: What a kind is about, by its first word: these are never both true of one incident.
_ASPECTS: Mapping[Kind, frozenset[Kind]] = {
    Kind.INCIDENT_OPENED: _INCIDENT | {Kind.INCIDENT_CLOSED},
    Kind.HELD: _DONE | {Kind.HELD, Kind.WOULD_ACT},
    Kind.WOULD_ACT: _DONE | {Kind.HELD, Kind.WOULD_ACT},
    Kind.RELEASE_HELD: frozenset(
        {Kind.RELEASE_HELD, Kind.RELEASING, Kind.RELEASED, Kind.OVERRULED, Kind.INCIDENT_CLOSED}
    ),
}
#: The kinds that decide whether another is a repeat.
TELLING = frozenset(_ASPECTS) | frozenset().union(*_ASPECTS.values())

Told = dict[tuple[str, str], list[Transition]]


def may_repeat(transition: Transition) -> bool:
    """Whether it tells of a level, and of an incident that can be known again."""
    return transition.kind in _ASPECTS and bool(transition.incident)


def without_repeats(past: Iterable[Transition], told: Told | None = None) -> list[Transition]:
    """``past``, oldest first, without what was said already; ``told`` has what came before it.

    ``told`` is by (node, incident), oldest first, and is added to.
    """
    told = {} if told is None else told
    kept = []
    for one in past:
        if one.kind not in TELLING or not one.incident:
            kept.append(one)
            continue
        before = told.setdefault((one.node, one.incident), [])
        if may_repeat(one) and _is_repeat(one, before):
            continue
        before.append(one)
        kept.append(one)
    return kept


def newest_first(past: Iterable[Transition]) -> list[Transition]:
    """`without_repeats` of what comes newest first, as it came."""
    return without_repeats(reversed([*past]))[::-1]


def _is_repeat(one: Transition, before: list[Transition]) -> bool:
    about = (past for past in reversed(before) if past.kind in _ASPECTS[one.kind])
    last = next((past for past in about if past.at <= one.at), None)
    if last is None:
        return False
    if one.kind is Kind.INCIDENT_OPENED:
        return last.kind in _INCIDENT and last.summary == one.summary
    if one.kind is Kind.HELD:  # its words count up
        return last.kind is Kind.HELD and last.details.get("limit") == one.details.get("limit")
    return last.kind is one.kind and last.summary == one.summary
