"""Equal rows of several nodes: which ones count as equal, and that no row is lost."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.port import Blocker, Phase
from aggregator.events import EventKind, Transition
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.state.fleet import FleetState
from aggregator.web.cases import open_cases
from aggregator.web.drift_view import drift_rows
from aggregator.web.equal_rows import equal_cases, rows_in
from aggregator.web.node_view import ViewMoment
from tests.support.fleet_views import view_fleet
from tests.web.support import Hands, incident_of, quarantine_of, rack_fleet, serving, well

HANDS = Hands()
NOW = ViewMoment(HANDS.now, HANDS.wall)
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202eevil <img src=x onerror=alert(1)>"


def test_a_rack_with_one_fault_takes_a_row_for_each_state() -> None:
    groups = equal_cases(open_cases(view_fleet(rack_fleet(HANDS), NOW)))
    assert [len(group.rows) for group in groups] == [13, 28]
    assert [group.first.incidents[0].doing for group in groups] == [
        "in quarantine: Draining",
        "held by limits.concurrent",
    ]


def test_incidents_with_another_code_action_or_state_are_not_equal() -> None:
    fleet = FleetState(mode="drain")
    changes: list[dict[str, Any]] = [
        {},
        {},
        {"code": "xid:79"},
        {"action": "cordon"},
        {"kind": "disk"},
        {"recovering": 60.0},
    ]
    for number, changed in enumerate(changes):
        node_summary = well(fleet, f"node-{number}", HANDS.now)
        incident_of(node_summary, HANDS.now, **({"code": "xid:48"} | changed))
    groups = equal_cases(open_cases(view_fleet(fleet, NOW)))
    assert sorted(len(group.rows) for group in groups) == [1, 1, 1, 1, 2]


def test_a_quarantine_that_needs_a_person_has_a_row_of_its_own() -> None:
    fleet = FleetState(mode="drain")
    for number in range(5):
        node_summary = well(fleet, f"node-{number}", HANDS.now)
        stuck = (Blocker("a/b", "budget", HANDS.wall),) if number == 3 else ()
        quarantine_of(node_summary, HANDS.wall, blockers=stuck)
    fleet.node_summaries["node-4"].work.last_error = "conflict"
    groups = equal_cases(open_cases(view_fleet(fleet, NOW)))
    assert sorted([row.node for row in group.rows] for group in groups) == [
        ["node-0", "node-1", "node-2"],
        ["node-3"],
        ["node-4"],
    ]


def test_holds_by_another_limit_or_for_another_reason_are_not_equal() -> None:
    fleet = FleetState(mode="drain")
    for number, (limit, reason) in enumerate((("a", "x"), ("a", "x"), ("b", "x"), ("a", "y"))):
        node_summary = well(fleet, f"node-{number}", HANDS.now)
        node_summary.decision.hold = Held(limit, "1", reason, since=HANDS.wall)
    groups = equal_cases(open_cases(view_fleet(fleet, NOW)))
    assert [len(group.rows) for group in groups] == [2, 1, 1]


@given(st.lists(st.sampled_from([Phase.CORDONED, Phase.DRAINING, Phase.DRAINED]), max_size=12))
def test_no_row_is_lost_or_shown_twice(phases: list[Phase]) -> None:
    fleet = FleetState(mode="drain")
    for number, phase in enumerate(phases):
        quarantine_of(well(fleet, f"node-{number}", HANDS.now), HANDS.wall, phase=phase)
    found = open_cases(view_fleet(fleet, NOW))
    groups = equal_cases(found)
    assert rows_in(groups) == len(found)
    assert {row.node for group in groups for row in group.rows} == {one.node for one in found}
    assert len({group.key for group in groups}) == len(groups) == len(set(phases))


async def test_the_page_names_the_nodes_of_a_group_and_keeps_hostile_text_harmless() -> None:
    fleet = FleetState(mode="drain")
    for name in ("node-1", HOSTILE.replace("/", "")):
        node_summary = well(fleet, name, HANDS.now)
        incident_of(
            node_summary, HANDS.now, code=HOSTILE, component=HOSTILE, summary=f"{HOSTILE} {name}"
        )
        node_summary.decision.hold = Held(HOSTILE, HOSTILE, HOSTILE, since=HANDS.wall)
    async with serving(fleet, HANDS.clocks()) as served:
        text = await served.text("/")
        assert text.count('<details class="fold nodes"') == 1
        assert "<script>" not in text
        assert "<img" not in text
        for name in fleet.node_summaries:
            assert len(re.findall(f'<li data-key="{re.escape(escaped(name))}">', text)) == 1
        # Left alone, a mark that reverses text would change the page's own words after it.
        assert sorted({char for char in text if not char.isprintable()}) == ["\n"]


def escaped(text: str) -> str:
    """As the templates write it into an attribute."""
    text = "".join(char if char.isprintable() else "?" for char in text)
    for letter, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(letter, entity)
    return text.replace('"', "&#34;").replace("'", "&#39;")


def test_a_group_keeps_its_key_while_its_nodes_come_and_go() -> None:
    found = open_cases(view_fleet(rack_fleet(HANDS), NOW))
    fewer = equal_cases([one for one in found if one.node != "node-1"])
    assert [group.key for group in fewer] == [group.key for group in equal_cases(found)]
    assert [len(group.rows) for group in fewer] == [13, 27]


async def test_events_that_say_the_same_of_several_nodes_are_folded() -> None:
    fleet = FleetState(mode="drain")
    async with serving(fleet, HANDS.clocks()) as served:
        for number in range(9):
            node = f"node-{number}"
            uuid = f"GPU-0000000{number}-7f43-4b6e-9a20-1f2e3d4c5b6a"
            text = f"{node}: drain held by limits.concurrent: xid:79 on {uuid}"
            at = HANDS.wall + number
            served.feed.record_event(Transition(at, EventKind.HELD, node, text))
        other = Transition(HANDS.wall, EventKind.HELD, "node-9", "node-9: drain held by stop")
        served.feed.record_event(other)
        page = await served.text("/")
        lately = page.partition('id="lately"')[2]
        assert lately.count('<span class="kind">quarantine.held') == 3
        assert "and the same of 8 more" in lately
        assert all(f"/nodes/node-{number}" in lately for number in range(8))


async def test_limits_that_are_constants_are_folded_and_drift_has_a_panel() -> None:
    fleet = FleetState(mode="drain", limits={"concurrent": "20", "cooldown": "15m"})
    said = "driver 550.54 where 41 of 43 nodes of its pool have 560.28"
    for number in (1, 2, 3):
        node_summary = well(fleet, f"node-{number}", HANDS.now)
        if number < 3:
            incident_of(
                node_summary,
                HANDS.now,
                action="observe",
                kind="node",
                code="drift:gpu",
                cleared_by=None,
                message=said,
            )
    async with serving(fleet, HANDS.clocks()) as served:
        page = await served.text("/")
        counted, _, constants = page.partition('id="limits"')[2].partition('data-fold="constants"')
        assert "concurrent" in counted
        assert "cooldown" not in counted
        assert "cooldown" in constants.partition("</details>")[0]
        drift = page.partition('id="drift-title"')[2].partition("</section>")[0]
        assert said in drift
        assert "/nodes/node-1" in drift
        assert "/nodes/node-2" in drift
        assert "/nodes/node-3" not in drift
    assert drift_rows(view_fleet(FleetState(), NOW).incidents) == []
