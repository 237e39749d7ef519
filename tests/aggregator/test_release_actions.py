"""The steps back and the steps on lost marks, called one by one: what each writes, and when not."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.node_names import APPLIED, LABEL, OVERRULED, RELEASED, is_marked
from aggregator.cluster.port import (
    Action,
    ClusterError,
    Conflict,
    EvidenceItem,
    MarksStatus,
    Phase,
    Quarantine,
    QuarantineSpec,
    Unreachable,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions import adoption, release
from aggregator.quarantine.actions.adoption import MarkAdopter
from aggregator.quarantine.actions.mark_restorer import MarkRestorer
from aggregator.quarantine.actions.release import LOOK_AGAIN, ReleaseActions
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.lost_marks import ALL_MARKS, CONDITION, RestoreRules
from aggregator.quarantine.decide.mark_rules import PLAIN
from aggregator.quarantine.decide.node_marks import cordon_change, marked_by, write_overruled
from aggregator.quarantine.decide.operator_requests import FORCE, FORCED, PIN
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.planner import NODE_ABSENT, UNCORDONED, NextStep, Step
from aggregator.quarantine.decide.release_checks import RELEASE_HISTORY
from aggregator.quarantine.decide.uncordon import (
    UNCORDONED_BY,
    OnUncordon,
    Uncordoned,
    UncordonRules,
)
from aggregator.quarantine.state.decision import NodeHold
from aggregator.quarantine.state.fleet import UNCLAIMED
from aggregator.runtime.interning import EMPTY
from tests.aggregator.test_node_actions import Bench, made
from tests.support.memory_cluster import MemoryCluster
from tests.support.node_states import set_fields
from tests.support.replica import POLICY, all_in_mode
from tests.support.virtual_time import VirtualTimeLoop, play

WORD = Override("xid:79", "GPU-1", "boot-1", "reboot")
EVIDENCE = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "a-rule", "i")
OVER = NextStep(Step.RELEASE, because="its cause is over")
ENTRY = Entry("n1", "i", "", "drain", 1.0)
HEALTH: Any = SimpleNamespace(
    has_snapshot=True, boot_id="boot-2", components=SimpleNamespace(of=lambda _: ()), checks=()
)


class Back(Bench):
    """The same with the steps back."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__(loop)
        self.finished: list[Quarantine] = []
        self.forgotten: list[Entry | None] = []
        self.record_fails: ClusterError | None = None
        self.record_hangs = False
        record_writer: Any = SimpleNamespace(
            record=SimpleNamespace(entries=self.entries),
            entry=self._entry,
            forget_entry=self._forget,
            withdraw=self._withdraw,
            enter=self._enter,
        )
        clocks = Clocks(loop.time, lambda: 5000.0 + loop.time())
        self.back: Any = ReleaseActions(
            cluster=self.cluster,
            record_writer=record_writer,
            acts=self.acts,
            clocks=clocks,
            policy=POLICY,
            after_release=self._after,
            uncordon=UncordonRules(OnUncordon.RELEASE),
            marks=PLAIN,
        )
        against: Any = self.back._against_release

        async def against_release(*args: Any) -> str:
            found: str = await against(*args)
            self.meanwhile()
            return found

        vars(self.back)["_against_release"] = against_release
        self.restorer: Any = MarkRestorer(
            cluster=self.cluster, acts=self.acts, clocks=clocks, rules=RestoreRules()
        )
        self.adopter: Any = MarkAdopter(
            cluster=self.cluster,
            record_writer=record_writer,
            acts=self.acts,
            release_actions=self.back,
            clocks=clocks,
            policy=POLICY,
            pools=all_in_mode(Action.DRAIN),
            pool_of=lambda _: "pool-a",
            may_act=lambda: self.may,
        )

    async def _after(self, _: Any, quarantine: Quarantine) -> None:
        self.finished.append(quarantine)

    async def _entry(self, node: str) -> Entry | None:
        if self.record_hangs:
            await asyncio.sleep(3600)
        if self.record_fails is not None:
            raise self.record_fails
        return self.entries.get(node)

    async def _forget(self, entry: Entry | None) -> None:
        self.forgotten.append(entry)

    def recover(self) -> None:
        self.node_state.agent.attached, self.node_state.agent.health = True, HEALTH

    async def marked(self, phase: Phase = Phase.CORDONED, **changes: Any) -> Quarantine:
        """The node carries the marks of a Quarantine that stands."""
        node = self.world.nodes["n1"]
        spec = changes.pop("spec", None)
        base = made(phase, node_uid=node.uid, cordoned_at=4000.0, **changes)
        known = self.stands(replace(base, spec=spec) if spec is not None else base)
        node = await self.cluster.patch_node(node, cordon_change(node, known))
        self.node_state.take_node(node)
        return known


def on_back(test: Callable[[Back], Any]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await test(Back(loop))

    play(main)


def of_evidence(requester: str = OURS) -> QuarantineSpec:
    return QuarantineSpec(
        Action.DRAIN, "gpu", "x", requester, incident="i", boot_id="boot-1", evidence=(EVIDENCE,)
    )


# -- the release ----------------------------------------------------------------------------------


def test_a_release_changes_the_phase_and_tells_why() -> None:
    async def test(bench: Back) -> None:
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
        assert bench.node_state.node_summary.quarantine == bench.now()
        assert bench.kinds() == ["quarantine.releasing"]
        assert bench.notes.transitions[0].summary == f"n1: {OVER.because}: being released"

    on_back(test)


def test_a_persons_release_is_checked_by_nothing() -> None:
    async def test(bench: Back) -> None:
        known = await bench.marked()
        bench.annotated({**bench.world.nodes["n1"].annotations, PIN: "keep it"})
        before = bench.cluster.asked["read_node"]
        step = NextStep(Step.RELEASE, because="alice", overruled=True)
        await bench.back.release(bench.node_state, known, step)
        assert bench.now().status.phase is Phase.RELEASING
        assert bench.now().status.overruled
        assert bench.cluster.asked["read_node"] == before
        assert len(bench.kinds()) == 1
        assert bench.notes.transitions[0].kind is EventKind.OVERRULED

    on_back(test)


def test_only_a_marked_or_absent_node_is_read_before_its_release() -> None:
    async def test(bench: Back) -> None:
        bench.stands(made(Phase.ADMITTED))
        await bench.back.release(bench.node_state, bench.now(), OVER)
        assert bench.cluster.asked["read_node"] == 0
        assert bench.now().status.phase is Phase.RELEASING
        bench.stands(made(Phase.ADMITTED))
        absent = NextStep(Step.RELEASE, because=NODE_ABSENT)
        await bench.back.release(bench.node_state, bench.now(), absent)
        assert bench.cluster.asked["read_node"] == 1
        assert bench.now().status.phase is Phase.ADMITTED, "the Node is back"
        del bench.world.nodes["n1"]
        await bench.back.release(bench.node_state, bench.now(), absent)
        assert bench.now().status.phase is Phase.RELEASING

    on_back(test)


def test_an_objection_holds_a_release_is_told_once_and_checked_again_later() -> None:
    async def test(bench: Back) -> None:
        bench.recover()
        known = await bench.marked()
        bench.world.person_annotates("n1", PIN, "replica b")
        for _ in range(2):
            began = bench.node_state.now()
            await bench.back.release(bench.node_state, bench.now(), OVER)
            assert bench.now().status.phase is Phase.CORDONED
            assert "replica b" in bench.now().status.release_held
            assert bench.node_state.quarantine_view.release_held == bench.now().status.release_held
            assert bench.node_state.quarantine_view.release_look == began + LOOK_AGAIN
            await asyncio.sleep(7)
        assert bench.kinds() == ["quarantine.release_held"]
        assert (
            "is not released: pinned by a person (replica b)" in bench.notes.transitions[0].summary
        )
        version = bench.now().version
        await bench.back.release(bench.node_state, bench.now(), OVER)
        assert bench.now().version == version, "the same objection is not written again"
        assert known.version != version
        await bench.back.unhold(bench.node_state, bench.now())
        assert (
            bench.node_state.quarantine_view.release_held,
            bench.node_state.quarantine_view.release_look,
        ) == ("", 0.0)
        assert bench.now().status.release_held == ""
        version = bench.now().version
        await bench.back.unhold(bench.node_state, bench.now())
        assert bench.now().version == version

    on_back(test)


def test_a_node_that_falls_silent_during_the_read_is_not_released_unless_it_was_made_anew() -> None:
    async def test(bench: Back) -> None:
        def falls_silent() -> None:
            bench.node_state.agent.attached = False

        bench.recover()
        known = await bench.marked()
        bench.meanwhile = falls_silent
        await bench.back.release(bench.node_state, known, OVER)
        assert bench.now().status.phase is Phase.CORDONED
        await bench.back.release(bench.node_state, known, OVER)
        assert bench.now().status.phase is Phase.RELEASING, "it was not recovered before, either"

    on_back(test)


@pytest.mark.parametrize(("asks", "released"), [(True, False), (False, True)])
def test_a_force_ends_when_its_request_is_taken_back(*, asks: bool, released: bool) -> None:
    async def test(bench: Back) -> None:
        known = await bench.marked(requester=FORCED)
        if asks:
            notes = {**bench.world.nodes["n1"].annotations, FORCE: "nonsense"}
            bench.annotated(notes)
        await bench.back.release(bench.node_state, known, OVER)
        assert (bench.now().status.phase is Phase.RELEASING) == released

    on_back(test)


def test_a_node_that_a_person_uncordons_during_the_read_is_decided_on_again() -> None:
    async def test(bench: Back) -> None:
        bench.recover()
        known = await bench.marked()
        bench.meanwhile = lambda: set_fields(bench.node_state, uncordoned=Uncordoned.PERSON)
        await bench.back.release(bench.node_state, known, OVER)
        assert bench.now().status.phase is Phase.CORDONED
        bench.meanwhile = lambda: None
        await bench.back.release(bench.node_state, known, OVER)
        assert bench.now().status.phase is Phase.RELEASING

    on_back(test)


def test_another_installations_quarantine_gives_our_place_back() -> None:
    async def test(bench: Back) -> None:
        bench.node_state.work.needs_read = True
        await bench.back.leave_foreign(bench.node_state)
        assert (bench.node_state.work.needs_read, bench.withdrawn) == (False, [])
        bench.entries["n1"] = ENTRY
        bench.node_state.decision.hold = NodeHold("x", "1", "y", 1.0)
        await bench.back.leave_foreign(bench.node_state)
        assert bench.withdrawn == [ENTRY]
        assert [bench.node_state.decision.hold] == [None]

    on_back(test)


# -- the undo -------------------------------------------------------------------------------------


def test_an_undo_takes_the_marks_the_entry_and_the_object_in_this_order() -> None:
    async def test(bench: Back) -> None:
        node_state = bench.node_state
        bench.entries["n1"] = ENTRY
        known = await bench.marked(Phase.RELEASING, released_because="well again")
        node = bench.world.nodes["n1"]
        notes = {**node.annotations, UNCORDONED_BY: "x"}
        bench.annotated(notes)
        set_fields(node_state, uncordoned=Uncordoned.UNKNOWN, node_replaced=True)
        set_fields(node_state, release_held="x", release_look=9.0)
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
        assert (node_state.quarantine_view.ended, node_state.node_summary.quarantine) == ("q", None)
        assert (
            node_state.quarantine_view.release_held,
            node_state.quarantine_view.release_look,
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

    on_back(test)


@pytest.mark.parametrize(("cordoned_at", "remembers"), [(4000.0, True), (0.0, False)])
def test_an_undo_remembers_the_faults_that_the_node_was_quarantined_for(
    cordoned_at: float, *, remembers: bool
) -> None:
    async def test(bench: Back) -> None:
        known = await bench.marked(Phase.RELEASING, spec=of_evidence())
        status = replace(known.status, cordoned_at=cordoned_at)
        bench.stands(replace(known, status=status))
        await bench.back.undo(bench.node_state)
        assert (RELEASE_HISTORY in bench.world.nodes["n1"].annotations) == remembers

    on_back(test)


def test_a_person_who_overrules_is_remembered_by_the_node_and_takes_a_force_back() -> None:
    async def test(bench: Back) -> None:
        await bench.marked(Phase.RELEASING, spec=of_evidence(FORCED), overruled=True)
        notes = {**bench.world.nodes["n1"].annotations, FORCE: "cordon x"}
        bench.annotated(notes)
        await bench.back.undo(bench.node_state)
        node = bench.world.nodes["n1"]
        assert "xid:79" in node.annotations[OVERRULED]
        assert FORCE not in node.annotations

    on_back(test)


@pytest.mark.parametrize(("requester", "overruled"), [(FORCED, False), (OURS, True), (OURS, False)])
def test_a_force_is_taken_back_only_by_a_person_who_overrules_it(
    requester: str, *, overruled: bool
) -> None:
    async def test(bench: Back) -> None:
        await bench.marked(Phase.RELEASING, spec=of_evidence(requester), overruled=overruled)
        notes = {**bench.world.nodes["n1"].annotations, FORCE: "cordon x"}
        bench.annotated(notes)
        await bench.back.undo(bench.node_state)
        node = bench.world.nodes["n1"]
        assert FORCE in node.annotations
        assert (OVERRULED in node.annotations) == overruled

    on_back(test)


@pytest.mark.parametrize(("because", "stays"), [(UNCORDONED, True), ("well", False)])
def test_a_cordon_after_a_person_has_uncordoned_is_theirs(because: str, *, stays: bool) -> None:
    async def test(bench: Back) -> None:
        await bench.marked(Phase.RELEASING, released_because=because)
        await bench.back.undo(bench.node_state)
        assert bench.world.nodes["n1"].unschedulable == stays

    on_back(test)


def test_an_object_that_is_gone_gives_its_entry_back_unless_its_end_is_to_be_told() -> None:
    async def test(bench: Back) -> None:
        bench.entries["n1"] = ENTRY
        bench.node_state.own_quarantine_view().vanished = "q"
        await bench.back.undo(bench.node_state)
        assert bench.forgotten == []
        bench.node_state.own_quarantine_view().vanished = ""
        await bench.back.undo(bench.node_state)
        assert bench.forgotten == [ENTRY]
        assert bench.world.nodes["n1"].annotations == {}

    on_back(test)


def test_a_record_that_cant_be_used_holds_the_object_and_not_the_node() -> None:
    async def test(bench: Back) -> None:
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

    on_back(test)


def test_a_node_that_is_marked_or_lacks_an_override_is_undone_again_while_the_record_waits() -> (
    None
):
    async def test(bench: Back) -> None:
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
        bench.node_state.own_quarantine_view().quarantine = replace(overruled, spec=of_evidence())
        assert not release._is_undone(bench.node_state, done, overruled)
        assert release._is_undone(bench.node_state, done, waits)
        words = {**done.annotations, OVERRULED: write_overruled(bench.node_state.overrule())}
        assert release._is_undone(bench.node_state, replace(done, annotations=words), overruled)

    on_back(test)


def test_a_release_is_told_once_however_often_its_object_is_dropped() -> None:
    async def test(bench: Back) -> None:
        known = await bench.marked(Phase.RELEASING)
        fails = [True]

        def refuse(name: str) -> ClusterError | None:
            return Unreachable("x") if fails[0] and name == "drop_quarantine" else None

        cluster = MemoryCluster(bench.world, fails=refuse)
        bench.back._cluster = bench.acts._cluster = cluster
        with pytest.raises(Unreachable):
            await bench.back.undo(bench.node_state)
        assert bench.node_state.quarantine_view.ended == "q"
        bench.node_state.own_quarantine_view().quarantine = known
        fails.clear()
        fails.append(False)
        await bench.back.undo(bench.node_state)
        assert bench.kinds() == ["quarantine.released"]
        assert "n1" not in bench.world.quarantines

    on_back(test)


@pytest.mark.parametrize(("boot", "misnamed"), [("boot-2", False), ("boot-1", True)])
def test_a_node_made_anew_keeps_nothing_of_the_earlier_one(boot: str, *, misnamed: bool) -> None:
    async def test(bench: Back) -> None:
        known = await bench.marked(Phase.RELEASING)
        bench.recover()
        set_fields(bench.node_state, incidents={"i": 1}, reborn=boot)
        bench.node_state.agent.misnamed = not misnamed
        await bench.back._drop(bench.node_state, known)
        assert bench.node_state.decision.incidents is EMPTY
        assert bench.node_state.quarantine_view.reborn == ""
        assert bench.node_state.agent.misnamed == misnamed

    on_back(test)


def test_a_node_that_was_not_made_anew_keeps_its_incidents() -> None:
    async def test(bench: Back) -> None:
        known = await bench.marked(Phase.RELEASING)
        bench.node_state.decision.incidents = incidents = {"i": 1}
        await bench.back._drop(bench.node_state, known)
        assert bench.node_state.decision.incidents is incidents
        assert not bench.node_state.agent.misnamed

    on_back(test)


# -- with the definition --------------------------------------------------------------------------


def test_a_finalizer_goes_with_the_definition_and_the_marks_remember_what_is_in_force() -> None:
    async def test(bench: Back) -> None:
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

    on_back(test)


@pytest.mark.parametrize(("error", "goes"), [(Unreachable("x"), True), (Conflict("x"), False)])
def test_an_uninstall_waits_for_no_node_and_a_conflict_is_tried_again(
    error: ClusterError, *, goes: bool
) -> None:
    async def test(bench: Back) -> None:
        known = await bench.marked(spec=of_evidence())

        def refuse(name: str) -> ClusterError | None:
            return error if name == "read_node" else None

        bench.back._cluster = MemoryCluster(bench.world, fails=refuse)
        try:
            await bench.back.drop_finalizer(bench.node_state, known)
        except Conflict:
            assert not goes
        assert ("n1" not in bench.world.quarantines) == goes
        assert bench.node_state.quarantine_view.definition_going == goes

    on_back(test)


# -- overrides ------------------------------------------------------------------------------------


def test_overrides_that_are_over_go_from_the_node_and_others_stay() -> None:
    async def test(bench: Back) -> None:
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

    on_back(test)


# -- lost marks -----------------------------------------------------------------------------------


def test_lost_marks_are_shown_since_when_they_are_and_told_for_each_that_is_new() -> None:
    async def test(bench: Back) -> None:
        node_state = bench.node_state
        await bench.marked()
        node_state.own_quarantine_view().missing = ("label",)
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
        node_state.own_quarantine_view().missing = ("taint", "label")
        await bench.restorer.report(node_state, bench.now())
        assert bench.now().status.marks == MarksStatus(missing=("taint", "label"), since=since)
        assert len(bench.kinds()) == 2
        assert bench.notes.transitions[1].details == {"missing": "taint, label"}
        node_state.own_quarantine_view().missing = ("taint",)
        await bench.restorer.report(node_state, bench.now())
        assert len(bench.kinds()) == 2, "one is there again, and another is still missing"
        node_state.own_quarantine_view().missing = ()
        await bench.restorer.report(node_state, bench.now())
        status = bench.now().status
        assert [status.marks] == [None]
        assert status.message == "n1 is tainted and unschedulable"
        assert bench.kinds()[2:] == ["quarantine.marks_restored"]
        assert (
            "another tool or person has set them again: taint" in bench.notes.transitions[2].summary
        )

    on_back(test)


def test_a_drains_message_is_not_replaced_by_that_of_lost_marks() -> None:
    async def test(bench: Back) -> None:
        await bench.marked(
            Phase.DRAINED, message="drained", marks=MarksStatus(restored=2, restored_at=4900.0)
        )
        bench.node_state.own_quarantine_view().missing = ("label",)
        await bench.restorer.report(bench.node_state, bench.now())
        status = bench.now().status
        assert status.message == "drained"
        assert isinstance(status.marks, MarksStatus)
        assert status.marks.restored == 2
        labels = {k: v for k, v in bench.world.nodes["n1"].labels.items() if k != LABEL}
        bench.labelled(labels)
        await bench.restorer.restore(bench.node_state)
        assert bench.now().status.message == "drained"

    on_back(test)


def test_marks_are_set_again_counted_and_told() -> None:
    async def test(bench: Back) -> None:
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
        await bench.acts.settle_announcement(bench.node_state)
        before = len(bench.world.writes)
        await bench.restorer.restore(bench.node_state)
        assert bench.world.writes[before:] == [], "none is missing"

    on_back(test)


def test_a_missing_condition_alone_costs_no_patch() -> None:
    async def test(bench: Back) -> None:
        await bench.marked()
        bench.world.set_node(replace(bench.world.nodes["n1"], condition="False"))
        before = bench.cluster.asked["patch_node"]
        await bench.restorer.restore(bench.node_state)
        assert bench.cluster.asked["patch_node"] == before
        assert isinstance(bench.now().status.marks, MarksStatus)
        await bench.acts.settle_announcement(bench.node_state)
        assert bench.cluster.asked["announce"] == 1
        assert CONDITION in ALL_MARKS

    on_back(test)


def test_a_restore_is_refused_where_we_may_not_act() -> None:
    async def test(bench: Back) -> None:
        await bench.marked()
        bench.labelled({})
        bench.stopped = True
        with pytest.raises(ClusterError):
            await bench.restorer.restore(bench.node_state)
        assert LABEL not in bench.world.nodes["n1"].labels

    on_back(test)


def test_marks_of_a_quarantine_by_hand_are_set_again_also_beside_others_work() -> None:
    async def test(bench: Back) -> None:
        await bench.marked()
        node, node_state = bench.world.nodes["n1"], bench.node_state
        node_state.own_quarantine_view().missing = ("label",)
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

    on_back(test)


# -- adoption -------------------------------------------------------------------------------------


async def strayed(bench: Back) -> None:
    """The node carries marks, and their Quarantine is gone."""
    await bench.marked(spec=of_evidence())
    del bench.world.quarantines["n1"]
    set_fields(bench.node_state, quarantine=None, to_adopt=True)


def test_stray_marks_get_their_quarantine_again_and_stay() -> None:
    async def test(bench: Back) -> None:
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
        (entered,) = bench.entered
        assert (entered.node, entered.pool, entered.action) == ("n1", "pool-a", "cordon")
        assert entered.incident == "i"
        assert entered.at == pytest.approx(6000.0, abs=10)
        assert bench.kinds() == ["quarantine.adopted"]
        assert "is made again (cordon): marked for xid:79" in bench.notes.transitions[0].summary
        assert not bench.node_state.quarantine_view.to_adopt
        assert bench.node_state.node_summary.quarantine == found
        await bench.acts.settle_announcement(bench.node_state)
        assert bench.cluster.asked["announce"] == 1
        before = len(bench.world.writes)
        await bench.adopter.adopt(bench.node_state)
        assert bench.world.writes[before:] == [], "it stands"

    on_back(test)


def test_marks_are_not_adopted_in_mode_observe_without_leave_or_where_another_made_them() -> None:
    async def test(bench: Back) -> None:
        await strayed(bench)
        bench.may = False
        with pytest.raises(Conflict):
            await bench.adopter.adopt(bench.node_state)
        assert bench.node_state.quarantine_view.to_adopt, "it is tried again"
        bench.may, bench.adopter._pools = True, all_in_mode(Action.OBSERVE)
        await bench.adopter.adopt(bench.node_state)
        assert bench.node_state.quarantine_view.unclaimed == UNCLAIMED
        assert not bench.node_state.quarantine_view.to_adopt
        bench.node_state.own_quarantine_view().remains = QuarantineSpec(
            Action.DRAIN, "gpu", "x", "alice"
        )
        node = bench.world.nodes["n1"]
        bench.annotated({})
        await bench.adopter.adopt(bench.node_state)
        assert bench.node_state.quarantine_view.unclaimed == "", "the node is not marked"
        bench.node_state.own_quarantine_view().remains = None
        bench.node_state.own_quarantine_view().unclaimed = UNCLAIMED
        await bench.adopter.adopt(bench.node_state)
        assert bench.node_state.quarantine_view.unclaimed == ""
        bench.adopter._mode = Action.DRAIN
        foreign = node.annotations[APPLIED].replace("{", '{"installation": "elsewhere", ', 1)
        bench.annotated({APPLIED: foreign})
        await bench.adopter.adopt(bench.node_state)
        assert bench.world.quarantines == {}
        assert bench.entered == []

    on_back(test)


def test_what_went_with_its_definition_comes_back_as_it_was() -> None:
    async def test(bench: Back) -> None:
        node, node_state = bench.world.nodes["n1"], bench.node_state
        ours, theirs = of_evidence(), of_evidence("alice")
        assert bench.adopter._spec(node_state, node) is None
        node_state.own_quarantine_view().remains = ours
        assert bench.adopter._spec(node_state, node) is None, "its marks are gone: so is its cause"
        assert bench.adopter._spec(node_state, replace(node, annotations={APPLIED: "{}"})) is ours
        node_state.own_quarantine_view().remains = theirs
        assert bench.adopter._spec(node_state, node) is theirs
        assert bench.adopter._spec(node_state, None) is theirs
        await bench.adopter.adopt(node_state)
        found = bench.now()
        assert (found.spec.requester, found.status.phase) == ("alice", Phase.ADMITTED)
        assert bench.kinds() == ["quarantine.adopted"]

    on_back(test)


@pytest.mark.parametrize("happens", ["unmarked", "another", "gone", "changed"])
def test_marks_that_change_while_they_are_adopted_are_released_or_tried_again(
    happens: str,
) -> None:
    async def test(bench: Back) -> None:
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

        bench.adopter._cluster.patch_node = conflict
        await bench.adopter._keep_marks(bench.node_state, known, before)
        status = bench.now().status
        assert status.phase is Phase.RELEASING
        assert status.released_because == status.message
        assert "gone by the time" in status.message

    on_back(test)


def test_an_entry_without_an_object_goes_and_one_whose_node_is_marked_is_adopted() -> None:
    async def test(bench: Back) -> None:
        node_state = bench.node_state
        bench.entries["n1"] = ENTRY
        node = bench.world.nodes["n1"]
        bench.annotated({APPLIED: "{}"})
        await bench.adopter.forget_node(node_state, "x")
        assert (node_state.quarantine_view.to_adopt, bench.forgotten) == (True, [])
        bench.world.set_node(node)
        node_state.decision.hold = NodeHold("x", "1", "y", 1.0)
        await bench.adopter.forget_node(node_state, "x")
        assert bench.forgotten == [ENTRY]
        assert [node_state.decision.hold] == [None]
        assert bench.kinds() == []
        bench.entries["n1"] = replace(ENTRY, incident="")
        del bench.world.nodes["n1"]
        await bench.adopter.forget_node(node_state, "x")
        assert bench.kinds() == ["quarantine.released"]
        del bench.entries["n1"]
        await bench.adopter.forget_node(node_state, "x")
        assert len(bench.kinds()) == 1

    on_back(test)


def test_the_marks_of_a_quarantine_that_a_person_deleted_are_undone_and_remembered() -> None:
    async def test(bench: Back) -> None:
        await strayed(bench)
        (
            bench.entries["n1"],
            bench.node_state.own_quarantine_view().orphan,
            bench.node_state.own_quarantine_view().to_adopt,
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
        bench.node_state.own_quarantine_view().orphan = "q"
        await bench.adopter.sweep(bench.node_state)
        assert len(bench.kinds()) == 1, "there was nothing to undo"
        assert bench.forgotten == [ENTRY, ENTRY]

    on_back(test)


def test_a_deleted_force_takes_its_request_back() -> None:
    async def test(bench: Back) -> None:
        await bench.marked(requester=FORCED)
        del bench.world.quarantines["n1"]
        set_fields(bench.node_state, quarantine=None, orphan="q")
        notes = {**bench.world.nodes["n1"].annotations, FORCE: "cordon x"}
        bench.annotated(notes)
        await bench.adopter.sweep(bench.node_state)
        assert FORCE not in bench.world.nodes["n1"].annotations

    on_back(test)


def test_the_marks_of_another_quarantine_are_not_swept_with_a_deleted_one() -> None:
    async def test(bench: Back) -> None:
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
        bench.node_state.own_quarantine_view().orphan = "q"
        with pytest.raises(Conflict):
            await bench.adopter.sweep(bench.node_state)
        assert is_marked(bench.world.nodes["n1"])
        assert bench.node_state.quarantine_view.orphan == "q"

    on_back(test)
