"""Finds transitions that repeat a state which has not changed. Pure.

Incidents, holds and suppressed actions are levels: a replica that starts, or takes a node over,
derives them again and reports them. An incident's id is the same from every replica, so the reader,
or the writer, can recognise the repeat.
"""

from collections.abc import Iterable, Mapping

from aggregator.events import EventKind, Transition

_INCIDENT = frozenset({EventKind.INCIDENT_OPENED, EventKind.INCIDENT_CHANGED})
_DONE = frozenset(
    {
        EventKind.ADMITTED,
        EventKind.CORDONED,
        EventKind.RELEASED,
        EventKind.OVERRULED,
        EventKind.INCIDENT_CLOSED,
    }
)
#: The subject of a kind, by its first word: these are never both true of one incident.
_ASPECTS: Mapping[EventKind, frozenset[EventKind]] = {
    EventKind.INCIDENT_OPENED: _INCIDENT | {EventKind.INCIDENT_CLOSED},
    EventKind.HELD: _DONE | {EventKind.HELD, EventKind.SUPPRESSED},
    EventKind.SUPPRESSED: _DONE | {EventKind.HELD, EventKind.SUPPRESSED},
    EventKind.RELEASE_HELD: frozenset(
        {
            EventKind.RELEASE_HELD,
            EventKind.RELEASING,
            EventKind.RELEASED,
            EventKind.OVERRULED,
            EventKind.INCIDENT_CLOSED,
        }
    ),
}
#: The kinds that decide whether another is a repeat.
DECIDING = frozenset(_ASPECTS) | frozenset().union(*_ASPECTS.values())

Reported = dict[tuple[str, str], list[Transition]]


def is_level(transition: Transition) -> bool:
    """Whether it reports a level, and of an incident that can be recognised again."""
    return transition.kind in _ASPECTS and bool(transition.incident)


def without_repeats(
    past: Iterable[Transition], reported: Reported | None = None
) -> list[Transition]:
    """``past``, oldest first, without repeats; ``reported`` has the transitions before it.

    ``reported`` is by (node, incident), oldest first, and is added to.
    """
    reported = {} if reported is None else reported
    kept = []
    for one in past:
        if one.kind not in DECIDING or not one.incident:
            kept.append(one)
            continue
        before = reported.setdefault((one.node, one.incident), [])
        if is_level(one) and _is_repeat(one, before):
            continue
        before.append(one)
        kept.append(one)
    return kept


def newest_first(past: Iterable[Transition]) -> list[Transition]:
    """`without_repeats` of transitions that come newest first; the result keeps that order."""
    return without_repeats(reversed([*past]))[::-1]


def _is_repeat(one: Transition, before: list[Transition]) -> bool:
    about = (past for past in reversed(before) if past.kind in _ASPECTS[one.kind])
    last = next((past for past in about if past.at <= one.at), None)
    if last is None:
        return False
    if one.kind is EventKind.INCIDENT_OPENED:
        same = last.details.get("action") == one.details.get("action")
        return last.kind in _INCIDENT and last.summary == one.summary and same
    if one.kind is EventKind.HELD:  # the text of a hold counts up
        return last.kind is EventKind.HELD and last.details.get("limit") == one.details.get("limit")
    return last.kind is one.kind and last.summary == one.summary
