"""The choices of a node's intent: which incident leads, what counts, and what is written."""

from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import (
    Action,
    EvidenceItem,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.health.model import ClearedBy
from aggregator.health.node import GONE
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.policy.rules import Policy, Rule
from aggregator.quarantine.decide.intent import (
    MOST_EVIDENCE,
    OURS,
    DesiredState,
    changed_intent,
    describe_override,
    ended_by_birth,
    incidents_of,
    is_overridden,
    unsaved,
    wanted_of,
)
from aggregator.quarantine.decide.operator_requests import FORCED
from tests.support.present import present
from tests.support.replica import POLICY

ITEM = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "gpu-gone", "inc-1")
SPEC = QuarantineSpec(
    Action.DRAIN, "gpu", "xid:79", OURS, "inc-1", "boot-1", "h", (ITEM,), Action.DRAIN
)
NONE: frozenset[tuple[str, str]] = frozenset()


def evidence(code: str = "xid:79", action: str = "drain", **changes: Any) -> Evidence:
    base = Evidence(code, "GPU-1", "boot-1", "rule", action, "m", ClearedBy.REBOOT, since=1.0)
    return replace(base, **changes)


def incident(ident: str, *items: Evidence, since: float = 1.0, **changes: Any) -> Incident:
    action = max((item.action for item in items), key=("observe", "cordon", "drain").index)
    made = Incident(ident, "n1", "boot-1", "gpu", action, f"of {ident}", since, items, 600.0)
    return replace(made, **changes)


def ask(*incidents: Incident, overruled: frozenset[tuple[str, str]] = NONE) -> DesiredState | None:
    return wanted_of({one.id: one for one in incidents}, overruled, Action.DRAIN, "h")


def lead(*incidents: Incident) -> str:
    found = present(ask(*incidents))
    return found.spec.incident


# -- what is wanted ------------------------------------------------------------------------------


def test_the_strongest_incident_leads_and_of_equals_the_oldest() -> None:
    old = incident("old", evidence(action="cordon"), since=1.0)
    new = incident("new", evidence(action="cordon"), since=2.0)
    strong = incident("strong", evidence(), since=3.0)
    assert lead(new, old) == lead(old, new) == "old"
    assert lead(old, strong, new) == "strong"


def test_the_spec_is_of_the_incident_that_leads() -> None:
    found = present(ask(incident("i", evidence(), kind="disk", boot_id="boot-9")))
    spec = found.spec
    assert (spec.kind, spec.reason, spec.requester) == ("disk", "of i", OURS)
    assert (spec.incident, spec.boot_id, spec.policy_hash) == ("i", "boot-9", "h")
    assert (spec.action, found.uncapped, found.in_force) == (Action.DRAIN,) * 3


def test_a_checks_result_counts_at_its_strength_until_its_incident_closes() -> None:
    over = evidence("nic:down", cleared_by=None, over="ok")
    weaker = evidence("xid:48", "cordon")
    found = present(ask(incident("i", over, weaker, action="cordon")))
    assert (found.uncapped, found.in_force) == (Action.DRAIN, Action.CORDON)
    # A fault that has ended asks for no more.
    ended = replace(over, cleared_by=ClearedBy.REBOOT)
    found = present(ask(incident("i", ended, weaker, action="cordon")))
    assert found.uncapped is Action.CORDON


def test_overruled_evidence_asks_for_nothing_while_it_alone_is_in_force() -> None:
    first, second = evidence(), evidence("xid:48", "cordon")
    spoken = frozenset({first.key})
    assert ask(incident("i", first), overruled=spoken) is None
    found = present(ask(incident("i", first, second), overruled=spoken))
    assert found.in_force is Action.CORDON
    ended = replace(second, over="reboot")
    assert ask(incident("i", first, ended), overruled=spoken) is None
    # Where nothing is in force, what is over and was not overruled still asks.
    both = incident("i", replace(first, over="reboot"), ended)
    found = present(ask(both, overruled=spoken))
    assert found.in_force is Action.OBSERVE
    watched = incident("i", first, evidence("xid:31", "observe"))
    assert ask(watched, overruled=spoken) is None


@pytest.mark.parametrize(
    ("changes", "written"),
    [
        ({}, ("reboot", "")),
        ({"over": "operator"}, ("reboot", "operator")),
        ({"cleared_by": None}, ("", "")),
        ({"cleared_by": None, "over": "ok"}, ("", "")),
        ({"cleared_by": None, "over": GONE}, ("", GONE)),
    ],
)
def test_the_sign_of_a_fault_is_written_and_of_a_check_only_its_components_end(
    changes: dict[str, Any], written: tuple[str, str]
) -> None:
    found = present(ask(incident("i", evidence(**changes), evidence("xid:48"))))
    item = found.spec.evidence[0]
    assert (item.cleared_by, item.cleared) == written
    assert (item.rule, item.incident, item.boot_id) == ("rule", "i", "boot-1")


def test_a_message_is_bounded_and_what_is_watched_is_not_written() -> None:
    found = present(ask(incident("i", evidence(message="x" * 600), evidence("xid:31", "observe"))))
    (item,) = found.spec.evidence
    assert item.message == "x" * 500


def test_evidence_fits_to_the_last_character() -> None:
    texts = len("xid:79" + "boot-1" + "rule" + "i" + "m")
    for surplus, kept in ((0, 1), (1, 0)):
        component = "x" * (MOST_EVIDENCE - 128 - texts + surplus)
        found = present(ask(incident("i", evidence(component=component))))
        assert len(found.spec.evidence) == kept


# -- what is written -----------------------------------------------------------------------------


def test_only_ours_is_written_and_only_where_something_is_wanted() -> None:
    more = replace(SPEC, evidence=(replace(ITEM, cleared="reboot"),))
    wanted = DesiredState(more, Action.DRAIN, Action.DRAIN)
    ours = Quarantine("n1", "q", "1", SPEC, QuarantineStatus())
    assert unsaved(ours, wanted)
    assert not unsaved(ours, None)
    assert not unsaved(replace(ours, spec=more), wanted)
    assert not unsaved(replace(ours, spec=replace(SPEC, requester="alice")), wanted)


def test_a_decision_that_was_not_written_is_written_with_the_same_action() -> None:
    wanted = DesiredState(SPEC, Action.DRAIN, Action.DRAIN)
    unwritten = replace(SPEC, intent_action=None)
    changed = present(changed_intent(unwritten, wanted))
    assert changed == SPEC


def test_a_sign_that_was_taken_back_is_written_too() -> None:
    cleared = replace(SPEC, evidence=(replace(ITEM, cleared="reboot"),))
    changed = present(changed_intent(cleared, DesiredState(SPEC, Action.DRAIN, Action.DRAIN)))
    assert changed.evidence == (ITEM,)


@pytest.mark.parametrize(
    ("requester", "decided", "action", "overridden"),
    [
        (OURS, Action.DRAIN, Action.CORDON, True),
        (OURS, Action.DRAIN, Action.DRAIN, False),
        (OURS, None, Action.CORDON, False),
        (FORCED, Action.DRAIN, Action.CORDON, True),
        ("alice", Action.DRAIN, Action.CORDON, False),
    ],
)
def test_an_override_is_of_what_we_or_a_force_decided(
    requester: str, decided: Action | None, action: Action, *, overridden: bool
) -> None:
    spec = replace(SPEC, requester=requester, intent_action=decided, action=action)
    assert is_overridden(spec) == overridden
    assert describe_override(spec) == (
        "a person set cordon where drain was decided; it holds until the quarantine ends, or "
        "spec.action is set to drain again"
        if overridden
        else ""
    )


@pytest.mark.parametrize(
    ("items", "boot", "over"),
    [
        ((), "boot-2", True),
        ((), "", False),
        ((ITEM,), "boot-2", True),
        ((ITEM,), "boot-1", False),
        ((replace(ITEM, cleared="operator"),), "boot-1", True),
        ((ITEM, replace(ITEM, cleared_by="operator")), "boot-2", False),
        ((replace(ITEM, cleared_by="newer-than-we-know"),), "boot-2", False),
        ((replace(ITEM, cleared_by="gpu_reset"),), "boot-2", True),
        ((replace(ITEM, cleared_by=""),), "boot-2", True),
        ((replace(ITEM, cleared_by=""),), "boot-1", False),
    ],
)
def test_a_new_node_ends_what_another_boot_ends(
    items: tuple[EvidenceItem, ...], boot: str, *, over: bool
) -> None:
    assert ended_by_birth(replace(SPEC, evidence=items), boot) == over


# -- what is remembered --------------------------------------------------------------------------


def test_incidents_are_restored_from_rules_that_are_known_and_else_from_the_object() -> None:
    rules = (
        Rule("short", "disk", "cordon", "w", check="c", healthy_for=60.0),
        Rule("long", "network", "observe", "w", check="c", healthy_for=900.0),
    )
    items = (
        replace(ITEM, rule="short", incident="a", cleared="reboot"),
        replace(ITEM, rule="long", incident="a", code="b", cleared_by=""),
        replace(ITEM, rule="gone", incident="b", cleared_by="unheard-of"),
    )
    spec = replace(SPEC, evidence=items, boot_id="boot-7")
    held = Quarantine("n1", "q", "1", spec, QuarantineStatus())
    found = incidents_of(held, Policy(rules, POLICY.catalogue, "h"), 5.0)
    assert list(found) == ["a", "b"]
    first, second = found["a"], found["b"]
    assert (first.kind, first.action, first.healthy_for) == ("disk", "cordon", 900.0)
    assert (second.kind, second.action, second.healthy_for) == ("gpu", "drain", 600.0)
    assert {one.boot_id for one in found.values()} == {"boot-7"}
    assert all(one.remembered and one.since == 5.0 for one in found.values())
    assert [item.cleared_by for item in first.evidence] == [ClearedBy.REBOOT, None]
    assert [item.over for item in first.evidence] == ["reboot", ""]
    assert second.evidence[0].cleared_by is ClearedBy.OPERATOR
    assert first.summary == "xid:79"
    unwritten = replace(held, spec=replace(spec, intent_action=None, action=Action.CORDON))
    assert (
        incidents_of(unwritten, Policy(rules, POLICY.catalogue, "h"), 5.0)["b"].action == "cordon"
    )
    by_hand = replace(held, spec=replace(spec, requester="alice"))
    assert incidents_of(by_hand, POLICY, 5.0) == {}
