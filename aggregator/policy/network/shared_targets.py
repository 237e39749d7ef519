"""Targets that many observers miss: then the target is blamed, and never an observer. Pure.

It counts the observers whose agents are attached and that are not cut off themselves. One update
costs the same for any number of observers of a target.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nsmallest

from aggregator.policy.network.verdict import NAMED, NetworkVerdict

Target = tuple[str, str]  # check, component

#: A target is blamed where more than this share of its observers miss it, and at least this number;
#: it is healthy again below the second share. (A tenth to a fifth, by the field's practice.)
BLAMED_ABOVE = 0.15
WELL_BELOW = 0.05
FEWEST = 2


@dataclass(slots=True)
class _Watched:
    observers: int = 0
    missed_by: set[str] = field(default_factory=set)
    blamed_since: float | None = None


class Targets:
    """The observers' reports on targets."""

    def __init__(self) -> None:
        self._watched: dict[Target, _Watched] = {}
        self._reports: dict[str, dict[Target, bool]] = {}
        self._counted: set[str] = set()
        self._dirty: dict[Target, None] = {}

    def set_report(self, observer: str, target: Target, *, reached: bool | None) -> None:
        """``reached`` None: the observer has no result for it (any more)."""
        reports = self._reports.setdefault(observer, {})
        before = reports.get(target)
        if before is reached:
            return
        if observer in self._counted:
            self._count(observer, target, -1, reached=before)
            self._count(observer, target, +1, reached=reached)
        if reached is None:
            del reports[target]
        else:
            reports[target] = reached

    def count(self, observer: str, *, counts: bool) -> None:
        """Set whether the observer's reports are evidence now."""
        if counts == (observer in self._counted):
            return
        (self._counted.add if counts else self._counted.discard)(observer)
        for target, reached in self._reports.get(observer, {}).items():
            self._count(observer, target, +1 if counts else -1, reached=reached)

    def forget_node(self, observer: str) -> None:
        self.count(observer, counts=False)
        self._reports.pop(observer, None)

    def settle(self, now: float) -> bool:
        """Evaluate the changes. Returns whether any verdict may differ from before."""
        changed = False
        for target in self._dirty:
            watched = self._watched[target]
            missed = len(watched.missed_by)
            if watched.blamed_since is None:
                if missed >= FEWEST and missed > BLAMED_ABOVE * watched.observers:
                    watched.blamed_since = now
                    changed = True
            else:
                changed = True
                if missed < FEWEST or missed < WELL_BELOW * watched.observers:
                    watched.blamed_since = None
            if not watched.observers:
                del self._watched[target]
        self._dirty.clear()
        return changed

    def verdicts(self) -> Iterator[NetworkVerdict]:
        for (check, component), watched in self._watched.items():
            if watched.blamed_since is None:
                continue
            missed = len(watched.missed_by)
            yield NetworkVerdict(
                "target",
                f"{check} {component}",
                f"{missed} of {watched.observers} nodes that probe {component} ({check}) miss it",
                watched.blamed_since,
                missed,
                watched.observers,
                tuple(nsmallest(NAMED, watched.missed_by)),
            )

    def _count(self, observer: str, target: Target, by: int, *, reached: bool | None) -> None:
        if reached is None:
            return
        watched = self._watched.setdefault(target, _Watched())
        watched.observers += by
        if not reached:
            (watched.missed_by.add if by > 0 else watched.missed_by.discard)(observer)
        self._dirty[target] = None
