"""Actions on the marks of a quarantine: they are set again, adopted, remembered and swept."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from aggregator.cluster.node_names import APPLIED, LABEL, OVERRULED, is_marked
from aggregator.cluster.port import (
    Action,
    ClusterError,
    Conflict,
    GuardRefused,
    MarksStatus,
    Phase,
    QuarantineSpec,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions import adoption
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.lost_marks import ALL_MARKS, CONDITION
from aggregator.quarantine.decide.node_marks import marked_by
from aggregator.quarantine.decide.operator_requests import FORCE, FORCED
from aggregator.quarantine.state.fleet import UNCLAIMED
from tests.aggregator.released_node import ENTRY, Back, of_evidence, strayed, with_back
from tests.aggregator.test_node_actions import made
from tests.support.node_states import set_fields
from tests.support.present import present
from tests.support.replica import all_in_mode

pytestmark = pytest.mark.decorated(by=with_back)

# -- lost marks -----------------------------------------------------------------------------------


async def test_lost_marks_are_shown_since_when_they_are_and_told_for_each_that_is_new(
    bench: Back,
) -> None:
    node_state = bench.node_state
    await bench.marked()
    node_state.quarantine_view.missing = ("label",)
    await bench.restorer.report(node_state, bench.now())
    status = bench.now().status
    assert isinstance(status.marks, MarksStatus)
    since = status.marks.since
    assert status.marks.missing == ("label",)
    assert since == pytest.approx(6000.0, abs=10)
    assert "removed or changed" in status.message
    assert bench.kinds() == ["quarantine.marks_missing"]
    assert bench.notes.transitions[0].details == {"missing": "label"}
    await asyncio.sleep(20)
    node_state.quarantine_view.missing = ("taint", "label")
    await bench.restorer.report(node_state, bench.now())
    assert bench.now().status.marks == MarksStatus(missing=("taint", "label"), since=since)
    assert len(bench.kinds()) == 2
    assert bench.notes.transitions[1].details == {"missing": "taint, label"}
    node_state.quarantine_view.missing = ("taint",)
    await bench.restorer.report(node_state, bench.now())
    assert len(bench.kinds()) == 2, "one is there again, and another is still missing"
    node_state.quarantine_view.missing = ()
    await bench.restorer.report(node_state, bench.now())
    status = bench.now().status
    assert status.marks == MarksStatus()
    assert status.message == "n1 is tainted and unschedulable"
    assert bench.kinds()[2:] == ["quarantine.marks_restored"]
    assert "another tool or person has set them again: taint" in bench.notes.transitions[2].summary


async def test_a_drains_message_is_not_replaced_by_that_of_lost_marks(bench: Back) -> None:
    await bench.marked(
        Phase.DRAINED, message="drained", marks=MarksStatus(restored=2, restored_at=4900.0)
    )
    bench.node_state.quarantine_view.missing = ("label",)
    await bench.restorer.report(bench.node_state, bench.now())
    status = bench.now().status
    assert status.message == "drained"
    assert isinstance(status.marks, MarksStatus)
    assert status.marks.restored == 2
    labels = {k: v for k, v in bench.world.nodes["n1"].labels.items() if k != LABEL}
    bench.labelled(labels)
    await bench.restorer.restore(bench.node_state)
    assert bench.now().status.message == "drained"


async def test_marks_are_set_again_counted_and_told(bench: Back) -> None:
    await bench.marked()
    labels = {k: v for k, v in bench.world.nodes["n1"].labels.items() if k != LABEL}
    bench.labelled(labels)
    await bench.restorer.restore(bench.node_state)
    status = bench.now().status
    assert bench.world.nodes["n1"].labels[LABEL] == "gpu"
    assert isinstance(status.marks, MarksStatus)
    assert (status.marks.restored, status.marks.missing) == (1, ())
    assert status.applied is not None
    assert status.message == "n1 is tainted and unschedulable"
    assert bench.kinds() == ["quarantine.marks_restored"]
    assert "set again, 1 of 3: " in bench.notes.transitions[0].summary
    assert LABEL in bench.notes.transitions[0].summary
    await bench.announcer.settle(bench.node_state)
    before = len(bench.world.writes)
    await bench.restorer.restore(bench.node_state)
    assert bench.world.writes[before:] == [], "none is missing"


async def test_a_missing_condition_alone_costs_no_patch(bench: Back) -> None:
    await bench.marked()
    bench.world.set_node(replace(bench.world.nodes["n1"], condition="False"))
    before = bench.cluster.asked["patch_node"]
    await bench.restorer.restore(bench.node_state)
    assert bench.cluster.asked["patch_node"] == before
    assert isinstance(bench.now().status.marks, MarksStatus)
    await bench.announcer.settle(bench.node_state)
    assert bench.cluster.asked["announce"] == 1
    assert CONDITION in ALL_MARKS


async def test_a_restore_is_refused_where_we_may_not_act(bench: Back) -> None:
    await bench.marked(marks=MarksStatus(("label",), restored=1))
    bench.labelled({})
    bench.stopped = True
    with pytest.raises(ClusterError):
        await bench.restorer.restore(bench.node_state)
    assert LABEL not in bench.world.nodes["n1"].labels
    assert present(bench.now().status.marks).restored == 1, "it is not counted"


async def test_marks_of_a_quarantine_by_hand_are_set_again_also_beside_others_work(
    bench: Back,
) -> None:
    await bench.marked()
    node, node_state = bench.world.nodes["n1"], bench.node_state
    node_state.quarantine_view.missing = ("label",)
    ours, theirs = bench.now(), replace(bench.now(), spec=of_evidence("alice"))
    assert bench.restorer._may(node_state, node, ours)
    for stands in (
        replace(ours, deleting=True),
        replace(ours, status=replace(ours.status, phase=Phase.RELEASING)),
        replace(ours, status=replace(ours.status, phase=Phase.ADMITTED)),
    ):
        assert not bench.restorer._may(node_state, node, stands)
    assert not bench.restorer._may(node_state, replace(node, uid="x"), ours)
    assert not bench.restorer._may(node_state, replace(node, unschedulable=False), ours)
    node_state.cluster.maintained = "kured"
    assert not bench.restorer._may(node_state, node, ours)
    assert bench.restorer._may(node_state, node, theirs)
    set_fields(node_state, maintained="", missing=())
    assert not bench.restorer._may(node_state, node, theirs)


async def test_stray_marks_get_their_quarantine_again_and_stay(bench: Back) -> None:
    await strayed(bench)
    bench.world.nodes["n1"] = replace(bench.world.nodes["n1"])
    await bench.adopter.adopt(bench.node_state)
    found = bench.now()
    assert (found.spec.action, found.spec.requester) == (Action.CORDON, OURS)
    assert found.spec.installation == "sickbay"
    status = found.status
    assert (status.phase, status.message) == (Phase.CORDONED, adoption._KEPT)
    assert status.node_uid == bench.world.nodes["n1"].uid
    assert status.admitted_at == status.cordoned_at == pytest.approx(6000.0, abs=10)
    assert status.applied is not None
    assert status.applied.cordoned
    assert marked_by(bench.world.nodes["n1"]) == found.uid
    ((node, entered),) = bench.entered
    assert (node, entered.action, entered.incident) == ("n1", Action.CORDON, "i")
    assert bench.kinds() == ["quarantine.adopted"]
    assert "is made again (cordon): marked for xid:79" in bench.notes.transitions[0].summary
    assert not bench.node_state.quarantine_view.to_adopt
    assert bench.node_state.quarantine == found
    await bench.announcer.settle(bench.node_state)
    assert bench.cluster.asked["announce"] == 1
    before = len(bench.world.writes)
    await bench.adopter.adopt(bench.node_state)
    assert bench.world.writes[before:] == [], "it stands"


async def test_marks_are_not_adopted_in_mode_observe_without_leave_or_where_another_made_them(
    bench: Back,
) -> None:
    await strayed(bench)
    bench.may = False
    with pytest.raises(GuardRefused):
        await bench.adopter.adopt(bench.node_state)
    assert bench.node_state.quarantine_view.to_adopt, "it is tried again"
    bench.may, bench.acts.pools = True, None
    with pytest.raises(AttributeError):
        await bench.adopter.adopt(bench.node_state)
    assert bench.node_state.quarantine_view.to_adopt, "also after a bug"
    bench.acts.pools = all_in_mode(Action.OBSERVE)
    await bench.adopter.adopt(bench.node_state)
    assert bench.node_state.quarantine_view.unclaimed == UNCLAIMED
    assert not bench.node_state.quarantine_view.to_adopt
    bench.node_state.quarantine_view.remains = QuarantineSpec(Action.DRAIN, "gpu", "x", "alice")
    node = bench.world.nodes["n1"]
    bench.annotated({})
    await bench.adopter.adopt(bench.node_state)
    assert bench.node_state.quarantine_view.unclaimed == "", "the node is not marked"
    bench.node_state.quarantine_view.remains = None
    bench.node_state.quarantine_view.unclaimed = UNCLAIMED
    await bench.adopter.adopt(bench.node_state)
    assert bench.node_state.quarantine_view.unclaimed == ""
    bench.adopter._mode = Action.DRAIN
    foreign = node.annotations[APPLIED].replace("{", '{"installation": "elsewhere", ', 1)
    bench.annotated({APPLIED: foreign})
    await bench.adopter.adopt(bench.node_state)
    assert bench.world.quarantines == {}
    assert bench.entered == []


async def test_what_went_with_its_definition_comes_back_as_it_was(bench: Back) -> None:
    node, node_state = bench.world.nodes["n1"], bench.node_state
    ours, theirs = of_evidence(), of_evidence("alice")
    assert bench.adopter._spec(node_state, node) is None
    node_state.quarantine_view.remains = ours
    assert bench.adopter._spec(node_state, node) is None, "its marks are gone: so is its cause"
    assert bench.adopter._spec(node_state, replace(node, annotations={APPLIED: "{}"})) is ours
    node_state.quarantine_view.remains = theirs
    assert bench.adopter._spec(node_state, node) is theirs
    assert bench.adopter._spec(node_state, None) is theirs
    await bench.adopter.adopt(node_state)
    found = bench.now()
    assert (found.spec.requester, found.status.phase) == ("alice", Phase.ADMITTED)
    assert bench.kinds() == ["quarantine.adopted"]


@pytest.mark.parametrize("happens", ["unmarked", "another", "gone", "changed"])
async def test_marks_that_change_while_they_are_adopted_are_released_or_tried_again(
    bench: Back, happens: str
) -> None:
    known = await bench.marked()
    before = bench.world.nodes["n1"]
    if happens == "unmarked":
        bench.annotated({})
    elif happens == "another":
        bench.world.set_node(replace(before, uid="another"))
    elif happens == "gone":
        del bench.world.nodes["n1"]
    else:
        bench.labelled({"x": "y"})
    if happens == "changed":
        with pytest.raises(Conflict):
            await bench.adopter._keep_marks(bench.node_state, known, before)
        assert bench.now().status.phase is Phase.CORDONED
        return

    async def conflict(*_: Any, **__: Any) -> Any:
        raise Conflict("x")

    bench.cluster.patch_node = conflict  # type: ignore[method-assign]
    await bench.adopter._keep_marks(bench.node_state, known, before)
    status = bench.now().status
    assert status.phase is Phase.RELEASING
    assert status.released_because == status.message
    assert "gone by the time" in status.message


async def test_an_entry_without_an_object_goes_and_one_whose_node_is_marked_is_adopted(
    bench: Back,
) -> None:
    node_state = bench.node_state
    bench.entries["n1"] = ENTRY
    node = bench.world.nodes["n1"]
    bench.annotated({APPLIED: "{}"})
    await bench.adopter.forget_node(node_state, "x")
    assert (node_state.quarantine_view.to_adopt, bench.forgotten) == (True, [])
    bench.world.set_node(node)
    node_state.decision.hold = Held("x", "1", "y", since=1.0)
    await bench.adopter.forget_node(node_state, "x")
    assert bench.forgotten == [ENTRY]
    assert [node_state.decision.hold] == [None]
    assert bench.kinds() == []
    bench.entries["n1"] = msgspec.structs.replace(ENTRY, incident="")
    del bench.world.nodes["n1"]
    await bench.adopter.forget_node(node_state, "x")
    assert bench.kinds() == ["quarantine.released"]
    del bench.entries["n1"]
    await bench.adopter.forget_node(node_state, "x")
    assert len(bench.kinds()) == 1


async def test_the_marks_of_a_quarantine_that_a_person_deleted_are_undone_and_remembered(
    bench: Back,
) -> None:
    await strayed(bench)
    (
        bench.entries["n1"],
        bench.node_state.quarantine_view.orphan,
        bench.node_state.quarantine_view.to_adopt,
    ) = ENTRY, "q", False
    notes = {**bench.world.nodes["n1"].annotations, FORCE: "cordon x"}
    bench.annotated(notes)
    await bench.adopter.sweep(bench.node_state)
    node = bench.world.nodes["n1"]
    assert not is_marked(node)
    assert not node.unschedulable
    assert "xid:79" in node.annotations[OVERRULED]
    assert FORCE in node.annotations, "it was marked for evidence"
    assert bench.forgotten == [ENTRY]
    assert bench.node_state.quarantine_view.orphan == ""
    assert len(bench.kinds()) == 1
    assert bench.notes.transitions[0].kind is EventKind.OVERRULED
    assert bench.cluster.asked["announce"] == 1
    bench.node_state.quarantine_view.orphan = "q"
    await bench.adopter.sweep(bench.node_state)
    assert len(bench.kinds()) == 1, "there was nothing to undo"
    assert bench.forgotten == [ENTRY, ENTRY]


async def test_a_deleted_force_takes_its_request_back(bench: Back) -> None:
    await bench.marked(requester=FORCED)
    del bench.world.quarantines["n1"]
    set_fields(bench.node_state, quarantine=None, orphan="q")
    notes = {**bench.world.nodes["n1"].annotations, FORCE: "cordon x"}
    bench.annotated(notes)
    await bench.adopter.sweep(bench.node_state)
    assert FORCE not in bench.world.nodes["n1"].annotations


async def test_the_marks_of_another_quarantine_are_not_swept_with_a_deleted_one(
    bench: Back,
) -> None:
    await strayed(bench)
    set_fields(bench.node_state, orphan="r", to_adopt=False)
    await bench.adopter.sweep(bench.node_state)
    assert is_marked(bench.world.nodes["n1"])
    assert (
        bench.node_state.quarantine_view.orphan,
        bench.node_state.quarantine_view.to_adopt,
    ) == (
        "",
        True,
    )
    assert bench.forgotten == []
    assert bench.kinds() == []
    bench.stands(made())
    bench.node_state.quarantine_view.orphan = "q"
    with pytest.raises(Conflict):
        await bench.adopter.sweep(bench.node_state)
    assert is_marked(bench.world.nodes["n1"])
    assert bench.node_state.quarantine_view.orphan == "q"
