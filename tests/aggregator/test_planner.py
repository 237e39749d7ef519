"""The next step, over combinations of what it depends on."""

import functools
import itertools
from collections.abc import Iterator
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
    RecordText,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.events import EventKind
from aggregator.health.model import Cleared, Delta
from aggregator.quarantine.decide.admission_record import Entry, Record, dump_record
from aggregator.quarantine.decide.intent import OURS, DesiredState, describe_override
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCED
from aggregator.quarantine.decide.plans.release import UNCORDONED
from aggregator.quarantine.decide.plans.release_reasons import NODE_ABSENT
from tests.support.memory_cluster import World, phase_of
from tests.support.plans import NextStep, Situation, Step, next_step
from tests.support.present import present
from tests.support.replica import Replica, Turned, fault, snapshot
from tests.support.waiting import until

ITEM = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "gpu-gone", "inc-1")
SPEC = QuarantineSpec(
    Action.DRAIN, "gpu", "xid:79", OURS, "inc-1", "boot-1", "h", (ITEM,), Action.DRAIN
)
FLAGS = (
    "in_record",
    "knows",
    "fresh",
    "recovered",
    "uncordoned",
    "node_replaced",
    "reborn",
    "node_gone",
    "maintained",
    "stopped",
    "conflict",
    "definition_going",
)


def wanted(action: Action, in_force: Action = Action.DRAIN) -> DesiredState:
    return DesiredState(replace(SPEC, action=action), Action.DRAIN, in_force)


def quarantines() -> Iterator[Quarantine | None]:
    yield None
    for phase, requester, action, deleting in itertools.product(
        Phase, (OURS, "alice"), (Action.CORDON, Action.DRAIN), (False, True)
    ):
        spec = replace(SPEC, requester=requester, action=action, intent_action=action)
        yield Quarantine("n1", "q", "1", spec, QuarantineStatus(phase), deleting=deleting)
    yield Quarantine(
        "n1", "q", "1", replace(SPEC, requester="bob"), QuarantineStatus(), problem="no such action"
    )
    yield Quarantine(
        "n1",
        "q",
        "1",
        replace(SPEC, requester="bob"),
        QuarantineStatus(),
        problem="no such action",
        deleting=True,
    )
    for phase, deleting in itertools.product(Phase, (False, True)):
        status = QuarantineStatus(phase)
        yield Quarantine("n1", "q", "1", SPEC, status, deleting=deleting, unread="status: later")


def situations(quarantine: Quarantine | None, every: int) -> Iterator[Situation]:
    """Every nth of all combinations."""
    requests = (
        None,
        wanted(Action.OBSERVE),
        wanted(Action.CORDON),
        wanted(Action.DRAIN),
        wanted(Action.DRAIN, Action.CORDON),
        wanted(Action.DRAIN, Action.OBSERVE),
    )
    knowing = _knowing(quarantine)
    before = 0
    for wish, mode in itertools.product(requests, Action):
        chosen = _chosen(-before % every, every)
        before += len(_combinations())
        # The mode's cap comes before: a stronger wish does not reach the planner.
        if wish is not None and wish.spec.action.strength > mode.strength:
            continue
        for flags in chosen:
            if flags["recovered"] and wish is not None:
                continue  # node.py: recovered means that no incident asks
            told = knowing if flags["node_gone"] else quarantine
            yield Situation(quarantine=told, wanted=wish, mode=mode, **flags)


@functools.lru_cache(maxsize=1024)
def _chosen(first: int, every: int) -> tuple[dict[str, Any], ...]:
    """Of every nth combination from this one, those that node.py may give."""
    return tuple(flags for flags in _combinations()[first::every] if flags is not None)


@functools.cache
def _combinations() -> tuple[dict[str, Any] | None, ...]:
    """All of the flags; None in the place of one that node.py never gives."""
    return tuple(
        _possible(dict(zip(FLAGS, values, strict=True)))
        for values in itertools.product((False, True), repeat=len(FLAGS))
    )


def _possible(flags: dict[str, Any]) -> dict[str, Any] | None:
    if flags["recovered"] and not flags["fresh"]:
        return None  # recovered means that the agent says so
    if flags["reborn"] and not flags["node_replaced"]:
        return None  # another boot of another Node
    return flags


def _knowing(quarantine: Quarantine | None) -> Quarantine | None:
    """The quarantine's status says already that its Node is gone."""
    if quarantine is None:
        return None
    return replace(quarantine, status=replace(quarantine.status, node_absent_since=1.0))


def test_that_a_node_is_gone_or_back_is_written_before_anything_else_but_an_end() -> None:
    """The limits count by the contents of the status."""
    for quarantine in quarantines():
        for now in situations(quarantine, 61):
            if quarantine is None or not now.node_gone:
                continue
            unwritten = replace(now, quarantine=quarantine)
            back = replace(now, node_gone=False, node_found=True)
            for one in (unwritten, back):
                ends = next_step(one).do in (Step.RELEASE, Step.UNDO, Step.LET_GO)
                stays = now.definition_going or quarantine.problem or quarantine.unread
                assert ends or stays or next_step(one).do is Step.ABSENCE, one


def test_only_ours_ends_when_its_node_stays_away_and_only_by_the_latest_read() -> None:
    for quarantine in quarantines():
        for now in situations(quarantine, 61):
            if quarantine is None or now.recovered or now.reborn or now.uncordoned:
                continue
            before, after = next_step(now), next_step(replace(now, absent_too_long=True))
            ours = quarantine.spec.requester == OURS
            free = before.do not in (Step.UNDO, Step.RELEASE, Step.LET_GO, Step.REFUSE)
            unclear = now.definition_going or quarantine.problem or quarantine.unread
            if ours and free and now.node_gone and not unclear:
                assert after == NextStep(Step.RELEASE, NODE_ABSENT)
            else:
                assert after == before


def test_every_situation_has_its_step() -> None:
    """Each 17th combination: an odd number, so that all values of a few flags meet each other."""
    for quarantine in quarantines():
        for now in situations(quarantine, 17):
            check_rules(now, next_step(now))


def check_rules(now: Situation, step: NextStep) -> None:
    quarantine = now.quarantine
    if quarantine is None:
        check_without_object(now, step)
        return
    phase, ours = quarantine.status.phase, quarantine.spec.requester == OURS
    assert step.do not in (Step.PROPOSE, Step.CREATE, Step.FORGET)
    if now.definition_going:
        # An uninstall releases no node by accident.
        assert step.do is (Step.LET_GO if quarantine.deleting else Step.NOTHING)
        return
    # Release is never held: not by the stop switch, the mode, a conflict, a limit or the record.
    if phase is Phase.RELEASING:
        assert step.do is Step.UNDO
        return
    if quarantine.deleting:
        assert step == NextStep(Step.RELEASE, "deleted by a person", overruled=True)
        return
    if quarantine.unread:
        released = NextStep(Step.RELEASE, UNCORDONED, overruled=True)
        assert step == (released if now.uncordoned else NextStep(Step.UNREAD))
        return
    if quarantine.problem:
        assert step.do in (Step.REFUSE, Step.NOTHING)
        assert (step.do is Step.NOTHING) == (phase is Phase.INVALID)
        return
    if now.uncordoned:
        assert step.do is Step.RELEASE
        assert step.overruled
        return
    if ours and now.recovered:
        assert step == NextStep(Step.RELEASE, "recovered")
        return
    if ours and now.reborn:
        assert step.do is Step.RELEASE
        assert not step.overruled
        return
    # From here on no step ends it.
    assert step.do not in (Step.RELEASE, Step.UNDO, Step.LET_GO)
    if now.node_replaced:
        assert step.do is Step.RESTART  # no phase describes a Node that is gone, even under a hold
    elif now.conflict:
        assert step.do is Step.NOTHING  # no new step is taken on a node that two agents claim
    elif not now.in_record:
        # It acts only while its entry stands; a name that is no node's is not counted, and an
        # object that a superseded replica made late is taken back.
        late = ours and quarantine.status.phase in (Phase.ADMITTED, Phase.INVALID)
        unfounded = now.node_gone and not ours
        assert step.do is (Step.NOTHING if unfounded else Step.VOID if late else Step.ENTER)
    elif now.stopped:
        assert step.do in (
            Step.NOTHING,
            Step.UPDATE,
            Step.OVERRIDE,
            Step.HOLD,
        )  # known facts are written, no more
    if step.do in (Step.CORDON, Step.DRAIN):
        assert not (ours and now.maintained)  # no step is taken beside another's maintenance
    if step.do is Step.DRAIN:
        assert now.mode is Action.DRAIN
        assert quarantine.spec.action is Action.DRAIN
        assert now.in_record
        assert phase in (Phase.CORDONED, Phase.DRAINING)  # never a node that is not marked
        assert not now.node_gone
        # Not before the agent has spoken, or been silent for so long that the durable evidence
        # counts.
        assert now.knows or not ours
        # Not while no evidence in force asks for it: evictions stop when the cause clears.
        if ours and now.wanted is not None:
            assert now.wanted.in_force is Action.DRAIN
        assert not (ours and now.wanted is None and now.fresh)
    if step.do is Step.CORDON:
        assert not now.node_gone
        assert phase in (Phase.ADMITTED, Phase.INVALID)
    if step.do is Step.UPDATE:
        assert ours
    if step.do is Step.OVERRIDE:  # evictions ended with the action, and the phase has not
        assert (phase, quarantine.spec.action) == (Phase.DRAINING, Action.CORDON)


def check_without_object(now: Situation, step: NextStep) -> None:
    acts = (
        now.wanted is not None
        and now.wanted.spec.action is not Action.OBSERVE
        and now.wanted.in_force is not Action.OBSERVE
    )
    assert step.do in (Step.NOTHING, Step.PROPOSE, Step.CREATE, Step.FORGET)
    if now.conflict or now.definition_going:
        assert step.do is Step.NOTHING
    elif step.do is Step.CREATE:
        assert acts
        assert now.in_record
        assert not now.stopped
    elif step.do is Step.PROPOSE:
        assert acts
        assert now.stopped or not now.in_record  # admission says what a stop holds
    elif step.do is Step.FORGET:
        assert now.in_record
        assert now.knows or now.node_gone
        assert not acts
    else:
        assert not acts


def held_releases() -> Iterator[Situation]:
    """Marked, its cause over, and something spoke against its release."""
    for phase, in_force, later in itertools.product(
        (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED), (None, *Action), (False, True)
    ):
        yield Situation(
            quarantine=Quarantine("n1", "q", "1", SPEC, QuarantineStatus(phase)),
            in_record=True,
            wanted=None if in_force is None else wanted(Action.DRAIN, in_force),
            mode=Action.DRAIN,
            knows=True,
            fresh=in_force is not None or later,
            recovered=in_force is None and later,
            release_held=True,
            poll_later=later,
        )


def test_what_waits_for_its_release_evicts_nobody_and_is_looked_at_again() -> None:
    for now in held_releases():
        step = next_step(now)
        assert step.do is not Step.DRAIN
        ill = now.wanted is not None and now.wanted.in_force is not Action.OBSERVE
        assert (step.do is Step.UNHOLD) == ill
        if now.recovered:
            assert step.do is Step.NOTHING
            assert next_step(replace(now, poll_later=False)) == NextStep(Step.RELEASE, "recovered")
        # A person's request waits for no condition.
        assert next_step(replace(now, uncordoned=True)).overruled


def asked_for_by_people() -> Iterator[Situation]:
    forced = replace(SPEC, requester=FORCED, evidence=())
    objects = [None] + [
        Quarantine(
            "n1",
            "q",
            "1",
            replace(spec, action=action, intent_action=action),
            QuarantineStatus(phase),
        )
        for spec in (SPEC, forced)
        for action in (Action.CORDON, Action.DRAIN)
        for phase in Phase
        if phase not in (Phase.RELEASING, Phase.INVALID)
        and (phase, action) != (Phase.DRAINING, Action.CORDON)  # its phase is written first
    ]
    forces = (None, Action.CORDON, Action.DRAIN)
    for quarantine, force in itertools.product(objects, forces):
        for stopped, conflict, unforced, exempt in itertools.product((False, True), repeat=4):
            if force and (unforced or exempt):
                continue  # operator_requests.py: an exemption is read before a force
            yield Situation(
                quarantine=quarantine,
                in_record=quarantine is not None,
                wanted=None,
                mode=Action.OBSERVE if exempt else Action.DRAIN,
                knows=True,
                fresh=True,
                recovered=False,
                stopped=stopped,
                conflict=conflict,
                forced=force,
                unforced=unforced,
                exempt=exempt,
            )


def test_what_people_ask_for_in_annotations_is_done_and_undone() -> None:
    for now in asked_for_by_people():
        step, quarantine = next_step(now), now.quarantine
        ours = quarantine is not None and quarantine.spec.requester == OURS
        if quarantine is None or now.forced not in (None, quarantine.spec.action):
            asked = now.forced is not None and not ours
            assert (step.do is Step.FORCE) == (asked and not now.stopped and not now.conflict)
        if quarantine is not None and not ours:
            assert (step.do is Step.RELEASE) == now.unforced
        if quarantine is not None and ours:
            untouched = quarantine.status.phase is Phase.ADMITTED
            assert (step.do is Step.RELEASE) == (now.exempt and untouched)
        if now.exempt and ours:
            assert step.do in (Step.NOTHING, Step.RELEASE)


def lost_marks() -> Iterator[Situation]:
    """Marked, and our marks are not whole: reported or not, and due to be set again or not."""
    for phase, requester, mode, told, due, stopped, maintained in itertools.product(
        (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED),
        (OURS, "alice"),
        Action,
        *((False, True),) * 4,
    ):
        yield Situation(
            quarantine=Quarantine(
                "n1", "q", "1", replace(SPEC, requester=requester), QuarantineStatus(phase)
            ),
            in_record=True,
            wanted=None,
            mode=mode,
            knows=True,
            fresh=False,
            recovered=False,
            stopped=stopped,
            maintained=maintained,
            marks_unreported=not told,
            restore_due=due,
        )


def test_lost_marks_are_told_whatever_holds_us_and_set_again_only_where_we_may_act() -> None:
    for now in lost_marks():
        assert now.quarantine is not None
        step = next_step(now).do
        assert (step is Step.REPORT_MARKS) == now.marks_unreported
        ours = now.quarantine.spec.requester == OURS
        held = now.stopped or (ours and (now.mode is Action.OBSERVE or now.maintained))
        assert (step is Step.RESTORE) == (now.restore_due and not now.marks_unreported and not held)
        over = replace(now, fresh=True, recovered=True)
        if ours:
            assert next_step(over).do is Step.RELEASE
        assert next_step(replace(now, uncordoned=True)).do is Step.RELEASE


def absences() -> Iterator[Situation]:
    """The quarantine's Node is gone, and the status does not say so yet."""
    for quarantine in quarantines():
        for now in situations(quarantine, 61):
            if now.node_gone:
                yield replace(now, quarantine=quarantine)


def test_every_step_is_reached() -> None:
    plain = [now for quarantine in quarantines() for now in situations(quarantine, 17)]
    others = (
        *asked_for_by_people(),
        *held_releases(),
        *overridden(),
        *uncordoned(),
        *lost_marks(),
        *(replace(one, conditions_old=True) for one in lost_marks()),
        *absences(),
        *(replace(one, repair_due=True) for one in lost_marks()),
    )
    reached = {next_step(now).do for now in (*plain, *others)}
    assert reached == set(Step)


def test_while_a_repair_may_act_on_a_node_only_a_person_releases_it() -> None:
    for quarantine in quarantines():
        for now in situations(quarantine, 61):
            if quarantine is None or quarantine.problem or now.uncordoned or quarantine.deleting:
                continue
            if quarantine.unread:
                continue
            for due in (False, True):
                busy = replace(now, repair_busy=True, repair_due=due)
                step = next_step(busy).do
                assert step is not Step.RELEASE
                going = now.definition_going or quarantine.status.phase is Phase.RELEASING
                assert (step is Step.REPAIR) == (due and not going)


def test_the_node_in_place_of_a_replaced_one_is_not_marked_before_the_repairs_proof() -> None:
    gap = Situation(
        Quarantine("n1", "q", "1", SPEC, QuarantineStatus(Phase.DRAINED)),
        in_record=True,
        wanted=wanted(Action.DRAIN),
        mode=Action.DRAIN,
        knows=True,
        fresh=False,
        recovered=False,
        node_replaced=True,
        reborn=True,
        node_found=True,
        repair_busy=True,
        repair_replaces=True,
    )
    assert next_step(gap).do is Step.NOTHING
    assert next_step(replace(gap, repair_due=True)).do is Step.REPAIR
    assert next_step(replace(gap, repair_busy=False)).do is Step.RELEASE
    # A reboot may still reach the new Node, so that one is kept free of work.
    assert next_step(replace(gap, repair_replaces=False)).do is Step.RESTART


def test_a_force_that_is_taken_back_does_not_wait_for_a_repair() -> None:
    forced = replace(SPEC, requester=FORCED)
    now = Situation(
        Quarantine("n1", "q", "1", forced, QuarantineStatus(Phase.DRAINED)),
        in_record=True,
        wanted=None,
        mode=Action.DRAIN,
        knows=True,
        fresh=True,
        recovered=False,
        node_found=True,
        unforced=True,
        repair_busy=True,
    )
    for due in (False, True):
        assert next_step(replace(now, repair_due=due)).do is Step.RELEASE
        # No person has taken anything back: the Node went, with its annotation.
        busy = replace(now, repair_due=due, repair_replaces=True)
        for other in (
            replace(busy, node_gone=True),
            replace(busy, node_replaced=True),
            replace(busy, reborn=True),
        ):
            assert next_step(other).do is not Step.RELEASE


def test_no_repair_begins_past_the_stop_the_mode_or_another_party() -> None:
    for now in lost_marks():
        due = replace(now, repair_due=True)
        if next_step(due).do is not Step.REPAIR:
            continue
        assert next_step(replace(due, stopped=True)).do is Step.HOLD
        assert next_step(replace(due, node_gone=True)).do is not Step.REPAIR
        ours = due.quarantine is not None and due.quarantine.spec.requester == OURS
        for other in (replace(due, mode=Action.OBSERVE), replace(due, maintained=True)):
            assert (next_step(other).do is Step.REPAIR) == (not ours)


def uncordoned() -> Iterator[Situation]:
    """The node of a drain is schedulable, which releases no node."""
    for due, waits, stopped, maintained in itertools.product((False, True), repeat=4):
        for requester, mode in itertools.product((OURS, "alice"), Action):
            yield Situation(
                Quarantine(
                    "n1",
                    "q",
                    "1",
                    replace(SPEC, requester=requester),
                    QuarantineStatus(Phase.DRAINING),
                ),
                in_record=True,
                wanted=wanted(Action.DRAIN),
                mode=mode,
                knows=True,
                fresh=True,
                recovered=False,
                schedulable=True,
                recordon=due,
                evictions_wait=waits,
                stopped=stopped,
                maintained=maintained,
            )


def test_an_uncordoned_node_is_cordoned_again_when_due_and_nobody_is_evicted_meanwhile() -> None:
    for now in uncordoned():
        assert now.quarantine is not None
        step, ours = next_step(now), now.quarantine.spec.requester == OURS
        held = ours and (now.mode is Action.OBSERVE or now.maintained)
        assert (step.do is Step.RECORDON) == (now.recordon and not now.stopped and not held)
        if now.evictions_wait or now.stopped:
            assert step.do is not Step.DRAIN
        assert next_step(replace(now, uncordoned=True)).do is Step.RELEASE


def overridden() -> Iterator[Situation]:
    """A person has set the other action, and the status says so, or does not yet."""
    for action, told in itertools.product((Action.CORDON, Action.DRAIN), (False, True)):
        decided = Action.DRAIN if action is Action.CORDON else Action.CORDON
        spec = replace(SPEC, action=action, intent_action=decided)
        status = QuarantineStatus(Phase.CORDONED)
        if told:
            status = replace(status, override=describe_override(spec))
        for stopped, in_force in itertools.product((False, True), (Action.CORDON, Action.DRAIN)):
            yield Situation(
                Quarantine("n1", "q", "1", spec, status),
                in_record=True,
                wanted=DesiredState(replace(SPEC, action=in_force), in_force, in_force),
                mode=Action.DRAIN,
                knows=True,
                fresh=True,
                recovered=False,
                stopped=stopped,
            )


def test_an_action_that_a_person_set_is_shown_first_and_then_is_all_that_is_done() -> None:
    for now in overridden():
        assert now.quarantine is not None
        step, status, spec = next_step(now), now.quarantine.status, now.quarantine.spec
        if not status.override:
            assert step.do is Step.OVERRIDE  # it is shown while the stop switch is set, too
        elif now.stopped:
            assert step.do in (Step.NOTHING, Step.HOLD)
        elif spec.action is Action.CORDON:
            assert step.do is Step.NOTHING
        else:
            assert step.do is Step.DRAIN


# -- the same on the real controller ---------------------------------------------------------------


async def test_an_entry_from_before_the_stop_is_not_acted_on_until_the_stop_is_off() -> None:
    world = World.of("n1")
    entered = Record().enter([Entry("n1", "inc", "", 1.0)])
    world.record = RecordText(dump_record(entered), world.tick())
    world.person_stops("drill")
    replica = await Replica(world, clock=Turned()).ready()
    replica.agent("n1", snapshot(fault()))
    await until(lambda: replica.fleet.node_summaries["n1"].decision.hold)
    hold = present(replica.fleet.node_summaries["n1"].decision.hold)
    assert (hold.limit, hold.value) == ("stop", "drill")
    assert world.writes == []
    world.person_stops("")
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)


async def test_a_hand_made_object_that_was_mended_is_cordoned_before_it_is_drained() -> None:
    world = World.of("n1")
    world.add_pod("n1", "a")
    by_hand = QuarantineSpec(Action.DRAIN, "manual", "smells of smoke")
    wrong = Quarantine("n1", "q-1", "0", by_hand, QuarantineStatus(), problem="no such action")
    await Replica(world, clock=Turned()).ready()
    world.put_quarantine(wrong)
    await until(lambda: phase_of(world, "n1") is Phase.INVALID)
    world.put_quarantine(replace(world.quarantines["n1"], problem=""))
    await until(lambda: world.evicted)
    assert world.writes.index("patch n1") < world.writes.index("evict uid-a")
    assert world.nodes["n1"].unschedulable


@pytest.mark.parametrize("how", ["read again", "deleted by a person"])
async def test_a_node_whose_status_a_later_version_wrote_is_left_alone_and_counted(
    how: str,
) -> None:
    world = World.of("n1")
    replica = await Replica(world, clock=Turned()).ready()
    await replica.agent_brings("n1", snapshot(fault()), Phase.DRAINED)
    attempt = RepairAttempt("q-1", "reboot", RepairState.ORDERED, began_at=1.0)
    later = replace(
        world.quarantines["n1"],
        unread="status: Invalid enum value 'Paused'",
        unread_fields=frozenset({"repair"}),
    )
    world.put_quarantine(later)
    world.add_pod("n1", "a")
    summary = replica.fleet.node_summaries["n1"]
    await until(lambda: summary.decision.hold is not None)
    written, before = [one for one in world.writes if " n1" in one], world.nodes["n1"]
    replica.agent("n1", Delta(cleared=(Cleared("xid:79", "GPU-1", "operator"),)))
    replica.evaluate_due()
    replica.clock.time += 5000  # it would be recovered, and released
    replica.agent("n1", Delta())
    world.person_annotates("n1", EXEMPT, "until 2100-01-01T00:00:00Z x")
    world.add_node("n2")
    replica.agent("n2", snapshot(fault()))
    await until(lambda: phase_of(world, "n2") is Phase.DRAINED)  # a later step has been taken
    hold = present(summary.decision.hold)
    assert (hold.limit, hold.value) == ("unread-status", "repair")
    told = [one for one in replica.notes.transitions if one.details.get("limit") == hold.limit]
    assert [one.kind for one in told] == [EventKind.HELD]
    assert "Invalid enum value 'Paused'" in told[0].summary
    assert [one for one in world.writes if " n1" in one] == written
    assert world.nodes["n1"].taints == before.taints
    assert not world.evicted
    assert '"n1"' in world.record.text
    if how == "read again":
        status = replace(later.status, repair=RepairStatus((attempt,)))
        world.put_quarantine(replace(later, status=status, unread="", unread_fields=frozenset()))
        await until(lambda: summary.decision.hold is None)
    else:
        world.person_deletes("n1")
        await until(lambda: "n1" not in world.quarantines)
        assert not world.nodes["n1"].unschedulable
