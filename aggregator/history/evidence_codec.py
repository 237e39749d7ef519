"""The agents' evidence, as JSON that can be stored and replayed. Pure.

Times are ages in seconds before the row's own time, so that a row is complete by itself, on any
clock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec

from aggregator.health.model import Cleared, Component, Delta, Fault, Hello, Snapshot

#: Characters of a message that are kept: the whole message was shown when it came.
MOST_MESSAGE = 160
_MOST_DETAILS = 16


def of_hello(hello: Hello) -> dict[str, Any]:
    """The fields of a greeting that an evaluation depends on."""
    driver = hello.traits.get("driver", "")
    return {"boot": hello.boot_id, "epoch": hello.spool_epoch, "driver": driver}


def to_hello(node: str, body: Mapping[str, Any]) -> Hello:
    """The greeting that `of_hello` kept."""
    traits = {"driver": body["driver"]} if body.get("driver") else {}
    return Hello(node, body["boot"], body["epoch"], "", 0, "", traits=traits)


def of_change(
    components: Sequence[Component],
    faults: Sequence[Fault],
    cleared: Sequence[Cleared],
    gone: Sequence[tuple[str, str]],
    at: float,
) -> dict[str, Any]:
    """A message's content; ``at`` is the monotonic second that it came."""

    def age(then: float) -> float:
        return round(max(0.0, at - then), 3)

    kept = Delta(
        components=tuple(_component(one, age) for one in components),
        faults=tuple(_fault(one, age) for one in faults),
        cleared=tuple(cleared),
        gone=tuple(gone),
    )
    return {name: listed for name, listed in msgspec.to_builtins(kept).items() if listed}


def to_snapshot(body: Mapping[str, Any], at: float) -> Snapshot:
    """The snapshot that `of_change` kept, as if it came at ``at`` (monotonic seconds)."""
    delta = to_delta(body, at)
    return Snapshot(delta.components, delta.faults, delta.cleared, gone=delta.gone)


def to_delta(body: Mapping[str, Any], at: float) -> Delta:
    """Raises `msgspec.ValidationError` for a body that `of_change` never wrote."""

    def when(age: float) -> float:
        return at - age

    kept = msgspec.convert(body, Delta)
    return replace(
        kept,
        components=tuple(_component(one, when) for one in kept.components),
        faults=tuple(_fault(one, when) for one in kept.faults),
    )


def _component(one: Component, turn: Callable[[float], float]) -> Component:
    """With its times turned to ages, or back."""
    return replace(
        one,
        message=one.message[:MOST_MESSAGE],
        since=turn(one.since),
        recent=tuple((turn(then), status) for then, status in one.recent),
    )


def _fault(one: Fault, turn: Callable[[float], float]) -> Fault:
    details = islice(one.details.items(), _MOST_DETAILS)
    return replace(
        one,
        message=one.message[:MOST_MESSAGE],
        first_at=turn(one.first_at),
        last_at=turn(one.last_at),
        details={name: text[:MOST_MESSAGE] for name, text in details},
        occurrences=tuple(map(turn, one.occurrences)),
    )
