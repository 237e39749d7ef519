"""The table of nodes: every column sorts and filters, labels group, the URL has the choice."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.port import NodeMeta
from aggregator.quarantine.state.fleet import FleetState
from aggregator.runtime.text import natural
from aggregator.web.node_table import selector
from aggregator.web.query_params import BadQuery
from aggregator.web.summary import STATE_LABELS
from tests.support.present import present
from tests.web.support import Hands, Served, serving, small_fleet, well

RACK, POOL = "topology.kubernetes.io/rack", "sickbay.dev/pool"


def racked_fleet() -> FleetState:
    """Two racks of four nodes, one node without a rack."""
    hands = Hands()
    fleet = small_fleet(hands)
    for number in range(1, 9):
        name = f"node-{number}"
        labels = {POOL: "h100", RACK: f"r{1 + number % 2}"}
        fleet.node_summaries[name].cluster.meta = NodeMeta(name, f"uid-{name}", labels)
    well(fleet, "node-10", hands.now)
    fleet.group_labels = (POOL, RACK)
    return fleet


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(racked_fleet(), Hands().clocks()) as one:
        yield one


async def names(served: Served, query: str) -> list[str]:
    page = await served.json(f"/api/v1/nodes?{query}")
    assert page["total"] >= len(page["items"])
    return [row["node"] for row in page["items"]]


async def test_every_column_sorts_both_ways(served: Served) -> None:
    page = (await served.json("/api/v1/nodes"))["items"]
    by_name = [f"node-{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 10)]
    assert [row["node"] for row in page] == by_name
    assert await names(served, "sort=-node") == by_name[::-1]
    rows = {row["node"]: row for row in page}
    worst = ["quarantined", "held", "warning", "silent", "unknown", "ok"]
    states = [worst.index(rows[name]["state"]) for name in await names(served, "sort=state")]
    assert states == sorted(states)
    agents = [rows[name]["agent"] for name in await names(served, "sort=agent")]
    assert agents == ["attached"] * 7 + ["silent", "never"]
    assert [rows[name]["agent"] for name in await names(served, "sort=-agent")] == agents[::-1]
    for sign in ("", "-"):
        whys = [rows[name]["why"] for name in await names(served, f"sort={sign}why")]
        full = [why for why in whys if why]
        assert whys == full + [""] * (len(whys) - len(full))  # the empty ones are last
        key = sorted(full, key=lambda why: natural(why.lower()), reverse=bool(sign))
        assert full == key
    racks = [
        rows[name]["labels"].get(RACK, "") for name in await names(served, f"sort=label:{RACK}")
    ]
    assert racks == ["r1"] * 4 + ["r2"] * 4 + [""]
    racks = [
        rows[name]["labels"].get(RACK, "") for name in await names(served, f"sort=-label:{RACK}")
    ]
    assert racks == ["r2"] * 4 + ["r1"] * 4 + [""]


async def test_the_page_begins_with_the_worst_nodes_and_the_api_with_the_first(
    served: Served,
) -> None:
    ranks = [value.value for value in STATE_LABELS]
    text = await served.text("/nodes")
    shown = [ranks.index(one) for one in re.findall(r'<tr data-key="\S+ (\w+)">', text)]
    assert shown == sorted(shown)
    assert len(set(shown)) > 2
    assert 'option value="state" selected' in text
    names = [one["node"] for one in (await served.json("/api/v1/nodes"))["items"]]
    assert names == sorted(names, key=natural)
    by_name = await served.text("/nodes?sort=node")
    assert re.findall(r'<tr data-key="(\S+) ', by_name) == names


async def test_every_column_filters_and_filters_add_up(served: Served) -> None:
    assert await names(served, "q=node-1") == ["node-1", "node-10"]
    assert await names(served, "agent=silent") == ["node-5"]
    assert await names(served, "why=LIMIT%20is%2020") == ["node-3"]
    assert await names(served, "state=quarantined") == ["node-2", "node-7"]
    assert await names(served, f"label={RACK}=r1") == ["node-2", "node-4", "node-6", "node-8"]
    assert await names(served, f"label=!{RACK}") == ["node-10"]
    assert await names(served, f"label={RACK}!=r1,{POOL}=h100,{RACK}&q=-3") == ["node-3"]
    assert await names(served, f"label={RACK}=r1&state=quarantined&agent=attached") == ["node-2"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("sort=stand", "expected one of node, state, why, agent or label:KEY"),
        ("sort=--node", "there is no column"),
        ("sort=label:<b>", "is no label's key"),
        ("agent=dead", "expected one of attached, silent, never, unknown"),
        ("label=a%20b", "expected key=value"),
        ("label=!a=b", "expected key=value"),
        ("label=a=b,,c", "expected key=value"),
        ("label=" + ",".join(["a=b"] * 17), "at most 16"),
        ("label=" + "a" * 5000, "expected key=value"),
    ],
)
async def test_an_unknown_column_or_selector_is_refused(
    served: Served, query: str, says: str
) -> None:
    assert says in json.dumps(await served.json(f"/api/v1/nodes?{query}", 400))
    assert "expected" in await served.text(f"/nodes?{query}", 400)


async def test_pages_of_a_sorted_list_have_each_node_once(served: Served) -> None:
    whole = await names(served, "sort=-state")
    seen: list[str] = []
    after = ""
    for _ in range(9):
        page = await served.json(f"/api/v1/nodes?sort=-state&limit=2&after={after}")
        seen += [row["node"] for row in page["items"]]
        after = page["next"]
        if not after:
            break
    assert seen == whole
    # A node that is gone has no place in such an order: its page is the first one.
    gone = await served.json("/api/v1/nodes?sort=-state&limit=2&after=node-99")
    assert [row["node"] for row in gone["items"]] == whole[:2]


async def test_groups_count_the_states_of_their_nodes(served: Served) -> None:
    found = await served.json(f"/api/v1/groups?key={RACK}")
    assert [(one["value"], one["nodes"]) for one in found["items"]] == [
        ("r1", 4),
        ("r2", 4),
        ("", 1),
    ]
    assert found["items"][0]["counts"]["quarantined"] == 1
    assert sum(sum(one["counts"].values()) for one in found["items"]) == found["nodes"] == 9
    worst = await served.json(f"/api/v1/groups?key={RACK}&sort=-held&state=held")
    assert [one["value"] for one in worst["items"]] == ["r2"]
    assert [
        one["value"]
        for one in (await served.json(f"/api/v1/groups?key={RACK}&sort=-nodes"))["items"]
    ][-1] == ""
    assert "there is no key" in json.dumps(await served.json("/api/v1/groups", 400))
    assert "is no label" in json.dumps(await served.json("/api/v1/groups?key=%3Cb%3E", 400))


async def test_groups_count_only_the_nodes_that_pass_every_filter(served: Served) -> None:
    for query, value in (("agent=silent", "r2"), ("why=LIMIT%20is%2020", "r2")):
        found = await served.json(f"/api/v1/groups?key={RACK}&{query}")
        assert [(one["value"], one["nodes"]) for one in found["items"]] == [(value, 1)]
        assert "1 node in 1 group by" in await served.text(f"/nodes?group={RACK}&{query}")


async def test_an_empty_label_is_a_group_of_its_own_that_its_link_opens() -> None:
    fleet, worker = racked_fleet(), "node-role.kubernetes.io/worker"
    for number in (1, 2, 3):
        name = f"node-{number}"
        fleet.node_summaries[name].cluster.meta = NodeMeta(name, f"uid-{name}", {worker: ""})
    async with serving(fleet, Hands().clocks()) as served:
        found = (await served.json(f"/api/v1/groups?key={worker}"))["items"]
        assert [(one["value"], one["has_label"], one["nodes"]) for one in found] == [
            ("", True, 3),
            ("", False, 6),
        ]
        text = await served.text(f"/nodes?group={worker}")
        assert f'label={quote(worker, safe="")}%3D">(empty)</a>' in text
        assert f'label=%21{quote(worker, safe="")}">(no label)</a>' in text
        assert len(await names(served, f"label={worker}=")) == 3


async def test_thousands_of_groups_are_cut_and_a_link_has_them_all() -> None:
    fleet, hands = FleetState(), Hands()
    for number in range(450):
        name = f"node-{number}"
        well(fleet, name, hands.now).cluster.meta = NodeMeta(name, name, {"host": name})
    async with serving(fleet, hands.clocks()) as served:
        text = await served.text("/nodes?group=host&q=node&sort=-nodes")
        assert text.count("<tr data-key") == 200
        assert "and 250 more groups" in text
        link = "/api/v1/groups?key=host&q=node&sort=-nodes"
        assert f'href="{link.replace("&", "&amp;")}"' in text
        assert len((await served.json(link))["items"]) == 450


async def test_a_number_of_any_length_is_sorted() -> None:
    async with serving(racked_fleet(), Hands().clocks()) as served:
        assert await names(served, f"after={'9' * 5000}") == await names(served, "")
    assert natural("gpu-9") < natural("gpu-10") < natural("gpu-" + "1" * 5000)


async def test_the_page_keeps_the_choice_in_every_link(served: Served) -> None:
    query = f"state=quarantined&label={quote(RACK, safe='')}%3Dr1&sort=-why"
    text = await served.text(f"/nodes?{query}")
    assert 'aria-sort="descending"' in text
    assert "sort=why" in text  # turned round by the same head
    kept = [link.split('"')[0] for link in text.split('href="/nodes?')[1:]]
    assert sum("state=quarantined" in link for link in kept) >= 5
    assert '<option value="-why" selected>' in text
    groups = await served.text(f"/nodes?group={RACK}&sort=agent")  # no column of groups
    assert "(no label)" in groups
    assert f"label={quote(RACK, safe='')}%3Dr1" in groups
    assert f"label=%21{quote(RACK, safe='')}" in groups
    assert (await served.text("/nodes?sort=-held")).count('class="node"') == 9  # of groups


async def test_hostile_queries_and_labels_stay_text() -> None:
    evil = '"><script>alert(1)</script>\u202e'
    fleet = racked_fleet()
    fleet.node_summaries["node-1"].cluster.meta = NodeMeta("node-1", "u", {RACK: evil})
    async with serving(fleet, Hands().clocks()) as served:
        for path in (
            f"/nodes?why={quote(evil)}",
            f"/nodes?group={RACK}",
            f"/nodes?sort=label:{RACK}",
        ):
            assert "<script>alert" not in await served.text(path)


@given(st.text(max_size=30))
def test_a_selector_is_understood_or_refused_and_nothing_else(text: str) -> None:
    try:
        found = selector(text)
    except BadQuery:
        return
    assert found is None or isinstance(found({}), bool)


@given(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "x", "y"])),
    st.sampled_from("abc"),
    st.sampled_from(["x", "y"]),
)
def test_a_selector_means_what_it_means_to_kubernetes(
    labels: dict[str, str], key: str, value: str
) -> None:
    def holds(text: str) -> Any:
        found = present(selector(text))
        return found(labels)

    assert holds(key) == (key in labels)
    assert holds(f"!{key}") == (key not in labels)
    assert holds(f"{key}={value}") == holds(f"{key}=={value}") == (labels.get(key) == value)
    assert holds(f"{key}!={value}") == (labels.get(key) != value)  # also without the label
