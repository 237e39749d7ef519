"""The next step, over every combination of what it depends on."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from aggregator.quarantine.cluster import (
    Action,
    EvidenceItem,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RecordText,
)
from aggregator.quarantine.decide.intent import OURS, Wanted
from aggregator.quarantine.decide.record import Entry, Record, dump_record
from aggregator.quarantine.decide.steps import Do, Situation, Step, next_step
from aggregator.quarantine.decide.wishes import FORCED
from tests.support.memorycluster import World, phase_of
from tests.support.replica import Replica, Turned, fault, snapshot
from tests.support.waiting import until

ITEM = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "gpu-gone", "inc-1")
SPEC = QuarantineSpec(Action.DRAIN, "gpu", "xid:79", OURS, "inc-1", "boot-1", "h", (ITEM,))
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


def wanted(action: Action, in_force: Action = Action.DRAIN) -> Wanted:
    return Wanted(replace(SPEC, action=action), Action.DRAIN, in_force)


def quarantines() -> Iterator[Quarantine | None]:
    yield None
    for phase, requester, action, deleting in itertools.product(
        Phase, (OURS, "alice"), (Action.CORDON, Action.DRAIN), (False, True)
    ):
        spec = replace(SPEC, requester=requester, action=action)
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


def situations(quarantine: Quarantine | None) -> Iterator[Situation]:
    wishes = (
        None,
        wanted(Action.OBSERVE),
        wanted(Action.CORDON),
        wanted(Action.DRAIN),
        wanted(Action.DRAIN, Action.CORDON),
        wanted(Action.DRAIN, Action.OBSERVE),
    )
    for wish, mode in itertools.product(wishes, Action):
        for values in itertools.product((False, True), repeat=len(FLAGS)):
            flags: dict[str, Any] = dict(zip(FLAGS, values, strict=True))
            if flags["recovered"] and (not flags["fresh"] or wish is not None):
                continue  # case.py: recovered means that nothing asks and the agent says so
            if wish is not None and wish.spec.action.strength > mode.strength:
                continue  # the mode's cap comes before
            if flags["reborn"] and not flags["node_replaced"]:
                continue  # case.py: another boot of another Node
            yield Situation(quarantine=quarantine, wanted=wish, mode=mode, **flags)


@pytest.mark.parametrize(
    "quarantine",
    [
        pytest.param(
            one,
            id="none"
            if one is None
            else f"{one.status.phase}-{one.spec.requester}-{one.spec.action}"
            f"{'-deleting' * one.deleting}{'-invalid' * bool(one.problem)}",
        )
        for one in quarantines()
    ],
)
def test_every_situation_has_its_step(quarantine: Quarantine | None) -> None:
    for now in situations(quarantine):
        step = next_step(now)
        check_rules(now, step)


def check_rules(now: Situation, step: Step) -> None:
    quarantine = now.quarantine
    if quarantine is None:
        check_without_object(now, step)
        return
    phase, ours = quarantine.status.phase, quarantine.spec.requester == OURS
    assert step.do not in (Do.PROPOSE, Do.CREATE, Do.FORGET)
    if now.definition_going:
        # An uninstall releases nobody by accident.
        assert step.do is (Do.LET_GO if quarantine.deleting else Do.NOTHING)
        return
    # Release is never held: not by the stop switch, the mode, a conflict, a limit or the record.
    if phase is Phase.RELEASING:
        assert step.do is Do.UNDO
        return
    if quarantine.deleting:
        assert step == Step(Do.RELEASE, "deleted by a person", overruled=True)
        return
    if quarantine.problem:
        assert step.do in (Do.REFUSE, Do.NOTHING)
        assert (step.do is Do.NOTHING) == (phase is Phase.INVALID)
        return
    if now.uncordoned:
        assert step.do is Do.RELEASE
        assert step.overruled
        return
    if ours and now.recovered:
        assert step == Step(Do.RELEASE, "recovered")
        return
    if ours and now.reborn:
        assert step.do is Do.RELEASE
        assert not step.overruled
        return
    # From here on nothing ends it.
    assert step.do not in (Do.RELEASE, Do.UNDO, Do.LET_GO)
    if now.conflict:
        assert step.do is Do.NOTHING  # nothing new is done to a node that two agents claim
    elif not now.in_record:
        # It acts only while its entry stands; a name that is no node's is not counted, and what was
        # made late, by who was superseded, is taken back.
        late = ours and quarantine.status.phase in (Phase.ADMITTED, Phase.INVALID)
        unfounded = now.node_gone and not ours
        assert step.do is (Do.NOTHING if unfounded else Do.VOID if late else Do.ENTER)
    elif now.stopped:
        assert step.do in (Do.NOTHING, Do.UPDATE)  # what is known is written, nothing is done
    if step.do in (Do.CORDON, Do.DRAIN):
        assert not (ours and now.maintained)  # nothing is done beside somebody else
    if step.do is Do.DRAIN:
        assert now.mode is Action.DRAIN
        assert quarantine.spec.action is Action.DRAIN
        assert now.in_record
        assert phase in (Phase.CORDONED, Phase.DRAINING)  # never a node that is not marked
        assert not now.node_gone
        # Not before the agent has spoken, or been silent for so long that what is durable counts.
        assert now.knows or not ours
        # Not while nothing is in force that asks for it: evictions stop when the cause clears.
        if ours and now.wanted is not None:
            assert now.wanted.in_force is Action.DRAIN
        assert not (ours and now.wanted is None and now.fresh)
    if step.do is Do.CORDON:
        assert not now.node_gone
        assert phase in (Phase.ADMITTED, Phase.INVALID) or now.node_replaced
    if step.do is Do.UPDATE:
        assert ours


def check_without_object(now: Situation, step: Step) -> None:
    acts = (
        now.wanted is not None
        and now.wanted.spec.action is not Action.OBSERVE
        and now.wanted.in_force is not Action.OBSERVE
    )
    assert step.do in (Do.NOTHING, Do.PROPOSE, Do.CREATE, Do.FORGET)
    if now.conflict or now.definition_going:
        assert step.do is Do.NOTHING
    elif step.do is Do.CREATE:
        assert acts
        assert now.in_record
        assert not now.stopped
    elif step.do is Do.PROPOSE:
        assert acts
        assert now.stopped or not now.in_record  # admission says what a stop holds
    elif step.do is Do.FORGET:
        assert now.in_record
        assert now.fresh or now.node_gone
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
            look_later=later,
        )


def test_what_waits_for_its_release_evicts_nobody_and_is_looked_at_again() -> None:
    for now in held_releases():
        step = next_step(now)
        assert step.do is not Do.DRAIN
        ill = now.wanted is not None and now.wanted.in_force is not Action.OBSERVE
        assert (step.do is Do.UNHOLD) == ill
        if now.recovered:
            assert step.do is Do.NOTHING
            assert next_step(replace(now, look_later=False)) == Step(Do.RELEASE, "recovered")
        # A person's word waits for nothing.
        assert next_step(replace(now, uncordoned=True)).overruled


def asked_for_by_people() -> Iterator[Situation]:
    forced = replace(SPEC, requester=FORCED, evidence=())
    objects = [None] + [
        Quarantine("n1", "q", "1", replace(spec, action=action), QuarantineStatus(phase))
        for spec in (SPEC, forced)
        for action in (Action.CORDON, Action.DRAIN)
        for phase in Phase
        if phase not in (Phase.RELEASING, Phase.INVALID)
    ]
    forces = (None, Action.CORDON, Action.DRAIN)
    for quarantine, force in itertools.product(objects, forces):
        for stopped, conflict, unforced, exempt in itertools.product((False, True), repeat=4):
            if force and (unforced or exempt):
                continue  # wishes.py: an exemption is heard before a force
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
            assert (step.do is Do.FORCE) == (asked and not now.stopped and not now.conflict)
        if quarantine is not None and not ours:
            assert (step.do is Do.RELEASE) == now.unforced
        if quarantine is not None and ours:
            untouched = quarantine.status.phase is Phase.ADMITTED
            assert (step.do is Do.RELEASE) == (now.exempt and untouched)
        if now.exempt and ours:
            assert step.do in (Do.NOTHING, Do.RELEASE)


def test_every_step_is_reached() -> None:
    plain = [now for quarantine in quarantines() for now in situations(quarantine)]
    reached = {next_step(now).do for now in (*plain, *asked_for_by_people(), *held_releases())}
    assert reached == set(Do)


def test_a_drain_whose_recorded_cause_is_over_does_not_go_on_for_a_silent_agent() -> None:
    over = replace(SPEC, evidence=(replace(ITEM, cleared="operator"),))
    for spec, goes_on in ((SPEC, True), (over, False)):
        quarantine = Quarantine("n1", "q", "1", spec, QuarantineStatus(Phase.DRAINING))
        now = Situation(
            quarantine,
            in_record=True,
            wanted=None,
            mode=Action.DRAIN,
            knows=True,
            fresh=False,
            recovered=False,
        )
        assert (next_step(now).do is Do.DRAIN) is goes_on


@pytest.mark.parametrize("mode", list(Action))
@pytest.mark.parametrize("requester", [OURS, "alice"])
def test_what_was_admitted_and_not_begun_is_not_begun_in_mode_observe(
    mode: Action, requester: str
) -> None:
    spec = replace(SPEC, requester=requester)
    now = Situation(
        Quarantine("n1", "q", "1", spec, QuarantineStatus(Phase.ADMITTED)),
        in_record=True,
        wanted=Wanted(replace(SPEC, action=mode), Action.DRAIN, Action.DRAIN),
        mode=mode,
        knows=True,
        fresh=True,
        recovered=False,
    )
    begun = mode is not Action.OBSERVE or requester != OURS  # a person's own word is no rule's
    assert next_step(now).do is (Do.CORDON if begun else Do.NOTHING)
    again = replace(now, node_replaced=True, quarantine=with_phase(now, Phase.DRAINED))
    assert next_step(again).do is (Do.CORDON if begun else Do.NOTHING)


def with_phase(now: Situation, phase: Phase) -> Quarantine:
    assert now.quarantine is not None
    return replace(now.quarantine, status=QuarantineStatus(phase))


# -- the same on the real controller ---------------------------------------------------------------


async def test_an_entry_from_before_the_stop_is_not_acted_on_until_the_stop_is_off() -> None:
    world = World()
    world.add_node("n1")
    entered = Record().enter([Entry("n1", "inc", "", "drain", 1.0)], "h")
    world.record = RecordText(dump_record(entered), world.tick(), "drill")
    replica = Replica(world, clock=Turned())
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", snapshot(fault()))
    await until(lambda: replica.fleet.patients["n1"].hold)
    hold = replica.fleet.patients["n1"].hold
    assert hold is not None
    assert (hold.limit, hold.value) == ("stop", "drill")
    assert world.writes == []
    world.person_stops("")
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    await replica.stop()


async def test_a_hand_made_object_that_was_mended_is_cordoned_before_it_is_drained() -> None:
    world = World()
    world.add_node("n1")
    world.add_pod("n1", "a")
    by_hand = QuarantineSpec(Action.DRAIN, "manual", "smells of smoke")
    wrong = Quarantine("n1", "q-1", "0", by_hand, QuarantineStatus(), problem="no such action")
    replica = Replica(world, clock=Turned())
    await until(lambda: not replica.fleet.view_lost)
    world.put_quarantine(wrong)
    await until(lambda: phase_of(world, "n1") is Phase.INVALID)
    world.put_quarantine(replace(world.quarantines["n1"], problem=""))
    await until(lambda: world.evicted)
    assert world.writes.index("patch n1") < world.writes.index("evict uid-a")
    assert world.nodes["n1"].unschedulable
    await replica.stop()
