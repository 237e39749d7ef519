"""The state of one node, method by method: no replica, no cluster."""

import asyncio
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.cluster.node_names import APPLIED, CODES, LABEL, TAINT
from aggregator.cluster.port import (
    Action,
    MarksStatus,
    Node,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
    Taint,
)
from aggregator.health.model import Cleared, Component, Fault, Status
from aggregator.health.node import REMEMBERED, NodeHealth
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.lost_marks import ALL_MARKS, RestoreRules
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, NONE, PIN
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.uncordon import (
    MOST_RECORDONS,
    OnUncordon,
    Uncordoned,
    UncordonRules,
)
from aggregator.quarantine.reconcile.admission import AdmissionReconciler
from aggregator.quarantine.reconcile.drain import DrainReconciler
from aggregator.quarantine.reconcile.operations import OperationReconciler
from aggregator.quarantine.reconcile.plan_inputs import PlanInputs
from aggregator.quarantine.reconcile.quarantine import QuarantineReconciler
from aggregator.quarantine.reconcile.release import ReleaseReconciler
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.quarantine.state.node import NodeState, _joined
from aggregator.quarantine.state.quarantine_view import MARKED
from tests.support.node_states import set_fields, state_of, summary_of
from tests.support.replica import POLICY, all_in_mode, component, fault, hello, snapshot

NOW = 500.0
WORD = Override("xid:79", "GPU-1", "boot-1", "reboot")
OTHER_WORD = Override("xid:95", "GPU-2", "boot-1", "reboot")
SIGN = Cleared("xid:79", "GPU-1", "operator")
EVIDENCE = Evidence("xid:79", "GPU-1", "boot-1", "gpu", "drain", "", None, 1.0)


def state(**fields: Any) -> Any:
    return state_of("n1", lambda: NOW, **fields)


def health(*evidence: Fault | Component) -> NodeHealth:
    found = NodeHealth(hello("n1"))
    found.snapshot(snapshot(*evidence))
    return found


def fresh(*evidence: Fault | Component) -> Any:
    return state(health=health(*evidence), attached=True)


def quarantine(
    phase: Phase = Phase.CORDONED, *, uid: str = "q", version: str = "5", **changes: Any
) -> Quarantine:
    names = set(Quarantine.__dataclass_fields__)
    own = {name: changes.pop(name) for name in list(changes) if name in names}
    requester = changes.pop("requester", OURS)
    spec = QuarantineSpec(Action.DRAIN, "gpu", "x", requester)
    status = QuarantineStatus(phase=phase, **{"node_uid": "u1", **changes})
    return replace(Quarantine("n1", uid, version, spec, status), **own)


def node(**changes: Any) -> Node:
    bare = Node("n1", "u1", "1", unschedulable=False, taints=(), labels={}, annotations={})
    return replace(bare, **changes)


def marked_node(**changes: Any) -> Node:
    notes = {APPLIED: '{"unschedulable": true, "value": "gpu"}', CODES: "xid:79"}
    full = node(
        unschedulable=True,
        taints=(Taint(TAINT, "gpu", "NoSchedule"),),
        labels={LABEL: "gpu"},
        annotations=notes,
    )
    return replace(full, **changes)


def incident(action: str = "drain", **changes: Any) -> Incident:
    base = Incident("i", "n1", "boot-1", "gpu", action, "bad", 10.0, (EVIDENCE,), 60.0)
    return replace(base, **changes)


# -- the page's colours ---------------------------------------------------------------------------


HELD = Held("stop", "set", "x", since=1.0)
WELL = component("xid", "", Status.OK)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"marked": True}, QuarantineSummary.QUARANTINED),
        ({"unclaimed": "x"}, QuarantineSummary.QUARANTINED),
        ({"quarantine": quarantine()}, QuarantineSummary.QUARANTINED),
        ({"hold": HELD}, QuarantineSummary.HELD),
        ({"would": "drain"}, QuarantineSummary.HELD),
        ({}, QuarantineSummary.UNKNOWN),
        ({"health": health(WELL)}, QuarantineSummary.SILENT),
        ({"health": health(WELL), "attached": True, "refused": "x"}, QuarantineSummary.SILENT),
        ({"health": health(WELL), "attached": True}, QuarantineSummary.OK),
        ({"health": health(WELL), "attached": True, "conflict": "two"}, QuarantineSummary.WARNING),
        (
            {"health": health(WELL), "attached": True, "incidents": {"i": incident()}},
            QuarantineSummary.WARNING,
        ),
        (
            {"health": health(component("xid", "", Status.DEGRADED, "slow")), "attached": True},
            QuarantineSummary.WARNING,
        ),
        (
            {"health": health(component("xid", "", Status.UNKNOWN, "x")), "attached": True},
            QuarantineSummary.UNKNOWN,
        ),
    ],
)
def test_a_node_is_shown_by_the_worst_that_is_known_of_it(
    fields: dict[str, Any], expected: QuarantineSummary
) -> None:
    assert summary_of("n1", **fields).state() is expected


# -- its agent ------------------------------------------------------------------------------------


def test_a_node_was_heard_with_its_first_snapshot_and_is_fresh_while_its_agent_is_attached() -> (
    None
):
    node_state = state(attached=True)
    assert (node_state.agent.was_received, node_state.agent.is_fresh) == (False, False)
    node_state.agent.health = NodeHealth(hello("n1"))
    assert (node_state.agent.was_received, node_state.agent.is_fresh) == (False, False)
    node_state.agent.health = health()
    assert (node_state.agent.was_received, node_state.agent.is_fresh) == (True, True)
    node_state.agent.attached = False
    assert (node_state.agent.was_received, node_state.agent.is_fresh) == (True, False)


def test_an_incident_that_is_only_observed_does_not_act() -> None:
    node_state = state()
    assert not node_state.acting
    node_state.decision.incidents = {"i": incident("observe")}
    assert not node_state.acting
    node_state.decision.incidents = {"i": incident("observe"), "j": incident("cordon")}
    assert node_state.acting


# -- the object -----------------------------------------------------------------------------------


def test_an_older_version_counts_unless_news_came_while_it_was_read() -> None:
    node_state, new, old = state(), quarantine(version="7"), quarantine(version="6")
    node_state.take_read(new, POLICY, NOW, before=None)
    node_state.take_read(old, POLICY, NOW, before=new)
    assert node_state.quarantine is old, "a restored etcd counts backwards"
    node_state.take_read(new, POLICY, NOW, before=old)
    node_state.take_read(old, POLICY, NOW, before=old)
    assert node_state.quarantine is new, "the news came later than what was read"
    another = quarantine(uid="q2", version="1")
    node_state.take_read(another, POLICY, NOW, before=old)
    assert node_state.quarantine is another


@pytest.mark.parametrize(
    ("seen", "taken"),
    [
        (quarantine(), True),
        (quarantine(deleting=True), True),
        (quarantine(deleting=True, has_finalizer=False), False),
        (quarantine(has_finalizer=False), True),
    ],
)
def test_one_that_had_ended_is_there_again_unless_it_is_about_to_go(
    seen: Quarantine, *, taken: bool
) -> None:
    node_state = state()
    node_state.quarantine_view.ended = "q"
    node_state.take_quarantine(seen, POLICY, NOW)
    assert node_state.quarantine is None, "news of it come late"
    node_state.take_read(seen, POLICY, NOW, before=None)
    assert (node_state.quarantine is not None) == taken
    assert (node_state.quarantine_view.ended == "") == taken


def test_another_object_brings_nothing_of_the_one_before_it() -> None:
    told = MarksStatus(missing=("taint",), since=1.0)
    node_state = state(release_held="its GPU is missing", missing=("label",))
    node_state.quarantine_view.quarantine = quarantine()
    node_state.quarantine_view.release_poll = 9.0
    set_fields(node_state, orphan="x", vanished="x", unclaimed="x")
    set_fields(node_state, to_adopt=True, remains=quarantine().spec)
    node_state.take_quarantine(quarantine(version="6", marks=told), POLICY, NOW)
    assert (node_state.quarantine_view.release_held, node_state.quarantine_view.release_poll) == (
        "its GPU is missing",
        9.0,
    )
    assert node_state.quarantine_view.missing == ("label",), (
        "the node's last read is newer than its object"
    )
    assert (
        node_state.quarantine_view.orphan,
        node_state.quarantine_view.vanished,
        node_state.quarantine_view.unclaimed,
    ) == ("", "", "")
    assert (node_state.quarantine_view.to_adopt, node_state.quarantine_view.remains) == (
        False,
        None,
    )
    node_state.take_quarantine(quarantine(uid="q2", marks=told), POLICY, NOW)
    assert (node_state.quarantine_view.release_held, node_state.quarantine_view.release_poll) == (
        "",
        0.0,
    )
    assert node_state.quarantine_view.missing == ("taint",)


def test_what_the_object_says_is_news_unless_we_know_that_version_or_a_later_one() -> None:
    node_state = state()
    assert node_state.is_news(quarantine())
    node_state.quarantine_view.quarantine = quarantine(version="5")
    assert not node_state.is_news(quarantine(version="5"))
    assert not node_state.is_news(quarantine(version="4"))
    assert node_state.is_news(quarantine(version="6"))
    assert node_state.is_news(quarantine(uid="q2", version="4"))


def test_the_deletion_of_the_last_operation_is_news_at_the_same_version() -> None:
    attempt = RepairAttempt("o", "reboot", RepairState.ORDERED)
    ordered, cancelled = (
        RepairStatus(attempts=(one,)) for one in (attempt, replace(attempt, deleted=True))
    )
    node_state = state()
    node_state.quarantine_view.quarantine = quarantine(version="5", repair=ordered)
    assert node_state.is_news(quarantine(version="5", repair=cancelled))
    assert not node_state.is_news(quarantine(version="4", repair=cancelled))
    for stale in (ordered, RepairStatus()):  # an event that is behind our own write
        assert not node_state.is_news(quarantine(version="5", repair=stale))
    other = RepairStatus(attempts=(replace(attempt, operation="before", deleted=True),))
    assert not node_state.is_news(quarantine(version="5", repair=other))
    node_state.quarantine_view.quarantine = quarantine(version="5", repair=cancelled)
    assert not node_state.is_news(quarantine(version="5", repair=cancelled))


def test_what_was_written_is_known_unless_it_has_ended() -> None:
    node_state = state()
    node_state.quarantine_view.ended = "q"
    node_state.wrote(quarantine())
    assert node_state.quarantine is None
    node_state.wrote(quarantine(uid="q2"))
    assert node_state.quarantine is not None


def test_what_goes_with_its_definition_is_made_again_unless_it_was_being_released() -> None:
    node_state, released = state(), state()
    node_state.quarantine_view.lose_definition(quarantine())
    assert (
        node_state.quarantine_view.orphan,
        node_state.quarantine_view.to_adopt,
        node_state.quarantine_view.remains,
    ) == ("", True, quarantine().spec)
    released.quarantine_view.lose_definition(quarantine(Phase.RELEASING))
    view = released.quarantine_view
    assert (view.orphan, view.to_adopt, view.remains) == ("q", False, None)
    assert node_state.quarantine_view.definition_going
    assert view.definition_going


# -- its node -------------------------------------------------------------------------------------


MAINTAINED = {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}
EXEMPTED = {EXEMPT: "until 2100-01-01T00:00:00Z x"}


def test_a_picture_says_nothing_new_where_all_that_it_shows_is_known() -> None:
    node_state = state()
    assert node_state.bears_out(node())
    assert not node_state.bears_out(None)
    assert not node_state.bears_out(marked_node())
    assert not node_state.bears_out(node(labels=MAINTAINED))
    assert not node_state.bears_out(node(annotations=EXEMPTED))
    for name in ("node_gone", "misnamed"):
        set_fields(node_state, **{name: True})
        assert not node_state.bears_out(node()), name
        set_fields(node_state, **{name: False})
    node_state.agent.claimed = "u2"
    assert not node_state.bears_out(node())
    node_state.agent.claimed = "u1"
    assert node_state.bears_out(node())
    node_state.quarantine_view.quarantine = quarantine()
    assert not node_state.bears_out(node())
    node_state.quarantine_view.quarantine = None
    node_state.cluster.maintained = "its GPU driver is being upgraded"
    assert not node_state.bears_out(node()), "they have ended"
    node_state.take_node(node(labels=MAINTAINED))
    assert not node_state.bears_out(node(labels=MAINTAINED)), "others are at work: a read decides"
    node_state.take_node(node())
    node_state.cluster.overruled = frozenset({WORD})
    assert not node_state.bears_out(node())


def test_a_read_that_finds_no_node_leaves_nothing_of_what_stood_on_it() -> None:
    node_state = state(foreign="x", maintained="x", marked=True)
    node_state.agent.claimed = "u2"
    node_state.take_node(node(annotations=EXEMPTED))
    assert (
        node_state.cluster.node_gone,
        node_state.cluster.node_found,
        node_state.agent.misnamed,
    ) == (
        False,
        True,
        True,
    )
    assert node_state.cluster.operator_requests_known
    assert node_state.cluster.operator_requests != NONE
    set_fields(node_state, node_replaced=True, uncordoned=Uncordoned.PERSON, reborn="boot-2")
    node_state.cluster.foreign = node_state.cluster.maintained = "x"
    node_state.take_node(None)
    assert (
        node_state.cluster.node_gone,
        node_state.cluster.node_found,
        node_state.agent.misnamed,
    ) == (
        True,
        False,
        False,
    )
    assert (
        node_state.quarantine_view.node_replaced,
        node_state.quarantine_view.uncordoned,
        node_state.quarantine_view.reborn,
    ) == (False, Uncordoned.NO, "")
    assert (node_state.cluster.foreign, node_state.cluster.maintained) == ("", "")
    assert (node_state.cluster.operator_requests, node_state.cluster.operator_requests_known) == (
        NONE,
        False,
    )
    assert not node_state.cluster.marked
    assert node_state.cluster.read_at == NOW


@pytest.mark.parametrize("phase", list(Phase))
def test_only_of_a_node_that_was_marked_it_is_told_what_it_lacks(phase: Phase) -> None:
    node_state = state(quarantine=quarantine(phase))
    node_state.take_node(node())
    assert (node_state.quarantine_view.missing == ALL_MARKS[:4]) == (phase in MARKED)
    assert (node_state.quarantine_view.uncordoned is not Uncordoned.NO) == (phase in MARKED)
    node_state.take_node(node(uid="u2"))
    assert node_state.quarantine_view.node_replaced == (phase in MARKED)
    assert node_state.quarantine_view.uncordoned is Uncordoned.NO


def test_the_condition_trails_and_all_else_that_a_node_lacks_does_not() -> None:
    node_state, without = state(), marked_node(condition="False")
    assert node_state.quarantine_view.lacks(marked_node(condition="True"), quarantine()) == ()
    assert node_state.quarantine_view.condition_seen
    node_state.quarantine_view.condition_seen = False
    assert node_state.quarantine_view.lacks(without, quarantine()) == ("condition",)
    assert not node_state.quarantine_view.condition_seen
    set_fields(node_state, trail=True)
    assert node_state.quarantine_view.lacks(without, quarantine()) == (), "it is being written"
    assert node_state.quarantine_view.lacks(replace(without, labels={}), quarantine()) == ("label",)
    assert node_state.quarantine_view.lacks(replace(without, uid="u2"), quarantine()) == ALL_MARKS
    node_state.quarantine_view.condition_seen = True
    node_state.quarantine_view.lacks(without, quarantine())
    assert not node_state.quarantine_view.condition_seen, (
        "it was removed while it trailed: the round after reads again"
    )


def test_the_condition_trails_for_two_rounds_after_it_was_written() -> None:
    async def test() -> None:
        node_state = state(quarantine=quarantine())
        assert not node_state.quarantine_view.age_trail()
        gate = asyncio.Event()

        async def write() -> None:
            await gate.wait()

        set_fields(node_state, trail=asyncio.create_task(write()), trail_aged=True)
        assert not node_state.quarantine_view.age_trail()
        assert not node_state.quarantine_view.trail_aged
        gate.set()
        await node_state.quarantine_view.trail
        assert not node_state.quarantine_view.age_trail()
        assert node_state.quarantine_view.trail is not None
        assert node_state.quarantine_view.age_trail(), "a marked node was not seen with it"
        assert node_state.quarantine_view.trail is None
        assert not node_state.quarantine_view.trail_aged
        for seen, phase in ((True, Phase.CORDONED), (False, Phase.ADMITTED)):
            set_fields(node_state, condition_seen=seen, quarantine=quarantine(phase))
            trail = asyncio.create_task(write())
            set_fields(node_state, trail=trail, trail_aged=True)
            await trail
            assert not node_state.quarantine_view.age_trail()
            assert node_state.quarantine_view.trail is None
        set_fields(node_state, quarantine=None, condition_seen=False)
        trail = asyncio.create_task(write())
        set_fields(node_state, trail=trail, trail_aged=True)
        await trail
        assert not node_state.quarantine_view.age_trail()

    asyncio.run(test())


# -- people's words -------------------------------------------------------------------------------


def test_new_wishes_are_told_once_and_their_end_too() -> None:
    node_state = state()
    assert node_state.show_requests(1.0) == ()
    node_state.take_node(node(annotations={PIN: "mine"}))
    assert node_state.show_requests(1.0) == ("pinned: mine",)
    assert node_state.show_requests(1.0) == ()
    assert not node_state.decision.exempt
    node_state.take_node(node(annotations={PIN: "mine", **EXEMPTED}))
    assert node_state.show_requests(1.0) == ("exempt until 2100-01-01T00:00:00Z: x",)
    assert node_state.decision.exempt
    node_state.take_node(node(annotations={PIN: "mine"}))
    assert node_state.show_requests(1.0) == (), "something is still asked of it"
    node_state.take_node(node())
    assert node_state.show_requests(1.0) == ("no request of a person is on it any more",)
    assert node_state.decision.requests == ()


def test_signs_are_kept_for_a_word_that_is_not_read_yet() -> None:
    node_state = state(overruled=frozenset({OTHER_WORD}))
    node_state.cluster.take_signs((SIGN,), node_read=True)
    assert node_state.cluster.signs == ()
    node_state.cluster.take_signs((SIGN,), node_read=False)
    node_state.cluster.take_signs((SIGN,), node_read=False)
    assert node_state.cluster.signs == (SIGN, SIGN)
    node_state.cluster.take_overruled(frozenset({WORD, OTHER_WORD}))
    assert node_state.cluster.overruled == {OTHER_WORD}
    assert node_state.cluster.ended_overrides == {WORD}
    assert node_state.cluster.signs == ()
    node_state.cluster.take_overruled(frozenset({WORD, OTHER_WORD}))
    assert node_state.cluster.overruled == {OTHER_WORD}, "it stays over while the node remembers it"
    node_state.cluster.take_overruled(frozenset({OTHER_WORD}))
    assert node_state.cluster.ended_overrides == frozenset()
    for _ in range(REMEMBERED + 5):
        node_state.cluster.take_signs((SIGN,), node_read=False)
    assert len(node_state.cluster.signs) == REMEMBERED


def test_what_is_evaluated_of_a_silent_node_is_what_was_known_and_what_silence_adds() -> None:
    node_state = state()
    assert node_state.evaluate(POLICY, Action.DRAIN, NOW) == ([], None)
    node_state = fresh(component("xid", "", Status.OK))
    node_state.evaluate(POLICY, Action.DRAIN, NOW)
    assert node_state.decision.incidents == {}
    node_state.agent.attached = False
    node_state.agent.silent_failing, node_state.agent.silent_failing_since = "disk", 400.0
    node_state.evaluate(POLICY, Action.DRAIN, NOW, silent_action="cordon")
    (found,) = node_state.decision.incidents.values()
    assert (found.action, found.since) == ("cordon", 400.0)
    assert node_state.decision.wanted is not None
    assert node_state.decision.wanted.spec.action is Action.CORDON


def test_a_word_ends_with_what_it_is_about_only_while_the_agent_speaks() -> None:
    level = Override("xid:lost", "", "", "")
    for attached in (True, False):
        node_state = fresh(component("xid", "", Status.OK))
        node_state.agent.attached = attached
        node_state.cluster.overruled = frozenset({level})
        node_state.evaluate(POLICY, Action.DRAIN, NOW)
        assert (level in node_state.cluster.ended_overrides) == attached
        assert (level in node_state.cluster.overruled) != attached


# -- what is decided on ---------------------------------------------------------------------------

CONFIRM = UncordonRules(OnUncordon.CONFIRM)
RELEASE = UncordonRules(OnUncordon.RELEASE)


def situation(node_state: NodeState, **changes: Any) -> Any:
    """The fields of all reconcilers' views, by their names."""
    given: dict[str, Any] = {
        "mode": Action.DRAIN,
        "patient_enough": False,
        "uncordon": CONFIRM,
        "marks": RestoreRules(),
        "wall": 1000.0,
        **changes,
    }
    parts: Any = SimpleNamespace(
        wanted_now=lambda _: None,
        in_record=lambda _: False,
        is_entered_by_hand=lambda _: False,
        stop="",
        now=lambda: NOW,
        earliest=lambda: given["wall"],
        silent_drain_after=0.0 if given["patient_enough"] else 1.0,
        absent_node_after=1.0,
        holds=lambda _: False,
        holds_release=lambda _: False,
        is_due=lambda _: False,
    )
    pools = all_in_mode(given["mode"])
    inputs = PlanInputs(
        proposals=parts, queue=parts, pools=pools, fleet=parts, clocks=parts, limits=parts
    )
    release = ReleaseReconciler(
        inputs=inputs, release_actions=parts, repairs=parts, uncordon=given["uncordon"]
    )
    own = QuarantineReconciler(
        inputs=inputs,
        objects=parts,
        cordon=parts,
        holds=parts,
        restorer=SimpleNamespace(rules=given["marks"]),  # type: ignore[arg-type]
    )
    found = node_state.quarantine or quarantine(Phase.ADMITTED)
    views: tuple[Any, ...] = (
        release.view(node_state, found),
        OperationReconciler(inputs=inputs, repairs=parts).view(node_state, found),
        own.object_view(node_state, found),
        own.mark_view(node_state, found),
        DrainReconciler(inputs=inputs, drain=parts).view(node_state, found),
        AdmissionReconciler(
            inputs=inputs,
            acts=parts,
            holds=parts,
            cordon=parts,
            objects=parts,
            adopter=parts,
        ).view(node_state),
    )
    return SimpleNamespace(
        **{one.name: getattr(view, one.name) for view in views for one in fields(view)}
    )


def test_evictions_wait_while_an_uncordon_is_not_settled() -> None:
    def waits(uncordoned: Uncordoned, wall: float = 1000.0, **status: Any) -> bool:
        node_state = state(quarantine=quarantine(**status))
        node_state.quarantine_view.uncordoned = uncordoned
        found: bool = situation(node_state, wall=wall).evictions_wait
        return found

    assert not situation(state()).evictions_wait
    assert not waits(Uncordoned.NO)
    assert waits(Uncordoned.UNKNOWN)
    assert not waits(Uncordoned.UNKNOWN, recordons=MOST_RECORDONS + 1)
    assert waits(Uncordoned.NO, 999.0, evictions_held_until=1000.0)
    assert not waits(Uncordoned.NO, 1000.0, evictions_held_until=1000.0)


def test_a_node_is_cordoned_again_when_its_wait_is_over() -> None:
    status: Any = {"recordons": 2, "uncordoned_at": 1000.0}  # the wait is 40 s
    node_state = state(quarantine=quarantine(**status))
    for wall, due in ((1039.0, False), (1040.0, True), (1041.0, True)):
        found = situation(node_state, wall=wall)
        assert (found.recordon, found.recordon_at) == (due, 1040.0)
    free = situation(state(), wall=7.0)
    assert (free.recordon, free.recordon_at) == (True, 7.0)


def test_an_uncordon_is_a_release_by_the_rules_and_only_of_a_quarantine() -> None:
    node_state = state()
    node_state.quarantine_view.uncordoned = Uncordoned.UNKNOWN
    assert not node_state.is_released_by_uncordon(RELEASE)
    assert situation(node_state).schedulable
    node_state.quarantine_view.quarantine = quarantine()
    assert node_state.is_released_by_uncordon(RELEASE)
    assert not node_state.is_released_by_uncordon(CONFIRM)
    node_state.quarantine_view.uncordoned = Uncordoned.NO
    assert not situation(node_state).schedulable


def test_what_holds_a_release_counts_only_while_a_quarantine_stands() -> None:
    node_state = state(release_held="ours")
    assert node_state.release_held == ""
    node_state.quarantine_view.quarantine = quarantine(release_held="its own")
    assert node_state.release_held == "ours"
    node_state.quarantine_view.release_held = ""
    assert node_state.release_held == "its own"
    assert situation(node_state).release_held


def test_missing_marks_are_to_be_told_where_the_object_says_otherwise() -> None:
    node_state = state(missing=("label",))
    assert not situation(node_state).marks_unreported
    for phase in Phase:
        node_state.quarantine_view.quarantine = quarantine(phase)
        assert situation(node_state).marks_unreported == (phase in MARKED)
    node_state.quarantine_view.quarantine = quarantine()
    node_state.cluster.node_gone = True
    assert not situation(node_state).marks_unreported
    node_state.cluster.node_gone = False
    node_state.quarantine_view.quarantine = quarantine(marks=MarksStatus(("label",), since=1.0))
    assert not situation(node_state).marks_unreported


def test_missing_marks_are_set_again_when_their_grace_is_over() -> None:
    told = MarksStatus(("label",), since=900.0)
    node_state = state(missing=("label",))
    assert not situation(node_state).restore_due
    for phase in Phase:
        node_state.quarantine_view.quarantine = quarantine(phase, marks=told)
        assert situation(node_state, wall=960.0).restore_due == (phase in MARKED)
    node_state.quarantine_view.quarantine = quarantine(marks=told)
    assert not situation(node_state, wall=959.0).restore_due
    assert not situation(node_state, marks=RestoreRules(restore_times=0)).restore_due
    node_state.quarantine_view.missing = ()
    assert not situation(node_state).restore_due
    set_fields(node_state, missing=("label",), quarantine=quarantine())
    assert not situation(node_state).restore_due


def test_what_people_ask_caps_the_mode_unless_a_person_made_the_quarantine() -> None:
    node_state = state()
    node_state.take_node(node(annotations={**EXEMPTED, FORCE: "drain x"}))
    assert situation(node_state).mode is Action.OBSERVE
    assert situation(node_state).exempt
    assert situation(node_state).forced is None
    node_state.quarantine_view.quarantine = quarantine()
    assert situation(node_state).mode is Action.OBSERVE
    node_state.quarantine_view.quarantine = quarantine(requester="alice")
    assert situation(node_state).mode is Action.DRAIN
    assert situation(node_state, mode=Action.CORDON).mode is Action.CORDON
    node_state = state()
    assert situation(node_state, mode=Action.CORDON).mode is Action.CORDON


def test_a_force_is_taken_back_where_the_node_is_read_without_it_or_gone() -> None:
    node_state = state()
    assert not situation(node_state).unforced, "nothing is known of the node"
    node_state.take_node(node(annotations={FORCE: "drain x"}))
    assert not situation(node_state).unforced
    assert situation(node_state).forced is Action.DRAIN
    node_state.take_node(node())
    assert situation(node_state).unforced
    node_state.take_node(None)
    assert situation(node_state).unforced


def test_a_situation_says_what_is_known_of_the_node() -> None:
    silent, reporting, ill = state(), fresh(), fresh()
    ill.decision.incidents = {"i": incident()}
    assert not situation(silent).knows
    assert situation(silent, patient_enough=True).knows
    assert situation(reporting).knows
    assert [situation(one).fresh for one in (silent, reporting, ill)] == [False, True, True]
    assert [situation(one).recovered for one in (silent, reporting, ill)] == [False, True, False]
    reporting.agent.attached = False
    assert not situation(reporting).recovered
    assert not situation(reporting).absent_too_long
    for later, look in ((NOW + 1, True), (NOW, False)):
        set_fields(silent, release_poll=later)
        assert situation(silent).poll_later == look


# -- what is remembered and what is heard again ---------------------------------------------------


def test_an_incident_that_was_remembered_joins_the_one_that_is_open() -> None:
    ended = replace(EVIDENCE, over="cleared")
    other = replace(EVIDENCE, code="xid:95")
    joined = _joined(
        incident(healthy_for=60.0, since=10.0, recovering_since=20.0),
        incident("cordon", boot_id="boot-0", healthy_for=90.0, since=5.0, evidence=(ended, other)),
    )
    assert joined.evidence == (ended, other), "its sign, and what is not heard any more"
    assert (joined.since, joined.healthy_for, joined.recovering_since) == (5.0, 90.0, 20.0)
    assert (joined.boot_id, joined.action) == ("boot-0", "drain")
    mine = replace(EVIDENCE, over="rebooted")
    assert _joined(incident(evidence=(mine,)), incident(evidence=(ended,))).evidence == (mine,)


def test_what_is_overruled_is_all_that_it_is_on_and_that_is_not_over() -> None:
    node_state = fresh(fault())
    node_state.evaluate(POLICY, Action.DRAIN, 2000.0)
    assert {word.key for word in node_state.overrule()} == {("xid:79", "GPU-1")}
    assert node_state.overrule(frozenset({OTHER_WORD})) - node_state.overrule() == {OTHER_WORD}
    over = {
        key: replace(one, evidence=tuple(replace(item, over="x") for item in one.evidence))
        for key, one in node_state.decision.incidents.items()
    }
    node_state.decision.incidents = over
    assert node_state.overrule() == frozenset()
