"""The comparison of like parts: which of them is worse than its kind."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks.siblings import (
    BOOT_GRACE,
    PATIENCE,
    SiblingWatch,
    option,
    outliers,
    usual_level,
)
from tests.support.present import present

pytestmark = pytest.mark.slow

LONG_AFTER_BOOT = BOOT_GRACE * 10
LEVELS = st.lists(st.integers(0, 5).map(float), max_size=16)
PARTS = st.dictionaries(
    st.integers(0, 15).map(str),
    st.tuples(st.sampled_from("ab"), st.integers(0, 5).map(float)),
    max_size=16,
)


@pytest.mark.parametrize(
    ("levels", "usual"),
    [
        ([], 0),
        ([400], 0),
        ([400, 200], 200),
        ([400, 400, 200], 400),
        ([400] * 7 + [200], 400),
        ([400] * 6 + [200] * 2, 400),
        ([400] * 5 + [200] * 3, 200),
        ([400] * 4 + [200] * 4, 200),
        ([1] * 3 + [0] * 5, 0),
    ],
)
def test_a_level_is_usual_if_two_thirds_reach_it(levels: list[float], usual: float) -> None:
    assert usual_level(levels) == usual


@given(LEVELS)
def test_two_thirds_and_two_at_least_reach_the_usual_level(levels: list[float]) -> None:
    usual = usual_level(levels)
    reached = sum(level >= usual for level in levels)
    assert 3 * reached >= 2 * len(levels)
    assert usual == 0 or (reached >= 2 and usual in levels)
    higher = [level for level in levels if level > usual]
    assert 3 * len(higher) < 2 * len(levels) or len(higher) < 2, "no higher level is usual"


@given(LEVELS, st.randoms(use_true_random=False))
def test_the_order_of_the_parts_does_not_matter(levels: list[float], order: random.Random) -> None:
    mixed = list(levels)
    order.shuffle(mixed)
    assert usual_level(mixed) == usual_level(levels)


@given(PARTS)
def test_an_outlier_is_worse_than_two_thirds_of_its_kind_and_of_no_other(
    parts: dict[str, tuple[str, float]],
) -> None:
    found = outliers(parts)
    for name, usual in found.items():
        kind, level = parts[name]
        of_kind = [value for other, value in parts.values() if other == kind]
        assert level < usual
        assert sum(value >= usual for value in of_kind) >= max(2, len(of_kind) * 2 / 3)
    kinds = {kind for kind, _ in parts.values()}
    for kind in kinds:
        alone = {name: part for name, part in parts.items() if part[0] == kind}
        assert outliers(alone) == {name: u for name, u in found.items() if parts[name][0] == kind}


@given(PARTS)
def test_a_kind_that_no_sibling_uses_has_no_outlier(parts: dict[str, tuple[str, float]]) -> None:
    unused = {name: (kind, 0.0) for name, (kind, _) in parts.items()}
    assert outliers(unused) == {}
    for name in unused:
        assert outliers({**unused, name: ("a", 1.0)}) == {}, "one port that is used proves nothing"


@given(PARTS, st.integers(0, 20))
def test_to_improve_a_part_never_makes_it_an_outlier(
    parts: dict[str, tuple[str, float]], more: int
) -> None:
    bad = outliers(parts)
    for name, (kind, level) in parts.items():
        if name not in bad:
            better = {**parts, name: (kind, level + more)}
            assert name not in outliers(better)


def test_a_part_of_an_unknown_kind_is_not_compared() -> None:
    assert outliers({str(number): ((), float(number > 0)) for number in range(8)}) == {}


# -- for how long -------------------------------------------------------------------------------


def eight(slow: float) -> dict[str, tuple[str, float]]:
    return {str(number): ("a", slow if number == 3 else 400.0) for number in range(8)}


def test_a_part_that_becomes_worse_is_named_after_the_patience() -> None:
    watch = SiblingWatch()
    now = LONG_AFTER_BOOT
    assert watch.lasting(eight(400), now) == {}
    assert watch.lasting(eight(200), now + 10) == {}
    assert watch.lasting(eight(200), now + 10 + PATIENCE - 1) == {}
    assert watch.lasting(eight(200), now + 10 + PATIENCE) == {"3": 400.0}
    assert watch.lasting(eight(400), now + 1_000) == {}
    assert watch.lasting(eight(200), now + 1_010) == {}, "its time begins anew"


def test_a_part_that_was_worse_before_the_agent_started_is_named_at_once() -> None:
    assert SiblingWatch().lasting(eight(0), LONG_AFTER_BOOT) == {"3": 400.0}


def test_a_boot_takes_its_time() -> None:
    watch = SiblingWatch()
    assert watch.lasting(eight(0), 60.0) == {}
    assert watch.lasting(eight(0), BOOT_GRACE - 1) == {}
    assert watch.lasting(eight(0), BOOT_GRACE) == {"3": 400.0}


def test_the_setting_names_a_status() -> None:
    parse = present(option("a port").parse)
    assert [parse(word) for word in ("degraded", "failed", "ok")] == ["degraded", "failed", "ok"]
    with pytest.raises(ValueError, match="'bad' is none of degraded, failed, ok"):
        parse("bad")
