"""Finds where a text is still held: in any container that can be reached from an object."""

import asyncio
import types
from collections.abc import Iterator, Mapping

_LEAVES = (str, bytes, int, float, bool, type(None), type, types.ModuleType, types.CodeType)
_SKIPPED = (asyncio.AbstractEventLoop, asyncio.Future, asyncio.Handle)


def places_of(text: str, *roots: object) -> list[str]:
    """The paths ("controller._registry._metas") at which ``text`` is a key, an item or a value."""
    found: list[str] = []
    seen: set[int] = set()
    todo = [(type(root).__name__, root) for root in roots]
    while todo:
        path, one = todo.pop()
        if isinstance(one, str) and one == text:
            found.append(path)
        if isinstance(one, (*_LEAVES, *_SKIPPED)) or id(one) in seen:
            continue
        seen.add(id(one))
        todo += [(f"{path}{name}", each) for name, each in _parts(one)]
    return found


def _parts(one: object) -> Iterator[tuple[str, object]]:
    if isinstance(one, Mapping):
        for key, value in one.items():
            yield ".key", key
            yield f"[{key!r}]", value
    elif isinstance(one, (list, tuple, set, frozenset)) or type(one).__name__ == "deque":
        for each in one:  # type: ignore[attr-defined]  # a deque
            yield "[]", each
    elif isinstance(one, types.MethodType):
        yield ".__self__", one.__self__
    elif isinstance(one, types.FunctionType):
        for cell in one.__closure__ or ():
            try:
                yield ".closure", cell.cell_contents
            except ValueError:
                continue  # it is empty
    else:
        names = [*getattr(one, "__dict__", {})]
        for kind in type(one).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else list(slots)
        for name in names:
            try:
                yield f".{name}", getattr(one, name)
            except AttributeError:
                continue
