"""The view model: pure, so that every sentence is tried without a server."""

import datetime as dt
import math
import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator import advice
from aggregator.cluster.port import (
    NAMESPACE_DELETED,
    Action,
    Blocker,
    HookState,
    HookStatus,
    Phase,
)
from aggregator.cluster.words import KUBERNETES
from aggregator.events import EventKind, Transition
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.uncordon import describe_left
from aggregator.quarantine.settings import Settings, limits_for_people
from aggregator.quarantine.state.fleet import FleetState, QuarantineSummary
from aggregator.runtime.text import natural
from aggregator.web import node_view, timefmt
from aggregator.web.fleet_view import FleetViewFindings
from aggregator.web.map_view import map_layout
from aggregator.web.node_view import ViewMoment
from aggregator.web.summary import headline, summarize
from tests.support.fleet_views import view_fleet
from tests.support.node_states import set_fields, summary_in
from tests.web.support import (
    NIGHT,
    Hands,
    big_fleet,
    fault,
    incident_of,
    quarantine_of,
    small_fleet,
    well,
)

HANDS = Hands()
NOW = ViewMoment(HANDS.now, HANDS.wall)
FLEET = FleetState(mode="drain")


def view_of(fleet: FleetState) -> FleetViewFindings:
    return view_fleet(fleet, NOW)


def test_a_monotonic_time_becomes_wall_clock() -> None:
    assert NOW.when(HANDS.now - 60).timestamp() == pytest.approx(NIGHT - 60)
    assert NOW.when_or_never(None) is None


@given(st.floats())
def test_no_time_that_a_node_could_send_breaks_the_page(at: float) -> None:
    if not math.isnan(at):  # the wire refuses that
        assert NOW.when(at).tzinfo is dt.UTC


def test_every_state_is_counted_even_those_of_nobody() -> None:
    fleet = FleetState()
    well(fleet, "node-1", HANDS.now)
    nobody = dict.fromkeys(QuarantineSummary, 0)
    assert view_of(fleet).counts == nobody | {QuarantineSummary.OK: 1}


def test_the_small_fleet_has_one_of_each() -> None:
    found = view_of(small_fleet(HANDS))
    assert set(found.counts.values()) == {1, 2}
    assert map_layout(found.names, lambda _, __: "", "").letters(found) == "oqhwsuqo"
    assert [one.node for one in found.incidents] == ["node-3", "node-2", "node-4"]
    assert [one.node for one in found.quarantines] == ["node-2", "node-7"]
    assert [one.node for one in found.holds] == ["node-3"]
    assert [one.node for one in found.silent] == ["node-5"]
    assert found.never_seen == 1


def test_nodes_are_in_the_order_in_which_people_count() -> None:
    names = ["node-10", "node-9", "b", "node-1", "9", "10"]
    assert sorted(names, key=natural) == ["9", "10", "b", "node-1", "node-9", "node-10"]


@given(st.lists(st.text(max_size=12), unique=True))
def test_natural_order_is_total_for_any_names(names: list[str]) -> None:
    assert len({natural(name) for name in names}) == len(names)
    backwards = list(reversed(names))
    assert sorted(backwards, key=natural) == sorted(names, key=natural)


def test_the_headline_says_the_worst_first() -> None:
    assert headline(view_of(small_fleet(HANDS))).startswith("2 in quarantine, 1 held back")
    quiet = FleetState()
    assert headline(view_of(quiet)) == "No node is known yet."
    well(quiet, "a", HANDS.now)
    assert headline(view_of(quiet)) == "The only node is well."
    well(quiet, "b", HANDS.now)
    assert headline(view_of(quiet)) == "All 2 nodes are well."
    conflicting = next(iter(quiet.node_summaries.values()))
    conflicting.agent.conflict = "two live agents claim this node: a, and b"
    assert headline(view_of(quiet)) == "1 with a warning. 1 of 2 nodes are well."


def test_a_new_node_that_is_not_tested_says_why_in_its_line_and_in_the_headline() -> None:
    fleet = FleetState()
    for name in ("a", "b"):
        well(fleet, name, HANDS.now)
    text = "new node, awaits its test: its agent has not reported"
    fleet.node_summaries["a"].cluster.untested = text
    row = node_view.node_row(fleet, fleet.node_summaries["a"], NOW)
    assert (row.state, row.why, row.untested) == (QuarantineSummary.OK, text, True)
    assert headline(view_of(fleet)) == "All 2 nodes are well. 1 node is new, and not tested yet."
    fleet.node_summaries["b"].cluster.untested = text
    assert headline(view_of(fleet)).endswith("2 nodes are new, and not tested yet.")


def test_a_limit_says_how_full_it_is() -> None:
    limits = {one.name: one for one in view_of(small_fleet(HANDS)).limits}
    assert (limits["limits.concurrent"].used, limits["limits.concurrent"].most) == (2, 20)
    assert not limits["limits.concurrent"].full
    # 5 % of 8 nodes is one node, and two are in quarantine.
    assert limits["limits.concurrent_percent"].most == 1
    assert limits["limits.concurrent_percent"].full
    assert limits["limits.evictions_at_once"].most is None
    fleet = small_fleet(HANDS)
    fleet.limits = {**fleet.limits, "small_fleet_floor": "2"}
    assert {one.name: one.most for one in view_of(fleet).limits}["limits.concurrent_percent"] == 2


def test_the_share_of_new_quarantines_says_how_full_it_is_unless_it_binds_nothing() -> None:
    fleet = small_fleet(HANDS)
    fleet.admitted_lately = 2
    for value, most in (("25%", 2), ("100%", None)):
        fleet.limits = {**fleet.limits, "new_per_window_percent": value, "window": "10m"}
        found = {one.name: one for one in view_of(fleet).limits}["limits.new_per_window_percent"]
        assert found.most == most
        assert found.used == (None if most is None else 2)
    assert found.text == "of all nodes, new within the window"


def test_the_fullest_pool_is_shown() -> None:
    fleet = small_fleet(HANDS)
    fleet.limits = {"pool_label": "sickbay.dev/pool", "pool_percent": "25%"}
    for node_summary in fleet.node_summaries.values():
        assert node_summary.cluster.meta is not None
        pool = "small" if node_summary.node in {"node-1", "node-2"} else "large"
        node_summary.cluster.meta.labels["sickbay.dev/pool"] = pool  # type: ignore[index]  # a dict here
    found = {one.name: one for one in view_of(fleet).limits}["limits.pool_percent"]
    assert (found.used, found.most, found.full) == (1, 1, True)
    assert "small" in found.text


def test_each_shipped_limit_has_a_text_and_a_new_one_is_shown_as_it_is() -> None:
    fleet = small_fleet(HANDS)
    fleet.limits = {**limits_for_people(Settings(mode=Action.DRAIN)), "new_one": "7"}
    *shown, new_one = (one for one in view_of(fleet).limits)
    assert [one.name for one in shown if not one.text] == []
    assert (new_one.name, new_one.value, new_one.most) == ("limits.new_one", "7", None)


def test_a_quarantine_says_phase_pods_and_who_is_in_the_way() -> None:
    found = view_of(small_fleet(HANDS)).quarantines[0]
    assert (found.phase, found.pods_remaining) == ("Draining", 4)
    assert [one.pod for one in found.blockers] == ["training/llm-worker-17"]
    assert "1 pod" in found.advice
    assert found.phase_since == found.drain_started_at


def test_a_drain_says_how_many_pods_are_left_of_how_many() -> None:
    fleet = small_fleet(HANDS)
    node_summary = fleet.node_summaries["node-2"]
    view = node_summary.quarantine_view
    assert view.quarantine is not None
    first = view.quarantine
    for left, total in ((6, 6), (2, 6), (7, 7), (0, 7)):
        status = replace(first.status, pods_remaining=left)
        view.take(replace(first, status=status))
        shown = next(one for one in view_of(fleet).quarantines if one.node == "node-2")
        assert (shown.pods_remaining, shown.pods_total) == (left, total)
    status = replace(first.status, pods_remaining=1)
    view.take(replace(first, uid="another", status=status))
    shown = next(one for one in view_of(fleet).quarantines if one.node == "node-2")
    assert (shown.pods_remaining, shown.pods_total) == (1, 1)
    drained = replace(first.status, phase=Phase.DRAINED, pods_remaining=3)  # pods that came back
    view.write(replace(first, uid="another", status=drained))
    shown = next(one for one in view_of(fleet).quarantines if one.node == "node-2")
    assert (shown.pods_remaining, shown.pods_total) == (3, 3)


def test_a_quarantine_says_until_when_it_drains_and_what_the_sites_own_step_has_come_to() -> None:
    draining, by_hand = view_of(small_fleet(HANDS)).quarantines[:2]
    assert draining.deadline_at is not None
    assert draining.drain_started_at is not None
    assert draining.deadline_at > draining.drain_started_at
    assert (draining.overdue_at, draining.pre_evict) == (None, "Done: told Slurm")
    assert (by_hand.deadline_at is None) == (by_hand.drain_started_at is None)


def test_who_else_is_at_work_on_a_node_is_why_it_stands_as_it_does() -> None:
    fleet = small_fleet(HANDS)
    node_summary = summary_in(fleet, "node-8")
    set_fields(
        node_summary,
        maintained="its GPU driver is being upgraded",
        foreign="its GPU driver is being upgraded",
    )
    assert node_view.why(node_summary, node_summary.state()) == (
        "another tool or person is at work on it: its GPU driver is being upgraded"
    )


def test_what_a_person_made_says_how_a_person_ends_it() -> None:
    found = view_of(small_fleet(HANDS)).quarantines[1]
    assert found.requester == "hall-2"
    assert "sickbay release node-7" in found.advice


def test_an_invalid_object_comes_first_and_says_how_to_mend_it() -> None:
    fleet = small_fleet(HANDS)
    quarantine_of(well(fleet, "node-8", HANDS.now), HANDS.wall, phase=Phase.INVALID, pods=None)
    fleet.node_summaries["node-2"].quarantine_view.quarantine = None
    first = view_of(fleet).quarantines[0]
    assert first.node == "node-8"
    assert "kubectl delete quarantine node-8" in first.advice


def test_what_the_mode_keeps_us_from_is_held_by_the_mode() -> None:
    fleet = FleetState(mode="observe")
    node_summary = well(fleet, "node-1", HANDS.now)
    incident_of(node_summary, HANDS.now)
    node_summary.decision.would = "drain: xid:79 on 1 GPU"
    (held,) = view_of(fleet).holds
    assert (held.limit, held.value) == ("mode", "observe")
    assert "drain: xid:79" in held.reason
    assert view_of(fleet).incidents[0].doing == "the mode keeps us from acting"


@pytest.mark.parametrize(("mode", "offered"), [("observe", ""), ("cordon", "cordon")])
def test_a_command_by_hand_has_an_action_that_the_mode_carries_out(mode: str, offered: str) -> None:
    """In mode observe the advice is the remedy, and no command."""
    fleet = FleetState(mode=mode)
    node_summary = well(fleet, "node-1", HANDS.now)
    incident_of(node_summary, HANDS.now)
    node_summary.decision.would = "drain: xid:79 on 1 GPU"
    shown = view_of(fleet)
    for text in (shown.incidents[0].advice, shown.holds[0].advice):
        assert ("sickbay quarantine" in text) == bool(offered)
        assert "--action drain" not in text
        if offered:
            assert f"--action {offered} --reason 'xid:79" in text


def test_no_command_passes_a_limit_or_a_common_cause() -> None:
    fleet = FleetState(mode="drain")
    node_summary = well(fleet, "node-1", HANDS.now)
    incident_of(node_summary, HANDS.now)
    for limit in advice.HOLDS.keys() - {"maintenance", "stale-mark"}:
        node_summary.decision.hold = Held(limit, "3", "for a reason", since=HANDS.wall)
        shown = view_of(fleet)
        assert "sickbay quarantine " not in shown.incidents[0].advice + shown.holds[0].advice


def test_an_admitted_node_counts_as_in_quarantine_once_it_carries_the_mark() -> None:
    fleet = FleetState(mode="drain")
    node_summary = well(fleet, "node-1", HANDS.now)
    quarantine_of(node_summary, HANDS.wall, phase=Phase.ADMITTED, pods=None)
    node_summary.work.last_error = "PATCH nodes/node-1: 500: no endpoints for webhook"
    told = view_of(fleet)
    assert told.counts[QuarantineSummary.QUARANTINED] == 0
    assert headline(told) == "1 held back. 0 of 1 nodes are well."
    why = node_view.node(FLEET, node_summary, NOW).why
    assert "no mark keeps work off it yet" in why
    assert "no endpoints for webhook" in why
    node_summary.cluster.marked = True
    assert headline(view_of(fleet)) == "1 in quarantine. 0 of 1 nodes are well."


def test_a_release_that_fails_is_no_reason_to_do_nothing() -> None:
    fleet = FleetState(mode="drain")
    node_summary = well(fleet, "node-1", HANDS.now)
    quarantine_of(node_summary, HANDS.wall, phase=Phase.RELEASING, pods=None)
    assert view_of(fleet).quarantines[0].advice.startswith("No step is needed")
    node_summary.work.last_error = "PATCH nodes/node-1: 403: denied"
    assert view_of(fleet).quarantines[0].advice.startswith("The release failed")


def test_a_hold_says_what_lifts_it() -> None:
    fleet = FleetState(stop="the switch is being replaced")
    node_summary = well(fleet, "node-1", HANDS.now)
    node_summary.decision.hold = Held(
        "stop", fleet.stop, "the stop switch is set", since=HANDS.wall
    )
    (held,) = view_of(fleet).holds
    assert "sickbay resume" in held.advice
    assert held.documentation == "docs/holds.md#stop"
    node_summary.decision.hold = Held("limits.new_thing", "3", "for a reason", since=HANDS.wall)
    assert "limits.new_thing" in view_of(fleet).holds[0].advice


def test_a_drain_that_waits_for_a_hook_says_so_and_what_to_do_once_it_is_late() -> None:
    fleet = FleetState()
    node_summary = well(fleet, "node-1", HANDS.now)
    drain = quarantine_of(node_summary, HANDS.wall)
    asked = HookStatus(HookState.RUNNING, started_at=HANDS.wall - 60)
    for hook, said in (
        (asked, "drain.pre_evict is called until it is done"),
        (replace(asked, ended_at=HANDS.wall, message="no Slurm"), "not done in its time"),
        (replace(asked, state=HookState.DONE), "No step is needed yet: it is under way."),
    ):
        node_summary.quarantine_view.quarantine = replace(
            drain, status=replace(drain.status, pre_evict=hook)
        )
        assert said in view_of(fleet).quarantines[0].advice


def test_a_recovering_incident_says_when_it_closes() -> None:
    fleet = FleetState()
    node_summary = well(fleet, "node-1", HANDS.now)
    incident_of(node_summary, HANDS.now, recovering=100.0)
    (found,) = view_of(fleet).incidents
    assert found.closes_at is not None
    assert found.closes_at.timestamp() == pytest.approx(NIGHT + 500)
    assert found.doing == "recovering"
    assert found.advice.startswith("No step is needed")


def test_an_incident_that_a_person_overruled_says_so() -> None:
    fleet = FleetState()
    node_summary = well(fleet, "node-1", HANDS.now)
    found = incident_of(node_summary, HANDS.now)
    node_summary.cluster.overruled = frozenset(
        Override(item.code, item.component, item.boot_id, item.cleared_by or "")
        for item in found.evidence
    )
    assert view_of(fleet).incidents[0].doing == "overruled by a person"


def test_a_reason_as_long_as_a_log_is_cut_and_says_so() -> None:
    """The object's definition has no limit: one that stands must not become one to be refused."""
    fleet = FleetState()
    node_summary = well(fleet, "node-1", HANDS.now)
    fleet.stop = long = "a pasted log " * 10_000
    node_summary.quarantine_view.quarantine = quarantine_of(
        node_summary, NIGHT, reason=long, requester=long
    )
    (row,) = view_of(fleet).quarantines
    told = node_view.node(FLEET, node_summary, NOW)
    happened = node_view.event(Transition(NIGHT, EventKind.CORDONED, "node-1", long))
    for text, most in (
        (row.reason, 1000),
        (row.requester, 100),
        (told.why, 1020),
        (view_of(fleet).stop, 1000),
        (happened.summary, 4000),
    ):
        assert text.endswith("… (130,000 characters)")
        assert len(text) <= most


def test_an_exempt_node_is_shown_and_what_would_be_done_is_held_by_it() -> None:
    fleet = FleetState()
    node_summary = well(fleet, "node-1", HANDS.now)
    set_fields(node_summary, exempt=True, requests=("exempt until 2026-12-01T00:00:00Z: test",))
    found = view_of(fleet)
    assert found.exempt == 1
    assert found.requested[0].why == "exempt until 2026-12-01T00:00:00Z: test"
    assert not found.holds  # the node is healthy: no limit holds it back
    set_fields(
        node_summary, would="drain: xid:79", spared="exempt until 2026-12-01T00:00:00Z: test"
    )
    (hold,) = view_of(fleet).holds
    assert (hold.limit, hold.value) == ("exempt", node_summary.decision.spared)
    assert hold.reason == "a person exempted it; else: drain: xid:79"
    told = node_view.node(FLEET, node_summary, NOW)
    assert told.why == (
        "a person exempted it (exempt until 2026-12-01T00:00:00Z: test); else: drain: xid:79"
    )
    incident_of(node_summary, HANDS.now)
    assert view_of(fleet).incidents[0].doing == "a person exempted the node"
    assert "would" not in f"{told.why}{hold.reason}"
    assert "sickbay unexempt node-1" in hold.advice
    assert summarize(view_of(fleet), NOW, version="1", revision=1, not_ready=[]).exempt == 1


def test_where_commands_need_an_option_each_one_shown_has_it() -> None:
    """Every command that acts: one without its option would go to another cluster, or to none."""
    how = " --local /var/lib/a/cluster.db"
    acts = re.compile(r"sickbay (?:stop|resume|release|quarantine|(?:un)?exempt|(?:un)?pin)\b")
    plain, local = small_fleet(HANDS), small_fleet(HANDS)
    for fleet in (plain, local):
        incident_of(fleet.node_summaries["node-3"], HANDS.now)
        fleet.node_summaries["node-7"].quarantine_view.release_held = "pinned by a person (RMA)"
        spared = well(fleet, "node-8", HANDS.now)
        set_fields(spared, would="drain: xid:79", spared="exempt until 2026-12-01T00:00:00Z: test")
        well(fleet, "node-9", HANDS.now).decision.would = "drain: xid:79"
        for number, limit in enumerate(advice.HOLDS):
            held = well(fleet, f"held-{number}", HANDS.now)
            held.decision.hold = Held(limit=limit, value="1", reason="why", since=HANDS.wall)
    local.how, local.mode = how, "drain"
    shown, known = view_of(local), 0
    listed = {one.advice for one in shown.incidents} | {one.advice for one in shown.holds}
    listed |= {one.advice for one in shown.quarantines}
    for node_summary in local.node_summaries.values():
        found = node_view.node(local, node_summary, NOW)
        said = [one.advice for one in found.incidents]
        said += [found.hold.advice] if found.hold is not None else []
        said += [found.quarantine.advice] if found.quarantine is not None else []
        for text in said:
            known += len(acts.findall(text))
            assert text.count(how) == len(acts.findall(text)), text
        assert listed.issuperset(said)
    assert known > 5
    assert "--local" not in str(
        [node_view.node(FLEET, one, NOW) for one in plain.node_summaries.values()]
    )


def test_a_release_that_is_held_says_why_and_what_to_do_and_comes_first() -> None:
    fleet = small_fleet(HANDS)
    node_summary = fleet.node_summaries["node-7"]
    assert view_of(fleet).quarantines[0].node == "node-2"
    node_summary.quarantine_view.release_held = "pinned by a person (RMA)"
    found = view_of(fleet).quarantines
    (held,) = [one for one in found if one.node == "node-7"]
    assert held.release_held == "pinned by a person (RMA)"
    assert "sickbay unpin node-7" in held.advice
    assert "sickbay release node-7" in held.advice
    node_summary.quarantine_view.release_held = "allocatable nvidia.com/gpu is 7 of 8"
    (held,) = [one for one in view_of(fleet).quarantines if one.node == "node-7"]
    assert "unpin" not in held.advice


def test_historical_and_missing_faults_are_marked_and_old_boots_come_last() -> None:
    node = node_view.node(FLEET, small_fleet(HANDS).node_summaries["node-2"], NOW)
    assert [(one.code, one.missing, one.historical) for one in node.faults] == [
        ("xid:63", True, False),
        ("xid:79", False, False),
        ("xid:31", False, True),
    ]
    assert node.components[0].status == "failed"
    assert node.lost[0].records == 12


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("node-1", ""),
        ("node-2", "Draining: xid:79"),
        ("node-3", "held by limits.concurrent"),
        ("node-4", "xid:31"),
        ("node-5", "its agent is silent; no check was failing"),
        ("node-6", "no agent has reported from it"),
    ],
)
def test_each_state_says_why_in_a_line(name: str, expected: str) -> None:
    node_summary = small_fleet(HANDS).node_summaries[name]
    assert node_view.node_row(FLEET, node_summary, NOW).why.startswith(expected)


def test_a_failed_component_without_an_incident_is_the_reason() -> None:
    fleet = FleetState()
    node_summary = well(fleet, "node-1", HANDS.now)
    assert node_summary.agent.health is not None
    node_summary.agent.health.faults = {("xid:79", ""): fault(HANDS.now)}
    assert node_view.node_row(FLEET, node_summary, NOW).why.startswith("xid:79: NVRM")


def test_a_heartbeat_is_no_change() -> None:
    node_summary = small_fleet(HANDS).node_summaries["node-2"]
    before = node_view.steady(node_view.node(FLEET, node_summary, NOW))
    node_summary.agent.last_seen = HANDS.now - 0.1
    assert node_view.steady(node_view.node(FLEET, node_summary, NOW)) == before


def test_nothing_in_a_look_changes_with_time_alone() -> None:
    fleet = small_fleet(HANDS)
    assert view_fleet(fleet, NOW) == view_fleet(
        fleet, ViewMoment(HANDS.now + 7.5, HANDS.wall + 7.5)
    )


def test_a_glance_is_encodable_and_small_for_a_large_fleet() -> None:
    found = view_of(big_fleet(HANDS))
    told = summarize(found, NOW, version="1", revision=3, not_ready=[])
    assert told.nodes == sum(told.counts.values()) == 7500
    assert len(msgspec.json.encode(told)) < 2000


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.5, "just now"),
        (40, "40 s ago"),
        (185, "3 min ago"),
        (7300, "2 h ago"),
        (86400 * 5.5, "5 d ago"),
        (-90, "in 1 min"),
    ],
)
def test_times_are_said_in_one_unit(seconds: float, said: str) -> None:
    now = dt.datetime.fromtimestamp(NIGHT, dt.UTC)
    assert timefmt.ago(now - dt.timedelta(seconds=seconds), now) == said


def test_advice_promises_no_release_that_will_not_come() -> None:
    fleet = FleetState()
    node_summary = well(fleet, "node-1", HANDS.now)
    incident_of(node_summary, HANDS.now)
    assert view_of(fleet).incidents[0].advice == "Reboot the node."
    quarantine_of(node_summary, HANDS.wall, requester="hall-2")
    assert "sickbay release node-1" in view_of(fleet).incidents[0].advice
    quarantine_of(node_summary, HANDS.wall)
    assert "released by itself" in view_of(fleet).incidents[0].advice


BUDGET = "The disruption budget web"


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("Terminating: its grace ends at 2026-01-01T00:00:00Z; the node is", "start the kubelet"),
        ("the budget of jobs/j needs it", "let the budget heal"),
        (f"{BUDGET} needs 1 healthy pods and has 1 currently", "let the budget heal"),
        (f"{BUDGET} needs 1 healthy pods and has 0 currently", "Policy: AlwaysAllow on the budget"),
        (NAMESPACE_DELETED, "the deletion of their namespace removes the pods"),
    ],
)
def test_advice_about_a_drain_fits_what_is_in_its_way(reason: str, says: str) -> None:
    fleet = FleetState()
    node_summary = well(fleet, "node-1", HANDS.now)
    incident_of(node_summary, HANDS.now)
    blockers = (Blocker("jobs/a", reason, HANDS.wall),)
    told = quarantine_of(node_summary, HANDS.wall, blockers=blockers)
    assert says in advice.for_quarantine(node_summary, told, [], "", KUBERNETES)


def test_a_node_whose_quarantine_is_not_known_is_named_beside_those_that_are() -> None:
    fleet = small_fleet(HANDS)
    assert view_of(fleet).marked_only() == []
    for name in ("node-30", "node-4"):
        well(fleet, name, HANDS.now)
        fleet.node_summaries[name].cluster.marked = True
    found = view_of(fleet)
    assert found.marked_only() == ["node-4", "node-30"]
    assert found.counts[QuarantineSummary.QUARANTINED] == len(found.quarantines) + 2


def test_a_node_in_quarantine_that_is_left_schedulable_says_so_in_its_line() -> None:
    fleet = small_fleet(HANDS)
    node_summary = next(one for one in fleet.node_summaries.values() if one.quarantine is not None)
    assert node_summary.quarantine is not None
    status = replace(
        node_summary.quarantine.status,
        uncordoned=describe_left(node_summary.quarantine, "it is a test"),
    )
    node_summary.quarantine_view.quarantine = replace(node_summary.quarantine, status=status)
    (row,) = (one for one in view_of(fleet).quarantines if one.node == node_summary.node)
    assert "the node is schedulable" in node_view.why(node_summary, QuarantineSummary.QUARANTINED)
    assert row.uncordoned.startswith("schedulable: it was opened to new work, and it is a test")
