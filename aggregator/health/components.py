"""The components that a node's agent checks, by (check, component), kept as small as possible.

A node of eight GPUs has some forty components. As objects they would be 4 KB, for each of 10,000
nodes, and hardly anything in them is the node's own: one GPU's finding equals all others', on most
nodes too. So they are columns, which share equal values and are 0.8 KB at least; a `Component` is
built when a caller asks for one. Beyond `FEW` they are a dict, because lookups in it are faster.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from aggregator.health.model import Component, Status
from sickbay.v1.limits import MAX_COMPONENTS, MAX_MESSAGE_BYTES

Key = tuple[str, str]
_T = TypeVar("_T")

FEW = 128
#: Up to this many are put into columns one by one; for more at once a rebuild costs less.
_ONE_BY_ONE = 8
#: Bytes of all texts and times that are held of one node: the size that one message may have.
MOST_BYTES = MAX_MESSAGE_BYTES
_OF_A_CHANGE = 80  # bytes in memory

#: One finding: check, status, reason.
_Finding = tuple[str, Status, str]
#: Since when, and the transitions; a time alone where the only transition was to the present
#: status.
_Past = float | tuple[float, tuple[tuple[float, Status], ...]]


class Components:
    """In the order in which they came; of two with one key the later one counts."""

    __slots__ = ("_findings", "_many", "_memo", "_messages", "_names", "_pasts")

    def __init__(self, components: Iterable[Component] = ()) -> None:
        self._keep(_within_bounds({one.key: one for one in components}))

    def _keep(self, found: dict[Key, Component]) -> None:
        self._memo: Any = None
        few = found.values() if len(found) <= FEW else ()
        self._many: dict[Key, Component] | None = None if len(found) <= FEW else found
        self._findings = _one_for_all(tuple(map(_finding, few)))
        self._messages = _one_text_for_all(tuple(one.message for one in few))
        self._names = tuple(one.component for one in few)
        self._pasts = tuple(map(_past, few))

    def put_all(self, components: Sequence[Component]) -> int:
        """Put each in the place of the one with its key, or after all others. Returns how many of
        all had no room: those that matter least are dropped.
        """
        self._memo = None
        if len(components) <= _ONE_BY_ONE and self._many is None:
            for one in components:
                self.put(one)
            return 0
        found = {one.key: one for one in self.all()} if self._many is None else self._many
        found.update((one.key, one) for one in components)
        kept = _within_bounds(found)
        if self._many is None or len(kept) < len(found):
            self._keep(kept)
        return len(found) - len(kept)

    def put(self, component: Component) -> None:
        """Put it in the place of the one with its key, or after all others."""
        self._memo = None
        if self._many is not None:
            self._many[component.key] = component
            return
        at = self._at(component.check, component.component)
        if at is None and len(self) == FEW:
            self._keep({one.key: one for one in (*self.all(), component)})
            return
        if at is None:
            at = len(self)
            self._names = (*self._names, component.component)
        self._findings = _one_for_all(_with(self._findings, at, _finding(component)))
        self._messages = _one_text_for_all(_with(self._messages, at, component.message))
        self._pasts = _with(self._pasts, at, _past(component))

    def drop_all(self, keys: Sequence[Key]) -> None:
        """Remove these, where they are present."""
        if self._many is None and len(keys) > _ONE_BY_ONE:
            over = frozenset(keys)
            self._keep({one.key: one for one in self.all() if one.key not in over})
            return
        for key in keys:
            self.drop(key)

    def drop(self, key: Key) -> None:
        """Remove it, where it is present."""
        self._memo = None
        if self._many is not None:
            self._many.pop(key, None)
            return
        at = self._at(*key)
        if at is not None:
            self._names = _with(self._names, at)
            self._findings = _one_for_all(_with(self._findings, at))
            self._messages = _one_text_for_all(_with(self._messages, at))
            self._pasts = _with(self._pasts, at)

    def memo(self, compute: Callable[["Components"], _T]) -> _T:
        """The result of ``compute``, which is computed anew after a change. One function at most
        is to be asked for.
        """
        if self._memo is None:
            self._memo = compute(self)
        found: _T = self._memo
        return found

    def all(self) -> Iterable[Component]:
        if self._many is not None:
            return self._many.values()
        return map(self._component, range(len(self._names)))

    def of(self, check: str) -> list[Component]:
        """The components of one check."""
        if self._many is not None:
            return [one for one in self._many.values() if one.check == check]
        return [self._component(at) for at, one in enumerate(self._findings) if one[0] == check]

    def names_of(self, check: str) -> list[str]:
        """The names of the components of one check."""
        if self._many is not None:
            return [name for of, name in self._many if of == check]
        return [self._names[at] for at, one in enumerate(self._findings) if one[0] == check]

    def that_are(self, *statuses: Status) -> list[Component]:
        """The components of these statuses. Nearly always there are no failed ones."""
        if self._many is not None:
            return [one for one in self._many.values() if one.status in statuses]
        return [self._component(at) for at, one in enumerate(self._findings) if one[1] in statuses]

    def findings(self) -> Iterable[tuple[str, str, Status, str]]:
        """The check, component, status and reason of each: for callers that need all, but no other
        field.
        """
        if self._many is not None:
            return ((a.check, a.component, a.status, a.reason) for a in self._many.values())
        return (
            (check, name, status, reason)
            for name, (check, status, reason) in zip(self._names, self._findings, strict=True)
        )

    def __getitem__(self, key: Key) -> Component:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def get(self, key: Key) -> Component | None:
        if self._many is not None:
            return self._many.get(key)
        at = self._at(*key)
        return None if at is None else self._component(at)

    def __contains__(self, key: Key) -> bool:
        return key in self._many if self._many is not None else self._at(*key) is not None

    def __iter__(self) -> Iterator[Key]:
        return ((check, component) for check, component, _, _ in self.findings())

    def __len__(self) -> int:
        return len(self._names) if self._many is None else len(self._many)

    def _at(self, check: str, component: str) -> int | None:
        for at, name in enumerate(self._names):
            if name == component and self._findings[at][0] == check:
                return at
        return None

    def _component(self, at: int) -> Component:
        check, status, reason = self._findings[at]
        past = self._pasts[at]
        since, recent = past if isinstance(past, tuple) else (past, ((past, status),))
        return Component(check, self._names[at], status, reason, self._messages[at], since, recent)


_IMPORTANCE = {Status.FAILED: 0, Status.DEGRADED: 1, Status.UNKNOWN: 2, Status.OK: 3}


def _within_bounds(found: dict[Key, Component]) -> dict[Key, Component]:
    """As many as one node may have: failing ones before healthy ones, then the first to come."""
    if len(found) <= FEW:
        return found  # each is some KiB at most
    if len(found) <= MAX_COMPONENTS and sum(map(_size, found.values())) <= MOST_BYTES:
        return found
    kept: dict[Key, Component] = {}
    left = MOST_BYTES
    for key, one in sorted(found.items(), key=lambda item: _IMPORTANCE[item[1].status]):
        left -= _size(one)
        if left < 0 or len(kept) == MAX_COMPONENTS:
            break
        kept[key] = one
    return kept


def _size(one: Component) -> int:
    texts = len(one.component) + len(one.reason) + len(one.message)
    return texts + _OF_A_CHANGE * len(one.recent)


def _finding(one: Component) -> _Finding:
    return _one_finding(one.check, one.status, one.reason)


def _past(one: Component) -> _Past:
    known = one.recent == ((one.since, one.status),)
    return one.since if known else (one.since, one.recent)


def _with(column: tuple[_T, ...], at: int, *instead: _T) -> tuple[_T, ...]:
    """The column with ``instead`` in the place of the present value; without ``instead``, one
    shorter.
    """
    return (*column[:at], *instead, *column[at + 1 :])


@lru_cache(maxsize=2048)
def _one_finding(check: str, status: Status, reason: str) -> _Finding:
    """One tuple for all components with the same finding."""
    return (check, status, reason)


@lru_cache(maxsize=256)
def _one_for_all(findings: tuple[_Finding, ...]) -> tuple[_Finding, ...]:
    """One column for all nodes of a kind on which all components are healthy."""
    return findings


@lru_cache(maxsize=256)
def _one_text_for_all(messages: tuple[str, ...]) -> tuple[str, ...]:
    """One column for all nodes with the same messages."""
    return messages
