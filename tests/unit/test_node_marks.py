"""The patches that mark and unmark a Node, and what the marks remember."""

import json
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.node_names import (
    APPLIED,
    CODES,
    LABEL,
    OVERRULED,
    RELEASED,
    TAINT,
)
from aggregator.cluster.port import (
    Action,
    AppliedChanges,
    EvidenceItem,
    Node,
    NodeChange,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Taint,
)
from aggregator.policy.evaluate import incident_id
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.node_marks import (
    MOST_REASON,
    OFF_BALANCERS,
    adopt_change,
    applied_to_undo,
    clear_overrides_change,
    cordon_change,
    exclude_change,
    foreign_hands,
    known_applied,
    marked_by,
    marked_evidence,
    marked_for,
    read_applied,
    read_overruled,
    spec_of_marks,
    undo_change,
    words_of,
    write_overruled,
)
from aggregator.quarantine.decide.overrides import Override
from tests.support.present import of_type, present

ITEM = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "gpu-gone", "inc-1")
LEVEL = EvidenceItem("disk-space:bytes", "", "boot-1", "", "disk", "inc-2")
SPEC = QuarantineSpec(
    Action.DRAIN, "gpu", "xid:79", OURS, "inc-1", "boot-1", "h", (ITEM,), Action.DRAIN
)
BY_HAND = QuarantineSpec(Action.DRAIN, "manual", "why", "alice")
STATUS = QuarantineStatus(node_uid="uid", cordoned_at=1.0)
QUARANTINE = Quarantine("n1", "q", "1", SPEC, STATUS)
FREE = Node("n1", "uid", "7", unschedulable=False, taints=(), labels={}, annotations={})
OTHER = Taint("other", "x", "NoSchedule")
MINE = Taint(TAINT, "gpu", "NoSchedule")
EVICTING = Taint(TAINT, "gpu", "NoExecute")


def node(**changes: Any) -> Node:
    return replace(FREE, **changes)


def quarantine(**changes: Any) -> Quarantine:
    return replace(QUARANTINE, spec=replace(SPEC, **changes))


def annotation_of(change: NodeChange) -> dict[str, Any]:
    text = present(change.annotations[APPLIED])
    return of_type(json.loads(text), dict)


def after(change: NodeChange, before: Node = FREE) -> Node:
    """The node once the patch is applied."""

    def patched(old: dict[str, str], new: dict[str, str | None]) -> dict[str, str]:
        merged = {**old, **new}
        return {key: value for key, value in merged.items() if value is not None}

    return replace(
        before,
        taints=before.taints if change.taints is None else change.taints,
        unschedulable=(
            before.unschedulable if change.unschedulable is None else change.unschedulable
        ),
        labels=patched(dict(before.labels), dict(change.labels)),
        annotations=patched(dict(before.annotations), dict(change.annotations)),
    )


MARKED = after(cordon_change(FREE, QUARANTINE))


# -- marking -------------------------------------------------------------------------------------


def test_a_cordon_sets_every_mark_and_keeps_the_taints_of_others() -> None:
    change = cordon_change(node(taints=(OTHER, EVICTING, replace(MINE, value="disk"))), QUARANTINE)
    assert change.taints == (OTHER, EVICTING, MINE)
    assert change.unschedulable is True
    assert change.labels == {LABEL: "gpu"}
    assert change.annotations[CODES] == "xid:79@GPU-1"
    assert annotation_of(cordon_change(FREE, QUARANTINE)) == {
        "quarantine": "q",
        "incident": "inc-1",
        "unschedulable": True,
        "value": "gpu",
        "evidence": [["xid:79", "GPU-1", "boot-1", "reboot"]],
        "rules": [["gpu-gone", "inc-1"]],
    }


def test_the_codes_are_bounded_in_number_and_length_and_name_the_kind_without_evidence() -> None:
    many = tuple(replace(ITEM, code=f"xid:{n}") for n in range(20))
    codes = cordon_change(FREE, quarantine(evidence=many)).annotations[CODES]
    assert codes == ",".join(f"xid:{n}@GPU-1" for n in range(16))
    long = quarantine(evidence=(replace(ITEM, code="x" * 400),))
    assert cordon_change(FREE, long).annotations[CODES] == "x" * 300
    assert cordon_change(FREE, quarantine(evidence=(LEVEL,))).annotations[CODES] == LEVEL.code
    assert cordon_change(FREE, quarantine(evidence=())).annotations[CODES] == "gpu"


@pytest.mark.parametrize(
    ("wanted", "action", "labels", "excluded"),
    [
        (True, Action.DRAIN, {}, True),
        (True, Action.CORDON, {}, False),
        (False, Action.DRAIN, {}, False),
        (True, Action.DRAIN, {OFF_BALANCERS: ""}, False),
    ],
)
def test_only_a_drain_takes_a_node_off_the_balancers_and_only_where_it_is_on_them(
    *, wanted: bool, action: Action, labels: dict[str, str], excluded: bool
) -> None:
    change = cordon_change(node(labels=labels), quarantine(action=action), off_balancers=wanted)
    assert (change.labels.get(OFF_BALANCERS) == "") == excluded
    assert (annotation_of(change).get("off_balancers") is True) == excluded


def test_marking_again_remembers_the_state_before_the_first_marks() -> None:
    theirs = node(taints=(replace(MINE, value="t"),), labels={LABEL: "l"}, annotations={CODES: "c"})
    first = cordon_change(theirs, QUARANTINE, off_balancers=True)
    applied = AppliedChanges(True, "gpu", off_balancers=True, taint="t", label="l", codes="c")
    once = after(first, theirs)
    assert read_applied(once) == applied
    assert read_applied(after(cordon_change(once, QUARANTINE), once)) == applied
    assert read_applied(
        after(cordon_change(node(unschedulable=True), QUARANTINE))
    ) == AppliedChanges(False, "gpu")


@pytest.mark.parametrize(
    ("changes", "before"),
    [
        ({}, AppliedChanges(False, "gpu")),
        ({"unschedulable": False}, AppliedChanges(True, "gpu")),
        ({"annotations": {}}, AppliedChanges(False, "gpu", taint="gpu", label="gpu")),
        ({"labels": {}}, AppliedChanges(False, "gpu", taint="gpu", codes="c")),
        ({"taints": ()}, AppliedChanges(False, "gpu", label="gpu", codes="c")),
        (
            {"taints": (replace(MINE, value="disk"),), "labels": {LABEL: "disk"}},
            AppliedChanges(False, "gpu", taint="disk", label="disk", codes="c"),
        ),
    ],
)
def test_a_full_set_of_marks_without_their_annotation_is_ours(
    changes: dict[str, Any], before: AppliedChanges
) -> None:
    ours = node(unschedulable=True, taints=(MINE,), labels={LABEL: "gpu"}, annotations={CODES: "c"})
    unknown = replace(QUARANTINE, status=QuarantineStatus())
    found = replace(ours, **changes)
    assert read_applied(after(cordon_change(found, unknown), found)) == before


def test_the_annotation_names_the_installation_only_where_there_is_one() -> None:
    assert marked_for(MARKED.annotations) == ""
    named = cordon_change(FREE, quarantine(installation="east"))
    assert annotation_of(named)["installation"] == "east"
    assert marked_for(after(named).annotations) == "east"
    assert "installation" not in annotation_of(cordon_change(FREE, QUARANTINE))
    assert marked_for({APPLIED: '{"installation": 3}'}) == ""


def test_adopted_marks_are_written_anew_and_the_node_is_not_changed() -> None:
    change = adopt_change(QUARANTINE, AppliedChanges(True, "gpu"))
    assert (change.taints, change.unschedulable, change.labels) == (None, None, {})
    assert change.annotations == {APPLIED: MARKED.annotations[APPLIED]}
    assert marked_by(after(change)) == "q"
    unknown = annotation_of(adopt_change(QUARANTINE, None))
    assert unknown["value"] == "gpu"
    assert "unschedulable" not in unknown
    assert read_applied(after(adopt_change(QUARANTINE, None))) is None


# -- our changes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "applied"),
    [
        ('{"unschedulable": true}', AppliedChanges(True)),
        ('{"unschedulable": false, "value": "gpu"}', AppliedChanges(False, "gpu")),
        ('{"unschedulable": 1}', None),
        ("{}", None),
        ("[]", None),
        ("", None),
        ("{", None),
        (
            '{"unschedulable": true, "value": 3, "off_balancers": 1, "before": 3}',
            AppliedChanges(True),
        ),
        (
            '{"unschedulable": true, "off_balancers": true}',
            AppliedChanges(True, off_balancers=True),
        ),
        (
            '{"unschedulable": true, "before": {"taint": "", "label": 3, "codes": "c"}}',
            AppliedChanges(True, taint="", codes="c"),
        ),
    ],
)
def test_our_changes_are_read_from_the_annotation_and_doubtful_parts_left_out(
    text: str, applied: AppliedChanges | None
) -> None:
    assert read_applied(node(annotations={APPLIED: text})) == applied


REMEMBERED = replace(QUARANTINE, status=replace(STATUS, applied=AppliedChanges(True, "status")))


@pytest.mark.parametrize(
    ("found", "of", "applied"),
    [
        (MARKED, REMEMBERED, AppliedChanges(True, "gpu")),
        (MARKED, None, AppliedChanges(True, "gpu")),
        (FREE, REMEMBERED, AppliedChanges(True, "status")),
        (FREE, None, None),
        (FREE, QUARANTINE, None),
        (node(uid="another"), REMEMBERED, None),
        (node(annotations={RELEASED: "q@6"}), REMEMBERED, None),
        (node(annotations={RELEASED: "qq@6"}), REMEMBERED, AppliedChanges(True, "status")),
    ],
)
def test_our_changes_are_known_by_the_node_first_and_else_by_its_own_quarantine(
    found: Node, of: Quarantine | None, applied: AppliedChanges | None
) -> None:
    assert known_applied(found, of) == applied


def test_without_a_trace_of_the_node_as_it_was_the_marks_go_and_a_cordon_stays() -> None:
    assert applied_to_undo(MARKED, QUARANTINE) == AppliedChanges(True, "gpu")
    assert applied_to_undo(FREE, QUARANTINE) == AppliedChanges(False, "gpu")
    assert applied_to_undo(FREE, REMEMBERED) == AppliedChanges(True, "status")
    assert applied_to_undo(node(uid="another"), QUARANTINE) is None
    unmarked = replace(QUARANTINE, status=replace(STATUS, cordoned_at=0.0))
    assert applied_to_undo(FREE, unmarked) is None


def test_another_party_is_named_where_it_cordoned_the_node() -> None:
    before = "it was cordoned before, and stays so when sickbay lets go"
    cordoned = node(unschedulable=True)
    assert foreign_hands(FREE) == ""
    assert foreign_hands(cordoned) == before
    assert foreign_hands(MARKED, QUARANTINE) == ""
    assert foreign_hands(after(cordon_change(cordoned, QUARANTINE), cordoned), QUARANTINE) == before
    assert foreign_hands(cordoned, REMEMBERED) == ""
    assert foreign_hands(cordoned, QUARANTINE) == (
        "its sickbay.dev/applied is gone, so that it is not known whether it was closed to new "
        "work before; it stays closed when sickbay lets go"
    )
    assert foreign_hands(replace(cordoned, uid="another"), QUARANTINE) == before


# -- undoing -------------------------------------------------------------------------------------


def test_an_undo_reverses_what_we_did_and_nothing_else() -> None:
    theirs = node(
        taints=(OTHER, replace(MINE, value="t"), EVICTING),
        labels={LABEL: "l", "zone": "a"},
        annotations={CODES: "c", "note": "x"},
    )
    for balancers in (False, True):
        marked = after(cordon_change(theirs, QUARANTINE, off_balancers=balancers), theirs)
        back = after(undo_change(marked, "q", applied_to_undo(marked, QUARANTINE)), marked)
        assert back.annotations == {CODES: "c", "note": "x", RELEASED: "q@7"}
        assert back.labels == theirs.labels
        assert set(back.taints) == set(theirs.taints)
        assert not back.unschedulable


@pytest.mark.parametrize(
    ("cordoned", "applied", "uncordoned", "schedules"),
    [
        (True, True, False, False),
        (True, False, False, None),
        (False, True, False, None),
        (True, True, True, None),
    ],
)
def test_only_our_own_cordon_is_taken_back(
    *, cordoned: bool, applied: bool, uncordoned: bool, schedules: bool | None
) -> None:
    change = undo_change(
        node(unschedulable=cordoned), "q", AppliedChanges(applied), uncordoned=uncordoned
    )
    assert change.unschedulable is schedules


def test_without_a_known_change_an_undo_says_only_that_it_has_been() -> None:
    change = undo_change(MARKED, "q", None, more={"sickbay.dev/release-history": "[]"})
    assert change == NodeChange(
        annotations={
            APPLIED: None,
            RELEASED: "q@7",
            "sickbay.dev/release-history": "[]",
        }
    )


def test_an_undo_keeps_the_overrides_unless_it_is_given_others() -> None:
    word = Override("xid:79", "GPU-1", "boot-1", "reboot")
    for applied in (None, AppliedChanges(True, "gpu")):
        assert OVERRULED not in undo_change(MARKED, "q", applied).annotations
        assert undo_change(MARKED, "q", applied, frozenset()).annotations[OVERRULED] is None
        text = undo_change(MARKED, "q", applied, frozenset({word})).annotations[OVERRULED]
        assert text == write_overruled(frozenset({word}))
    balancers = undo_change(MARKED, "q", AppliedChanges(True, off_balancers=True)).labels
    assert balancers == {LABEL: None, OFF_BALANCERS: None}
    assert undo_change(MARKED, "q", AppliedChanges(True)).labels == {LABEL: None}


def test_a_marked_node_is_taken_off_the_balancers_once_and_that_is_remembered() -> None:
    change = present(exclude_change(MARKED))
    assert change.labels == {OFF_BALANCERS: ""}
    found = after(change, MARKED)
    assert read_applied(found) == AppliedChanges(True, "gpu", off_balancers=True)
    assert marked_by(found) == "q"
    assert exclude_change(found) is None
    assert exclude_change(FREE) is None


# -- the memory of overrides ---------------------------------------------------------------------


def test_overrides_are_of_the_evidence_that_has_not_ended() -> None:
    over = replace(ITEM, code="xid:48", cleared="reboot")
    assert words_of([ITEM, LEVEL, over]) == {
        Override("xid:79", "GPU-1", "boot-1", "reboot"),
        Override("disk-space:bytes", "", "boot-1", ""),
    }


def test_as_many_overrides_are_remembered_as_an_annotation_holds() -> None:
    few = frozenset(Override(f"xid:{n:03}", "GPU-1", "b", "reboot") for n in range(300))
    kept = read_overruled({OVERRULED: write_overruled(few)})
    assert kept == frozenset(sorted(few)[:256])
    # One that is too long is left out; those after it may fit.
    large = [Override(f"{n}", "x" * 20_000, "", "") for n in range(3)]
    small = Override("z", "", "", "")
    kept = read_overruled({OVERRULED: write_overruled(frozenset([*large, small]))})
    assert kept == {*large[:2], small}
    row = len(json.dumps(["a", "", "", ""])) + 2
    fits = Override("a", "y" * (48 * 1024 - row), "", "")
    assert read_overruled({OVERRULED: write_overruled(frozenset([fits]))}) == {fits}
    over = replace(fits, component=fits.component + "y")
    assert read_overruled({OVERRULED: write_overruled(frozenset([over]))}) == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "3",
        "[]",
        '{"evidence": 3}',
        '{"evidence": [["a"]]}',
        '{"evidence": null}',
        "[" * 9999,
    ],
)
def test_an_unreadable_memory_is_no_override(text: str) -> None:
    assert read_overruled({OVERRULED: text}) == frozenset()
    assert read_overruled({}) == frozenset()


def test_without_an_override_the_annotation_is_removed() -> None:
    assert clear_overrides_change(frozenset()) == NodeChange(annotations={OVERRULED: None})


# -- the quarantine made again from its marks ----------------------------------------------------


def test_ours_comes_back_as_a_cordon_for_the_same_evidence() -> None:
    marked = after(cordon_change(FREE, quarantine(evidence=(ITEM, LEVEL))))
    assert marked_evidence(marked) == words_of([ITEM, LEVEL])
    assert spec_of_marks(marked) == QuarantineSpec(
        Action.CORDON,
        "gpu",
        "marked for disk-space:bytes",
        requester=OURS,
        incident="inc-1",
        boot_id="boot-1",
        evidence=(LEVEL, ITEM),
        intent_action=Action.CORDON,
    )
    long = after(cordon_change(FREE, quarantine(evidence=(replace(ITEM, code="c" * 400),))))
    spec = present(spec_of_marks(long))
    assert spec.reason == f"marked for {'c' * 289}"


ROW = ["xid:79", "GPU-1", "boot-1", "reboot"]


@pytest.mark.parametrize(
    ("more", "rule", "incident"),
    [
        ({"rules": [["r", "i"]], "incident": "all"}, "r", "i"),
        ({"rules": [["r", ""]], "incident": "all"}, "r", "all"),
        ({"rules": [["r"]], "incident": "all"}, "", "all"),
        ({"rules": [["r", 3]], "incident": "all"}, "", "all"),
        ({"rules": ["ri"], "incident": "all"}, "", "all"),
        ({"rules": [["r", "i"], ["r", "i"]], "incident": "all"}, "", "all"),
        ({"rules": 3, "incident": "all"}, "", "all"),
        ({"incident": "all"}, "", "all"),
        ({"incident": ""}, "", incident_id("n1", "boot-1", "disk")),
        ({"incident": 3}, "", incident_id("n1", "boot-1", "disk")),
    ],
)
def test_the_origin_of_evidence_is_taken_from_the_marks_where_it_is_readable(
    more: dict[str, Any], rule: str, incident: str
) -> None:
    text = json.dumps({"evidence": [ROW], "value": "disk", **more})
    spec = present(spec_of_marks(node(annotations={APPLIED: text})))
    assert spec.kind == "disk"
    assert [(item.rule, item.incident) for item in spec.evidence] == [(rule, incident)]


@pytest.mark.parametrize(
    ("value", "taints", "kind"),
    [
        ("network", (), "network"),
        ("node", (MINE,), "node"),
        (None, (MINE,), "gpu"),
        ("", (MINE,), "gpu"),
        (None, (EVICTING,), "manual"),
        ("spaceship", (MINE,), "manual"),
        (None, (), "manual"),
    ],
)
def test_the_kind_is_that_of_the_annotation_or_else_of_the_taint(
    value: str | None, taints: tuple[Taint, ...], kind: str
) -> None:
    text = json.dumps({"evidence": [ROW], "value": value})
    spec = present(spec_of_marks(node(annotations={APPLIED: text}, taints=taints)))
    assert spec.kind == kind


def test_one_made_by_hand_comes_back_as_it_was() -> None:
    for spec in (BY_HAND, replace(BY_HAND, action=Action.CORDON)):
        assert spec_of_marks(after(cordon_change(FREE, replace(QUARANTINE, spec=spec)))) == spec
    assert spec_of_marks(after(cordon_change(FREE, quarantine(evidence=())))) is None
    assert spec_of_marks(FREE) is None


@pytest.mark.parametrize(
    ("reason", "kept"),
    [("", "by hand"), (3, "by hand"), ("  x ", "x"), ("y" * 999, "y" * MOST_REASON)],
)
def test_a_persons_reason_is_bounded_and_has_a_stand_in(reason: Any, kept: str) -> None:
    text = json.dumps({"requester": "a" * 999, "reason": reason, "action": "other"})
    spec = spec_of_marks(node(annotations={APPLIED: text}))
    assert spec == QuarantineSpec(Action.CORDON, "manual", kept, "a" * MOST_REASON)
    written = annotation_of(
        adopt_change(replace(QUARANTINE, spec=replace(BY_HAND, reason="y" * 999)), None)
    )
    assert written["reason"] == "y" * MOST_REASON
