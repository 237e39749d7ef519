"""`dataclass` with shared methods: the library's own generates up to six for each class.

A frozen class of eight fields takes 18 KiB with the library's decorator and 9 KiB with this one, on
every node. mypy sees the library's, so that a frozen class is frozen for mypy; nothing checks it at
run time.
"""

from collections.abc import Callable
from dataclasses import dataclass as _library
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]


def _is_equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.compared(self) == self.compared(other)


def _hash(self: Any) -> int:
    return hash(self.compared(self))


def _represent(self: Any) -> str:
    shown = (
        f"{name}={getattr(self, name)!r}"
        for name, field in self.__dataclass_fields__.items()
        if field.repr
    )
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        *, frozen: bool = False, eq: bool = True, slots: bool = True, kw_only: bool = False
    ) -> Callable[[type[Any]], Any]:
        """As `dataclasses.dataclass`, for classes that define none of the methods themselves."""

        def decorate(cls: type[Any]) -> Any:
            if not cls.__doc__:
                cls.__doc__ = " "  # the library would write one: the text of the signature
            made: Any = _library(repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            made.__repr__ = _represent
            if eq:
                fields = made.__dataclass_fields__.values()
                names = [field.name for field in fields if field.compare]
                made.compared = attrgetter(*names or ("__class__",))
                made.__eq__ = _is_equal
                made.__hash__ = _hash if frozen else None
            return made

        return decorate
