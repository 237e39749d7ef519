"""The agent's `dataclass` against the library's: the same objects, with fewer functions."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent import dataclass as ours


def classes(**how: Any) -> Sequence[type[Any]]:
    """The same class by both decorators."""
    made = []
    for decorate in (ours.dataclass, dataclasses.dataclass):

        class Disk:
            name: str
            size: int = 0
            tags: tuple[str, ...] = dataclasses.field(default_factory=tuple)
            note: str = dataclasses.field(default="", compare=False, repr=False)

        made.append(decorate(slots=True, **how)(Disk))
    return made


VALUES = st.tuples(
    st.sampled_from("ab"),
    st.integers(0, 2),
    st.tuples(st.sampled_from("xy")),
    st.sampled_from("mn"),
)


@pytest.mark.slow
@given(VALUES, VALUES)
def test_equality_hash_and_text_are_those_of_the_library(
    one: tuple[Any, ...], other: tuple[Any, ...]
) -> None:
    mine, theirs = classes(frozen=True)
    assert (mine(*one) == mine(*other)) == (theirs(*one) == theirs(*other))
    assert hash(mine(*one)) == hash(theirs(*one))
    assert repr(mine(*one)) == repr(theirs(*one))
    assert mine(*one) != theirs(*one)
    assert dataclasses.asdict(mine(*one)) == dataclasses.asdict(theirs(*one))
    assert dataclasses.replace(mine(*one), size=7) == mine(one[0], 7, *one[2:])
    assert mine.__match_args__ == theirs.__match_args__


def test_a_class_that_may_change_has_no_hash() -> None:
    for made in classes():
        with pytest.raises(TypeError, match="unhashable"):
            hash(made("a"))


def test_without_comparison_an_object_equals_itself_alone() -> None:
    for made in classes(eq=False):
        one = made("a")
        assert one == one
        assert one != made("a")
        assert hash(one) != hash(made("a"))


def test_arguments_by_name_alone_and_classes_without_fields() -> None:
    for made in classes(kw_only=True):
        with pytest.raises(TypeError):
            made("a")
        assert made(name="a").name == "a"

    @ours.dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())
    assert not hasattr(Nothing(), "__dict__")
