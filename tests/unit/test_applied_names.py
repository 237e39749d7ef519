"""The two names of our changes: replicas of the version before know the former one alone.

Beside one, and after a roll-back to that version, no change of ours may be lost, and none of
another may be taken for ours.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.kubernetes.quarantine_codec import decode_quarantine, encode_status
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.node_names import (
    APPLIED,
    CODES,
    FORMER_APPLIED,
    LABEL,
    RELEASED,
    TAINT,
    applied_annotations,
    applied_text,
    is_marked,
)
from aggregator.cluster.port import (
    Action,
    AppliedChanges,
    Node,
    NodeChange,
    NodeMeta,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Taint,
)
from aggregator.quarantine.decide.lost_marks import missing_marks
from aggregator.quarantine.decide.node_marks import (
    adopt_change,
    applied_to_undo,
    cordon_change,
    exclude_change,
    read_applied,
    undo_change,
)

SPEC = QuarantineSpec(Action.DRAIN, "gpu", "why", "alice")
STATUS = QuarantineStatus(node_uid="uid", cordoned_at=1.0)
QUARANTINE = Quarantine("n1", "q", "1", SPEC, STATUS)
FREE = Node("n1", "uid", "7", unschedulable=False, taints=(), labels={}, annotations={})
THEIRS = Taint(TAINT, "theirs", "NoSchedule")


def after(change: NodeChange, node: Node, *, older: bool = False) -> Node:
    """The node after the patch; ``older``: of a replica that knows the former name alone."""
    annotations = dict(change.annotations)
    if older:
        annotations.pop(APPLIED, None)
    labels = {**node.labels, **change.labels}
    notes = {**node.annotations, **annotations}
    cordoned = node.unschedulable if change.unschedulable is None else change.unschedulable
    return replace(
        node,
        version=str(int(node.version) + 1),
        taints=node.taints if change.taints is None else change.taints,
        unschedulable=cordoned,
        labels={key: text for key, text in labels.items() if text is not None},
        annotations={key: text for key, text in notes.items() if text is not None},
    )


def seen_by_older(node: Node) -> Node:
    """The node as a replica sees it that does not know the new name."""
    notes = {key: text for key, text in node.annotations.items() if key != APPLIED}
    return replace(node, annotations=notes)


def test_marks_are_written_and_removed_under_both_names_in_one_patch() -> None:
    marked = after(cordon_change(FREE, QUARANTINE), FREE)
    assert marked.annotations[APPLIED] == marked.annotations[FORMER_APPLIED]
    excluded = exclude_change(marked)
    assert excluded is not None
    for change in (excluded, adopt_change(QUARANTINE, read_applied(marked))):
        notes = after(change, marked).annotations
        assert notes[APPLIED] == notes[FORMER_APPLIED]
    undone = after(undo_change(marked, "q", read_applied(marked)), marked)
    assert not {APPLIED, FORMER_APPLIED} & undone.annotations.keys()


def test_what_an_older_replica_leaves_behind_is_no_mark() -> None:
    marked = after(cordon_change(FREE, QUARANTINE), FREE)
    left = after(undo_change(marked, "q", read_applied(marked)), marked, older=True)
    assert APPLIED in left.annotations
    assert not is_marked(left)
    assert not is_marked(NodeMeta("n1", "uid", left.labels, left.annotations))
    assert read_applied(left) is None
    assert exclude_change(left) is None
    again = after(cordon_change(replace(left, unschedulable=True), QUARANTINE), left)
    assert read_applied(again) == AppliedChanges(cordoned=False, value="gpu"), "it was cordoned"


def test_marks_of_an_older_replica_are_whole_and_undone_without_a_trace() -> None:
    marked = after(cordon_change(FREE, QUARANTINE), FREE, older=True)
    assert APPLIED not in marked.annotations
    assert missing_marks(marked, QUARANTINE) == (), "an upgrade marks no node again"
    undone = after(undo_change(marked, "q", applied_to_undo(marked, QUARANTINE)), marked)
    assert (undone.taints, undone.unschedulable, undone.labels) == ((), False, {})
    assert undone.annotations.keys() == {RELEASED}


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({}, None),
        ({FORMER_APPLIED: "old"}, "old"),
        ({FORMER_APPLIED: "old", APPLIED: "new"}, "old"),
        ({FORMER_APPLIED: "", APPLIED: "new"}, ""),
        ({APPLIED: "new"}, None),
        ({APPLIED: "{"}, None),
        ({APPLIED: '["sole"]'}, None),
        ({APPLIED: json.dumps({"sole": "yes"})}, None),
        ({APPLIED: json.dumps({"sole": True})}, json.dumps({"sole": True})),
        ({FORMER_APPLIED: "old", APPLIED: json.dumps({"sole": True})}, "old"),
    ],
)
def test_the_former_name_decides_unless_the_new_one_says_that_it_stands_alone(
    annotations: dict[str, str], text: str | None
) -> None:
    assert applied_text(annotations) == text


def test_marks_of_a_later_version_are_undone_and_written_again_under_both_names() -> None:
    marked = after(cordon_change(FREE, QUARANTINE), FREE)
    text = json.dumps({**json.loads(marked.annotations[FORMER_APPLIED]), "sole": True})
    later = replace(marked, annotations={CODES: "c", APPLIED: text})
    assert is_marked(later)
    assert missing_marks(later, QUARANTINE) == ()
    change = exclude_change(later)
    assert change is not None
    for found in (after(change, later), after(cordon_change(later, QUARANTINE), later)):
        assert found.annotations[APPLIED] == found.annotations[FORMER_APPLIED]
    undone = after(undo_change(later, "q", read_applied(later)), later)
    assert not undone.unschedulable
    assert APPLIED not in undone.annotations


#: Acts on a node; the bool: by a replica of the version before.
ACTS = st.lists(
    st.tuples(st.sampled_from(("mark", "undo", "cordon", "uncordon", "taint")), st.booleans()),
    max_size=12,
)


@pytest.mark.slow
@given(acts=ACTS)
def test_both_versions_read_the_same_after_any_sequence_of_their_acts(
    acts: list[tuple[str, bool]],
) -> None:
    node, number = FREE, 0
    for act, older in acts:
        seen = seen_by_older(node) if older else node
        if act == "mark":
            number += not is_marked(node)
            quarantine = replace(QUARANTINE, uid=f"q{number}")
            node = after(cordon_change(seen, quarantine), node, older=older)
        elif act == "undo":
            applied = applied_to_undo(seen, replace(QUARANTINE, uid=f"q{number}"))
            node = after(undo_change(seen, f"q{number}", applied), node, older=older)
        elif act == "taint":
            if not is_marked(node):
                node = replace(node, taints=(THEIRS,))
        else:
            node = replace(node, unschedulable=act == "cordon")
        assert is_marked(node) == is_marked(seen_by_older(node))
        assert read_applied(node) == read_applied(seen_by_older(node))
        if not is_marked(node):
            assert LABEL not in node.labels
            assert node.taints in ((), (THEIRS,))


# -- the copy in the status ----------------------------------------------------------------------

APPLIED_HERE = AppliedChanges(cordoned=True, value="gpu")
HERE = {"cordoned": True, "value": "gpu"}
THERE = {"cordoned": False, "value": "disk"}


def decoded(status: Any) -> AppliedChanges | None:
    body = {"metadata": {"name": "n1"}, "spec": {"reason": "why"}, "status": status}
    found = decode_quarantine(msgspec.json.encode(body))
    assert found.problem == ""
    return found.status.applied


def test_the_status_has_the_changes_under_both_names_and_the_former_one_decides() -> None:
    written = msgspec.to_builtins(encode_status(QuarantineStatus(applied=APPLIED_HERE)))
    assert written["applied"] == written["did"]
    empty = msgspec.to_builtins(encode_status(QuarantineStatus()))
    assert empty["applied"] is empty["did"] is None, "a merge patch removes both"
    assert decoded({"applied": HERE, "did": HERE}) == APPLIED_HERE
    assert decoded({"applied": THERE, "did": HERE}) == APPLIED_HERE
    assert decoded({"did": HERE}) == APPLIED_HERE, "written by the version before"
    assert decoded({"applied": HERE}) == APPLIED_HERE, "written by a later version"


def test_a_local_cluster_of_the_version_before_is_read_and_can_be_read_by_it(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "cluster.db", wall=lambda: 1.0)
    made = store.create_quarantine("n1", SPEC, finalizer=True)
    status = replace(made.status, applied=APPLIED_HERE)
    store.write_quarantine(replace(made, status=status))
    [[text]] = store._db.execute("SELECT status FROM quarantines").fetchall()
    found = json.loads(text)
    assert found["applied"] == found["did"]
    assert found["applied"]["cordoned"]
    del found["applied"]
    found["did"]["cordoned"] = False
    store._db.execute("UPDATE quarantines SET status = ?", (json.dumps(found),))
    read = store.quarantine("n1")
    assert read is not None
    assert read.status.applied == replace(APPLIED_HERE, cordoned=False)
    store.close()


def test_a_patch_of_both_names_is_made_of_one_text() -> None:
    assert applied_annotations("x") == {APPLIED: "x", FORMER_APPLIED: "x"}
    assert applied_annotations(None) == {APPLIED: None, FORMER_APPLIED: None}
