"""The page in mode observe says what mode drain would do now, and why the limits hold the rest."""

from collections.abc import Iterable, Mapping

import pytest

from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.state.fleet import FleetState
from aggregator.web.mode_effect import mode_effect
from aggregator.web.node_view import ViewMoment
from tests.support.fleet_views import view_fleet
from tests.web.support import Hands, incident_of, serving, small_fleet, well

HANDS = Hands()
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"


def observing_fleet(sick: int = 5) -> FleetState:
    """Nodes that the mode holds; the last one is the oldest incident, and asks for a cordon."""
    fleet = FleetState(mode="observe")
    for number in range(1, sick + 3):
        node_summary = well(fleet, f"node-{number}", HANDS.now)
        if number > sick:
            continue
        incident_of(node_summary, HANDS.now, ago=60.0 * number)
        action = "cordon" if number == sick else "drain"
        node_summary.decision.would = f"{action}: xid:79 (GPU has fallen off the bus)"
    exempt = fleet.node_summaries["node-1"].decision
    exempt.spared = "exempt until tomorrow"
    return fleet


def first_two(nodes: Iterable[str]) -> Mapping[str, Held]:
    """Admits two."""
    return {node: Held("limits.concurrent", "2", HOSTILE) for node in list(nodes)[2:]}


def test_the_oldest_incidents_come_first_and_exempt_nodes_are_not_asked_about() -> None:
    asked: list[str] = []

    def preview(nodes: Iterable[str]) -> Mapping[str, Held]:
        asked.extend(nodes)
        return first_two(asked)

    effect = mode_effect(view_fleet(observing_fleet(), ViewMoment(HANDS.now, HANDS.wall)), preview)
    assert asked == ["node-5", "node-4", "node-3", "node-2"]
    assert (effect.drained, effect.cordoned, effect.held) == (1, 1, 2)
    assert effect.nodes == ["node-5", "node-4"]
    assert [(one.limit, one.nodes) for one in effect.limits] == [("limits.concurrent", 2)]


async def test_page_and_api_say_it_and_hostile_reasons_stay_text() -> None:
    async with serving(observing_fleet(), HANDS.clocks(), preview=first_two) as served:
        text = await served.text("/")
        drained = "With mode drain, <b>1</b> node would be drained now, <b>1</b> by action cordon"
        assert drained in text
        assert "<b>2</b> held back:" in text
        assert "docs/holds.md#limitsconcurrent" in text
        assert "<script>alert" not in text
        told = (await served.json("/api/v1/fleet"))["with_drain"]
        assert (told["drained"], told["cordoned"], told["held"]) == (1, 1, 2)


async def test_no_node_is_named_where_none_would_be_drained() -> None:
    fleet = FleetState(mode="observe")
    well(fleet, "node-1", HANDS.now)
    async with serving(fleet, HANDS.clocks(), preview=first_two) as served:
        assert "With mode drain, <b>0</b> nodes would be drained now" in await served.text("/")


@pytest.mark.parametrize("preview", [None, first_two])
async def test_a_mode_that_drains_everywhere_has_no_preview(preview: object) -> None:
    async with serving(small_fleet(HANDS), HANDS.clocks(), preview=preview) as served:
        assert (await served.json("/api/v1/fleet"))["with_drain"] is None
        assert "With mode drain" not in await served.text("/")
