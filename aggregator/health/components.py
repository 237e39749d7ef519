"""What a node's agent looks at, by (check, component), as small as it can be kept.

A node of eight GPUs has some forty components. As objects they would be 4 KB, for each of 10,000
nodes, and hardly anything in them is the node's own: what is found of one GPU is found of all, and
on most nodes. So they are columns, which share what is equal and are 0.8 KB at least; a `Component`
is made of them where one is asked for. Beyond `FEW` they are a dict, for it finds faster.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeVar

from aggregator.health.model import Component, Status

Key = tuple[str, str]
_T = TypeVar("_T")

FEW = 128

#: What is found: check, status, reason.
_Finding = tuple[str, Status, str]
#: Since when, and the transitions; a time alone where the one transition was to what is so now.
_Past = float | tuple[float, tuple[tuple[float, Status], ...]]


class Components:
    """In the order in which they came; of two with one key the later one counts."""

    __slots__ = ("_findings", "_many", "_messages", "_names", "_pasts")

    def __init__(self, components: Iterable[Component] = ()) -> None:
        self._keep({one.key: one for one in components})

    def _keep(self, found: dict[Key, Component]) -> None:
        few = found.values() if len(found) <= FEW else ()
        self._many: dict[Key, Component] | None = None if len(found) <= FEW else found
        self._findings = _one_for_all(tuple(map(_finding, few)))
        self._messages = _one_text_for_all(tuple(one.message for one in few))
        self._names = tuple(one.component for one in few)
        self._pasts = tuple(map(_past, few))

    def put(self, component: Component) -> None:
        """In the place of the one with its key, or after all others."""
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

    def drop(self, key: Key) -> None:
        """Without it, where it is there."""
        if self._many is not None:
            self._many.pop(key, None)
            return
        at = self._at(*key)
        if at is not None:
            self._names = _with(self._names, at)
            self._findings = _one_for_all(_with(self._findings, at))
            self._messages = _one_text_for_all(_with(self._messages, at))
            self._pasts = _with(self._pasts, at)

    def all(self) -> Iterable[Component]:
        if self._many is not None:
            return self._many.values()
        return map(self._component, range(len(self._names)))

    def of(self, check: str) -> list[Component]:
        """Those of one check."""
        if self._many is not None:
            return [one for one in self._many.values() if one.check == check]
        return [self._component(at) for at, one in enumerate(self._findings) if one[0] == check]

    def that_are(self, *statuses: Status) -> list[Component]:
        """Those of these statuses. Of failed ones there are none, nearly always."""
        if self._many is not None:
            return [one for one in self._many.values() if one.status in statuses]
        return [self._component(at) for at, one in enumerate(self._findings) if one[1] in statuses]

    def findings(self) -> Iterable[tuple[str, str, Status, str]]:
        """Of each its check, component, status and reason: for what needs all, and no more."""
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


def _finding(one: Component) -> _Finding:
    return _one_finding(one.check, one.status, one.reason)


def _past(one: Component) -> _Past:
    known = one.recent == ((one.since, one.status),)
    return one.since if known else (one.since, one.recent)


def _with(column: tuple[_T, ...], at: int, *instead: _T) -> tuple[_T, ...]:
    """The column with this in the place of what is there; with nothing, if that is all."""
    return (*column[:at], *instead, *column[at + 1 :])


@lru_cache(maxsize=2048)
def _one_finding(check: str, status: Status, reason: str) -> _Finding:
    """One tuple for all of which the same is found."""
    return (check, status, reason)


@lru_cache(maxsize=256)
def _one_for_all(findings: tuple[_Finding, ...]) -> tuple[_Finding, ...]:
    """One column for all nodes of a kind on which all is well."""
    return findings


@lru_cache(maxsize=256)
def _one_text_for_all(messages: tuple[str, ...]) -> tuple[str, ...]:
    """One column for all nodes of which the same is said."""
    return messages
