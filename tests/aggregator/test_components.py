"""A node's components: as a dict by their keys, whether they are few or many."""

from hypothesis import given
from hypothesis import strategies as st

from aggregator.health.components import FEW, Components
from aggregator.health.model import Component, Status

CHECKS, NAMES = ["gpu-ecc", "disk-space"], ["", "/", "GPU-1"]
KEYS = st.one_of(
    st.tuples(st.sampled_from(CHECKS), st.sampled_from(NAMES)),
    st.tuples(st.just("disk-space"), st.integers(0, 2 * FEW).map(str)),
)


def seen(key: tuple[str, str], number: int = 0) -> Component:
    return Component(*key, Status.OK, "", "", float(number))


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
    for key in [*first, *(key for _, key in steps)]:
        assert (key in components) == (key in expected)
        assert components.get(key) == expected.get(key)
