"""What is kept of one node, method by method: no replica, no cluster."""

import asyncio
from dataclasses import replace
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
    Taint,
)
from aggregator.health.model import Cleared, Component, Fault, Status
from aggregator.health.node import REMEMBERED, NodeHealth
from aggregator.policy.incident import Evidence, Incident
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
from aggregator.quarantine.state.decision import NodeHold
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.quarantine.state.node import NodeState, _joined
from aggregator.quarantine.state.quarantine_view import MARKED
from tests.support.node_states import set_fields, summary_of
from tests.support.replica import POLICY, component, fault, hello, snapshot

NOW = 500.0
WORD = Override("xid:79", "GPU-1", "boot-1", "reboot")
OTHER_WORD = Override("xid:95", "GPU-2", "boot-1", "reboot")
SIGN = Cleared("xid:79", "GPU-1", "operator")
EVIDENCE = Evidence("xid:79", "GPU-1", "boot-1", "gpu", "drain", "", None, 1.0)


def state(**fields: Any) -> Any:
    return NodeState(summary_of("n1", **fields), lambda: NOW)


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


HELD = NodeHold("stop", "set", "x", 1.0)
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
    assert summary_of("n1", **fields).standing() is expected


# -- its agent ------------------------------------------------------------------------------------


def test_a_node_was_heard_with_its_first_snapshot_and_is_fresh_while_its_agent_is_attached() -> (
    None
):
    case = state(attached=True)
    assert (case.agent.was_heard, case.agent.is_fresh) == (False, False)
    case.agent.health = NodeHealth(hello("n1"))
    assert (case.agent.was_heard, case.agent.is_fresh) == (False, False)
    case.agent.health = health()
    assert (case.agent.was_heard, case.agent.is_fresh) == (True, True)
    case.agent.attached = False
    assert (case.agent.was_heard, case.agent.is_fresh) == (True, False)


def test_an_incident_that_is_only_observed_does_not_act() -> None:
    case = state()
    assert not case.acting
    case.decision.incidents = {"i": incident("observe")}
    assert not case.acting
    case.decision.incidents = {"i": incident("observe"), "j": incident("cordon")}
    assert case.acting


# -- the object -----------------------------------------------------------------------------------


def test_an_older_version_counts_unless_news_came_while_it_was_read() -> None:
    case, new, old = state(), quarantine(version="7"), quarantine(version="6")
    case.take_read(new, POLICY, NOW, before=None)
    case.take_read(old, POLICY, NOW, before=new)
    assert case.node_summary.quarantine is old, "a restored etcd counts backwards"
    case.take_read(new, POLICY, NOW, before=old)
    case.take_read(old, POLICY, NOW, before=old)
    assert case.node_summary.quarantine is new, "the news came later than what was read"
    another = quarantine(uid="q2", version="1")
    case.take_read(another, POLICY, NOW, before=old)
    assert case.node_summary.quarantine is another


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
    case = state()
    case.own_quarantine_view().ended = "q"
    case.take_quarantine(seen, POLICY, NOW)
    assert case.node_summary.quarantine is None, "news of it come late"
    case.take_read(seen, POLICY, NOW, before=None)
    assert (case.node_summary.quarantine is not None) == taken
    assert (case.quarantine_view.ended == "") == taken


def test_another_object_brings_nothing_of_the_one_before_it() -> None:
    told = MarksStatus(missing=("taint",), since=1.0)
    case = state(release_held="its GPU is missing", missing=("label",))
    case.own_quarantine_view().quarantine = quarantine()
    case.own_quarantine_view().release_look = 9.0
    set_fields(case, orphan="x", vanished="x", unclaimed="x")
    set_fields(case, to_adopt=True, remains=quarantine().spec)
    case.take_quarantine(quarantine(version="6", marks=told), POLICY, NOW)
    assert (case.quarantine_view.release_held, case.quarantine_view.release_look) == (
        "its GPU is missing",
        9.0,
    )
    assert case.quarantine_view.missing == ("label",), (
        "the node's last read is newer than its object"
    )
    assert (
        case.quarantine_view.orphan,
        case.quarantine_view.vanished,
        case.quarantine_view.unclaimed,
    ) == ("", "", "")
    assert (case.quarantine_view.to_adopt, case.quarantine_view.remains) == (False, None)
    case.take_quarantine(quarantine(uid="q2", marks=told), POLICY, NOW)
    assert (case.quarantine_view.release_held, case.quarantine_view.release_look) == (
        "",
        0.0,
    )
    assert case.quarantine_view.missing == ("taint",)
    set_fields(case, missing=(), ours=False)
    case.take_quarantine(quarantine(uid="q2", version="6", marks=told), POLICY, NOW)
    assert case.quarantine_view.missing == ("taint",), "its owner reads the node, and we don't"


def test_what_the_object_says_is_news_unless_we_know_that_version_or_a_later_one() -> None:
    case = state()
    assert case.is_news(quarantine())
    case.own_quarantine_view().quarantine = quarantine(version="5")
    assert not case.is_news(quarantine(version="5"))
    assert not case.is_news(quarantine(version="4"))
    assert case.is_news(quarantine(version="6"))
    assert case.is_news(quarantine(uid="q2", version="4"))


def test_what_was_written_is_known_unless_it_has_ended() -> None:
    case = state()
    case.own_quarantine_view().ended = "q"
    case.wrote(quarantine())
    assert case.node_summary.quarantine is None
    case.wrote(quarantine(uid="q2"))
    assert case.node_summary.quarantine is not None


def test_what_goes_with_its_definition_is_made_again_unless_it_was_being_released() -> None:
    case, released = state(), state()
    case.own_quarantine_view().lose_definition(quarantine())
    assert (
        case.quarantine_view.orphan,
        case.quarantine_view.to_adopt,
        case.quarantine_view.remains,
    ) == ("", True, quarantine().spec)
    released.own_quarantine_view().lose_definition(quarantine(Phase.RELEASING))
    view = released.quarantine_view
    assert (view.orphan, view.to_adopt, view.remains) == ("q", False, None)
    assert case.quarantine_view.definition_going
    assert view.definition_going


# -- its node -------------------------------------------------------------------------------------


MAINTAINED = {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}
EXEMPTED = {EXEMPT: "until 2100-01-01T00:00:00Z x"}


def test_a_picture_says_nothing_new_where_all_that_it_shows_is_known() -> None:
    case = state()
    assert case.bears_out(node())
    assert not case.bears_out(None)
    assert not case.bears_out(marked_node())
    assert not case.bears_out(node(labels=MAINTAINED))
    assert not case.bears_out(node(annotations=EXEMPTED))
    for name in ("unread", "node_gone", "misnamed"):
        set_fields(case, **{name: True})
        assert not case.bears_out(node()), name
        set_fields(case, **{name: False})
    case.agent.claimed = "u2"
    assert not case.bears_out(node())
    case.agent.claimed = "u1"
    assert case.bears_out(node())
    case.own_quarantine_view().quarantine = quarantine()
    assert not case.bears_out(node())
    case.own_quarantine_view().quarantine = None
    case.cluster.maintained = "its GPU driver is being upgraded"
    assert not case.bears_out(node()), "they have ended"
    case.take_node(node(labels=MAINTAINED))
    assert not case.bears_out(node(labels=MAINTAINED)), "others are at work: a read decides"
    case.take_node(node())
    case.cluster.overruled = frozenset({WORD})
    assert not case.bears_out(node())


def test_a_read_that_finds_no_node_leaves_nothing_of_what_stood_on_it() -> None:
    case = state(foreign="x", maintained="x", marked=True)
    case.agent.claimed = "u2"
    case.take_node(node(annotations=EXEMPTED))
    assert (case.cluster.node_gone, case.cluster.node_found, case.agent.misnamed) == (
        False,
        True,
        True,
    )
    assert case.cluster.wishes_known
    assert case.cluster.wishes != NONE
    set_fields(case, node_replaced=True, uncordoned=Uncordoned.PERSON, reborn="boot-2")
    case.cluster.foreign, case.cluster.maintained, case.cluster.unread = "x", "x", True
    case.take_node(None)
    assert (case.cluster.node_gone, case.cluster.node_found, case.agent.misnamed) == (
        True,
        False,
        False,
    )
    assert (
        case.quarantine_view.node_replaced,
        case.quarantine_view.uncordoned,
        case.quarantine_view.reborn,
    ) == (False, Uncordoned.NO, "")
    assert (case.cluster.foreign, case.cluster.maintained) == ("", "")
    assert (case.cluster.wishes, case.cluster.wishes_known) == (NONE, False)
    assert not case.cluster.unread
    assert not case.cluster.marked
    assert case.cluster.read_at == NOW


@pytest.mark.parametrize("phase", list(Phase))
def test_only_of_a_node_that_was_marked_it_is_told_what_it_lacks(phase: Phase) -> None:
    case = state(quarantine=quarantine(phase))
    case.take_node(node())
    assert (case.quarantine_view.missing == ALL_MARKS[:4]) == (phase in MARKED)
    assert (case.quarantine_view.uncordoned is not Uncordoned.NO) == (phase in MARKED)
    case.take_node(node(uid="u2"))
    assert case.quarantine_view.node_replaced == (phase in MARKED)
    assert case.quarantine_view.uncordoned is Uncordoned.NO


def test_the_condition_trails_and_all_else_that_a_node_lacks_does_not() -> None:
    case, without = state(), marked_node(condition="False")
    assert case.lacks(marked_node(condition="True"), quarantine()) == ()
    assert case.quarantine_view.condition_seen
    case.own_quarantine_view().condition_seen = False
    assert case.lacks(without, quarantine()) == ("condition",)
    assert not case.quarantine_view.condition_seen
    case.work.ours = True
    assert case.lacks(without, quarantine()) == ("condition",)
    case.work.ours = False
    assert case.lacks(without, quarantine()) == (), "its owner may be writing it"
    assert case.lacks(replace(without, labels={}), quarantine()) == ("label",)
    assert case.lacks(replace(without, uid="u2"), quarantine()) == ALL_MARKS
    case.own_quarantine_view().condition_seen = True
    case.lacks(without, quarantine())
    assert not case.quarantine_view.condition_seen, (
        "it was removed while it trailed: the round after reads again"
    )


def test_the_condition_trails_for_two_rounds_after_it_was_written() -> None:
    async def test() -> None:
        case = state(quarantine=quarantine())
        assert not case.age_trail()
        gate = asyncio.Event()

        async def write() -> None:
            await gate.wait()

        set_fields(case, trail=asyncio.create_task(write()), trail_aged=True)
        assert not case.age_trail()
        assert not case.quarantine_view.trail_aged
        gate.set()
        await case.quarantine_view.trail
        assert not case.age_trail()
        assert case.quarantine_view.trail is not None
        assert case.age_trail(), "a marked node was not seen with it"
        assert case.quarantine_view.trail is None
        assert not case.quarantine_view.trail_aged
        for seen, phase in ((True, Phase.CORDONED), (False, Phase.ADMITTED)):
            set_fields(case, condition_seen=seen, quarantine=quarantine(phase))
            trail = asyncio.create_task(write())
            set_fields(case, trail=trail, trail_aged=True)
            await trail
            assert not case.age_trail()
            assert case.quarantine_view.trail is None
        set_fields(case, quarantine=None, condition_seen=False)
        trail = asyncio.create_task(write())
        set_fields(case, trail=trail, trail_aged=True)
        await trail
        assert not case.age_trail()

    asyncio.run(test())


# -- whose it is ----------------------------------------------------------------------------------


def test_a_node_of_another_replica_keeps_what_the_cluster_tells_and_nothing_its_agent_said() -> (
    None
):
    told = MarksStatus(missing=("taint",), since=1.0)
    case = fresh(fault())
    node_summary = case.node_summary
    set_fields(node_summary, quarantine=quarantine(marks=told), missing=("label",))
    node_summary.cluster.overruled, case.cluster.over = frozenset({WORD}), frozenset({OTHER_WORD})
    set_fields(node_summary, refused="r", conflict="c", last_error="e")
    set_fields(node_summary, would="w", spared="s", release_held="h")
    node_summary.agent.last_heard, node_summary.decision.hold = 3.0, HELD
    set_fields(case, claimed="u2", misnamed=True, silent=True, silent_failing="x")
    set_fields(case, signs=(SIGN,), orphan="o", to_adopt=True, vanished="v")
    case.own_quarantine_view().restored = "q"
    cancelled: list[str] = []

    class Timer:
        def cancel(self) -> None:
            cancelled.append("timer")

    case.decision.timer = Timer()
    case.hand_over(POLICY, NOW)
    assert (
        case.agent.claimed,
        case.agent.misnamed,
        case.agent.silent,
        case.agent.silent_failing,
    ) == ("", False, False, "")
    assert (node_summary.agent.attached, node_summary.agent.health, node_summary.agent.refused) == (
        False,
        None,
        "",
    )
    assert (
        node_summary.agent.last_heard,
        node_summary.decision.hold,
        node_summary.agent.conflict,
    ) == (
        None,
        None,
        "",
    )
    assert (
        node_summary.decision.would,
        node_summary.decision.spared,
        node_summary.quarantine_view.release_held,
    ) == ("", "", "")
    assert (
        node_summary.work.last_error,
        case.cluster.signs,
        case.quarantine_view.orphan,
        case.quarantine_view.vanished,
    ) == (
        "",
        (),
        "",
        "",
    )
    assert not case.quarantine_view.to_adopt
    assert node_summary.cluster.overruled == {WORD, OTHER_WORD}
    assert case.cluster.over == frozenset()
    assert node_summary.quarantine_view.missing == ("taint",), "as its object says"
    assert case.quarantine_view.restored == "q", "its object's evidence is back"
    assert (cancelled, case.decision.timer) == (["timer"], None)
    assert node_summary.quarantine is not None


# -- people's words -------------------------------------------------------------------------------


def test_new_wishes_are_told_once_and_their_end_too() -> None:
    case = state()
    assert case.hear_wishes(1.0) == ()
    case.take_node(node(annotations={PIN: "mine"}))
    assert case.hear_wishes(1.0) == ("pinned: mine",)
    assert case.hear_wishes(1.0) == ()
    assert not case.decision.exempt
    case.take_node(node(annotations={PIN: "mine", **EXEMPTED}))
    assert case.hear_wishes(1.0) == ("exempt until 2100-01-01T00:00:00Z: x",)
    assert case.decision.exempt
    case.take_node(node(annotations={PIN: "mine"}))
    assert case.hear_wishes(1.0) == (), "something is still asked of it"
    case.take_node(node())
    assert case.hear_wishes(1.0) == ("no label or annotation asks anything special of it any more",)
    assert case.decision.requests == ()


def test_signs_are_kept_for_a_word_that_is_not_read_yet() -> None:
    case = state(overruled=frozenset({OTHER_WORD}))
    case.cluster.take_signs((SIGN,), node_read=True)
    assert case.cluster.signs == ()
    case.cluster.take_signs((SIGN,), node_read=False)
    case.cluster.take_signs((SIGN,), node_read=False)
    assert case.cluster.signs == (SIGN, SIGN)
    case.cluster.take_overruled(frozenset({WORD, OTHER_WORD}))
    assert case.cluster.overruled == {OTHER_WORD}
    assert case.cluster.over == {WORD}
    assert case.cluster.signs == ()
    case.cluster.take_overruled(frozenset({WORD, OTHER_WORD}))
    assert case.cluster.overruled == {OTHER_WORD}, "it stays over while the node remembers it"
    case.cluster.take_overruled(frozenset({OTHER_WORD}))
    assert case.cluster.over == frozenset()
    for _ in range(REMEMBERED + 5):
        case.cluster.take_signs((SIGN,), node_read=False)
    assert len(case.cluster.signs) == REMEMBERED


def test_what_is_judged_of_a_silent_node_is_what_was_known_and_what_silence_adds() -> None:
    case = state()
    assert case.rejudge(POLICY, Action.DRAIN, NOW) == ([], None)
    case = fresh(component("xid", "", Status.OK))
    case.rejudge(POLICY, Action.DRAIN, NOW)
    assert case.decision.incidents == {}
    case.agent.attached = False
    case.agent.silent_failing, case.agent.silent_failing_since = "disk", 400.0
    case.rejudge(POLICY, Action.DRAIN, NOW, silent_action="cordon")
    (found,) = case.decision.incidents.values()
    assert (found.action, found.since) == ("cordon", 400.0)
    assert case.decision.wanted is not None
    assert case.decision.wanted.spec.action is Action.CORDON


def test_a_word_ends_with_what_it_is_about_only_while_the_agent_speaks() -> None:
    level = Override("xid:lost", "", "", "")
    for attached in (True, False):
        case = fresh(component("xid", "", Status.OK))
        case.agent.attached = attached
        case.cluster.overruled = frozenset({level})
        case.rejudge(POLICY, Action.DRAIN, NOW)
        assert (level in case.cluster.over) == attached
        assert (level in case.cluster.overruled) != attached


# -- what is decided on ---------------------------------------------------------------------------

ASK = UncordonRules(OnUncordon.ASK)
RELEASE = UncordonRules(OnUncordon.RELEASE)


def situation(case: NodeState, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "mode": Action.DRAIN,
        "wanted": None,
        "in_record": False,
        "stopped": False,
        "patient_enough": False,
        "uncordon": ASK,
        "marks": RestoreRules(),
        "now": NOW,
        "wall": 1000.0,
    }
    return case.situation(**{**given, **changes})


def test_evictions_wait_while_an_uncordon_is_not_settled() -> None:
    def waits(uncordoned: Uncordoned, wall: float = 1000.0, **status: Any) -> bool:
        case = state(quarantine=quarantine(**status))
        case.own_quarantine_view().uncordoned = uncordoned
        found: bool = situation(case, wall=wall).evictions_wait
        return found

    assert not situation(state()).evictions_wait
    assert not waits(Uncordoned.NO)
    assert waits(Uncordoned.UNKNOWN)
    assert not waits(Uncordoned.UNKNOWN, recordons=MOST_RECORDONS + 1)
    assert waits(Uncordoned.NO, 999.0, evictions_held_until=1000.0)
    assert not waits(Uncordoned.NO, 1000.0, evictions_held_until=1000.0)


def test_a_node_is_cordoned_again_when_its_wait_is_over() -> None:
    status: Any = {"recordons": 2, "uncordoned_at": 1000.0}  # the wait is 40 s
    case = state(quarantine=quarantine(**status))
    for wall, due in ((1039.0, False), (1040.0, True), (1041.0, True)):
        found = situation(case, wall=wall)
        assert (found.recordon, found.recordon_at) == (due, 1040.0)
    free = situation(state(), wall=7.0)
    assert (free.recordon, free.recordon_at) == (True, 7.0)


def test_an_uncordon_is_a_release_by_the_rules_and_only_of_a_quarantine() -> None:
    case = state()
    case.own_quarantine_view().uncordoned = Uncordoned.UNKNOWN
    assert not case.is_released_by_uncordon(RELEASE)
    assert situation(case).schedulable
    case.own_quarantine_view().quarantine = quarantine()
    assert case.is_released_by_uncordon(RELEASE)
    assert not case.is_released_by_uncordon(ASK)
    case.own_quarantine_view().uncordoned = Uncordoned.NO
    assert not situation(case).schedulable


def test_what_holds_a_release_counts_only_while_a_quarantine_stands() -> None:
    case = state(release_held="ours")
    assert case.release_held == ""
    case.own_quarantine_view().quarantine = quarantine(release_held="its own")
    assert case.release_held == "ours"
    case.own_quarantine_view().release_held = ""
    assert case.release_held == "its own"
    assert situation(case).release_held


def test_missing_marks_are_to_be_told_where_the_object_says_otherwise() -> None:
    case = state(missing=("label",))
    assert not situation(case).marks_untold
    for phase in Phase:
        case.own_quarantine_view().quarantine = quarantine(phase)
        assert situation(case).marks_untold == (phase in MARKED)
    case.own_quarantine_view().quarantine = quarantine()
    case.cluster.node_gone = True
    assert not situation(case).marks_untold
    case.cluster.node_gone = False
    case.own_quarantine_view().quarantine = quarantine(marks=MarksStatus(("label",), since=1.0))
    assert not situation(case).marks_untold


def test_missing_marks_are_set_again_when_their_grace_is_over() -> None:
    told = MarksStatus(("label",), since=900.0)
    case = state(missing=("label",))
    assert not situation(case).restore_due
    for phase in Phase:
        case.own_quarantine_view().quarantine = quarantine(phase, marks=told)
        assert situation(case, wall=960.0).restore_due == (phase in MARKED)
    case.own_quarantine_view().quarantine = quarantine(marks=told)
    assert not situation(case, wall=959.0).restore_due
    assert not situation(case, marks=RestoreRules(restore_times=0)).restore_due
    case.own_quarantine_view().missing = ()
    assert not situation(case).restore_due
    set_fields(case, missing=("label",), quarantine=quarantine())
    assert not situation(case).restore_due


def test_what_people_ask_caps_the_mode_unless_a_person_made_the_quarantine() -> None:
    case = state()
    case.take_node(node(annotations={**EXEMPTED, FORCE: "drain x"}))
    assert situation(case).mode is Action.OBSERVE
    assert situation(case).exempt
    assert situation(case).forced is None
    case.own_quarantine_view().quarantine = quarantine()
    assert situation(case).mode is Action.OBSERVE
    case.own_quarantine_view().quarantine = quarantine(requester="alice")
    assert situation(case).mode is Action.DRAIN
    assert situation(case, mode=Action.CORDON).mode is Action.CORDON
    case = state()
    assert situation(case, mode=Action.CORDON).mode is Action.CORDON


def test_a_force_is_taken_back_where_the_node_is_read_without_it_or_gone() -> None:
    case = state()
    assert not situation(case).unforced, "nothing is known of the node"
    case.take_node(node(annotations={FORCE: "drain x"}))
    assert not situation(case).unforced
    assert situation(case).forced is Action.DRAIN
    case.take_node(node())
    assert situation(case).unforced
    case.take_node(None)
    assert situation(case).unforced


def test_a_situation_says_what_is_known_of_the_node() -> None:
    silent, speaking, ill = state(), fresh(), fresh()
    ill.decision.incidents = {"i": incident()}
    assert not situation(silent).knows
    assert situation(silent, patient_enough=True).knows
    assert situation(speaking).knows
    assert [situation(one).fresh for one in (silent, speaking, ill)] == [False, True, True]
    assert [situation(one).recovered for one in (silent, speaking, ill)] == [False, True, False]
    speaking.agent.attached = False
    assert not situation(speaking).recovered
    assert not situation(speaking).absent_too_long
    for later, look in ((NOW + 1, True), (NOW, False)):
        set_fields(silent, release_look=later)
        assert situation(silent).look_later == look


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


def test_what_is_overruled_is_all_that_it_stands_on_and_that_is_not_over() -> None:
    case = fresh(fault())
    case.rejudge(POLICY, Action.DRAIN, 2000.0)
    assert {word.key for word in case.overrule()} == {("xid:79", "GPU-1")}
    assert case.overrule(frozenset({OTHER_WORD})) - case.overrule() == {OTHER_WORD}
    over = {
        key: replace(one, evidence=tuple(replace(item, over="x") for item in one.evidence))
        for key, one in case.decision.incidents.items()
    }
    case.decision.incidents = over
    assert case.overrule() == frozenset()
