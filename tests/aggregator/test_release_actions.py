"""The steps back and the steps on lost marks, called one by one: what each writes, and when not."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.cluster.node_names import APPLIED, OVERRULED, RELEASED, is_marked
from aggregator.cluster.port import (
    ClusterError,
    Conflict,
    GuardRefused,
    Phase,
    Unreachable,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions import release
from aggregator.quarantine.actions.release import CHECK_AGAIN
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.node_marks import write_overruled
from aggregator.quarantine.decide.operator_requests import FORCE, FORCED, PIN
from aggregator.quarantine.decide.plans.release import UNCORDONED, ReleaseStep
from aggregator.quarantine.decide.plans.release_reasons import NODE_ABSENT
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.decide.release_checks import RELEASE_HISTORY
from aggregator.quarantine.decide.uncordon import (
    UNCORDONED_BY,
    Uncordoned,
)
from aggregator.runtime.interning import EMPTY
from tests.aggregator.released_node import ENTRY, OVER, WORD, Back, of_evidence, with_back
from tests.aggregator.test_node_actions import made
from tests.support.memory_cluster import MemoryCluster
from tests.support.node_states import set_fields

pytestmark = pytest.mark.decorated(by=with_back)

# -- the release ----------------------------------------------------------------------------------


async def test_a_release_changes_the_phase_and_tells_why(bench: Back) -> None:
    bench.recover()
    known = await bench.marked(release_held="a pin")
    await bench.back.release(bench.node_state, known, OVER)
    status = bench.now().status
    assert (status.phase, status.overruled, status.release_held) == (
        Phase.RELEASING,
        False,
        "",
    )
    assert status.released_because == OVER.because
    assert status.message == f"being released: {OVER.because}"
    assert bench.node_state.quarantine == bench.now()
    assert bench.kinds() == ["quarantine.releasing"]
    assert bench.notes.transitions[0].summary == f"n1: {OVER.because}: being released"


async def test_a_persons_release_is_checked_by_nothing(bench: Back) -> None:
    known = await bench.marked()
    bench.annotated({**bench.world.nodes["n1"].annotations, PIN: "keep it"})
    before = bench.cluster.asked["read_node"]
    step = NextStep(ReleaseStep.RELEASE, because="alice", overruled=True)
    await bench.back.release(bench.node_state, known, step)
    assert bench.now().status.phase is Phase.RELEASING
    assert bench.now().status.overruled
    assert bench.cluster.asked["read_node"] == before
    assert len(bench.kinds()) == 1
    assert bench.notes.transitions[0].kind is EventKind.OVERRULED


async def test_only_a_marked_or_absent_node_is_read_before_its_release(bench: Back) -> None:
    bench.stands(made(Phase.ADMITTED))
    await bench.back.release(bench.node_state, bench.now(), OVER)
    assert bench.cluster.asked["read_node"] == 0
    assert bench.now().status.phase is Phase.RELEASING
    bench.stands(made(Phase.ADMITTED))
    absent = NextStep(ReleaseStep.RELEASE, because=NODE_ABSENT)
    await bench.back.release(bench.node_state, bench.now(), absent)
    assert bench.cluster.asked["read_node"] == 1
    assert bench.now().status.phase is Phase.ADMITTED, "the Node is back"
    del bench.world.nodes["n1"]
    await bench.back.release(bench.node_state, bench.now(), absent)
    assert bench.now().status.phase is Phase.RELEASING


async def test_an_objection_holds_a_release_is_told_once_and_checked_again_later(
    bench: Back,
) -> None:
    bench.recover()
    known = await bench.marked()
    bench.world.person_annotates("n1", PIN, "replica b")
    for _ in range(2):
        began = bench.node_state.now()
        await bench.back.release(bench.node_state, bench.now(), OVER)
        assert bench.now().status.phase is Phase.CORDONED
        assert "replica b" in bench.now().status.release_held
        assert bench.node_state.quarantine_view.release_held == bench.now().status.release_held
        assert bench.node_state.quarantine_view.release_poll == began + CHECK_AGAIN
        await asyncio.sleep(7)
    assert bench.kinds() == ["quarantine.release_held"]
    assert "is not released: pinned by a person (replica b)" in bench.notes.transitions[0].summary
    version = bench.now().version
    await bench.back.release(bench.node_state, bench.now(), OVER)
    assert bench.now().version == version, "the same objection is not written again"
    assert known.version != version
    await bench.objects.unhold(bench.node_state, bench.now())
    assert (
        bench.node_state.quarantine_view.release_held,
        bench.node_state.quarantine_view.release_poll,
    ) == ("", 0.0)
    assert bench.now().status.release_held == ""
    version = bench.now().version
    await bench.objects.unhold(bench.node_state, bench.now())
    assert bench.now().version == version


async def test_a_node_that_falls_silent_during_the_read_is_not_released_unless_it_was_made_anew(
    bench: Back,
) -> None:
    def falls_silent() -> None:
        bench.node_state.agent.attached = False

    bench.recover()
    known = await bench.marked()
    bench.meanwhile = falls_silent
    await bench.back.release(bench.node_state, known, OVER)
    assert bench.now().status.phase is Phase.CORDONED
    await bench.back.release(bench.node_state, known, OVER)
    assert bench.now().status.phase is Phase.RELEASING, "it was not recovered before, either"


@pytest.mark.parametrize(("asks", "released"), [(True, False), (False, True)])
async def test_a_force_ends_when_its_request_is_taken_back(
    bench: Back, *, asks: bool, released: bool
) -> None:
    known = await bench.marked(requester=FORCED)
    if asks:
        notes = {**bench.world.nodes["n1"].annotations, FORCE: "nonsense"}
        bench.annotated(notes)
    await bench.back.release(bench.node_state, known, OVER)
    assert (bench.now().status.phase is Phase.RELEASING) == released


async def test_a_node_that_a_person_uncordons_during_the_read_is_decided_on_again(
    bench: Back,
) -> None:
    bench.recover()
    known = await bench.marked()
    bench.meanwhile = lambda: set_fields(bench.node_state, uncordoned=Uncordoned.PERSON)
    await bench.back.release(bench.node_state, known, OVER)
    assert bench.now().status.phase is Phase.CORDONED
    bench.meanwhile = lambda: None
    await bench.back.release(bench.node_state, known, OVER)
    assert bench.now().status.phase is Phase.RELEASING


async def test_another_installations_quarantine_gives_our_place_back(bench: Back) -> None:
    bench.node_state.work.needs_read = True
    await bench.holds.leave_foreign(bench.node_state)
    assert (bench.node_state.work.needs_read, bench.withdrawn) == (False, [])
    bench.entries["n1"] = ENTRY
    bench.node_state.decision.hold = Held("x", "1", "y", since=1.0)
    await bench.holds.leave_foreign(bench.node_state)
    assert bench.withdrawn == [ENTRY]
    assert [bench.node_state.decision.hold] == [None]


# -- the undo -------------------------------------------------------------------------------------


async def test_an_undo_takes_the_marks_the_entry_and_the_object_in_this_order(bench: Back) -> None:
    node_state = bench.node_state
    bench.entries["n1"] = ENTRY
    known = await bench.marked(Phase.RELEASING, released_because="well again")
    node = bench.world.nodes["n1"]
    notes = {**node.annotations, UNCORDONED_BY: "x"}
    bench.annotated(notes)
    set_fields(node_state, uncordoned=Uncordoned.UNKNOWN, node_replaced=True)
    set_fields(node_state, release_held="x", release_poll=9.0)
    await bench.back.undo(node_state)
    node = bench.world.nodes["n1"]
    assert not is_marked(node)
    assert not node.unschedulable
    assert node.annotations[RELEASED].startswith("q@")
    assert UNCORDONED_BY not in node.annotations
    assert RELEASE_HISTORY not in node.annotations, "it stood on no evidence"
    assert bench.forgotten == [ENTRY]
    assert [one.uid for one in bench.finished] == ["q"]
    assert "n1" not in bench.world.quarantines
    assert (node_state.quarantine_view.ended, node_state.quarantine) == ("q", None)
    assert (
        node_state.quarantine_view.release_held,
        node_state.quarantine_view.release_poll,
    ) == ("", 0.0)
    assert (
        node_state.quarantine_view.uncordoned,
        node_state.quarantine_view.node_replaced,
    ) == (
        Uncordoned.NO,
        False,
    )
    assert bench.kinds() == ["quarantine.released"]
    assert bench.notes.transitions[0].summary == "n1: released: well again"
    assert known.uid == "q"


@pytest.mark.parametrize(("cordoned_at", "remembers"), [(4000.0, True), (0.0, False)])
async def test_an_undo_remembers_the_faults_that_the_node_was_quarantined_for(
    bench: Back, cordoned_at: float, *, remembers: bool
) -> None:
    known = await bench.marked(Phase.RELEASING, spec=of_evidence())
    status = replace(known.status, cordoned_at=cordoned_at)
    bench.stands(replace(known, status=status))
    await bench.back.undo(bench.node_state)
    assert (RELEASE_HISTORY in bench.world.nodes["n1"].annotations) == remembers


async def test_a_person_who_overrules_is_remembered_by_the_node_and_takes_a_force_back(
    bench: Back,
) -> None:
    await bench.marked(Phase.RELEASING, spec=of_evidence(FORCED), overruled=True)
    notes = {**bench.world.nodes["n1"].annotations, FORCE: "cordon x"}
    bench.annotated(notes)
    await bench.back.undo(bench.node_state)
    node = bench.world.nodes["n1"]
    assert "xid:79" in node.annotations[OVERRULED]
    assert FORCE not in node.annotations


@pytest.mark.parametrize(("requester", "overruled"), [(FORCED, False), (OURS, True), (OURS, False)])
async def test_a_force_is_taken_back_only_by_a_person_who_overrules_it(
    bench: Back, requester: str, *, overruled: bool
) -> None:
    await bench.marked(Phase.RELEASING, spec=of_evidence(requester), overruled=overruled)
    notes = {**bench.world.nodes["n1"].annotations, FORCE: "cordon x"}
    bench.annotated(notes)
    await bench.back.undo(bench.node_state)
    node = bench.world.nodes["n1"]
    assert FORCE in node.annotations
    assert (OVERRULED in node.annotations) == overruled


@pytest.mark.parametrize(("because", "stays"), [(UNCORDONED, True), ("well", False)])
async def test_a_cordon_after_a_person_has_uncordoned_is_theirs(
    bench: Back, because: str, *, stays: bool
) -> None:
    await bench.marked(Phase.RELEASING, released_because=because)
    await bench.back.undo(bench.node_state)
    assert bench.world.nodes["n1"].unschedulable == stays


async def test_an_object_that_is_gone_gives_its_entry_back_unless_its_end_is_to_be_told(
    bench: Back,
) -> None:
    bench.entries["n1"] = ENTRY
    bench.node_state.quarantine_view.vanished = "q"
    await bench.back.undo(bench.node_state)
    assert bench.forgotten == []
    bench.node_state.quarantine_view.vanished = ""
    await bench.back.undo(bench.node_state)
    assert bench.forgotten == [ENTRY]
    assert bench.world.nodes["n1"].annotations == {}


async def test_a_replica_that_lost_its_place_reports_no_wait_for_the_record(bench: Back) -> None:
    async def refuses(_: object) -> None:
        raise GuardRefused("this replica may not be the controller any more")

    known = await bench.marked(Phase.RELEASING)
    bench.acts.record_writer.forget_entry = refuses
    with pytest.raises(GuardRefused):
        await bench.back.undo(bench.node_state)
    assert bench.now().status == known.status


async def test_a_record_that_cant_be_used_holds_the_object_and_not_the_node(bench: Back) -> None:
    await bench.marked(Phase.RELEASING)
    bench.record_fails = Unreachable("no answer")
    loop = asyncio.get_running_loop()
    with pytest.raises(ClusterError, match="no answer"):
        await bench.back.undo(bench.node_state)
    assert not is_marked(bench.world.nodes["n1"])
    assert bench.now().status.message == release._WAITS
    assert bench.finished == []
    version, object_version = bench.world.nodes["n1"].version, bench.now().version
    with pytest.raises(ClusterError):
        await bench.back.undo(bench.node_state)
    assert bench.world.nodes["n1"].version == version, "it is undone once"
    assert bench.now().version == object_version
    bench.record_fails, bench.record_hangs = None, True
    began = loop.time()
    with pytest.raises(ClusterError, match="gave no answer in 5 s"):
        await bench.back.undo(bench.node_state)
    assert loop.time() - began == 5.0
    bench.record_hangs = False
    await bench.back.undo(bench.node_state)
    assert "n1" not in bench.world.quarantines
    assert bench.world.nodes["n1"].version == version


async def test_a_node_marked_or_without_override_is_undone_again_while_the_record_waits(
    bench: Back,
) -> None:
    node = bench.world.nodes["n1"]
    waits = made(Phase.RELEASING, message=release._WAITS)
    done = replace(node, annotations={RELEASED: "q@1"})
    assert release._is_undone(bench.node_state, done, waits)
    for other, found in (
        (done, made(Phase.RELEASING)),
        (node, waits),
        (replace(node, annotations={RELEASED: "r@1"}), waits),
        (replace(node, annotations={RELEASED: "q@1", APPLIED: "{}"}), waits),
    ):
        assert not release._is_undone(bench.node_state, other, found)
    overruled = made(Phase.RELEASING, message=release._WAITS, overruled=True)
    bench.node_state.quarantine_view.quarantine = replace(overruled, spec=of_evidence())
    assert not release._is_undone(bench.node_state, done, overruled)
    assert release._is_undone(bench.node_state, done, waits)
    words = {**done.annotations, OVERRULED: write_overruled(bench.node_state.overrule())}
    assert release._is_undone(bench.node_state, replace(done, annotations=words), overruled)


async def test_a_release_is_told_once_however_often_its_object_is_dropped(bench: Back) -> None:
    known = await bench.marked(Phase.RELEASING)
    fails = [True]

    def refuse(name: str) -> ClusterError | None:
        return Unreachable("x") if fails[0] and name == "drop_quarantine" else None

    cluster = MemoryCluster(bench.world, fails=refuse)
    bench.acts.cluster = cluster
    with pytest.raises(Unreachable):
        await bench.back.undo(bench.node_state)
    assert bench.node_state.quarantine_view.ended == "q"
    bench.node_state.quarantine_view.quarantine = known
    fails.clear()
    fails.append(False)
    await bench.back.undo(bench.node_state)
    assert bench.kinds() == ["quarantine.released"]
    assert "n1" not in bench.world.quarantines


async def test_a_controller_that_loses_its_place_in_the_hook_leaves_the_end_to_the_next(
    bench: Back,
) -> None:
    async def lose(_: Any, __: Any) -> None:
        bench.may = False

    vars(bench.back)["_hooks"] = SimpleNamespace(after_release=lose)
    known = await bench.marked(Phase.RELEASING)
    with pytest.raises(GuardRefused):
        await bench.back.undo(bench.node_state)
    assert bench.now().uid == known.uid
    assert (bench.kinds(), bench.node_state.quarantine_view.ended) == ([], "")


@pytest.mark.parametrize(("boot", "misnamed"), [("boot-2", False), ("boot-1", True)])
async def test_a_node_made_anew_keeps_nothing_of_the_earlier_one(
    bench: Back, boot: str, *, misnamed: bool
) -> None:
    known = await bench.marked(Phase.RELEASING)
    bench.recover()
    set_fields(bench.node_state, incidents={"i": 1}, reborn=boot)
    bench.node_state.agent.misnamed = not misnamed
    await bench.back._drop(bench.node_state, known)
    assert bench.node_state.decision.incidents is EMPTY
    assert bench.node_state.quarantine_view.reborn == ""
    assert bench.node_state.agent.misnamed == misnamed


async def test_a_node_that_was_not_made_anew_keeps_its_incidents(bench: Back) -> None:
    known = await bench.marked(Phase.RELEASING)
    bench.node_state.decision.incidents = incidents = {"i": 1}
    await bench.back._drop(bench.node_state, known)
    assert bench.node_state.decision.incidents is incidents
    assert not bench.node_state.agent.misnamed


# -- with the definition --------------------------------------------------------------------------


async def test_a_finalizer_goes_with_the_definition_and_the_marks_remember_what_is_in_force(
    bench: Back,
) -> None:
    known = await bench.marked(spec=of_evidence())
    node = bench.world.nodes["n1"]
    await bench.back._update_memory(bench.node_state, known)
    assert bench.world.nodes["n1"].version == node.version, "they remember it already"
    known = replace(known, spec=replace(known.spec, evidence=()))
    await bench.back._update_memory(bench.node_state, replace(known, uid="another"))
    assert bench.world.nodes["n1"].version == node.version
    bench.stands(known)
    await bench.back.drop_finalizer(bench.node_state, bench.now())
    node = bench.world.nodes["n1"]
    assert is_marked(node)
    assert "xid:79" not in node.annotations[APPLIED]
    assert "n1" not in bench.world.quarantines
    assert bench.node_state.quarantine_view.definition_going
    assert bench.node_state.quarantine_view.to_adopt


@pytest.mark.parametrize(("error", "goes"), [(Unreachable("x"), True), (Conflict("x"), False)])
async def test_an_uninstall_waits_for_no_node_and_a_conflict_is_tried_again(
    bench: Back, error: ClusterError, *, goes: bool
) -> None:
    known = await bench.marked(spec=of_evidence())

    def refuse(name: str) -> ClusterError | None:
        return error if name == "read_node" else None

    bench.acts.cluster = MemoryCluster(bench.world, fails=refuse)
    try:
        await bench.back.drop_finalizer(bench.node_state, known)
    except Conflict:
        assert not goes
    assert ("n1" not in bench.world.quarantines) == goes
    assert bench.node_state.quarantine_view.definition_going == goes


@pytest.mark.parametrize("patches", [True, False])
async def test_a_controller_that_has_lost_its_place_drops_no_finalizer(
    bench: Back, caplog: pytest.LogCaptureFixture, *, patches: bool
) -> None:
    """Its deletion is by uid, so no version would refuse it."""
    known = await bench.marked(spec=of_evidence())
    if patches:
        known = bench.stands(replace(known, spec=replace(known.spec, evidence=())))
    bench.may = False
    with pytest.raises(GuardRefused):
        await bench.back.drop_finalizer(bench.node_state, known)
    assert bench.now().uid == known.uid
    assert bench.node_state.quarantine_view.ended == ""
    assert not bench.node_state.quarantine_view.definition_going
    assert "not brought up to date" not in caplog.text


# -- overrides ------------------------------------------------------------------------------------


async def test_overrides_that_are_over_go_from_the_node_and_others_stay(bench: Back) -> None:
    other = replace(WORD, code="xid:95")
    bench.node_state.cluster.ended_overrides = frozenset({WORD})
    version = bench.world.nodes["n1"].version
    await bench.back.clear_overrides(bench.node_state)
    assert bench.world.nodes["n1"].version == version
    assert bench.node_state.cluster.ended_overrides == frozenset()
    bench.annotated({OVERRULED: write_overruled(frozenset({WORD, other}))})
    bench.node_state.cluster.ended_overrides = frozenset({WORD})
    await bench.back.clear_overrides(bench.node_state)
    assert bench.world.nodes["n1"].annotations[OVERRULED] == write_overruled(frozenset({other}))
    assert bench.node_state.cluster.ended_overrides == frozenset()
    assert bench.node_state.cluster.overruled == {other}
    del bench.world.nodes["n1"]
    bench.node_state.cluster.ended_overrides = frozenset({other})
    await bench.back.clear_overrides(bench.node_state)
    assert bench.node_state.cluster.ended_overrides == frozenset()
    assert bench.node_state.cluster.node_gone
