"""A value that may be None or of another type, where a test has one."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value


def of_type(value: object, kind: type[T]) -> T:
    """The value, which is of this type."""
    assert isinstance(value, kind)
    return value
