"""Values computed from a node's components are computed anew after each change, and only then."""

from collections.abc import Callable

import pytest

from aggregator.health.model import Status
from aggregator.health.node import FEW, Components
from tests.support.replica import component

Change = Callable[[Components], object]

CHANGES: dict[str, Change] = {
    "one is put": lambda made: made.put(component("gpu-ecc", "GPU-1", Status.FAILED)),
    "one is dropped": lambda made: made.drop(("gpu-ecc", "GPU-2")),
    "few are dropped": lambda made: made.drop_all([("gpu-ecc", "GPU-2")]),
    "many are put": lambda made: made.put_all(
        [component("gpu-ecc", f"GPU-{n}", Status.FAILED) for n in range(20)]
    ),
    "many are dropped": lambda made: made.drop_all([("gpu-ecc", f"GPU-{n}") for n in range(20)]),
}


@pytest.mark.parametrize("count", [4, FEW + 50])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_ends_the_memory(change: Change, count: int) -> None:
    made = Components(component("gpu-ecc", f"GPU-{n}", Status.OK) for n in range(count))
    computed: list[list[tuple[str, str, Status, str]]] = []

    def compute(components: Components) -> int:
        computed.append(list(components.findings()))
        return len(computed)

    assert [made.memo(compute), made.memo(compute)] == [1, 1]
    change(made)
    assert [made.memo(compute), made.memo(compute)] == [2, 2]
    assert computed[0] != computed[1]
