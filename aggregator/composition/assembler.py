"""Makes the parts of the core, each once, with the arguments that its constructor names by type."""

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


class Assembler:
    """``parts``: by the type that a constructor names, which may be a protocol of the part."""

    def __init__(self, parts: Mapping[Any, object]) -> None:
        self._parts: dict[Any, Any] = dict(parts)

    def give(self, part: T, *kinds: Any) -> T:
        """Have constructors that name one of these types receive the part."""
        self._parts |= dict.fromkeys((type(part), *kinds), part)
        return part

    def make(self, kind: type[T], **others: object) -> T:
        """The part of this type; where there is none yet it is made, and first what it needs.

        ``others``: arguments by name, which come before those by type. No argument is left to its
        default, because a part that is missing would be missed in silence. Raises TypeError where
        an argument has no known type.
        """
        if kind not in self._parts:
            found = dict(others)
            for name, wanted in arguments(kind.__init__).items():
                if name in found:
                    continue
                if wanted not in self._parts:
                    if not getattr(wanted, "__module__", "").startswith("aggregator."):
                        raise TypeError(f"{kind.__name__} needs {name}: {wanted}")
                    self.make(wanted)
                found[name] = self._parts[wanted]
            self._parts[kind] = kind(**found)
        made: T = self._parts[kind]
        return made


@cache
def arguments(constructor: Any) -> Mapping[str, Any]:
    """The type of each argument of an ``__init__``, by name."""
    types = get_type_hints(constructor)
    _, *names = inspect.signature(constructor).parameters
    return {name: types.get(name) for name in names}
