"""Nodes that differ from their pool's majority for a day have drifted; a roll-out has not."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from aggregator.clock import Clocks
from aggregator.health.model import Component, Hello, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.policy import drift
from aggregator.policy.drift import ComparedNode, Drift, DriftSearch
from aggregator.quarantine.correlation.drift import DriftWatch
from aggregator.quarantine.state.fleet import FleetState
from tests.support.node_states import summary_in
from tests.support.present import present

DAY = drift.LASTS
FIRMWARE = ("nvme", "KIOXIA CM7")


def fleet(count: int, odd: Mapping[int, str], pool: str = "a") -> dict[str, ComparedNode]:
    """``count`` nodes with firmware 0105, those of ``odd`` with another."""
    return {
        f"{pool}{n:04}": ComparedNode(pool, {FIRMWARE: odd.get(n, "0105")}) for n in range(count)
    }


def after_a_day(nodes: Mapping[str, ComparedNode]) -> list[Drift]:
    search = DriftSearch()
    assert search.search(nodes, 0.0) == []
    assert search.search(nodes, DAY - 1) == []
    return search.search(nodes, DAY)


def test_a_node_that_differs_for_a_day_has_drifted() -> None:
    (found,) = after_a_day(fleet(10, {3: "0099"}))
    assert (found.node, found.value, found.usual) == ("a0003", "0099", "0105")
    assert (found.having, found.of, found.since) == (9, 10, 0.0)


@pytest.mark.parametrize(
    ("count", "odd"),
    [(9, {0: "0099"}), (10, {0: "x", 1: "y"}), (100, dict.fromkeys(range(11), "0106")), (50, {})],
    ids=["few", "no-majority", "roll-out", "equal"],
)
def test_few_nodes_and_a_roll_out_are_no_drift(count: int, odd: dict[int, str]) -> None:
    assert after_a_day(fleet(count, odd)) == []


HOUR = 3600.0


def test_nodes_that_upgrade_one_after_the_other_have_not_drifted() -> None:
    """A node an hour: after a day a tenth is not reached, and at last the oldest are the few."""
    search = DriftSearch()
    upgraded: dict[int, str] = {}
    for hour in range(480):
        upgraded |= {hour: "0106"} if hour < 470 else {}
        found = search.search(fleet(480, upgraded), hour * HOUR)
        assert {drift.value for drift in found} <= {"0105"}
    found = search.search(fleet(480, upgraded), 500 * HOUR)
    assert {drift.node for drift in found} == {f"a{n:04}" for n in range(470, 480)}


def test_a_roll_out_that_stops_is_drift_a_day_later() -> None:
    search = DriftSearch()
    search.search(fleet(100, {}), 0.0)
    for hour in range(5):
        assert search.search(fleet(100, dict.fromkeys(range(hour + 1), "0106")), hour * HOUR) == []
    odd = fleet(100, dict.fromkeys(range(5), "0106"))
    assert search.search(odd, 4 * HOUR + DAY - 1) == []
    assert len(search.search(odd, 4 * HOUR + DAY)) == 5


def test_new_nodes_of_an_old_image_are_drift_however_often_one_comes() -> None:
    search = DriftSearch()
    for hour in range(48):
        nodes = fleet(200, {}) | {
            f"new{n}": ComparedNode("a", {FIRMWARE: "0099"}) for n in range(hour // 6 + 1)
        }
        found = search.search(nodes, hour * HOUR)
    assert {drift.node for drift in found} == {f"new{n}" for n in range(4)}


def test_a_node_that_changes_to_a_value_again_and_again_hides_no_other_nodes_drift() -> None:
    """As a setting does that one program writes and another one puts back."""
    search = DriftSearch()
    found: list[Drift] = []
    for hour in range(96):
        flapping = {} if hour % 12 else {7: "0099"}
        found = search.search(fleet(20, {3: "0099", **flapping}), hour * HOUR)
        assert {drift.node for drift in found} == ({"a0003"} if hour >= 24 else set())


def test_the_memory_of_a_node_that_always_changes_is_bounded_and_it_hides_no_others_drift() -> None:
    facts = [("sysctl", f"s{n}") for n in range(drift.MOST_FACTS - 1)]
    nodes = {f"a{n:04}": ComparedNode("a", dict.fromkeys(facts, "0")) for n in range(40)}
    search, drifted = DriftSearch(), dict.fromkeys(facts, "0") | {facts[0]: "1"}
    shown: list[Drift] = []
    for hour in range(72):
        values = dict.fromkeys(facts, f"{hour}x") | {facts[0]: "1" if hour % 6 == 5 else "2"}
        changing = {"a0000": ComparedNode("a", values), "a0001": ComparedNode("a", drifted)}
        shown = search.search(nodes | changing, hour * HOUR)
        assert len(search._differences) <= 3 * drift.MOST_FACTS + 2
    assert [one.node for one in shown] == ["a0001"]


def test_a_fact_that_its_node_left_out_for_a_while_has_not_changed() -> None:
    """Where NVML gave no answer once: it hides no other node's drift, and goes on."""
    search = DriftSearch()
    nodes = fleet(20, {3: "0099", 7: "0099"})
    search.search(nodes, 0.0)
    search.search(nodes | {"a0007": ComparedNode("a", {})}, DAY / 2)
    found = search.search(nodes, DAY)
    assert [(drift.node, drift.since) for drift in found] == [("a0003", 0.0), ("a0007", 0.0)]


def test_a_drift_beyond_the_most_of_a_node_hides_no_other_nodes() -> None:
    names = [("sysctl", f"s{n}") for n in range(drift.MOST_OF_A_NODE + 1)]
    values = dict.fromkeys(names, "0")
    nodes = {f"n{n:02}": ComparedNode("", values) for n in range(30)}
    nodes["n07"] = ComparedNode("", dict.fromkeys(names, "1"))
    nodes["n03"] = ComparedNode("", values | {names[-1]: "1"})
    assert ("n03", names[-1]) in {(one.node, one.fact) for one in after_a_day(nodes)}
    search = DriftSearch()
    search.search(nodes, 0.0)
    assert len(search.search(nodes, DAY)) == drift.MOST_OF_A_NODE + 1
    nodes["n07"] = ComparedNode("", dict.fromkeys(names, "1") | {names[0]: "0"})
    found = {(one.node, one.fact) for one in search.search(nodes, DAY + 1)}
    assert {("n03", names[-1]), ("n07", names[-1])} <= found


@pytest.mark.parametrize("count", [2, 3, 9])
def test_a_pool_of_few_nodes_has_no_usual_value(count: int) -> None:
    assert after_a_day(fleet(count, {0: "0099"})) == []


def test_pools_are_compared_apart() -> None:
    nodes = fleet(20, {}) | fleet(20, dict.fromkeys(range(20), "0106"), pool="b")
    assert after_a_day(nodes) == []


def test_a_value_that_changes_begins_anew_and_one_that_comes_back_ends() -> None:
    search = DriftSearch()
    search.search(fleet(20, {1: "x"}), 0.0)
    search.search(fleet(20, {1: "y"}), DAY - 1)
    assert search.search(fleet(20, {1: "y"}), DAY) == []
    assert len(search.search(fleet(20, {1: "y"}), 2 * DAY)) == 1
    assert search.search(fleet(20, {}), 2 * DAY + 1) == []


def test_findings_are_bounded() -> None:
    values = {("sysctl", f"s{n}"): "0" for n in range(100)}
    nodes = {f"n{n}": ComparedNode("", values) for n in range(20)}
    nodes["odd"] = ComparedNode("", dict.fromkeys(values, "1"))
    assert len(after_a_day(nodes)) == drift.MOST_OF_A_NODE


def test_facts_are_read_from_the_agents_rows_alone() -> None:
    rows = [
        Component("drift", "nvme", Status.OK, "", "KIOXIA CM7: 0105; broken; B: a: b", 0.0),
        Component("drift", "nvme: KIOXIA CM7", Status.DEGRADED, "nvme", "X: 1", 0.0),
    ]
    assert drift.read_facts(rows) == {FIRMWARE: "0105", ("nvme", "B"): "a: b"}


def test_a_command_lines_evidence_names_the_difference_alone() -> None:
    fact = ("kernel", "command line")
    found = Drift("n", "", fact, "iommu=on quiet", "iommu=pt quiet", 19, 20, 5.0)
    one = drift.evidence(found)
    assert (one.status, one.reason) == (Status.DEGRADED, "kernel")
    assert one.message == "command line: iommu=on; 19 of 20 nodes of the pool have iommu=pt"


async def test_the_watch_reports_a_drift_and_its_end() -> None:
    now = [0.0]
    state = FleetState(how="test")
    said: list[tuple[str, Component]] = []

    def record(node: str, component: Component) -> bool:
        said.append((node, component))
        return True

    def report(node: str, value: str) -> None:
        row = Component("drift", "nvme", Status.OK, "", f"KIOXIA CM7: {value}", 0.0)
        health = present(summary_in(state, node).agent.health)
        health.snapshot(Snapshot((row,), ()))

    for n in range(20):
        summary_in(state, f"n{n}").agent.health = NodeHealth(
            Hello(f"n{n}", "boot", "epoch", "1", 1, "i")
        )
        report(f"n{n}", "0099" if n == 7 else "0105")
    clocks = Clocks(lambda: now[0], lambda: now[0])
    watch = DriftWatch(state, clocks, SimpleNamespace(record=record))
    await watch.compare()
    assert said == []
    now[0] = DAY
    await watch.compare()
    ((node, found),) = said
    assert (node, found.component, found.reason) == ("n7", "nvme: KIOXIA CM7", "nvme")
    report("n7", "0105")
    await watch.compare()
    assert said[-1][1].status is Status.OK
    assert said[-1][1].component == found.component
