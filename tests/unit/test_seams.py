"""The counts of tests/seams.py: each limit of the acting core can be exceeded."""

import ast
from collections.abc import Mapping

import pytest

from tests import seams


@pytest.fixture(scope="module")
def counted() -> Mapping[str, int]:
    return seams.counts()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch, counted: Mapping[str, int]) -> Mapping[str, int]:
    """The tree's, which take seconds of a processor, and which `seams.main` is given too."""
    monkeypatch.setattr(seams, "counts", lambda: counted)
    return counted


def test_each_count_has_a_limit_that_the_tree_keeps(counts: Mapping[str, int]) -> None:
    assert counts.keys() == seams.MOST.keys()
    assert all(counts.values()), "a limit of nothing that is counted"
    assert seams.main() == 0


def test_a_count_above_its_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    counts: Mapping[str, int],
) -> None:
    count = counts["steps of the largest plan"]
    monkeypatch.setitem(seams.MOST, "steps of the largest plan", count - 1)
    assert seams.main() == 1
    assert f"{count} steps of the largest plan (most: {count - 1})" in capsys.readouterr().out


def test_arguments_and_callables_are_found() -> None:
    tree = ast.parse(
        "class A:\n"
        "    def __init__(self, a, /, b, *, c: Callable[[], None]) -> None:\n"
        "        pass\n"
    )
    assert list(seams.constructor_arguments(tree)) == [("A", 3)]
    assert seams.callables(tree) == 1
