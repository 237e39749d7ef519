"""Groups rows that state the same of several nodes, so that 40 equal incidents take one row. Pure.

Rows are equal if a person would treat them alike: the same evidence, action and state. A row that
needs a decision of its own (a blocked pod, a failed step) is never grouped.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from aggregator.health.node import hide_gpus
from aggregator.web import models
from aggregator.web.cases import Case
from aggregator.web.page_delta import tag_of

Row = TypeVar("Row", Case, models.Event)


@dataclass(frozen=True, slots=True)
class EqualRows(Generic[Row]):
    """Rows of one group in their order, at least one. ``key`` is stable while the group lasts."""

    key: str
    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        return self.rows[0]

    def total(self, field: str) -> int | None:
        """The sum of a field, or None where a row has none."""
        values = [getattr(row, field) for row in self.rows]
        return None if None in values else sum(values)

    def distinct(self, field: str) -> list[object]:
        """The different values of a field, in the order of the rows."""
        return list(dict.fromkeys(getattr(row, field) for row in self.rows))


def equal_cases(found: Iterable[Case]) -> list[EqualRows[Case]]:
    """Equal: the state of the node, its quarantine, its hold and its incidents."""
    return _grouped(
        found,
        lambda one: (
            one.state,
            _quarantine_key(one.quarantine) if one.quarantine is not None else (),
            _hold_key(one.hold) if one.hold is not None else (),
            tuple(_incident_key(incident) for incident in one.incidents),
            hide_gpus(one.why),
        ),
    )


def _incident_key(one: models.Incident) -> tuple[object, ...]:
    """Kind, action, state, and the evidence by rule and code, whatever its component."""
    return (
        one.kind,
        one.action,
        one.doing,
        one.recovering_since is not None,
        *sorted({(item.code, item.rule, item.over, item.lost) for item in one.evidence}),
    )


def _quarantine_key(one: models.Quarantine) -> tuple[object, ...]:
    """Phase, action, kind, reason and requester, whichever GPU the reason names. One that waits
    for a person is alone.
    """
    return (
        one.phase,
        one.action,
        one.kind,
        hide_gpus(one.reason),
        one.requester,
        one.message,
        one.override,
        one.node if _needs_person(one) else "",
    )


def _hold_key(one: models.Hold) -> tuple[object, ...]:
    return (one.limit, one.value, one.reason)


def equal_events(found: Iterable[models.Event]) -> list[EqualRows[models.Event]]:
    """Equal: the kind, and the text without the node's name and its GPU."""
    return _grouped(
        found,
        lambda one: (
            one.kind,
            hide_gpus(one.summary.replace(one.node, "NODE") if one.node else one.summary),
        ),
    )


def titles(group: EqualRows[Case]) -> list[str]:
    """The different reasons of a group, in the order of its rows: with "a GPU" for each GPU where
    they are of several nodes.
    """
    if len(group.rows) == 1:
        return list(group.first.reasons)
    return list(dict.fromkeys(hide_gpus(text) for row in group.rows for text in row.reasons))


def rows_in(groups: Iterable[EqualRows[Row]]) -> int:
    """How many rows the groups have in all."""
    return sum(len(group.rows) for group in groups)


def _needs_person(one: models.Quarantine) -> bool:
    return bool(
        one.blockers
        or one.last_error
        or one.release_held
        or one.unmarked
        or one.uncordoned
        or one.overdue_at
        or one.node_absent_since
    )


def _grouped(
    found: Iterable[Row], key_of: Callable[[Row], tuple[object, ...]]
) -> list[EqualRows[Row]]:
    """By key, in the order in which the first row of each comes."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in found:
        groups.setdefault(key_of(row), []).append(row)
    return [EqualRows(_tag(key), tuple(rows)) for key, rows in groups.items()]


def _tag(key: Sequence[object]) -> str:
    return tag_of(repr(key))
