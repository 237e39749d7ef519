"""The bounds of a domain's blame and of failures at once, by nodes that report to be cut off."""

from collections.abc import Iterable

import pytest

from aggregator.health.model import Status
from aggregator.policy.network.triangulate import (
    FEWEST_OF_DOMAIN,
    MOST_AT_ONCE,
    PEERS,
    REACH,
    SHARE_OF_DOMAIN,
    WINDOW,
    Triangulation,
)
from aggregator.policy.network.verdict import DOMAIN, SHARED, NetworkVerdict
from tests.support.present import present

NOW = 1_000.0
OK, FAILED = Status.OK, Status.FAILED


def name(number: int) -> str:
    return f"n{number:03}"


class Fleet:
    """Nodes of which each probes the next two; all is well until a node is cut off."""

    def __init__(self, size: int, domains: dict[str, Iterable[int]] | None = None) -> None:
        self.found = Triangulation()
        self.size = size
        labels: dict[int, list[str]] = {}
        for domain, members in (domains or {}).items():
            for member in members:
                labels.setdefault(member, []).append(domain)
        for number in range(size):
            node = name(number)
            self.found.place(node, self.address(number))
            self.found.label(node, labels.get(number, ()))
            self.found.enlist(node, listed=True)
            self.found.set_report(node, reporting=True)
            self.found.assign(node, tuple(map(self.address, self.peers(number))))
            self.report(number, OK)
        self.settle(0.0)

    def address(self, number: int) -> str:
        return f"10.0.0.{number % self.size}"

    def peers(self, number: int) -> tuple[int, int]:
        return (number + 1, number + 2)

    def report(self, number: int, status: Status) -> None:
        self.found.set_edge(name(number), REACH, "gateway", status)
        for peer in self.peers(number):
            self.found.set_edge(name(number), PEERS, self.address(peer), status)

    def cut(self, *numbers: int, at: float = NOW) -> None:
        for number in numbers:
            self.report(number, FAILED)
        self.settle(at)

    def heal(self, *numbers: int, at: float = NOW) -> None:
        for number in numbers:
            self.report(number, OK)
        self.settle(at)

    def settle(self, at: float) -> bool:
        return self.found.settle(at)[1]

    def blamed(self) -> set[int]:
        return {number for number in range(self.size) if self.status(number) is FAILED}

    def status(self, number: int) -> Status:
        finding = present(self.found.finding(name(number)))
        return finding.status

    def reason(self, number: int) -> str:
        finding = present(self.found.finding(name(number)))
        return finding.reason

    def verdict(self) -> NetworkVerdict:
        (verdict,) = self.found.verdicts()
        return verdict


def test_the_documented_bounds() -> None:
    assert (WINDOW, MOST_AT_ONCE, FEWEST_OF_DOMAIN, SHARE_OF_DOMAIN) == (300.0, 3, 2, 0.05)


# -- domains -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "needed"), [(2, 2), (20, 2), (40, 2), (41, 3), (60, 3), (61, 4)]
)
def test_a_domain_is_blamed_for_two_nodes_and_for_a_twentieth_of_them(
    members: int, needed: int
) -> None:
    fleet = Fleet(100, {"rack=r": range(members)})
    lost = range(0, 10 * needed, 10) if members > 10 else range(needed)
    fleet.cut(*lost[:-1])
    assert fleet.found.verdicts() == []
    assert fleet.blamed() == set(lost[:-1])
    fleet.cut(*lost, at=NOW + 1)
    verdict = fleet.verdict()
    assert (verdict.kind, verdict.name, verdict.since) == ("domain", "rack=r", NOW + 1)
    assert verdict.total == members
    assert verdict.count == len(verdict.nodes) == needed
    assert verdict.message == (
        f"{verdict.count} of the {members} nodes of rack=r were lost to the network together"
    )
    assert fleet.blamed() == set()


def test_a_domains_nodes_must_be_lost_within_the_window() -> None:
    for between, blamed in ((WINDOW, True), (WINDOW + 1, False)):
        fleet = Fleet(60, {"rack=r": range(10)})
        fleet.cut(0)
        fleet.cut(5, at=NOW + between)
        assert bool(fleet.found.verdicts()) == blamed
        assert fleet.blamed() == (set() if blamed else {0, 5})
        assert fleet.reason(5) == (DOMAIN if blamed else fleet.reason(0))


def test_a_blamed_domain_stays_until_fewer_than_two_of_it_are_lost() -> None:
    fleet = Fleet(100, {"rack=r": range(60)})
    fleet.cut(0, 10, 20)
    since = fleet.verdict().since
    fleet.heal(0, at=NOW + 1_000)
    assert (fleet.verdict().since, fleet.verdict().count) == (since, 2)
    fleet.heal(10, at=NOW + 1_001)
    assert fleet.found.verdicts() == []
    assert fleet.blamed() == {20}
    assert fleet.status(0) is not FAILED


def test_a_later_loss_in_a_blamed_domain_is_the_domains() -> None:
    fleet = Fleet(100, {"rack=r": range(20)})
    fleet.cut(0, 5)
    fleet.cut(10, at=NOW + 10 * WINDOW)
    assert fleet.blamed() == set()
    finding = present(fleet.found.finding(name(10)))
    assert finding.message.endswith("; so it is for others of rack=r")
    assert (finding.reason, finding.since) == (DOMAIN, NOW + 10 * WINDOW)


def test_the_first_few_lost_nodes_of_a_domain_are_named() -> None:
    fleet = Fleet(60, {"rack=r": range(30)})
    fleet.cut(*range(0, 20, 2))
    assert fleet.verdict().nodes == tuple(name(number) for number in range(0, 16, 2))
    assert fleet.verdict().count == 10
    assert fleet.verdict().subject == "domain rack=r"


def test_a_label_that_comes_later_explains_losses_of_the_window_and_none_before() -> None:
    for later, blamed in ((WINDOW, True), (WINDOW + 1, False)):
        fleet = Fleet(60)
        fleet.cut(0, 10)
        for number in range(20):
            fleet.found.label(name(number), ["rack=r"])
        assert fleet.settle(NOW + later) == blamed
        assert bool(fleet.found.verdicts()) == blamed
        assert fleet.blamed() == (set() if blamed else {0, 10})


def test_a_node_that_leaves_a_domain_is_evaluated_alone() -> None:
    fleet = Fleet(60, {"rack=r": range(20)})
    fleet.cut(0, 10)
    fleet.found.label(name(0), ["rack=other"])
    fleet.settle(NOW + 1)
    assert fleet.found.verdicts() == []
    assert fleet.blamed() == {0, 10}
    fleet.found.label(name(0), [])
    fleet.found.label(name(10), ["rack=r", "rack=r"])
    fleet.settle(NOW + 2)
    assert fleet.blamed() == {0, 10}


# -- without a domain ----------------------------------------------------------------------------

FOUR = (0, 10, 20, 30)


@pytest.mark.parametrize(("between", "shared"), [(WINDOW, True), (WINDOW + 1, False)])
def test_more_than_three_of_the_window_share_a_cause(between: float, *, shared: bool) -> None:
    fleet = Fleet(100)
    fleet.cut(FOUR[0])
    fleet.cut(*FOUR[1:], at=NOW + between)
    assert fleet.blamed() == (set() if shared else set(FOUR))
    if not shared:
        assert fleet.found.verdicts() == []
        return
    verdict = fleet.verdict()
    assert (verdict.kind, verdict.name, verdict.since) == ("unnamed", "", NOW + between)
    assert (verdict.count, verdict.total) == (4, 100)
    assert verdict.nodes == tuple(map(name, FOUR))
    assert verdict.message == (
        "4 nodes were lost to the network together, and no label names what they share: no node is "
        "blamed"
    )
    assert {fleet.reason(number) for number in FOUR} == {SHARED}
    finding = present(fleet.found.finding(name(0)))
    assert finding.message.endswith("; so it is for too many others at once")


def test_a_shared_cause_keeps_its_begin_and_its_nodes_until_each_is_well() -> None:
    fleet = Fleet(100)
    fleet.cut(*FOUR)
    fleet.cut(40, at=NOW + 10)
    assert (fleet.verdict().since, fleet.verdict().count) == (NOW, 5)
    fleet.heal(*FOUR, at=NOW + 20)
    assert fleet.verdict().nodes == (name(40),)
    assert fleet.blamed() == set()
    fleet.heal(40, at=NOW + 30)
    assert fleet.found.verdicts() == []
    fleet.cut(50, at=NOW + 10 * WINDOW)
    assert fleet.blamed() == {50}


def test_nodes_that_are_well_again_are_not_counted_among_those_at_once() -> None:
    fleet = Fleet(100)
    fleet.cut(*FOUR[:3])
    fleet.heal(FOUR[0], at=NOW + 1)
    fleet.cut(FOUR[3], at=NOW + 2)
    assert fleet.blamed() == set(FOUR[1:])


def test_what_a_domain_explains_is_not_counted_among_those_at_once() -> None:
    fleet = Fleet(100, {"rack=r": range(20)})
    fleet.cut(0, 10)
    fleet.cut(30, 40, 50, at=NOW + 1)
    assert fleet.blamed() == {30, 40, 50}
    assert fleet.verdict().kind == "domain"


# -- the network in pieces -----------------------------------------------------------------------


def test_many_nodes_that_miss_peers_and_are_not_cut_off_blame_nobody() -> None:
    fleet = Fleet(100)
    fleet.cut(0)
    assert fleet.blamed() == {0}
    for number in range(40, 60):
        for peer in fleet.peers(number):
            fleet.found.set_edge(name(number), PEERS, fleet.address(peer), FAILED)
    assert fleet.settle(NOW + 5)
    assert fleet.blamed() == set()
    assert fleet.reason(0) == SHARED
    verdict = fleet.verdict()
    assert (verdict.kind, verdict.since, verdict.count) == ("unnamed", NOW + 5, 1)
    assert verdict.message == (
        "many nodes miss many of their peers: the network is in pieces, and no node is blamed"
    )
    for number in range(40, 60):
        fleet.report(number, OK)
    assert fleet.settle(NOW + 6)
    assert fleet.blamed() == {0}
    assert fleet.found.verdicts() == []


# -- inputs --------------------------------------------------------------------------------------


def test_an_unknown_result_is_no_failure_and_each_gateway_counts() -> None:
    fleet = Fleet(60)
    fleet.found.set_edge(name(0), REACH, "gateway-ipv6", OK)
    fleet.cut(0)
    assert fleet.blamed() == set(), "it reaches its other gateway"
    fleet.found.set_edge(name(0), REACH, "gateway-ipv6", Status.UNKNOWN)
    fleet.settle(NOW + 1)
    assert fleet.blamed() == {0}
    fleet.found.set_edge(name(0), REACH, "gateway", Status.UNKNOWN)
    fleet.settle(NOW + 2)
    assert fleet.blamed() == set()
    fleet.found.set_edge(name(0), REACH, "gateway", Status.DEGRADED)
    fleet.settle(NOW + 3)
    assert fleet.blamed() == set()
    fleet.found.set_edge(name(0), REACH, "gateway", FAILED)
    fleet.settle(NOW + 4)
    assert fleet.blamed() == {0}
    fleet.found.set_edge(name(0), REACH, "gateway", None)
    fleet.settle(NOW + 5)
    assert fleet.blamed() == set()


def test_a_forgotten_node_counts_nowhere() -> None:
    fleet = Fleet(60, {"rack=r": range(20)})
    fleet.cut(0, 10)
    fleet.found.forget_node(name(0))
    changed, others = fleet.found.settle(NOW + 1)
    assert others
    assert fleet.found.finding(name(0)) is None
    assert changed[name(10)].status is FAILED
    assert fleet.found.verdicts() == []
