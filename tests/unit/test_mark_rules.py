"""The site's choices about the marks: the taint, and the annotations against autoscalers."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from aggregator.cluster.node_names import (
    APPLIED,
    KEPT,
    TAINT,
)
from aggregator.cluster.port import AppliedChanges, Node, Taint
from aggregator.quarantine.decide.lost_marks import missing_marks
from aggregator.quarantine.decide.node_marks import (
    DO_NOT_DISRUPT,
    KEEPING,
    PLAIN,
    SCALE_DOWN_DISABLED,
    MarkRules,
    TaintRule,
    applied_taint,
    applied_to_undo,
    cordon_change,
    own_annotations,
    read_applied,
    taint_text,
    undo_change,
)
from aggregator.quarantine.state.cluster_view import OthersMarks
from tests.unit.test_node_marks import FREE, QUARANTINE, STATUS, after, annotation_of, node

CHOSEN = TaintRule("example.com/broken", "yes", "PreferNoSchedule")
RULES = MarkRules(CHOSEN, keep_from_autoscalers=True)
OURS = Taint("example.com/broken", "yes", "PreferNoSchedule")


def marked(before: Node = FREE, rules: MarkRules = RULES) -> Node:
    return after(cordon_change(before, QUARANTINE, rules=rules), before)


def undone(found: Node) -> Node:
    return after(undo_change(found, "q", applied_to_undo(found, QUARANTINE)), found)


def test_the_taint_is_the_chosen_one_and_the_release_removes_it() -> None:
    found = marked()
    assert found.taints == (OURS,)
    assert undone(found).taints == ()
    assert "own_taint" not in annotation_of(cordon_change(FREE, QUARANTINE))


@pytest.mark.parametrize("later", [PLAIN, RULES, MarkRules(replace(CHOSEN, key="example.com/b"))])
@pytest.mark.parametrize("first", [PLAIN, RULES, MarkRules(replace(CHOSEN, key="example.com/b"))])
def test_after_a_change_of_the_key_the_taint_that_we_set_is_removed_and_no_other(
    first: MarkRules, later: MarkRules
) -> None:
    others = (Taint("other", "x", "NoSchedule"), Taint(TAINT, "theirs", "NoExecute"))
    before = node(taints=others)
    again = marked(marked(before, first), later)  # as a restore of lost marks does
    assert set(again.taints) == {*others, first.taint.of("gpu")}, "it stays until the release"
    assert set(undone(again).taints) == set(others)
    known = replace(QUARANTINE, status=replace(STATUS, applied=read_applied(again)))
    bare = replace(again, annotations={})  # a person has removed our record
    assert set(after(undo_change(bare, "q", applied_to_undo(bare, known)), bare).taints) == set(
        others
    )


def test_where_no_record_is_left_the_release_removes_the_chosen_taint() -> None:
    standing = replace(QUARANTINE, status=replace(STATUS, cordoned_at=1.0, applied=None))
    bare = replace(marked(), annotations={})
    applied = applied_to_undo(bare, standing, RULES)
    assert after(undo_change(bare, "q", applied), bare).taints == ()


def test_a_taint_of_another_in_the_chosen_place_is_put_back() -> None:
    theirs = node(taints=(replace(OURS, value="theirs"),))
    found = marked(theirs)
    assert found.taints == (OURS,)
    assert undone(found).taints == theirs.taints


def test_the_chosen_taint_counts_as_the_mark() -> None:
    found = marked()
    standing = replace(
        QUARANTINE, status=replace(STATUS, node_uid=found.uid, applied=read_applied(found))
    )
    assert "taint" not in missing_marks(found, standing)
    assert "taint" in missing_marks(replace(found, taints=(PLAIN.taint.of("gpu"),)), standing)
    assert "taint" in missing_marks(replace(found, taints=(replace(OURS, value="n"),)), standing)


names = st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,3})?/[a-z]{1,5}", fullmatch=True)


@pytest.mark.slow
@given(
    names, st.sampled_from(["", "v", "a.b"]), st.sampled_from(["NoSchedule", "PreferNoSchedule"])
)
def test_the_record_of_a_taint_is_read_back(key: str, value: str, effect: str) -> None:
    taint = Taint(key, value, effect)
    assert applied_taint(AppliedChanges(True, "gpu", own_taint=taint_text(taint, "gpu"))) == taint


@pytest.mark.parametrize("text", ["x", "=:", "k=v", "k=v:NoExecute", "=v:NoSchedule"])
def test_an_edited_record_of_the_taint_stands_for_the_default(text: str) -> None:
    assert applied_taint(AppliedChanges(True, "gpu", own_taint=text)) == PLAIN.taint.of("gpu")


def test_autoscalers_are_kept_off_and_the_release_takes_that_back() -> None:
    found = marked()
    assert {key: found.annotations[key] for key in KEEPING} == dict.fromkeys(KEEPING, "true")
    assert set(own_annotations(found.annotations)) == set(KEEPING)
    assert not set(KEEPING) & undone(found).annotations.keys()
    assert not set(KEEPING) & marked(rules=PLAIN).annotations.keys()


@pytest.mark.parametrize("value", ["true", "false", ""])
def test_an_annotation_of_another_is_left_as_it_is(value: str) -> None:
    found = marked(node(annotations={SCALE_DOWN_DISABLED: value}))
    assert found.annotations[SCALE_DOWN_DISABLED] == value
    assert found.annotations[DO_NOT_DISRUPT] == "true"
    back = undone(found)
    assert back.annotations[SCALE_DOWN_DISABLED] == value
    assert DO_NOT_DISRUPT not in back.annotations


def test_an_annotation_that_another_has_changed_since_is_theirs() -> None:
    found = marked()
    changed = replace(found, annotations={**found.annotations, SCALE_DOWN_DISABLED: "false"})
    assert undone(changed).annotations[SCALE_DOWN_DISABLED] == "false"


def test_our_own_annotation_is_no_mark_of_another_party() -> None:
    assert OthersMarks().forbidden(node(annotations={DO_NOT_DISRUPT: "true"}))[1]
    assert OthersMarks().forbidden(marked())[1] == ""
    theirs = marked(node(annotations={DO_NOT_DISRUPT: "true"}))
    assert "not to be disrupted" in OthersMarks().forbidden(theirs)[1]
    record = {APPLIED: None}
    bare = {key: text for key, text in marked().annotations.items() if key not in record}
    assert OthersMarks().forbidden(node(annotations=bare))[1] == "", (
        "our other annotation may be removed"
    )
    assert not {*KEEPING, KEPT} & undone(node(annotations=bare)).annotations.keys()


def test_a_node_that_is_marked_again_keeps_the_record_of_what_we_set() -> None:
    twice = marked(marked())
    assert set(own_annotations(twice.annotations)) == set(KEEPING)
    off = marked(marked(), MarkRules(CHOSEN, keep_from_autoscalers=False))
    assert not set(KEEPING) & undone(off).annotations.keys()


@pytest.mark.parametrize(
    ("section", "whose"),
    [
        ({"reason_annotation": "sickbay.dev/force"}, "sickbay's own"),
        ({"reason_annotation": "sickbay.dev/codes"}, "sickbay's own"),
        ({"reason_annotation": DO_NOT_DISRUPT}, "Karpenter's own"),
        ({"reason_annotation": SCALE_DOWN_DISABLED}, "Kubernetes' own"),
        ({"taint": {"key": "karpenter.sh/disrupted"}}, "Karpenter's own"),
    ],
)
def test_a_key_with_another_meaning_is_refused(section: dict[str, Any], whose: str) -> None:
    with pytest.raises(ValidationError, match=whose):
        TypeAdapter(MarkRules).validate_python(section)


def test_the_reason_is_written_where_a_tool_reads_it_and_is_taken_back() -> None:
    slinky = MarkRules(keep_from_autoscalers=False, reason_annotation="slinky.test/reason")
    found = marked(rules=slinky)
    assert found.annotations["slinky.test/reason"] == f"sickbay: {QUARANTINE.spec.reason}"
    assert "slinky.test/reason" not in undone(found).annotations
    theirs = marked(node(annotations={"slinky.test/reason": "mine"}), slinky)
    assert undone(theirs).annotations["slinky.test/reason"] == "mine"
    edited = replace(found, annotations={**found.annotations, "slinky.test/reason": "RMA 7"})
    assert undone(edited).annotations["slinky.test/reason"] == "RMA 7"
