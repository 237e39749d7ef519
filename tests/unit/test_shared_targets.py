"""Targets that observers miss: from how many on one is blamed, and when it is well again."""

import pytest

from aggregator.policy.network.shared_targets import Targets
from aggregator.policy.network.verdict import NetworkVerdict

DNS = ("dns", "kube-dns")


def targets_with(missing: int, reaching: int) -> Targets:
    targets = Targets()
    for number in range(missing + reaching):
        targets.count(f"n{number:02}", counts=True)
        targets.set_report(f"n{number:02}", DNS, reached=number >= missing)
    return targets


def blamed(targets: Targets) -> list[tuple[str, int, int]]:
    return [(one.name, one.count, one.total) for one in targets.verdicts()]


@pytest.mark.parametrize(
    ("missing", "reaching", "is_blamed"),
    [
        (1, 0, False),  # fewer than two
        (2, 0, True),
        (2, 11, True),
        (2, 12, False),
        (3, 17, False),  # 15 % is not more than 15 %
        (3, 16, True),
        (0, 5, False),
    ],
)
def test_a_target_is_blamed_by_two_and_by_more_than_fifteen_percent(
    missing: int, reaching: int, *, is_blamed: bool
) -> None:
    targets = targets_with(missing, reaching)
    assert targets.settle(7.0) is is_blamed
    expected = [("dns kube-dns", missing, missing + reaching)] if is_blamed else []
    assert blamed(targets) == expected
    assert targets.settle(8.0) is False, "nothing has changed since"


def test_a_verdict_names_the_target_its_numbers_and_the_first_few_nodes() -> None:
    targets = targets_with(10, 10)
    targets.settle(7.0)
    (verdict,) = targets.verdicts()
    assert verdict == NetworkVerdict(
        "target",
        "dns kube-dns",
        "10 of 20 nodes that probe kube-dns (dns) miss it",
        7.0,
        10,
        20,
        tuple(f"n{number:02}" for number in range(8)),
    )
    assert verdict.subject == "target dns kube-dns"


@pytest.mark.parametrize(
    ("size", "still", "is_blamed"), [(40, 2, True), (41, 2, False), (60, 3, True), (20, 1, False)]
)
def test_a_blamed_target_is_well_below_five_percent_or_two(
    size: int, still: int, *, is_blamed: bool
) -> None:
    targets = targets_with(size // 2, size - size // 2)
    assert targets.settle(7.0)
    for number in range(still, size // 2):
        targets.set_report(f"n{number:02}", DNS, reached=True)
    assert targets.settle(9.0) is True
    assert blamed(targets) == ([("dns kube-dns", still, size)] if is_blamed else [])
    if is_blamed:
        (verdict,) = targets.verdicts()
        assert verdict.since == 7.0


def test_an_observer_counts_while_its_word_is_evidence() -> None:
    targets = targets_with(2, 0)
    targets.settle(7.0)
    targets.count("n00", counts=True)  # as before
    assert targets.settle(7.5) is False
    targets.count("n00", counts=False)
    targets.settle(8.0)
    assert blamed(targets) == []
    targets.set_report("n00", DNS, reached=True)  # what it says meanwhile is kept, and not counted
    targets.set_report("n00", DNS, reached=False)
    assert targets.settle(8.5) is False
    targets.count("n00", counts=True)
    targets.settle(9.0)
    assert blamed(targets) == [("dns kube-dns", 2, 2)]
    targets.forget_node("n00")
    targets.settle(10.0)
    assert blamed(targets) == []
    targets.count("n00", counts=True)
    assert targets.settle(11.0) is False, "what a forgotten node said is forgotten"


def test_a_target_that_nobody_looks_at_any_more_is_forgotten() -> None:
    targets = targets_with(2, 0)
    targets.settle(7.0)
    for node in ("n00", "n01"):
        targets.set_report(node, DNS, reached=None)
        targets.set_report(node, DNS, reached=None)
    assert targets.settle(8.0) is True
    assert (blamed(targets), targets._watched) == ([], {})
    targets.set_report("n00", DNS, reached=False)
    targets.set_report("n01", DNS, reached=False)
    assert targets.settle(9.0) is True
    (verdict,) = targets.verdicts()
    assert (verdict.since, verdict.count, verdict.total) == (9.0, 2, 2)
