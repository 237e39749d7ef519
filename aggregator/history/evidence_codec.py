"""The agents' evidence, as JSON that can be stored and replayed. Pure.

Times are ages in seconds before the row's own time, so that a row is complete by itself, on any
clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from aggregator.health.model import (
    Cleared,
    ClearedBy,
    Component,
    Delta,
    Fault,
    Hello,
    Snapshot,
    Status,
)

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
    body: dict[str, Any] = {}
    if components:
        body["components"] = [_of_component(one, at) for one in components]
    if faults:
        body["faults"] = [_of_fault(one, at) for one in faults]
    if cleared:
        body["cleared"] = [[one.code, one.component, one.how] for one in cleared]
    if gone:
        body["gone"] = [list(one) for one in gone]
    return body


def to_snapshot(body: Mapping[str, Any], at: float) -> Snapshot:
    """The snapshot that `of_change` kept, as if it came at ``at`` (monotonic seconds)."""
    delta = to_delta(body, at)
    return Snapshot(delta.components, delta.faults, delta.cleared, gone=delta.gone)


def to_delta(body: Mapping[str, Any], at: float) -> Delta:
    """Raises `KeyError`, `TypeError` or `ValueError` for a body that `of_change` never wrote."""
    return Delta(
        components=tuple(_to_component(one, at) for one in body.get("components", ())),
        faults=tuple(_to_fault(one, at) for one in body.get("faults", ())),
        cleared=tuple(Cleared(*(str(word) for word in one)) for one in body.get("cleared", ())),
        gone=tuple((str(check), str(of)) for check, of in body.get("gone", ())),
    )


def _of_component(one: Component, at: float) -> dict[str, Any]:
    return {
        "check": one.check,
        "component": one.component,
        "status": one.status.name.lower(),
        "reason": one.reason,
        "message": one.message[:MOST_MESSAGE],
        "age": _age(one.since, at),
        "recent": [[_age(then, at), status.name.lower()] for then, status in one.recent],
    }


def _to_component(body: Mapping[str, Any], at: float) -> Component:
    return Component(
        check=str(body["check"]),
        component=str(body["component"]),
        status=Status[body["status"].upper()],
        reason=str(body["reason"]),
        message=str(body["message"]),
        since=at - body["age"],
        recent=tuple((at - age, Status[name.upper()]) for age, name in body["recent"]),
    )


def _of_fault(one: Fault, at: float) -> dict[str, Any]:
    return {
        "code": one.code,
        "check": one.check,
        "component": one.component,
        "message": one.message[:MOST_MESSAGE],
        "boot": one.boot_id,
        "source": one.source,
        "seq": one.source_seq,
        "first": _age(one.first_at, at),
        "last": _age(one.last_at, at),
        "count": one.count,
        "ends": one.cleared_by.value,
        "historical": one.historical,
        "details": {
            name: text[:MOST_MESSAGE] for name, text in [*one.details.items()][:_MOST_DETAILS]
        },
        "occurrences": [_age(then, at) for then in one.occurrences],
    }


def _to_fault(body: Mapping[str, Any], at: float) -> Fault:
    return Fault(
        code=str(body["code"]),
        check=str(body["check"]),
        component=str(body["component"]),
        message=str(body["message"]),
        boot_id=str(body["boot"]),
        source=str(body["source"]),
        source_seq=int(body["seq"]),
        first_at=at - body["first"],
        last_at=at - body["last"],
        count=int(body["count"]),
        cleared_by=ClearedBy(body["ends"]),
        historical=bool(body["historical"]),
        details={str(name): str(text) for name, text in body["details"].items()},
        occurrences=tuple(at - age for age in body["occurrences"]),
    )


def _age(then: float, at: float) -> float:
    return round(max(0.0, at - then), 3)
