"""The kept part of one node's components: as many and as much as one message may have."""

from collections.abc import Iterable

import pytest

from aggregator.health.model import Component, Status
from aggregator.health.node import FEW, MOST_BYTES, Components
from sickbay.v1.limits import MAX_COMPONENTS

OK, DEGRADED, FAILED, UNKNOWN = Status.OK, Status.DEGRADED, Status.FAILED, Status.UNKNOWN


def part(number: int, status: Status = OK, message: str = "", reason: str = "") -> Component:
    return Component("disk", f"{number:05}", status, reason, message, 1.0, ((1.0, status),))


def parts(numbers: Iterable[int], status: Status = OK) -> list[Component]:
    return [part(number, status) for number in numbers]


def names(components: Components) -> list[str]:
    return [one.component for one in components.all()]


def test_the_healthy_are_dropped_first_and_of_equals_the_last() -> None:
    components = Components(parts(range(MAX_COMPONENTS)))
    assert len(components) == MAX_COMPONENTS
    more = [
        part(5_000, FAILED),
        part(5_001, UNKNOWN),
        part(5_002, DEGRADED),
        *parts(range(6_000, 6_010)),
    ]
    assert components.put_all(more) == 13
    assert len(components) == MAX_COMPONENTS
    assert names(components)[:4] == ["05000", "05002", "05001", "00000"]
    assert names(components)[-1] == f"{MAX_COMPONENTS - 4:05}"


def test_the_bytes_of_all_texts_and_transitions_are_bounded() -> None:
    each = MOST_BYTES // (FEW + 2)
    fixed = len("00000") + len("why") + 80
    whole = [part(number, FAILED, "x" * (each - fixed), "why") for number in range(FEW + 2)]
    components = Components()
    assert components.put_all(whole) == 0
    left = MOST_BYTES - each * (FEW + 2)
    assert components.put_all([*parts(range(900, 908)), part(910, FAILED, "y" * left)]) > 0
    assert len(components) == FEW + 2
    assert all(one.status is FAILED for one in components.all())


def test_components_that_just_fit_keep_their_order() -> None:
    each = MOST_BYTES // (FEW + 2)
    fixed = len("00000") + len("why") + 80
    rest = MOST_BYTES - each * (FEW + 2)
    whole = [
        part(number, FAILED if number else OK, "x" * (each - fixed), "why")
        for number in range(FEW + 1)
    ]
    for more, first in ((0, "00000"), (1, "00001")):
        text = "x" * (each - fixed + rest + more)
        components = Components([*whole, part(FEW + 1, FAILED, text, "why")])
        assert names(components)[0] == first


def test_a_few_components_are_held_whatever_their_size() -> None:
    large = [part(number, OK, "x" * (MOST_BYTES // 16)) for number in range(FEW)]
    components = Components(large)
    assert len(components) == FEW
    assert components.put_all([part(0, FAILED)]) == 0
    assert components.put_all(parts(range(20), FAILED)) == 0
    assert components["disk", "00019"].status is FAILED


@pytest.mark.parametrize("size", [1, FEW - 1, FEW, FEW + 1, 2 * FEW])
@pytest.mark.parametrize("changed", [1, 8, 9, FEW + 5])
def test_many_at_once_are_as_one_after_the_other(size: int, changed: int) -> None:
    at_once, one_by_one = Components(parts(range(size))), Components(parts(range(size)))
    change = parts(range(size // 2, size // 2 + changed), FAILED)
    assert at_once.put_all(change) == 0
    for one in change:
        one_by_one.put(one)
    assert list(at_once.all()) == list(one_by_one.all())
    assert at_once.names_of("disk") == names(one_by_one)
    assert at_once.names_of("dis") == []
    keys = [one.key for one in change]
    at_once.drop_all(keys)
    for key in keys:
        one_by_one.drop(key)
    assert list(at_once.all()) == list(one_by_one.all())
    assert names(at_once) == [f"{number:05}" for number in range(size // 2)] + [
        f"{number:05}" for number in range(size // 2 + changed, size)
    ]
    with pytest.raises(KeyError):
        at_once[keys[0]]
