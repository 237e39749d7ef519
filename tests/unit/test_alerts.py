"""Which transitions are alerts, how grave, which repeat another, and which end another."""

from dataclasses import replace
from typing import Any

import pytest

from aggregator.alerts.alert import (
    GROUPED,
    MAX_DETAILS,
    SEVERITY,
    Alert,
    Resolution,
    alert_of,
    dedup_key,
    ended,
    group,
    resolves,
)
from aggregator.events import EventKind, Transition
from tests.support.present import present

K = EventKind


def transition(kind: EventKind, summary: str = "it is so", **details: str) -> Transition:
    return Transition(1000.5, kind, "n1", summary, "i1", details)


@pytest.mark.parametrize(
    ("kind", "details", "severity"),
    [
        (K.INCIDENT_OPENED, {"action": "observe"}, None),
        (K.INCIDENT_OPENED, {"action": "cordon"}, "warning"),
        (K.INCIDENT_OPENED, {"action": "drain"}, "critical"),
        (K.INCIDENT_OPENED, {"action": "drain", "cause": "leaf-7"}, None),
        (K.INCIDENT_OPENED, {"action": "drain", "limit": "limits.concurrent"}, "critical"),
        (K.INCIDENT_CHANGED, {"action": "observe"}, None),
        (K.INCIDENT_CHANGED, {"action": "drain"}, "info"),
        (K.INCIDENT_CLOSED, {"action": "observe"}, None),
        (K.INCIDENT_CLOSED, {"action": "cordon", "cause": "leaf-7"}, "info"),
        (K.HELD, {}, "warning"),
        (K.HELD, {"cause": ""}, None),
        (K.HELD, {"limit": "limits.concurrent"}, "warning"),
        (K.HELD, {"limit": "limits.cooldown"}, None),
        (K.HELD, {"limit": "limits.fabric_hold"}, None),
        (K.HELD, {"limit": "record"}, None),
        (K.CORDONED, {"action": "observe", "limit": "record", "cause": "x"}, "warning"),
        (K.NETWORK_BLAMED, {}, "critical"),
        (K.NETWORK_BLAMED, {"limit": "record"}, "critical"),
        (K.NETWORK_BLAMED, {"cause": "leaf-7"}, None),
        (K.NETWORK_CLEARED, {}, "info"),
        (K.RECORD_LOST, {}, "critical"),
        (K.COMMON_CAUSE, {"cause": "check:nic-link"}, "critical"),
        (K.NETWORK_CLEARED, {"cause": "leaf-7"}, None),
    ],
)
def test_a_transition_is_an_alert_of_its_severity_or_none(
    kind: EventKind, details: dict[str, str], severity: str | None
) -> None:
    alert = alert_of(transition(kind, **details))
    assert (alert.severity if alert is not None else None) == severity


@pytest.mark.parametrize("kind", [kind for kind in K if not kind.value.startswith("incident.")])
def test_every_kind_has_the_severity_of_the_table_or_is_information(kind: EventKind) -> None:
    alert = present(alert_of(transition(kind)))
    assert (alert.kind, alert.severity) == (kind.value, SEVERITY.get(kind, "info"))


def test_an_alert_says_what_its_transition_did() -> None:
    details = {f"k{n:02}": "v" for n in range(40)}
    told = transition(K.CORDONED, "a\ud800" + "x" * 5000, **{"\udfff": "\0\ud800", **details})
    alert = present(alert_of(told))
    assert (alert.at, alert.node, alert.nodes, alert.incident) == (1000.5, "n1", ("n1",), "i1")
    assert alert.summary.startswith("a?xxx")
    assert len(alert.summary) <= 4000
    assert alert.details == {"?": "\0?"} | {f"k{n:02}": "v" for n in range(MAX_DETAILS - 1)}
    assert alert.to_json() == {
        "id": alert.id,
        "key": dedup_key(told),
        "kind": alert.kind,
        "severity": "warning",
        "state": "firing",
        "labels": {},
        "at": "1970-01-01T00:16:40.500Z",
        "node": "n1",
        "nodes": ["n1"],
        "summary": alert.summary,
        "advice": "",
        "incident": "i1",
        "details": alert.details,
    }
    fleet = present(alert_of(replace(told, node="")))
    assert fleet.nodes == ()
    later = present(alert_of(replace(told, at=1001.5)))
    assert later.id != alert.id


#: The details that make two transitions of a kind two alerts, besides kind, node and incident.
ABOUT = {
    "pod": {K.BLOCKED, K.FORCED},
    "limit": {K.HELD},
    "source": {K.EVIDENCE_LOST},
    "hook": {K.HOOK, K.HOOK_FAILED},
    "": {
        K.REQUESTED,
        K.RELEASE_HELD,
        K.REPAIR_SUPPRESSED,
        K.REPAIR_ORDERED,
        K.REPAIR_ENDED,
        K.REPAIR_EXHAUSTED,
        K.UNCORDONED,
        K.OVERRIDDEN,
        K.INCIDENT_CHANGED,
        K.AGENT_CONFLICT,
        K.MOVED,
    },
}


@pytest.mark.parametrize("kind", list(K))
def test_two_alerts_are_the_same_by_kind_node_incident_and_what_the_kind_is_about(
    kind: EventKind,
) -> None:
    one = transition(kind)
    key = dedup_key(one)
    assert dedup_key(replace(one, at=2000.0)) == key
    for other in (
        replace(one, node="n2"),
        replace(one, incident="i2"),
        replace(one, kind=K.NODE_LOST if kind is not K.NODE_LOST else K.HELD),
    ):
        assert dedup_key(other) != key
    for detail in ("pod", "limit", "source", "hook"):
        differs = dedup_key(transition(kind, **{detail: "x"})) != key
        assert differs == (kind in ABOUT[detail]), detail
    assert (dedup_key(transition(kind, "other words")) != key) == (kind in ABOUT[""])


PAIRS = [
    (K.RESUMED, K.STOPPED),
    (K.COOLDOWN, K.COOLDOWN_OVER),
    (K.RECORD_LOST, K.RECORD_WHOLE),
    (K.NODE_LOST, K.NODE_FOUND),
]


def test_what_comes_and_goes_ends_its_opposite() -> None:
    for one, other in PAIRS:
        for begins, ends in ((one, other), (other, one)):
            over = present(resolves(transition(begins)))
            assert (over.node, over.kinds, over.incident) == ("n1", frozenset({ends}), "")
    for one, other in (
        (K.COMMON_CAUSE, K.COMMON_CAUSE_OVER),
        (K.NETWORK_BLAMED, K.NETWORK_CLEARED),
    ):
        for begins, ends in ((one, other), (other, one)):
            over = present(resolves(transition(begins)))
            assert (over.node, over.kinds, over.incident) == ("n1", frozenset({ends}), "i1")


@pytest.mark.parametrize(
    ("kind", "ended", "stays"),
    [
        (K.AGENT_BACK, {K.AGENT_SILENT, K.SILENT_FAILING}, {K.AGENT_CONFLICT, K.AGENT_BACK}),
        (K.AGENT_SILENT, {K.AGENT_BACK}, {K.AGENT_SILENT, K.SILENT_FAILING}),
        (K.ADMITTED, {K.HELD, K.SUPPRESSED, K.RELEASED, K.OVERRULED}, {K.CORDONED, K.ADMITTED}),
        (K.RELEASED, {K.CORDONED, K.DRAINED, K.BLOCKED}, {K.RELEASED, K.OVERRULED, K.LEMON}),
        (K.OVERRULED, {K.CORDONED, K.DRAINED, K.MOVED}, {K.RELEASED, K.OVERRULED, K.NODE_LOST}),
    ],
)
def test_a_transition_ends_the_alerts_that_it_makes_untrue(
    kind: EventKind, ended: set[EventKind], stays: set[EventKind]
) -> None:
    over = present(resolves(transition(kind)))
    assert (over.node, over.incident) == ("n1", "")
    assert ended <= over.kinds
    assert not stays & over.kinds


def test_the_end_of_an_incident_ends_all_of_its_own_alerts_and_most_kinds_end_none() -> None:
    over = present(resolves(transition(K.INCIDENT_CLOSED)))
    assert (over.node, over.incident, over.kinds) == ("n1", "i1", frozenset(K))
    assert present(resolves(transition(K.CORDONED))).kinds == frozenset({K.MARKS_MISSING})
    assert present(resolves(transition(K.REPAIR_ORDERED))).kinds == frozenset({K.HELD})
    assert resolves(transition(K.REPAIR_ORDERED, reason="idle")) is None
    for kind in (K.INCIDENT_OPENED, K.HELD, K.LEMON, K.BLOCKED, K.MOVED):
        assert resolves(transition(kind)) is None


def alert(number: int, kind: EventKind, *nodes: str) -> Alert:
    names = nodes or (f"n{number}",)
    told = transition(kind)
    made = present(alert_of(replace(told, node=names[0], at=1000.0 + number)))
    return replace(made, nodes=names)


def test_alerts_of_a_grouped_kind_are_one_at_the_place_of_the_first() -> None:
    held, silent = alert(0, K.HELD), [alert(number, K.AGENT_SILENT) for number in range(1, 4)]
    back = alert(9, K.AGENT_BACK)
    assert group([]) == []
    assert group([held, silent[0], back]) == [held, silent[0], back]
    told = group([silent[0], held, silent[1], back, held, silent[2]])
    assert [one.kind for one in told] == [K.AGENT_SILENT, K.HELD, K.AGENT_BACK, K.HELD]
    one = told[0]
    assert (one.at, one.severity, one.node, one.incident, one.details) == (
        1001.0,
        "warning",
        "",
        "",
        {},
    )
    assert one.nodes == ("n1", "n2", "n3")
    assert one.summary == "3 agents are silent: n1, n2, n3"
    over = [ended(each, Resolution("", frozenset(), at=1.0)) for each in silent]
    assert group(over)[0].summary == "3 agents are silent no more: n1, n2, n3"
    assert one.id not in {each.id for each in silent}
    assert group(silent[:2])[0].id != one.id
    assert {K.AGENT_SILENT, K.AGENT_BACK} == GROUPED


@pytest.mark.parametrize(("count", "ends"), [(9, "n8"), (10, "n9"), (11, "n9, ...")])
def test_ten_nodes_of_a_group_are_named(count: int, ends: str) -> None:
    (one,) = group([alert(number, K.AGENT_BACK) for number in range(count)])
    assert one.summary.startswith(f"{count} agents are back: n0, n1")
    assert one.summary.endswith(f", {ends}")


def test_a_node_of_several_members_is_counted_once() -> None:
    many: list[Any] = [alert(1, K.AGENT_BACK), alert(1, K.AGENT_BACK), alert(2, K.AGENT_BACK)]
    (one,) = group(many)
    assert one.nodes == ("n1", "n2")
