"""Pools on the page, in the API, in metrics and on the command line."""

import json
from dataclasses import replace

from aggregator.cluster.port import Action
from aggregator.policy.label_selector import LabelRequirement, LabelSelector
from aggregator.quarantine.decide.pools import Pool, PoolLimits, Pools
from aggregator.quarantine.state.fleet import FleetState, PoolUse, QuarantineSummary
from tests.web.cli import in_process
from tests.web.support import Hands, serving, small_fleet
from tests.web.test_metrics import labels, scrape

#: Longer than a line, and hostile: names of labels are the site's own, values may be anything.
SELECTOR = LabelSelector(
    {"example.com/pool": "canary"}, (LabelRequirement("gpu", "NotIn", ("a", "b")),)
)


def pooled_fleet(hands: Hands) -> FleetState:
    """The small fleet; nodes 2 and 3 (in quarantine, and held) are in a canary that drains."""
    fleet = small_fleet(hands)
    limits = PoolLimits(concurrent=1, concurrent_percent=50, new_per_window=3)
    fleet.pools = Pools((Pool("canary", SELECTOR, Action.DRAIN, limits),), Action.OBSERVE)
    fleet.mode = "observe"
    fleet.limits = {**fleet.limits, "window": "10m"}
    because = "no new quarantine until 14:31 UTC: 3 nodes of pool canary were admitted"
    fleet.pool_use = {"canary": PoolUse(1, 2, because)}
    for name, summary in fleet.node_summaries.items():
        pool = {"example.com/pool": "canary"} if name in ("node-2", "node-3") else {}
        summary.cluster.labels = pool
        if summary.cluster.meta is not None:
            summary.cluster.meta = replace(summary.cluster.meta, labels=pool)
    return fleet


async def test_the_api_has_a_line_for_each_pool_and_the_pool_of_each_node() -> None:
    hands = Hands()
    fleet = pooled_fleet(hands)
    async with serving(fleet, hands.clocks()) as served:
        told = json.loads(await served.text("/api/v1/fleet"))
        canary, default = told["pools"]
        assert (canary["name"], canary["mode"], canary["nodes"]) == ("canary", "drain", 2)
        assert canary["selector"] == "example.com/pool=canary,gpu notin (a,b)"
        assert canary["counts"]["quarantined"] == 1
        assert canary["counts"]["held"] == 1
        assert canary["cooling"].startswith("no new quarantine until")
        uses = {one["name"]: (one["used"], one["most"], one["full"]) for one in canary["limits"]}
        assert uses == {
            "pools.limits.concurrent": (1, 1, True),
            "pools.limits.concurrent_percent": (1, 1, True),
            "pools.limits.new_per_window": (2, 3, False),
        }
        assert (default["name"], default["mode"]) == ("default", "observe")
        assert default["nodes"] == len(fleet.node_summaries) - 2
        assert default["limits"] == []
        assert sum(default["counts"].values()) == default["nodes"]
        node = json.loads(await served.text("/api/v1/nodes/node-2"))
        assert (node["pool"], node["mode"]) == ("canary", "drain")
        other = json.loads(await served.text("/api/v1/nodes/node-1"))
        assert (other["pool"], other["mode"]) == ("default", "observe")


async def test_the_page_shows_pools_and_a_node_its_own() -> None:
    hands = Hands()
    async with serving(pooled_fleet(hands), hands.clocks()) as served:
        page = await served.text("/")
        assert 'id="pools-title"' in page
        assert "example.com/pool=canary,gpu notin (a,b)" in page
        assert "no new quarantine until 14:31 UTC" in page
        assert "No node is changed" not in page  # the canary drains
        assert "pool canary</a>, which has another." in page
        node = await served.text("/nodes/node-2")
        assert "pool <b>canary</b>, mode <b>drain</b>" in node


async def test_without_pools_there_is_no_such_panel_and_no_series() -> None:
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks()) as served:
        assert 'id="pools-title"' not in await served.text("/")
        assert "sickbay_pool_" not in await served.text("/metrics")
        node = json.loads(await served.text("/api/v1/nodes/node-2"))
        assert (node["pool"], node["mode"]) == ("", "drain")
        assert json.loads(await served.text("/api/v1/fleet"))["pools"] == []


async def test_metrics_have_a_label_for_each_pool_and_for_the_rest() -> None:
    hands = Hands()
    async with serving(pooled_fleet(hands), hands.clocks()) as served:
        found = await scrape(served)
    of = labels(pool="canary", state="quarantined")
    assert found["sickbay_pool_nodes", of] == 1
    assert found["sickbay_pool_mode", labels(pool="canary", mode="drain")] == 1
    assert found["sickbay_pool_mode", labels(pool="default", mode="observe")] == 1
    assert found["sickbay_pool_cooling_down", labels(pool="canary")] == 1
    limit = labels(pool="canary", limit="pools.limits.concurrent")
    assert found["sickbay_pool_limit_used_nodes", limit] == 1
    assert found["sickbay_pool_limit_max_nodes", limit] == 1
    pools = {dict(key)["pool"] for name, key in found if name.startswith("sickbay_pool_")}
    assert pools == {"canary", "default"}
    by_pool = sum(v for (name, _), v in found.items() if name == "sickbay_pool_nodes")
    by_state = sum(found["sickbay_nodes", labels(state=one.value)] for one in QuarantineSummary)
    assert by_pool == by_state


async def test_the_command_line_names_the_pool_and_the_mode() -> None:
    hands = Hands()
    async with serving(pooled_fleet(hands), hands.clocks()) as served:
        explained = await in_process("explain", "node-2", "--url", served.url)
        assert explained.code == 0, explained.err
        assert "Mode drain of pool canary is the most that is done" in explained.out
        asked = await in_process("status", "--url", served.url)
        assert "mode drain in pool canary, 2 nodes\n" in asked.out
        shown = await in_process("node", "node-1", "--url", served.url)
        assert "default" in shown.out
