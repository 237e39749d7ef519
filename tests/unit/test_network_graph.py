"""The nodes that failing edges accuse: each bound of one node's look, on both of its sides."""

import pytest

from aggregator.policy.network.graph import FEWEST_TROUBLED, Graph, GraphView
from aggregator.policy.network.verdict import (
    CUT_OFF,
    ONE_WAY,
    UNREACHABLE,
    UNREACHABLE_SILENT,
)

TARGET = "10.0.0.1"
#: Addresses that every observer looks for besides, and reaches.
OTHERS = tuple(f"10.0.9.{number}" for number in range(4))


def node_at(graph: Graph, node: str, address: str) -> None:
    graph.place(node, address)
    graph.enlist(node, listed=True)
    graph.set_report(node, reporting=True)


def looked_for(missing: int, reaching: int, silent: int = 0) -> Graph:
    """Node "n" and its observers; ``silent`` of them say nothing of it."""
    graph = Graph()
    node_at(graph, "n", TARGET)
    for number in range(missing + reaching + silent):
        observer = f"o{number}"
        node_at(graph, observer, f"10.0.1.{number}")
        graph.assign(observer, (TARGET, *OTHERS))
        for other in OTHERS:
            graph.peer(observer, other, reached=True)
        if number < missing + reaching:
            graph.peer(observer, TARGET, reached=number >= missing)
    return graph


def outcome(look: GraphView) -> tuple[str, bool, bool]:
    return look.accusation, look.well, look.disputed


ACCUSED = (UNREACHABLE, False, False)
WELL = ("", True, False)
UNSURE = ("", False, False)
DISPUTED = ("", False, True)


@pytest.mark.parametrize(
    ("missing", "reaching", "silent", "expected"),
    [
        (4, 0, 0, ACCUSED),
        (3, 0, 0, UNSURE),  # fewer than four accuse nobody
        (4, 0, 4, ACCUSED),
        (4, 0, 5, UNSURE),  # fewer than half of those that were assigned
        (5, 0, 5, ACCUSED),
        (4, 1, 0, DISPUTED),
        (5, 4, 0, DISPUTED),
        (4, 4, 0, WELL),
        (0, 2, 0, WELL),
        (0, 1, 0, WELL),  # one of one
        (0, 1, 1, UNSURE),  # one of two
        (2, 2, 0, WELL),
        (3, 2, 0, UNSURE),
        (0, 0, 3, UNSURE),
    ],
)
def test_a_node_is_accused_by_four_and_by_half_of_its_observers_where_none_reaches_it(
    missing: int, reaching: int, silent: int, expected: tuple[str, bool, bool]
) -> None:
    assert outcome(looked_for(missing, reaching, silent).count_view("n")) == expected


def test_what_edges_say_is_told_in_numbers_and_names() -> None:
    look = looked_for(4, 0).count_view("n")
    assert look.message == ("0 of 4 nodes that probe it reach it, though they reach others")
    assert [(edge.observer, edge.target) for edge in look.edges] == [
        ("o0", "n"),
        ("o1", "n"),
        ("o2", "n"),
        ("o3", "n"),
    ]
    disputed = looked_for(4, 1).count_view("n")
    assert disputed.message == "4 nodes that probe it miss it, and 1 reach it: o4"
    assert len(disputed.edges) == 4
    assert looked_for(1, 3).count_view("n").message == "3 of 4 nodes that probe it reach it"
    assert Graph().knows("n") is False
    alone = Graph()
    node_at(alone, "n", TARGET)
    assert alone.count_view("n").message == "no other node probes it"
    alone.enlist("n", listed=False)
    assert alone.count_view("n").message == "the cluster does not list it"
    assert outcome(alone.count_view("n")) == UNSURE


def test_a_silent_node_that_nobody_reaches_is_told_apart() -> None:
    graph = looked_for(4, 0)
    graph.set_report("n", reporting=False)
    assert outcome(graph.count_view("n")) == (UNREACHABLE_SILENT, False, False)


def test_an_observer_that_misses_others_too_accuses_nobody() -> None:
    graph = looked_for(4, 0)
    graph.peer("o0", OTHERS[0], reached=False)
    assert outcome(graph.count_view("n")) == ACCUSED, "three of four are enough to be believed"
    graph.peer("o0", OTHERS[1], reached=False)
    assert outcome(graph.count_view("n")) == UNSURE
    for other in OTHERS:
        graph.peer("o0", other, reached=None)
    assert outcome(graph.count_view("n")) == UNSURE, "who looks for nothing else proves nothing"


@pytest.mark.parametrize("how", ["silent", "unlisted"])
def test_an_observer_counts_while_it_speaks_and_the_cluster_lists_it(how: str) -> None:
    graph = looked_for(4, 0)
    assert graph.has_report("o0")
    if how == "silent":
        graph.set_report("o0", reporting=False)
    else:
        graph.enlist("o0", listed=False)
    assert not graph.has_report("o0")
    assert outcome(graph.count_view("n")) == UNSURE
    assert not graph.has_report("unknown")


def cut_off(graph: Graph, peers: int, lost: int, *, gateway: bool | None = False) -> GraphView:
    """Node "n" says that it misses so many of so many peers, and its gateway."""
    addresses = tuple(f"10.0.2.{number}" for number in range(peers))
    graph.assign("n", addresses)
    for number, address in enumerate(addresses):
        graph.peer("n", address, reached=number >= lost)
    graph.gateway("n", "gateway", reached=gateway)
    return graph.count_view("n")


@pytest.mark.parametrize(
    ("peers", "lost", "gateway", "is_cut_off"),
    [
        (3, 2, False, True),
        (3, 1, False, False),
        (2, 2, False, True),
        (2, 1, False, False),
        (1, 1, False, False),
        (3, 3, True, False),
        (3, 3, None, False),
    ],
)
def test_a_node_is_cut_off_by_its_own_word_without_gateway_and_most_of_its_peers(
    peers: int, lost: int, *, gateway: bool | None, is_cut_off: bool
) -> None:
    graph = looked_for(0, 0)
    look = cut_off(graph, peers, lost, gateway=gateway)
    assert (look.accusation == CUT_OFF) == is_cut_off
    if is_cut_off:
        assert look.message == (f"it reaches neither its gateway nor {lost} of its {peers} peers")
        assert len(look.edges) == lost
        assert {edge.observer for edge in look.edges} == {"n"}
    graph.set_report("n", reporting=False)
    assert graph.count_view("n").accusation == ""


def test_a_gateway_that_a_node_has_no_more_says_nothing_of_it() -> None:
    graph = looked_for(0, 0)
    assert cut_off(graph, 3, 3).accusation == CUT_OFF
    graph.gateway("n", "gateway", reached=None)
    assert graph.count_view("n").accusation == ""
    graph.gateway("n", "first", reached=False)
    graph.gateway("n", "second", reached=True)
    assert graph.count_view("n").accusation == "", "one way out is enough"
    graph.gateway("n", "second", reached=False)
    assert graph.count_view("n").accusation == CUT_OFF


def test_an_address_that_nobody_looks_for_any_more_is_forgotten() -> None:
    graph = looked_for(2, 0)
    for observer in ("o0", "o1"):
        assert TARGET in graph._observers
        graph.assign(observer, ())
    assert graph._observers == {}


@pytest.mark.parametrize(
    ("missing", "reaching", "accusation"),
    [(0, 0, CUT_OFF), (1, 1, ONE_WAY), (2, 1, CUT_OFF), (1, 2, ONE_WAY), (3, 0, CUT_OFF)],
)
def test_a_node_that_is_cut_off_while_half_of_its_observers_reach_it_is_one_way(
    missing: int, reaching: int, accusation: str
) -> None:
    look = cut_off(looked_for(missing, reaching), 3, 3)
    assert (look.accusation, look.well) == (accusation, False)
    both = f"; but {reaching} of {missing + reaching} nodes reach it"
    assert look.message.endswith(both) == (accusation == ONE_WAY)


def test_a_node_that_nobody_reaches_and_that_says_so_itself_is_cut_off() -> None:
    look = cut_off(looked_for(4, 0), 3, 3)
    assert look.accusation == CUT_OFF
    assert look.message.endswith("though they reach others; nor does it reach its gateway")


def test_the_network_is_in_pieces_where_more_than_three_and_a_twentieth_miss_many_peers() -> None:
    for troubled, reporting, pieces in (
        (FEWEST_TROUBLED, 20, False),
        (FEWEST_TROUBLED + 1, 20, True),
        (4, 79, True),
        (4, 80, False),
        (5, 80, True),
    ):
        graph = Graph()
        for number in range(reporting):
            node_at(graph, f"n{number}", f"10.0.1.{number}")
        for number in range(troubled):
            graph.assign(f"n{number}", OTHERS)
            for place, other in enumerate(OTHERS):
                graph.peer(f"n{number}", other, reached=place >= 2)
        assert graph.unrest(frozenset()) == pieces, (troubled, reporting)
        assert not graph.unrest(frozenset(f"n{number}" for number in range(troubled)))


@pytest.mark.parametrize(
    ("lost", "peers", "troubled"),
    [(1, 4, False), (2, 4, True), (2, 8, False), (3, 8, True), (1, 2, False), (2, 2, True)],
)
def test_a_node_is_troubled_by_two_lost_peers_that_are_more_than_a_quarter(
    lost: int, peers: int, *, troubled: bool
) -> None:
    graph = Graph()
    addresses = tuple(f"10.0.9.{number}" for number in range(peers))
    for number in range(FEWEST_TROUBLED + 1):
        node_at(graph, f"n{number}", f"10.0.1.{number}")
        graph.assign(f"n{number}", addresses)
        for place, address in enumerate(addresses):
            graph.peer(f"n{number}", address, reached=place >= lost)
    assert graph.unrest(frozenset()) == troubled


def test_an_address_of_two_nodes_is_nobodys_and_what_was_not_assigned_is_not_heard() -> None:
    graph = looked_for(4, 0)
    node_at(graph, "twin", TARGET)
    assert graph.count_view("n").message == "no other node probes it"
    graph.place("twin", "10.0.0.2")
    assert outcome(graph.count_view("n")) == ACCUSED
    graph.assign("o0", OTHERS)  # no more
    assert outcome(graph.count_view("n")) == UNSURE
    graph.peer("o0", TARGET, reached=False)
    assert outcome(graph.count_view("n")) == UNSURE
    assert graph.assign("o0", (*OTHERS, TARGET)) == {TARGET}
    assert graph.assign("o0", (*OTHERS, TARGET)) == frozenset()
    assert outcome(graph.count_view("n")) == UNSURE, "what it said before is not kept"
    graph.peer("o0", TARGET, reached=False)
    assert outcome(graph.count_view("n")) == ACCUSED


def test_whose_standing_may_differ_is_named_once() -> None:
    graph = looked_for(4, 0)
    graph.take_dirty()
    assert graph.take_dirty() == []
    graph.peer("o0", TARGET, reached=False)  # as before
    graph.gateway("o0", "g", reached=None)
    graph.set_report("n", reporting=True)
    graph.enlist("n", listed=True)
    graph.place("n", TARGET)
    graph.touch("unknown")
    assert graph.take_dirty() == []
    graph.peer("o0", TARGET, reached=True)
    assert set(graph.take_dirty()) >= {"n", "o0"}
    graph.touch("n")
    assert graph.take_dirty() == ["n"]
    graph.gateway("o1", "g", reached=False)
    assert graph.take_dirty() == ["o1"]
    graph.forget_node("o1")
    assert not graph.knows("o1")
    assert "n" in graph.take_dirty()
    graph.forget_node("o1")
    assert graph.take_dirty() == []
