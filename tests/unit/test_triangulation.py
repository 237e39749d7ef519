"""The nodes that a failing network is blamed on, and above all the nodes that it is not."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.health.model import Status
from aggregator.policy.network.triangulate import (
    MOST_AT_ONCE,
    PEERS,
    REACH,
    WINDOW,
    Triangulation,
)
from aggregator.policy.network.verdict import (
    CUT_OFF,
    DOMAIN,
    SHARED,
)
from tests.support.networks import RACK, TARGET, Network, address, name
from tests.support.present import present

pytestmark = pytest.mark.slow

NOW = 1000.0


def network(size: int = 200, seed: int = 1) -> Network:
    return Network(size, random.Random(seed))


def evaluated(told: Network, *, labels: bool = True) -> Triangulation:
    found = Triangulation()
    told.report_all(found, labels=labels)
    found.settle(NOW)
    return found


def reasons(found: Triangulation, size: int) -> dict[str, str]:
    """The reason of each node that is not known to be well, and of each that is blamed."""
    told = {}
    for node in range(size):
        finding = present(found.finding(name(node)))
        if finding.status is not Status.OK:
            told[name(node)] = finding.reason
    return told


def blamed(found: Triangulation, size: int) -> set[str]:
    names = (name(node) for node in range(size))
    findings = {node: found.finding(node) for node in names}
    return {node for node, f in findings.items() if f is not None and f.status is Status.FAILED}


def test_all_is_well_and_nobody_is_blamed() -> None:
    found = evaluated(network())
    assert reasons(found, 200) == {}
    assert found.verdicts() == []


def test_a_node_that_nobody_reaches_is_blamed_with_the_edges_that_say_so() -> None:
    told = network()
    told.down = {7}
    found = evaluated(told)
    finding = present(found.finding("node-7"))
    assert finding.reason == CUT_OFF  # it says so itself, too
    assert {edge.target for edge in finding.edges} == {"node-7"}
    assert {edge.observer for edge in finding.edges} == {
        name(node) for node in range(200) if 7 in told.peers[node]
    }
    assert blamed(found, 200) == {"node-7"}


def test_a_silent_agent_is_no_unreachable_node() -> None:
    told = network()
    told.silent = {7}
    assert reasons(evaluated(told), 200) == {}


def test_a_rack_that_a_label_names_is_blamed_and_none_of_its_nodes() -> None:
    told = network()
    told.walls = [set(range(2 * RACK, 3 * RACK))]
    told.gateways_down = {2}
    found = evaluated(told)
    assert blamed(found, 200) == set()
    assert set(reasons(found, 200).values()) == {DOMAIN}
    (verdict,) = found.verdicts()
    assert (verdict.subject, verdict.count) == ("domain rack=r2", RACK)


def test_without_a_label_what_fails_together_blames_nobody() -> None:
    told = network()
    told.gateways_down = {2}
    found = evaluated(told, labels=False)
    assert blamed(found, 200) == set()
    assert set(reasons(found, 200).values()) == {SHARED}
    (verdict,) = found.verdicts()
    assert verdict.kind == "unnamed"


def test_another_node_that_fails_beside_a_blamed_rack_is_blamed() -> None:
    told = network()
    told.gateways_down = {1}
    told.down = {100}
    found = evaluated(told)
    assert blamed(found, 200) == {"node-100"}


def test_more_nodes_at_once_than_chance_gives_blame_nobody_and_fewer_are_blamed() -> None:
    nodes = [0, 40, 80, 120]
    assert len(nodes) == MOST_AT_ONCE + 1
    told = network()
    told.down = set(nodes[:-1])
    assert blamed(evaluated(told), 200) == {name(node) for node in nodes[:-1]}
    told.down = set(nodes)
    found = evaluated(told)
    assert blamed(found, 200) == set()


def test_nodes_that_fail_one_after_the_other_are_each_blamed() -> None:
    told, found = network(), Triangulation()
    told.report_all(found)
    for number, node in enumerate([0, 40, 80, 120, 160]):
        told.down.add(node)
        told.report_all(found)
        found.settle(NOW + number * (WINDOW + 1) / MOST_AT_ONCE)
    assert len(blamed(found, 200)) == 5


def test_a_gateway_that_answers_nobody_blames_nobody() -> None:
    told, found = network(), Triangulation()
    told.report_all(found)
    for node in range(200):
        found.set_edge(name(node), REACH, "gateway", Status.FAILED)
    found.settle(NOW)
    assert reasons(found, 200) == {}


def test_nodes_that_are_cut_off_accuse_no_target() -> None:
    told = network(64)
    told.down = {1, 20, 40}
    assert [verdict.kind for verdict in evaluated(told).verdicts()] == []


def test_a_target_is_blamed_until_no_observer_has_a_result_for_it() -> None:
    told = network()
    told.missed = {TARGET}
    found = evaluated(told)
    assert reasons(found, 200) == {}
    (verdict,) = found.verdicts()
    assert (verdict.kind, verdict.name, verdict.count) == ("target", f"reach {TARGET}", 200)
    for node in range(200):
        found.set_edge(name(node), REACH, TARGET, None)
    found.settle(NOW + 1)
    assert found.verdicts() == []


def test_a_blamed_node_is_well_again_since_its_observers_reach_it() -> None:
    told = network()
    told.down = {7}
    found = evaluated(told)
    told.down = set()
    told.report_all(found)
    changed, _ = found.settle(NOW + 60)
    assert (changed["node-7"].status, changed["node-7"].since) == (Status.OK, NOW + 60)


def test_a_blamed_node_whose_observers_fall_silent_is_neither_well_nor_blamed() -> None:
    told = network()
    told.down = {7}
    found = evaluated(told)
    for node in range(200):
        if 7 in told.peers[node] or node == 7:
            found.set_report(name(node), reporting=False)
    found.settle(NOW + 60)
    finding = present(found.finding("node-7"))
    assert finding.status is Status.UNKNOWN


def test_what_is_forgotten_leaves_nothing_behind() -> None:
    told = network(60)
    told.down, told.missed, told.gateways_down = {5}, {TARGET}, {2}
    found = evaluated(told)
    for node in range(60):
        found.forget_node(name(node))
    found.settle(NOW + 1)
    assert found.verdicts() == []
    assert all(found.finding(name(node)) is None for node in range(60))
    assert not any(
        len(table)
        for part in (found, found._graph, found._targets)
        for table in vars(part).values()
        if isinstance(table, dict | set)
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.integers(0, 149), min_size=1, max_size=148),
    st.integers(0, 5),
    st.booleans(),
)
def test_a_partition_blames_none_of_either_side_for_long(
    side: set[int],
    seed: int,
    labels: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    """For any split: at most as few as chance gives are blamed, and none of the larger half."""
    told = network(150, seed)
    told.walls = [side]
    found = evaluated(told, labels=labels)
    guilty = blamed(found, 150)
    assert len(guilty) <= MOST_AT_ONCE
    smaller = side if len(side) <= 75 else set(range(150)) - side
    assert guilty <= {name(node) for node in smaller}


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.sets(st.tuples(st.integers(0, 59), st.integers(0, 7)), max_size=480),
    st.sets(st.integers(0, 59), max_size=30),
    st.integers(0, 3),
)
def test_a_node_that_one_reporting_observer_reaches_and_that_says_nothing_is_never_blamed(
    broken: set[tuple[int, int]], silent: set[int], seed: int
) -> None:
    """No set of broken edges makes a healthy node guilty by others' word, whatever else fails."""
    told, found = network(60, seed), Triangulation()
    told.silent = silent
    told.report_all(found)
    for node, which in broken:
        peer = told.peers[node][which % len(told.peers[node])]
        found.set_edge(name(node), PEERS, address(peer), Status.FAILED)
    found.settle(NOW)
    failing = {(node, told.peers[node][which % len(told.peers[node])]) for node, which in broken}
    guilty = blamed(found, 60)
    for node in range(60):
        observers = [o for o in range(60) if node in told.peers[o] and o not in silent]
        if len(observers) < 3 or any((o, node) not in failing for o in observers):
            assert name(node) not in guilty


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 39)), st.sets(st.sampled_from(["a", "b", "c"]), min_size=1))
def test_targets_never_blame_an_observer(missing: set[int], targets: set[str]) -> None:
    told, found = network(40), Triangulation()
    told.report_all(found)
    for node in missing:
        for target in targets:
            found.set_edge(name(node), REACH, target, Status.FAILED)
            found.set_edge(name(node), "dns", target, Status.FAILED)
            found.set_edge(name(node), "pod-network", target, Status.FAILED)
    found.settle(NOW)
    assert blamed(found, 40) == set()


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_the_order_in_which_agents_speak_does_not_matter(
    rng: random.Random,
    labels: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    told = network(96, 2)
    told.down, told.mute, told.gateways_down = {3}, {50}, {4}
    told.missed = {TARGET}
    one, other = evaluated(told, labels=labels), Triangulation()
    told.report_all(other, labels=labels, order=rng.shuffle)
    other.settle(NOW)
    assert reasons(one, 96) == reasons(other, 96)
    assert {v.subject for v in one.verdicts()} == {v.subject for v in other.verdicts()}


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 47), st.integers(0, 8), st.sampled_from(["ok", "failed", "gone"])),
        max_size=120,
    )
)
def test_evaluating_after_each_update_ends_where_evaluating_once_does(
    updates: list[tuple[int, int, str]],
) -> None:
    """Incremental bookkeeping loses no fact: the facts decide, not the order in which they came."""
    status = {"ok": Status.OK, "failed": Status.FAILED, "gone": None}
    told = network(48, 3)
    step, whole = Triangulation(), Triangulation()
    told.report_all(step, labels=False)
    told.report_all(whole, labels=False)
    step.settle(NOW)
    for number, (node, which, how) in enumerate(updates):
        if which == 8:
            args = (name(node), REACH, "gateway", status[how])
        else:
            peer = told.peers[node][which % len(told.peers[node])]
            args = (name(node), PEERS, address(peer), status[how])
        step.set_edge(*args)
        whole.set_edge(*args)
        step.settle(NOW + number * 2 * WINDOW)  # never at once with another
    whole.settle(NOW)
    mine = {name(n): step._graph.count_view(name(n)) for n in range(48)}
    assert mine == {name(n): whole._graph.count_view(name(n)) for n in range(48)}
    accused = {node for node, look in mine.items() if look.accusation}
    assert set(step._accused) == accused == set(whole._accused)


@pytest.mark.slow
def test_an_update_costs_the_same_in_a_large_fleet() -> None:
    """Counted in looks, not in seconds: the graph's work for the change of one edge."""
    looked = []
    for size in (500, 4000):
        told, found = network(size), Triangulation()
        told.report_all(found)
        found.settle(NOW)
        found.set_edge(name(1), PEERS, address(told.peers[1][0]), Status.FAILED)
        looked.append(len(found._graph._dirty))
    for one, other in pairwise(looked):
        assert one == other <= 10
