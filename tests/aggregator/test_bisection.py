"""The search for the nodes that make a group's test fail, in fabrics of known faults."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.bisection.halves import halves, in_order
from aggregator.bisection.model import Group, GroupOutcome, GroupTest, SearchLimits, SearchVerdict
from aggregator.bisection.search import Bisection
from tests.support.fabrics import fabric, named, nodes, search

PASSED, FAILED, INCONCLUSIVE = GroupOutcome.PASSED, GroupOutcome.FAILED, GroupOutcome.INCONCLUSIVE
EIGHT = nodes(8)


# -- the group passes, or fails once ---------------------------------------------------


def test_a_group_that_passes_takes_one_test() -> None:
    found = search(EIGHT, fabric())
    assert (found.verdict, found.rounds, found.tests) == (SearchVerdict.PASSED, 1, 1)
    assert found.cleared == EIGHT


def test_a_group_that_fails_once_names_no_node_and_gives_no_verdict() -> None:
    asked: list[Group] = []

    def answer(group: Group) -> GroupOutcome:
        asked.append(group)
        return FAILED if len(asked) == 1 else PASSED

    found = search(EIGHT, answer)
    assert (found.verdict, found.suspects, found.interactions) == (SearchVerdict.NO_VERDICT, (), ())
    [open_] = found.unsettled
    assert open_.nodes == EIGHT
    assert "did not when repeated" in open_.why
    assert asked.count(EIGHT) == 2


def test_one_node_alone_is_no_group() -> None:
    for group in ((), ("gpu-1",), ("gpu-1", "gpu-1")):
        with pytest.raises(ValueError, match="two nodes or more"):
            Bisection(group)


# -- bad nodes -------------------------------------------------------------------------


def test_one_bad_node_is_named_with_its_failures_and_the_good_nodes_test() -> None:
    found = search(EIGHT, fabric({"gpu-0005"}))
    [suspect] = found.suspects
    assert suspect.node == "gpu-0005"
    *failures, control = suspect.tests
    partners = [node for one in failures for node in one.test.nodes if node != suspect.node]
    assert [one.outcome for one in failures] == [FAILED, FAILED]
    assert (set(control.test.nodes), control.outcome) == (set(partners), PASSED)
    assert len(set(partners)) == 2
    assert found.rest_passed is True
    assert set(found.cleared) == set(EIGHT) - {"gpu-0005"}


@pytest.mark.parametrize("count", range(2, 11))
def test_every_set_of_bad_nodes_is_named_beside_two_nodes_known_to_be_good(count: int) -> None:
    group = nodes(count)
    for mask in range(2**count):
        bad = {node for place, node in enumerate(group) if mask >> place & 1}
        found = search(group, fabric(bad), known_good=("good-1", "good-2"))
        assert named(found) == bad
        assert (found.interactions, found.unsettled) == ((), ())


@pytest.mark.parametrize("count", range(3, 10))
def test_two_good_nodes_in_the_group_are_found_without_a_known_one(count: int) -> None:
    group = nodes(count)
    for mask in range(2**count):
        bad = {node for place, node in enumerate(group) if mask >> place & 1}
        found = search(group, fabric(bad))
        assert named(found) == (bad if count - len(bad) >= 2 else set())


def test_a_pair_that_fails_without_a_known_good_node_has_no_verdict() -> None:
    found = search(("a", "b"), fabric({"a"}))
    assert (found.verdict, found.suspects) == (SearchVerdict.NO_VERDICT, ())
    assert {node for one in found.unsettled for node in one.nodes} == {"a", "b"}


def test_one_known_good_node_is_enough_if_the_pair_has_another_one() -> None:
    found = search(("a", "b"), fabric({"a"}), known_good=("c",))
    assert named(found) == {"a"}


def test_beside_a_single_good_node_it_may_be_the_link_and_no_node_is_named() -> None:
    found = search(("a", "b"), fabric({"a", "b"}), known_good=("c",))
    assert found.suspects == ()
    assert all("failed next to c" in one.why for one in found.unsettled)


def test_a_node_that_is_declared_good_and_is_not_accuses_no_other_one() -> None:
    found = search(EIGHT, fabric({"gpu-0001"}), known_good=("gpu-0001",))
    assert named(found) == {"gpu-0001"}
    assert found.interactions == ()


def test_declared_good_nodes_that_fail_are_reported_once_each() -> None:
    group = nodes(4)
    found = search(group, fabric({*group, "good-1", "good-2"}), known_good=("good-1", "good-2"))
    assert (found.verdict, found.suspects) == (SearchVerdict.NO_VERDICT, ())
    assert len(found.unsettled) == len({one.nodes for one in found.unsettled}) == 6
    for one in found.unsettled:
        declared = "failed although declared good (test " in one.why
        assert declared == one.nodes[0].startswith("good-")


def test_the_worst_of_200_random_sets_among_1024_nodes_takes_22_rounds_at_most() -> None:
    group, rng, worst = nodes(1024), random.Random(21), 0
    for _ in range(200):
        bad = set(rng.sample(group, rng.choice((1, 1, 1, 2, 2, 3, 4, 6, 8, 16))))
        found = search(group, fabric(bad))
        assert named(found) == bad
        assert (found.interactions, found.unsettled, found.rest_passed) == ((), (), True)
        worst = max(worst, found.rounds)
    assert worst <= 22


def test_few_tests_at_once_take_more_rounds_and_have_the_same_result() -> None:
    group, bad = nodes(64), {"gpu-0003", "gpu-0040", "gpu-0041"}
    wide = search(group, fabric(bad))
    narrow = search(group, fabric(bad), limits=SearchLimits(parallel=1))
    assert named(wide) == named(narrow) == bad
    assert wide.rounds < narrow.rounds == narrow.tests


# -- faults between nodes --------------------------------------------------------------


def test_a_bad_link_is_reported_as_two_nodes_that_fail_together_and_names_neither() -> None:
    group, rng = nodes(1024), random.Random(5)
    for _ in range(20):
        link = set(rng.sample(group, 2))
        found = search(group, fabric(links=[link]))
        assert (found.verdict, found.suspects) == (SearchVerdict.FOUND, ())
        [one] = found.interactions
        assert {*one.first, *one.second} == link
        assert (found.rest_passed, found.rounds <= 22) == (True, True)


def test_a_fault_of_many_nodes_together_is_reported_between_the_halves() -> None:
    group = nodes(16)

    def answer(nodes: Group) -> GroupOutcome:
        return FAILED if len(nodes) > 8 else PASSED

    [one] = search(group, answer).interactions
    assert (one.first, one.second) == (group[:8], group[8:])
    assert [ended.outcome for ended in one.tests] == [PASSED, PASSED, FAILED, FAILED]


def test_a_bad_node_and_a_bad_link_are_both_found() -> None:
    group = nodes(64)
    found = search(group, fabric({"gpu-0007"}, links=[{"gpu-0020", "gpu-0050"}]))
    assert named(found) == {"gpu-0007"}
    [one] = found.interactions
    assert {*one.first, *one.second} == {"gpu-0020", "gpu-0050"}


def test_a_rack_whose_uplink_is_bad_is_reported_as_a_rack_and_no_node_of_it() -> None:
    group = nodes(128)
    domains = {node: f"rack-{place // 16}" for place, node in enumerate(group)}
    rack = tuple(node for node in group if domains[node] == "rack-5")
    found = search(group, fabric(uplinks=[rack]), domains=domains)
    assert found.suspects == ()
    [one] = found.interactions
    assert (one.faulty, one.domain, found.rest_passed) == (rack, "rack-5", True)


def test_two_bad_links_are_both_found() -> None:
    links = [{"gpu-0001", "gpu-0033"}, {"gpu-0002", "gpu-0060"}]
    found = search(nodes(64), fabric(links=links))
    assert [{*one.first, *one.second} for one in found.interactions] == links


# -- tests without a verdict -----------------------------------------------------------


def test_a_test_without_a_verdict_is_run_twice() -> None:
    asked: list[Group] = []

    def answer(group: Group) -> GroupOutcome:
        asked.append(group)
        return INCONCLUSIVE if len(asked) == 1 else PASSED

    assert search(EIGHT, answer).verdict is SearchVerdict.PASSED
    assert asked == [EIGHT, EIGHT]


def test_a_node_without_the_tool_is_found_and_not_accused() -> None:
    group, bad = nodes(64), {"gpu-0010"}
    fails = fabric(bad)

    def answer(nodes: Group) -> GroupOutcome:
        return INCONCLUSIVE if "gpu-0042" in nodes else fails(nodes)

    found = search(group, answer)
    assert (named(found), found.rest_passed) == (bad, True)
    assert [one.nodes for one in found.unsettled] == [("gpu-0042",)]


def test_a_tool_that_is_missing_everywhere_ends_the_search_soon() -> None:
    found = search(nodes(1024), lambda _: INCONCLUSIVE)
    assert (found.verdict, found.suspects) == (SearchVerdict.NO_VERDICT, ())
    assert found.tests < 10
    assert "no test of 4 rounds had a verdict" in found.unsettled[-1].why


@given(
    count=st.integers(2, 24),
    bad=st.sets(st.integers(0, 23), max_size=6),
    link=st.sets(st.integers(0, 23), min_size=2, max_size=2),
    parallel=st.integers(0, 3),
    draws=st.randoms(use_true_random=False),
    share=st.sampled_from((0.1, 0.5, 0.9)),
)
def test_tests_without_a_verdict_never_accuse_a_good_node(
    count: int,
    bad: set[int],
    link: set[int],
    parallel: int,
    draws: random.Random,
    share: float,
) -> None:
    group = nodes(count)
    wrong = {group[place] for place in bad if place < count}
    fails = fabric(wrong, [{f"gpu-{place:04d}" for place in link}])

    def answer(nodes: Group) -> GroupOutcome:
        return INCONCLUSIVE if draws.random() < share else fails(nodes)

    found = search(group, answer, limits=SearchLimits(parallel=parallel))
    assert named(found) <= wrong
    if not link <= set(range(count)):
        for one in found.interactions:
            assert not wrong.isdisjoint((*one.first, *one.second))


@given(
    count=st.integers(3, 24),
    bad=st.integers(0, 23),
    draws=st.randoms(use_true_random=False),
    share=st.sampled_from((0.2, 0.5, 0.8)),
    silent=st.sampled_from((0.0, 0.2)),
)
def test_a_node_that_fails_now_and_then_never_has_another_one_accused(
    count: int, bad: int, draws: random.Random, share: float, silent: float
) -> None:
    group = nodes(count)
    wrong = group[bad % count]

    def answer(nodes: Group) -> GroupOutcome:
        if draws.random() < silent:
            return INCONCLUSIVE
        return FAILED if wrong in nodes and draws.random() < share else PASSED

    assert named(search(group, answer)) <= {wrong}


@given(
    count=st.integers(3, 40),
    bad=st.sets(st.integers(0, 39), max_size=2),
    draws=st.randoms(use_true_random=False),
)
def test_with_three_confirmations_two_such_nodes_accuse_no_other_one(
    count: int, bad: set[int], draws: random.Random
) -> None:
    group = nodes(count)
    wrong = {group[place % count] for place in bad}

    def answer(nodes: Group) -> GroupOutcome:
        return FAILED if wrong & set(nodes) and draws.random() < 0.6 else PASSED

    found = search(group, answer, limits=SearchLimits(confirmations=3))
    assert named(found) <= wrong


@given(
    count=st.integers(2, 48),
    bad=st.sets(st.integers(0, 47), max_size=5),
    racks=st.integers(1, 6),
    parallel=st.integers(0, 4),
)
def test_bad_nodes_are_named_whatever_the_racks_are(
    count: int, bad: set[int], racks: int, parallel: int
) -> None:
    group = nodes(count)
    wrong = {group[place] for place in bad if place < count}
    domains = {node: f"rack-{place % racks}" for place, node in enumerate(group) if place % 7}
    found = search(group, fabric(wrong), domains=domains, limits=SearchLimits(parallel=parallel))
    assert named(found) == (wrong if count - len(wrong) >= 2 else set())
    assert found.interactions == ()


# -- bounds, and a search that goes on --------------------------------------------------


def test_the_limit_of_rounds_ends_a_search_with_what_is_known_by_then() -> None:
    found = search(nodes(64), fabric({"gpu-0001"}), limits=SearchLimits(rounds=4))
    assert (found.rounds, found.suspects) == (4, ())
    assert found.unsettled[-1].why == "it was ended after 4 rounds"
    assert "gpu-0001" in found.unsettled[-1].nodes


def test_a_search_that_begins_anew_asks_for_the_same_tests() -> None:
    answer = fabric({"gpu-0003", "gpu-0030"}, [{"gpu-0001", "gpu-0050"}])

    def asked() -> list[GroupTest]:
        bisection = Bisection(nodes(64))
        tests: list[GroupTest] = []
        while now := bisection.next_round():
            tests += now
            for test in reversed(now):  # the order of the outcomes is not the order of the tests
                bisection.record(test, answer(test.nodes))
        return tests

    first = asked()
    assert first == asked()
    assert [test.number for test in first] == list(range(1, len(first) + 1))


def test_a_round_has_the_tests_without_an_outcome_until_all_have_one() -> None:
    bisection = Bisection(EIGHT)
    [whole] = bisection.next_round()
    bisection.record(whole, FAILED)
    first, second = bisection.next_round()
    bisection.record(second, PASSED)
    assert bisection.next_round() == (first,)
    with pytest.raises(ValueError, match="was not requested"):
        bisection.record(second, PASSED)


# -- halves ----------------------------------------------------------------------------


def test_a_group_is_divided_between_its_racks() -> None:
    racks = {"a": "1", "b": "1", "c": "1", "d": "2", "e": "2", "f": "3"}
    assert halves(in_order("fdaebc", racks), racks) == (("f", "d", "e"), ("a", "b", "c"))
    assert halves(("a", "b", "c", "d"), racks) == (("a", "b", "c"), ("d",))
    assert halves(("a", "b", "c"), racks) == (("a",), ("b", "c"))
    assert halves(("x", "y", "z", "w"), racks) == (("x", "y"), ("z", "w"))
