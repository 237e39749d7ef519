"""The planner's conditions, one at a time, from a situation in which each decides."""

from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import (
    Action,
    EvidenceItem,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.quarantine.decide.intent import OURS, DesiredState, describe_override
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.quarantine.decide.plans.release import UNCORDONED
from aggregator.quarantine.decide.plans.release_reasons import NODE_ABSENT
from aggregator.quarantine.decide.uncordon import (
    CORDONED_BY_OTHERS,
    describe_left,
    is_left_schedulable,
)
from tests.support.plans import NextStep, Situation, Step, next_step

ITEM = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "gpu-gone", "inc-1")
SPEC = QuarantineSpec(
    Action.DRAIN, "gpu", "xid:79", OURS, "inc-1", "boot-1", "h", (ITEM,), Action.DRAIN
)
WANTED = DesiredState(SPEC, Action.DRAIN, Action.DRAIN)
BY_HAND = {"requester": "alice", "intent_action": None}
BY_FORCE = {"requester": FORCED, "evidence": ()}

#: A drain that goes on: nothing else is to be done.
DRAINING = Situation(
    quarantine=Quarantine("n1", "q", "1", SPEC, QuarantineStatus(Phase.DRAINING)),
    in_record=True,
    wanted=WANTED,
    mode=Action.DRAIN,
    knows=True,
    fresh=True,
    recovered=False,
)
#: The same node without an object: nothing of it is known yet.
BARE = replace(DRAINING, quarantine=None)


def now(
    phase: Phase = Phase.DRAINING,
    *,
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    quarantine: dict[str, Any] | None = None,
    **changes: Any,
) -> Situation:
    changed = Quarantine(
        "n1",
        "q",
        "1",
        replace(SPEC, **(spec or {})),
        replace(QuarantineStatus(phase), **(status or {})),
        **(quarantine or {}),
    )
    return replace(DRAINING, quarantine=changed, **changes)


def step(situation: Situation) -> Step:
    return next_step(situation).do


IN_FORCE_OBSERVE = replace(WANTED, in_force=Action.OBSERVE)
IN_FORCE_CORDON = replace(WANTED, in_force=Action.CORDON)
CORDON_WANTED = DesiredState(
    replace(SPEC, action=Action.CORDON, intent_action=Action.CORDON), Action.CORDON, Action.CORDON
)
ENDED = (replace(ITEM, cleared="reboot"),)


# -- evictions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("situation", "evicts"),
    [
        (now(), True),
        (now(Phase.CORDONED), True),
        (now(Phase.DRAINED), False),
        (now(mode=Action.CORDON), False),
        (now(node_gone=True, status={"node_absent_since": 1.0}), False),
        (now(release_held=True, poll_later=True, wanted=IN_FORCE_OBSERVE), False),
        (now(evictions_wait=True), False),
        (now(maintained=True), False),
        (now(knows=False), False),
        (now(wanted=IN_FORCE_CORDON), False),
        (now(wanted=IN_FORCE_OBSERVE), False),
        # Nobody has spoken for it yet: the durable evidence counts, as far as it has not ended.
        (now(wanted=None, fresh=False), True),
        (now(wanted=None), False),
        (now(wanted=None, fresh=False, knows=False), False),
        (now(wanted=None, fresh=False, spec={"evidence": ENDED}), False),
        (now(wanted=None, fresh=False, spec={"evidence": (*ENDED, replace(ITEM, code="b"))}), True),
        (now(wanted=None, fresh=False, spec={"evidence": ()}), False),
        # By hand, neither evidence nor maintenance is asked for.
        (now(spec=BY_HAND, wanted=None, knows=False), True),
        (now(spec=BY_HAND, wanted=None, maintained=True), True),
        (now(spec=BY_HAND, wanted=None, mode=Action.CORDON), False),
        (now(spec=BY_HAND, wanted=None, mode=Action.OBSERVE), False),
        (now(Phase.CORDONED, spec={**BY_HAND, "action": Action.CORDON}, wanted=None), False),
    ],
)
def test_pods_are_evicted_only_where_each_condition_holds(
    situation: Situation, *, evicts: bool
) -> None:
    assert step(situation) is (Step.DRAIN if evicts else Step.NOTHING)


@pytest.mark.parametrize(
    ("changes", "evicts"),
    [
        ({"wanted": CORDON_WANTED}, True),
        ({"wanted": CORDON_WANTED, "knows": False}, False),
        ({"wanted": replace(CORDON_WANTED, in_force=Action.OBSERVE)}, False),
        ({"wanted": None, "fresh": True}, False),
    ],
)
def test_a_drain_that_a_person_set_goes_on_with_any_evidence_in_force(
    changes: dict[str, Any], *, evicts: bool
) -> None:
    spec = replace(SPEC, intent_action=Action.CORDON)
    status = {"override": describe_override(spec)}
    situation = now(spec={"intent_action": Action.CORDON}, status=status, **changes)
    assert step(situation) is (Step.DRAIN if evicts else Step.NOTHING)


# -- the node ------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.ADMITTED, Phase.INVALID])
@pytest.mark.parametrize(
    ("changes", "cordons"),
    [
        ({}, True),
        ({"mode": Action.CORDON}, True),
        ({"mode": Action.OBSERVE}, False),
        ({"maintained": True}, False),
        ({"node_gone": True, "status": {"node_absent_since": 1.0}}, False),
        ({"spec": BY_HAND, "mode": Action.OBSERVE, "wanted": None}, True),
        ({"spec": BY_HAND, "maintained": True, "wanted": None}, True),
        (
            {
                "spec": BY_HAND,
                "node_gone": True,
                "wanted": None,
                "status": {"node_absent_since": 1.0},
            },
            False,
        ),
        # Marks that were never set are not restored, and an uncordon is none of them.
        ({"schedulable": True, "recordon": True, "restore_due": True}, True),
    ],
)
def test_a_node_is_marked_first(phase: Phase, changes: dict[str, Any], *, cordons: bool) -> None:
    assert step(now(phase, **changes)) is (Step.CORDON if cordons else Step.NOTHING)


@pytest.mark.parametrize(
    ("changes", "do"),
    [
        ({"schedulable": True, "recordon": True}, Step.RECORDON),
        (
            {
                "schedulable": True,
                "recordon_at": 1_000.0,
                "status": {"recordons": 6, "uncordoned": "6 times within a day"},
            },
            Step.DRAIN,
        ),
        ({"schedulable": False, "recordon": True}, Step.DRAIN),
        ({"restore_due": True}, Step.RESTORE),
        ({"restore_due": True, "schedulable": True, "recordon": True}, Step.RECORDON),
        ({"restore_due": True, "mode": Action.OBSERVE}, Step.NOTHING),
        ({"restore_due": True, "maintained": True}, Step.NOTHING),
        ({"restore_due": True, "maintained": True, "spec": BY_HAND, "wanted": None}, Step.RESTORE),
        (
            {"restore_due": True, "node_gone": True, "status": {"node_absent_since": 1.0}},
            Step.NOTHING,
        ),
    ],
)
def test_marks_come_back_before_evictions_go_on(changes: dict[str, Any], do: Step) -> None:
    assert step(now(**changes)) is do


# -- an uncordoned node --------------------------------------------------------------------------

#: It is schedulable, and it is not yet time to cordon it again.
LEFT: dict[str, Any] = {"schedulable": True, "recordon_at": 1_000.0, "status": {}}
DUE = "new work is kept off again at 1970-01-01T00:16:40Z"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, DUE),
        ({"stopped": True}, "it is left so while the stop switch is set"),
        (
            {"maintained": True},
            "it is left so while another tool or person is at work on it",
        ),
        (
            {"exempt": True},
            "it is left so while people want it left alone (sickbay.dev/exempt)",
        ),
        ({"mode": Action.OBSERVE}, "it is left so in mode observe"),
        ({"mode": Action.CORDON}, DUE),
        ({"maintained": True, "spec": BY_HAND, "wanted": None}, DUE),
        ({"exempt": True, "spec": BY_HAND, "wanted": None}, DUE),
        ({"mode": Action.OBSERVE, "spec": BY_HAND, "wanted": None}, DUE),
        (
            {"stopped": True, "spec": BY_HAND, "wanted": None},
            "it is left so while the stop switch is set",
        ),
        (
            {"stopped": True, "recordon": True},
            "it is left so while the stop switch is set",
        ),
    ],
)
def test_a_node_that_is_left_schedulable_says_why_once(changes: dict[str, Any], why: str) -> None:
    situation = now(**{**LEFT, **changes})
    assert situation.quarantine is not None
    text = describe_left(situation.quarantine, why)
    found = next_step(situation)
    assert found == NextStep(Step.REPORT_CORDON, text)
    told = now(**{**LEFT, **changes, "status": {"uncordoned": text}})
    assert step(told) is not Step.REPORT_CORDON


def test_what_was_left_schedulable_is_told_when_others_have_cordoned_it() -> None:
    situation = now(**LEFT)
    assert situation.quarantine is not None
    status = {"uncordoned": describe_left(situation.quarantine, DUE)}
    assert is_left_schedulable(QuarantineStatus(uncordoned=status["uncordoned"]))
    assert next_step(now(status=status)) == NextStep(Step.REPORT_CORDON, CORDONED_BY_OTHERS)
    assert step(now()) is Step.DRAIN
    gone = now(status={**status, "node_absent_since": 1.0}, node_gone=True)
    assert step(gone) is Step.NOTHING
    for phase in (Phase.ADMITTED, Phase.INVALID):
        assert step(now(phase, status=status)) is Step.CORDON
        assert step(now(phase, schedulable=True)) is Step.CORDON


@pytest.mark.parametrize(
    ("changes", "tells"),
    [
        ({"recordon": True}, False),
        ({"status": {"recordons": 6, "uncordoned": "6 times within a day"}}, False),
        ({"status": {"recordons": 5, "uncordoned": "5 times within a day"}}, True),
        ({"status": {"recordons": 6, "uncordoned": "schedulable: for another reason"}}, True),
    ],
)
def test_a_node_that_is_cordoned_at_once_or_was_given_up_has_been_told_of(
    changes: dict[str, Any], *, tells: bool
) -> None:
    assert (step(now(**{**LEFT, **changes})) is Step.REPORT_CORDON) == tells


# -- writes that nothing holds -------------------------------------------------------------------

MORE = replace(
    WANTED, spec=replace(SPEC, evidence=(ITEM, replace(ITEM, code="xid:48", component="GPU-2")))
)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(
    ("changes", "do"),
    [
        ({"release_held": True}, Step.UNHOLD),
        ({"release_held": True, "wanted": IN_FORCE_CORDON}, Step.UNHOLD),
        ({"release_held": True, "wanted": MORE}, Step.UNHOLD),
        ({"wanted": MORE}, Step.UPDATE),
        ({"wanted": MORE, "marks_unreported": True}, Step.UPDATE),
        ({"status": {"override": "a person"}}, Step.OVERRIDE),
        ({"status": {"override": "a person"}, "marks_unreported": True}, Step.OVERRIDE),
        ({"marks_unreported": True}, Step.REPORT_MARKS),
        ({"marks_unreported": True, "restore_due": True}, Step.REPORT_MARKS),
        ({"spec": BY_HAND, "wanted": MORE, "marks_unreported": True}, Step.REPORT_MARKS),
    ],
)
def test_what_the_object_lacks_is_written_under_a_stop_too(
    changes: dict[str, Any], do: Step, *, stopped: bool
) -> None:
    assert step(now(**changes, stopped=stopped)) is do


def test_old_conditions_are_written_last_and_a_stop_does_not_hold_that() -> None:
    assert step(now(Phase.DRAINED, conditions_old=True)) is Step.CONDITIONS
    assert step(now(Phase.DRAINED, conditions_old=True, stopped=True)) is Step.CONDITIONS
    assert step(now(Phase.DRAINED, conditions_old=True, marks_unreported=True)) is Step.REPORT_MARKS
    assert step(now(conditions_old=True)) is Step.DRAIN
    assert step(now(conditions_old=True, stopped=True)) is Step.HOLD
    assert step(now(Phase.ADMITTED, conditions_old=True)) is Step.CORDON


def test_a_stop_holds_what_would_act_and_nothing_else() -> None:
    assert step(now(stopped=True)) is Step.HOLD
    assert step(now(Phase.ADMITTED, stopped=True)) is Step.HOLD
    assert step(now(Phase.DRAINED, stopped=True)) is Step.NOTHING
    assert step(now(restore_due=True, stopped=True)) is Step.HOLD
    assert step(now(in_record=False, stopped=True)) is Step.ENTER


def test_evidence_is_not_admitted_by_the_entry_of_a_persons_quarantine() -> None:
    gone = replace(now(wanted=WANTED), quarantine=None)
    assert step(gone) is Step.CREATE
    assert step(replace(gone, entered_by_hand=True)) is Step.FORGET
    assert step(replace(gone, entered_by_hand=True, stopped=True)) is Step.FORGET
    assert step(replace(gone, entered_by_hand=True, in_record=False)) is Step.PROPOSE


@pytest.mark.parametrize(
    ("changes", "unholds"),
    [
        ({"wanted": IN_FORCE_OBSERVE, "poll_later": True}, False),
        ({"wanted": None, "fresh": False, "poll_later": True}, False),
        ({"wanted": WANTED, "poll_later": True}, True),
        ({"wanted": WANTED, "recovered": True, "poll_later": True}, False),
        ({"spec": BY_FORCE, "wanted": None, "forced": Action.DRAIN}, True),
        ({"spec": BY_FORCE, "wanted": WANTED}, False),
        ({"spec": BY_FORCE, "unforced": True, "poll_later": True}, False),
    ],
)
def test_a_held_release_is_taken_back_for_its_own_fault_or_force(
    changes: dict[str, Any], *, unholds: bool
) -> None:
    found = step(now(**changes, release_held=True))
    assert (found is Step.UNHOLD) == unholds


# -- the ways out --------------------------------------------------------------------------------

OUT = {"recovered": True, "wanted": None}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (OUT, NextStep(Step.RELEASE, "recovered")),
        ({**OUT, "release_held": True}, NextStep(Step.RELEASE, "recovered")),
        ({**OUT, "release_held": True, "poll_later": True}, NextStep(Step.NOTHING)),
        ({**OUT, "poll_later": True}, NextStep(Step.RELEASE, "recovered")),
        ({**OUT, "spec": BY_HAND, "mode": Action.CORDON}, NextStep(Step.NOTHING)),
        ({"uncordoned": True}, NextStep(Step.RELEASE, UNCORDONED, overruled=True)),
        (
            {"uncordoned": True, "release_held": True, "poll_later": True},
            NextStep(Step.RELEASE, UNCORDONED, overruled=True),
        ),
        ({"reborn": True}, NextStep(Step.RELEASE, "the node was made anew, in another boot")),
        ({"reborn": True, "spec": BY_HAND, "node_replaced": True}, NextStep(Step.RESTART)),
        ({"absent_too_long": True, "node_gone": True}, NextStep(Step.RELEASE, NODE_ABSENT)),
        ({"absent_too_long": True}, NextStep(Step.DRAIN)),
        ({"spec": BY_FORCE, "unforced": True}, NextStep(Step.RELEASE, "the force was taken back")),
        ({"unforced": True}, NextStep(Step.DRAIN)),
        ({"exempt": True}, NextStep(Step.DRAIN)),
        ({"quarantine": {"problem": "bad"}}, NextStep(Step.REFUSE)),
        ({"quarantine": {"problem": "bad"}, "uncordoned": True}, NextStep(Step.REFUSE)),
        ({"quarantine": {"problem": "bad"}, "recovered": True}, NextStep(Step.REFUSE)),
        (
            {"quarantine": {"problem": "bad", "deleting": True}},
            NextStep(Step.RELEASE, "deleted by a person", overruled=True),
        ),
        ({"quarantine": {"foreign": True, "deleting": True}}, NextStep(Step.NOTHING)),
        ({"definition_going": True}, NextStep(Step.NOTHING)),
        (
            {"definition_going": True, "quarantine": {"deleting": True}},
            NextStep(Step.LET_GO),
        ),
    ],
)
def test_a_way_out_is_taken_for_its_reason(changes: dict[str, Any], found: NextStep) -> None:
    assert next_step(now(**changes)) == found


def test_an_exemption_takes_back_only_what_was_not_begun() -> None:
    found = next_step(now(Phase.ADMITTED, exempt=True))
    assert found == NextStep(Step.RELEASE, "exempted by a person before it was begun")
    assert step(now(Phase.INVALID, exempt=True)) is Step.CORDON
    by_hand = now(Phase.ADMITTED, exempt=True, spec=BY_HAND, wanted=None)
    assert step(by_hand) is Step.CORDON
    assert step(now(Phase.RELEASING, exempt=True)) is Step.UNDO


# -- without an object ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "do"),
    [
        ({}, Step.CREATE),
        ({"in_record": False}, Step.PROPOSE),
        ({"stopped": True}, Step.PROPOSE),
        ({"conflict": True}, Step.NOTHING),
        ({"definition_going": True}, Step.NOTHING),
        ({"unclaimed": True}, Step.NOTHING),
        ({"unclaimed": True, "forced": Action.DRAIN}, Step.NOTHING),
        ({"forced": Action.CORDON}, Step.FORCE),
        ({"forced": Action.CORDON, "stopped": True}, Step.PROPOSE),
        (
            {"forced": Action.CORDON, "stopped": True, "wanted": None, "in_record": False},
            Step.NOTHING,
        ),
        ({"wanted": IN_FORCE_OBSERVE}, Step.FORGET),
        ({"wanted": IN_FORCE_OBSERVE, "in_record": False}, Step.NOTHING),
        ({"wanted": replace(WANTED, spec=replace(SPEC, action=Action.OBSERVE))}, Step.FORGET),
        ({"wanted": None}, Step.FORGET),
        ({"wanted": None, "knows": False}, Step.NOTHING),
        ({"wanted": None, "knows": False, "node_gone": True}, Step.FORGET),
        ({"wanted": None, "in_record": False}, Step.NOTHING),
    ],
)
def test_an_object_is_made_only_for_what_is_wanted_and_allowed(
    changes: dict[str, Any], do: Step
) -> None:
    assert step(replace(BARE, **changes)) is do


# -- forces --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "forced", "do"),
    [
        (BY_FORCE, Action.DRAIN, Step.DRAIN),
        (BY_FORCE, Action.CORDON, Step.FORCE),
        (BY_FORCE, None, Step.DRAIN),
        # The decided action is compared, and not the one that a person has set since.
        ({**BY_FORCE, "action": Action.CORDON}, Action.DRAIN, Step.NOTHING),
        ({**BY_FORCE, "action": Action.CORDON}, Action.CORDON, Step.FORCE),
        ({**BY_FORCE, "intent_action": None}, Action.DRAIN, Step.DRAIN),
        ({**BY_FORCE, "intent_action": None}, Action.CORDON, Step.FORCE),
        ({}, Action.CORDON, Step.DRAIN),
        (BY_HAND, Action.CORDON, Step.DRAIN),
    ],
)
def test_a_force_changes_only_what_a_force_has_made(
    spec: dict[str, Any], forced: Action | None, do: Step
) -> None:
    made = replace(SPEC, **spec)
    phase = Phase.DRAINING if made.action is Action.DRAIN else Phase.CORDONED
    status = {"override": describe_override(made)}
    assert step(now(phase, spec=spec, forced=forced, status=status)) is do


# -- the record, the Node and its absence --------------------------------------------------------


@pytest.mark.parametrize(
    ("situation", "do"),
    [
        (now(in_record=False), Step.ENTER),
        (now(Phase.ADMITTED, in_record=False), Step.VOID),
        (now(Phase.INVALID, in_record=False), Step.VOID),
        (now(Phase.ADMITTED, in_record=False, spec=BY_HAND), Step.ENTER),
        (
            now(in_record=False, spec=BY_HAND, node_gone=True, status={"node_absent_since": 1.0}),
            Step.NOTHING,
        ),
        (now(in_record=False, node_gone=True, status={"node_absent_since": 1.0}), Step.ENTER),
        (now(in_record=False, conflict=True), Step.NOTHING),
        (now(conflict=True, node_replaced=True), Step.RESTART),
        (now(stopped=True, node_replaced=True), Step.RESTART),
        (now(node_gone=True), Step.ABSENCE),
        (now(node_gone=True, node_replaced=True), Step.ABSENCE),
        (now(node_found=True, status={"node_absent_since": 1.0}), Step.ABSENCE),
        (now(node_found=True), Step.DRAIN),
        (now(status={"node_absent_since": 1.0}), Step.DRAIN),
    ],
)
def test_what_the_counts_rest_on_is_set_right_first(situation: Situation, do: Step) -> None:
    assert step(situation) is do


# -- a status that a later version wrote ----------------------------------------------------------

LATER = {"unread": "status: later", "unread_fields": frozenset({"repair"})}


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (now(quarantine=LATER), NextStep(Step.UNREAD)),
        (now(quarantine=LATER, in_record=False), NextStep(Step.UNREAD)),
        (now(quarantine=LATER, recovered=True, wanted=None), NextStep(Step.UNREAD)),
        (now(quarantine=LATER, node_gone=True), NextStep(Step.UNREAD)),
        (now(quarantine=LATER, node_replaced=True, reborn=True), NextStep(Step.UNREAD)),
        (now(quarantine=LATER, repair_busy=True, repair_due=True), NextStep(Step.UNREAD)),
        (now(quarantine=LATER, exempt=True, recovered=True), NextStep(Step.UNREAD)),
        (now(quarantine={**LATER, "problem": "bad"}), NextStep(Step.UNREAD)),
        (now(quarantine={**LATER, "foreign": "other"}), NextStep(Step.NOTHING)),
        # A person's release goes, and one that was begun is finished.
        (
            now(quarantine={**LATER, "deleting": True}),
            NextStep(Step.RELEASE, "deleted by a person", overruled=True),
        ),
        (
            now(quarantine=LATER, uncordoned=True),
            NextStep(Step.RELEASE, UNCORDONED, overruled=True),
        ),
        (
            now(quarantine=LATER, spec=BY_FORCE, unforced=True),
            NextStep(Step.RELEASE, "the force was taken back"),
        ),
        (
            now(quarantine=LATER, spec=BY_FORCE, unforced=True, release_held=True, poll_later=True),
            NextStep(Step.UNREAD),
        ),
        (now(Phase.RELEASING, quarantine=LATER), NextStep(Step.UNDO)),
    ],
)
def test_a_status_that_cannot_be_read_ends_every_step_except_a_persons_release(
    situation: Situation, expected: NextStep
) -> None:
    assert next_step(situation) == expected
