"""A node's components: as a dict by their keys, whether they are few or many."""

from hypothesis import given
from hypothesis import strategies as st

from aggregator.health.model import Component, MeasuredSeries, Status
from aggregator.health.node import FEW, Components

CHECKS, NAMES = ["gpu-ecc", "disk-space"], ["", "/", "GPU-1"]
KEYS = st.one_of(
    st.tuples(st.sampled_from(CHECKS), st.sampled_from(NAMES)),
    st.tuples(st.just("disk-space"), st.integers(0, 2 * FEW).map(str)),
)


def seen(key: tuple[str, str], number: int = 0) -> Component:
    """Each of another status, reason and past than the one before."""
    at, status = float(number), list(Status)[number % 4]
    pasts = [(), ((at, status),), ((at - 1, Status.OK), (at, status)), ((at - 1, status),)]
    reason = "" if status is Status.OK else f"reason-{number % 3}"
    return Component(*key, status, reason, f"{number % 5} %", at, pasts[number // 4 % 4])


@given(
    st.lists(KEYS, max_size=FEW + 20),
    st.lists(st.tuples(st.booleans(), KEYS), max_size=FEW + 20),
)
def test_components_are_what_a_dict_would_be(
    first: list[tuple[str, str]], steps: list[tuple[bool, tuple[str, str]]]
) -> None:
    components = Components(seen(key, n) for n, key in enumerate(first))
    expected = {key: seen(key, n) for n, key in enumerate(first)}
    for number, (comes, key) in enumerate(steps, start=len(first)):
        if comes:
            components.put(seen(key, number))
            expected[key] = seen(key, number)
        else:
            components.drop(key)
            expected.pop(key, None)
    assert list(components.all()) == list(expected.values())
    assert list(components) == list(expected)
    assert len(components) == len(expected)
    for check in CHECKS:
        assert components.of(check) == [one for one in expected.values() if one.check == check]
    bad = (Status.FAILED, Status.DEGRADED)
    assert components.that_are(*bad) == [one for one in expected.values() if one.status in bad]
    assert list(components.findings()) == [
        (one.check, one.component, one.status, one.reason) for one in expected.values()
    ]
    for key in [*first, *(key for _, key in steps)]:
        assert (key in components) == (key in expected)
        assert components.get(key) == expected.get(key)


def test_series_of_measurements_share_the_texts_of_the_components_names() -> None:
    gpu, text = (b"GPU-1".decode() for _ in range(2))
    components = Components([seen(("gpu-ecc", gpu))])
    assert text is not gpu
    series = [MeasuredSeries("gpu-clock", text, "H100"), MeasuredSeries("fan", "chassis")]
    shared = components.with_these_names(series)
    assert list(shared) == series
    assert shared[0].component is gpu
