"""Recorded rows as events of a replay. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from aggregator.history import evidence_codec
from aggregator.history.evidence_recorder import BASE, CHANGE, HELLO, LEFT
from aggregator.policy.replay import ReplayEvent, Word


class RecordError(ValueError):
    """A line or a row is no recorded evidence. The text names it and the reason."""


def by_node(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, list[ReplayEvent]]]:
    """(node, its agent's messages), one after the other. The rows are sorted by node and time.

    Of several replicas the one that was greeted last counts: a row that another writes after that
    is late. Raises `RecordError`.
    """
    for node, its in groupby(rows, key=lambda row: str(row["node"])):
        yield node, [ReplayEvent(row["at"], _decode_event(row)) for row in _of_owner(its)]


def _of_owner(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    owner: str | None = None
    for row in rows:
        if owner is None or row["kind"] == HELLO:
            owner = row.get("replica", "")
        if row.get("replica", "") == owner:
            yield row


def _decode_event(row: Mapping[str, Any]) -> Word:
    body, at = row["body"], row["at"]
    try:
        match row["kind"]:
            case kind if kind == HELLO:
                return evidence_codec.to_hello(str(row["node"]), body)
            case kind if kind == BASE:
                return evidence_codec.to_snapshot(body, at)
            case kind if kind == CHANGE:
                return evidence_codec.to_delta(body, at)
            case kind if kind == LEFT:
                return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{row['node']} at {at}: {type(error).__name__}: {error}"
        raise RecordError(f"{what}; expected a record that this version has written") from error
    raise RecordError(f"{row['node']} at {at}: no kind of evidence is {row['kind']!r}")
