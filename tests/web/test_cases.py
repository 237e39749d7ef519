"""The table of nodes by state, the map in blocks, and the pages of one incident and quarantine."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import escape
from urllib.parse import quote

import msgspec
import pytest

from aggregator.cluster.port import NodeMeta
from aggregator.events import EventKind, Transition
from aggregator.health.model import Snapshot, Status
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.state.fleet import FleetState, QuarantineSummary
from aggregator.web import models
from aggregator.web.cases import deciding_rule, open_cases, selected
from aggregator.web.map_view import ONE_BLOCK, MapLayouts, map_layout, suited_key
from aggregator.web.node_view import ViewMoment
from tests.support.fleet_views import view_fleet
from tests.support.present import present
from tests.support.replica import shipped_policy
from tests.web.support import (
    NIGHT,
    Hands,
    ListHistory,
    Served,
    component,
    incident_of,
    quarantine_of,
    serving,
    small_fleet,
    well,
)

HANDS = Hands()
NOW = ViewMoment(HANDS.now, HANDS.wall)
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>\x1b[31m\u202e\'"&{{7*7}}'
RACK = "topology.kubernetes.io/rack"


def degraded(fleet: FleetState, name: str, message: str) -> None:
    health = present(well(fleet, name, HANDS.now).agent.health)
    part = component(HANDS.now, "disk-space", "/var", Status.DEGRADED, message)
    health.snapshot(Snapshot((part,), ()))


# -- the table -------------------------------------------------------------------------------


def test_each_node_that_is_not_well_is_in_the_table_once_the_worst_state_first() -> None:
    fleet = small_fleet(HANDS)
    degraded(fleet, "node-8", "88 % used")
    found = open_cases(view_fleet(fleet, NOW))
    assert [(one.node, one.state.value) for one in found] == [
        ("node-2", "quarantined"),
        ("node-7", "quarantined"),
        ("node-3", "held"),
        ("node-4", "warning"),
        ("node-8", "warning"),
        ("node-5", "silent"),
        ("node-6", "unknown"),
    ]
    by_node = {one.node: one for one in found}
    sick, held = by_node["node-2"], by_node["node-3"]
    assert sick.quarantine is not None
    assert len(sick.incidents) == 1
    assert sick.reasons == ("xid:79 (GPU has fallen off the bus) on 1 GPU",)  # not twice
    assert (sick.rule, sick.action) == ("gpu-off-bus", "drain")
    assert held.hold is not None
    assert held.advice == held.hold.advice
    assert by_node["node-7"].rule == ""
    assert "88 % used" in by_node["node-8"].reasons[0]
    assert by_node["node-8"].since is not None
    assert by_node["node-5"].reasons == ("its agent is silent; no check was failing",)
    assert by_node["node-5"].since is not None
    assert by_node["node-6"].reasons == ("no agent has reported from it",)


def test_the_filters_select_by_state_name_text_and_label() -> None:
    found = open_cases(view_fleet(small_fleet(HANDS), NOW))

    def names(state: str = "", part: str = "", why: str = "") -> list[str]:
        return [one.node for one in selected(found, state=state, part=part, why=why)]

    assert names(state="held") == ["node-3"]
    assert names(part="NODE-2") == ["node-2"]
    assert names(why="llm-worker-17") == ["node-2"]  # a pod in the way
    assert names(why="Limits.Concurrent") == ["node-3"]
    assert names(why="gpu-off-bus", state="warning") == ["node-4"]
    assert names(why="rma 12345") == ["node-7"]
    assert names(why="no such text") == []
    assert selected(found, has_labels=lambda name: name == "node-4")[0].node == "node-4"


def test_the_deciding_rule_is_that_of_evidence_in_force_with_the_incidents_action() -> None:
    fleet = FleetState(mode="drain")
    incident_of(well(fleet, "node-1", HANDS.now), HANDS.now)
    [item] = open_cases(view_fleet(fleet, NOW))[0].evidence
    watched = replaced(item, rule="watch", action="observe")
    over = replaced(item, rule="old", over="reboot")
    assert deciding_rule([over, watched, item], "drain") == "gpu-off-bus"
    assert deciding_rule([over, watched], "drain") == "watch"
    assert deciding_rule([over], "drain") == "old"
    assert deciding_rule([], "drain") == ""


def replaced(item: models.Evidence, **changes: str) -> models.Evidence:
    return msgspec.structs.replace(item, **changes)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    fleet = small_fleet(HANDS)
    fleet.repairs = RepairPlan(policy=shipped_policy())
    async with serving(fleet, HANDS.clocks()) as one:
        yield one


def quoted(text: str) -> str:
    """As the templates write it."""
    return escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


def table(text: str) -> str:
    return text.partition('id="cases"')[2].partition("</section>")[0]


def rows(text: str) -> list[str]:
    return re.findall(r'class="node" href="/nodes/([^"]+)"', table(text))


async def test_filters_are_in_the_address_and_each_link_keeps_them(served: Served) -> None:
    assert rows(await served.text("/")) == [
        *("node-2", "node-7", "node-3", "node-4", "node-5", "node-6")
    ]
    assert rows(await served.text("/?state=silent")) == ["node-5"]
    assert "Its agent is silent; no check was failing" in table(await served.text("/"))
    text = await served.text("/?state=quarantined&q=node&why=xid")
    assert rows(text) == ["node-2"]
    assert 'name="q" value="node"' in text
    assert '<option value="quarantined" selected>' in text
    assert 'href="/?state=quarantined&amp;q=node&amp;why=xid"' in text
    assert rows(await served.text("/?label=sickbay.dev/pool=h100&state=held")) == ["node-3"]
    assert rows(await served.text("/?label=!sickbay.dev/pool")) == []
    # The script asks for the same filters, so that they also hold while the page changes.
    assert rows(await served.text("/?state=held&fragment=1")) == ["node-3"]
    assert "No such node in the table" in await served.text("/?q=none")
    assert "is not understood" in await served.text("/?label=a%20b", 400)
    assert "did you mean" in (await served.text("/?stte=held", 400)).lower()


async def test_a_row_names_the_rule_that_decided_and_its_reason(served: Served) -> None:
    policy = present(served.fleet.repairs.policy)
    rule = next(iter(policy.by_name.values()))
    node_summary = served.fleet.node_summaries["node-8"]
    found = incident_of(node_summary, HANDS.now)
    evidence = tuple(replace(item, rule=rule.name) for item in found.evidence)
    named = {found.id: replace(found, evidence=evidence)}
    node_summary.decision.incidents = named
    why = quoted(" ".join(rule.why.split())[:40])
    for path in ("/", "/nodes/node-8", f"/incidents/{found.id}"):
        text = await served.text(path)
        assert rule.name in text, path
        assert why in text, path


async def test_more_rows_of_one_state_are_a_link_away_that_keeps_the_filter() -> None:
    fleet = FleetState(mode="drain")
    for number in range(12):
        summary = well(fleet, f"node-{number}", HANDS.now)
        summary.decision.hold = Held("limits.concurrent", "1", f"reason {number}", since=HANDS.wall)
    async with serving(fleet, HANDS.clocks()) as served:
        text = await served.text("/?rows=10&q=node")
        assert "and 2 more nodes" in text
        assert 'href="/?state=held&amp;q=node&amp;rows=1000"' in text
        assert len(rows(await served.text("/?state=held&q=node&rows=1000"))) == 12


# -- one incident, one quarantine --------------------------------------------------------------


async def test_an_incident_has_an_address_while_it_is_open_and_after(served: Served) -> None:
    node_summary = served.fleet.node_summaries["node-2"]
    [found] = node_summary.decision.incidents.values()
    rule = next(iter(shipped_policy().by_name.values()))
    evidence = f"xid:79 GPU-1 ({rule.name}); xid:48 (own-rule)"
    details = {"action": "drain", "evidence": evidence}
    event = Transition(
        HANDS.wall, EventKind.INCIDENT_OPENED, "node-2", "node-2: opened", found.id, details
    )
    served.history.items.append(event)
    assert f'href="/incidents/{found.id}"' in await served.text("/")
    text = await served.text(f"/incidents/{found.id}")
    assert found.summary in text
    assert 'href="/quarantines/node-2"' in text
    assert "node-2: opened" in text
    node_summary.decision.incidents = {}
    text = await served.text(f"/incidents/{found.id}")
    assert "No longer open" in text
    assert "node-2: opened" in text
    assert "<h1>opened</h1>" in text
    assert f"Rule <code>{rule.name}</code>, action drain: " in text
    assert quoted(" ".join(rule.why.split())[:40]) in text
    assert "Rule <code>own-rule</code>, action drain</p>" in text  # not in the policy in force
    assert "<code>xid:48 (own-rule)</code>" in text
    missing = await served.text("/incidents/none", 404)
    assert "sickbay incidents" in missing
    served.history.broken = "disk I/O error"
    assert "disk I/O error" in await served.text("/incidents/none")


async def test_a_quarantine_has_an_address_and_says_when_there_is_none(served: Served) -> None:
    text = await served.text("/quarantines/node-2")
    assert "training/llm-worker-17" in text
    assert 'href="/incidents/a1b2c3d4"' in text
    assert "gpu-off-bus" in text
    assert "The node has no Quarantine now" in await served.text("/quarantines/node-8")
    assert "There is no node" in await served.text("/quarantines/node-99", 404)


async def test_hostile_text_is_harmless_on_the_new_pages_and_in_their_addresses() -> None:
    fleet = FleetState(mode="drain")
    name = HOSTILE.replace("/", "").replace("{{7*7}}", "")
    node_summary = well(fleet, name, HANDS.now)
    node_summary.cluster.meta = NodeMeta(name, "uid", {RACK: "r1"})
    incident_of(node_summary, HANDS.now, code=HOSTILE, component=HOSTILE, summary=HOSTILE)
    found = quarantine_of(node_summary, HANDS.wall, reason=HOSTILE, component=HOSTILE)
    evil = f"{name}/../x?y#z"
    node_summary.quarantine_view.quarantine = replace(
        found, spec=replace(found.spec, incident=evil)
    )
    event = Transition(NIGHT, EventKind.INCIDENT_OPENED, name, HOSTILE, evil, {"x": HOSTILE})
    degraded(fleet, "node-1", HOSTILE)
    for number in (2, 3):
        well(fleet, f"node-{number}", HANDS.now).cluster.meta = NodeMeta(
            f"node-{number}", "uid", {RACK: HOSTILE}
        )
    fleet.group_labels = (RACK,)
    async with serving(fleet, HANDS.clocks(), history=ListHistory([event])) as served:
        for path in (
            "/",
            f"/?blocks={RACK}",
            f"/?q={quote(HOSTILE)}&why={quote(HOSTILE)}",
            f"/quarantines/{quote(name, safe='')}",
            f"/incidents/{quote(evil, safe='')}",
        ):
            text = await served.text(path)
            assert "<script>" not in text, path
            assert "<img" not in text, path
            assert sorted({char for char in text if not char.isprintable()}) == ["\n"], path
            assert 'href="/incidents/<' not in text
        told = json.loads(await served.text(f"/api/v1/map?blocks={RACK}"))
        assert {"value": HOSTILE, "nodes": 2} in told["blocks"]
        await served.text(f"/api/v1/map?blocks={quote(HOSTILE)}", 400)
        await served.text(f"/?blocks={quote(HOSTILE)}", 400)


# -- the map -----------------------------------------------------------------------------------

NAMES = tuple(f"node-{number}" for number in range(12))


def rack_of(name: str, key: str) -> str:
    number = int(name.removeprefix("node-"))
    return {RACK: f"r{number // 4}", "pool": "a", "own": name}.get(key, "")


def test_the_blocks_come_in_natural_order_and_nodes_without_the_label_last() -> None:
    racks = {"node-0": "r10", "node-1": "r9", "node-2": "", "node-3": "r9"}
    layout = map_layout(tuple(racks), lambda name, _: racks[name], RACK)
    assert layout.blocks == (("r9", ("node-1", "node-3")), ("r10", ("node-0",)), ("", ("node-2",)))
    assert layout.names == ("node-1", "node-3", "node-0", "node-2")
    assert map_layout(tuple(racks), lambda name, _: racks[name], "").names == tuple(racks)


def test_the_label_that_divides_the_fleet_is_chosen_by_itself() -> None:
    assert suited_key(NAMES, rack_of, ["own", "pool", RACK]) == RACK
    assert suited_key(NAMES, rack_of, ["own", "pool"]) == ""  # a block each, or one of all
    assert suited_key((), rack_of, [RACK]) == ""


def test_a_layout_is_made_again_when_a_node_comes_and_after_a_while() -> None:
    layouts = MapLayouts()
    racks = dict.fromkeys(NAMES, "r1") | {"node-11": "r2", "node-10": "r2"}

    def layout(names: tuple[str, ...], now: float, asked: str = "") -> list[tuple[str, int]]:
        made = layouts.of(names, asked, value_of=lambda name, _: racks[name], keys=[RACK], now=now)
        return [(value, len(of)) for value, of in made.blocks]

    assert layout(NAMES, 0.0) == [("r1", 10), ("r2", 2)]
    racks["node-9"] = "r2"
    assert layout(NAMES, 1.0) == [("r1", 10), ("r2", 2)]
    assert layout(NAMES[1:], 1.0) == [("r1", 8), ("r2", 3)]
    assert layout(NAMES, 100.0) == [("r1", 9), ("r2", 3)]
    assert layout(NAMES, 100.0, ONE_BLOCK) == [("", 12)]


async def test_page_and_api_give_the_map_in_the_same_blocks() -> None:
    fleet = FleetState(mode="drain", limits={"pool_label": "sickbay.dev/pool"})
    fleet.group_labels = ("sickbay.dev/pool", RACK)
    for number in range(80):
        name = f"node-{number}"
        node_summary = well(fleet, name, HANDS.now)
        labels = {RACK: f"r{number % 4}", "sickbay.dev/pool": "a" if number < 8 else "b"}
        node_summary.cluster.meta = NodeMeta(name, f"uid-{name}", labels)
    async with serving(fleet, HANDS.clocks()) as served:
        told = await served.json("/api/v1/map")
        assert told["label"] == RACK  # a place before a pool
        assert [one["value"] for one in told["blocks"]] == ["r0", "r1", "r2", "r3"]
        assert told["names"][:2] == ["node-0", "node-4"]
        text = await served.text("/")
        tag, *letters = text.partition('id="cells"')[2].partition("</div>")[0].split()[2:]
        assert re.fullmatch("[0-9a-f]{16}", tag)
        assert "".join(letters[-2:]) == told["states"]
        by_pool = await served.text("/?blocks=sickbay.dev/pool")
        assert 'data-src="/api/v1/map?blocks=sickbay.dev/pool"' in by_pool
        assert tag not in by_pool
        pools = await served.json("/api/v1/map?blocks=sickbay.dev/pool")
        assert [one["nodes"] for one in pools["blocks"]] == [8, 72]
        assert len((await served.json("/api/v1/map?blocks=none"))["blocks"]) == 1
        assert '<noscript><p class="note">' in text
        assert "No node has the label" not in text
        hint = "No node has the label <code>rack</code>"
        assert hint in await served.text("/?blocks=rack")
        # A label that no node has is not offered.
        fleet.group_labels = ("no.node/has-it", *fleet.group_labels)
        HANDS.advance(60)
        offered = (await served.text("/")).partition('class="blocks"')[2].partition("</nav>")[0]
        assert ">rack</a>" in offered
        assert "has-it" not in offered
        assert text.count('<ul class="legend states"') == 1
        legend = text.partition('<ul class="legend states"')[2].partition("</ul>")[0]
        assert all(f'class="mark {one.value}"' in legend for one in QuarantineSummary)
