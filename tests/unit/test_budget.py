"""The part of a shared budget that each node may use."""

from aggregator.runtime.byte_budget import Budgets


def test_who_has_used_all_waits_until_it_comes_back_and_others_are_not_concerned() -> None:
    budgets = Budgets(burst=10, rate=1)
    assert all(budgets.spend("a", 1, 0.0) for _ in range(10))
    assert not budgets.spend("a", 1, 0.0)
    assert budgets.spend("b", 10, 0.0)
    assert budgets.spend("a", 1, 1.0)
    assert not budgets.spend("a", 1, 1.0)


def test_what_was_used_beyond_the_bucket_takes_longer_to_come_back() -> None:
    budgets = Budgets(burst=10, rate=1)
    budgets.set_used("a", 15, 0.0)
    assert budgets.used("a", 5.0) == 10
    assert not budgets.spend("a", 1, 5.0)
    assert budgets.spend("a", 1, 6.0)


def test_nodes_that_have_all_of_theirs_again_are_not_remembered() -> None:
    budgets = Budgets(burst=10, rate=1)
    for number in range(1_000):
        budgets.spend(f"n{number}", 5, 0.0)
    assert len(budgets) == 1_000
    budgets.spend("late", 1, 100.0)
    assert len(budgets) == 1
    budgets.set_used("late", 0, 100.0)
    assert len(budgets) == 0
