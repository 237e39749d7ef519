"""Random values of a dataclass, by the hints of its fields."""

import dataclasses
import typing
from typing import Any

from hypothesis import strategies as st

from aggregator.cluster.port import QuarantineStatus


def values(hint: Any) -> st.SearchStrategy[Any]:
    if hint is float:  # wall clock seconds, to the microsecond
        return st.integers(0, 2**31).map(float)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(hint)}
        return st.builds(typing.cast("type[Any]", hint), **fields)
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0]), max_size=2).map(tuple)
    if typing.get_origin(hint) is not None:
        return st.one_of([values(one) for one in typing.get_args(hint)])
    if hint is str:
        return st.text(max_size=5)
    return st.from_type(hint)


def without_operations(status: QuarantineStatus) -> QuarantineStatus:
    """The status as the object has it: attempts and requests are Operations."""
    kept = dataclasses.replace(status.repair, attempts=(), requests=())
    return dataclasses.replace(status, repair=kept)
