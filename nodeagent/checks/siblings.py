"""Comparison of like parts of one node: the ports, links and drives that should be alike. Pure.

A part that is worse than two thirds of its kind has a cause of its own; a part whose kind is mostly
as it is was set up so. Kinds with fewer than two better siblings are not compared.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import field

from nodeagent.checks.base import Kind, Option
from nodeagent.dataclass import dataclass
from nodeagent.model import Status

#: A part must be worse for this number of seconds: ports come up one after the other.
PATIENCE = 300.0
#: Seconds after a boot in which none is compared: ports and drives come up late.
BOOT_GRACE = 1200.0
_FEWEST = 2

#: A part's name, its kind and its level; more is better. A part of an empty kind is not compared.
Levels = Mapping[str, tuple[Hashable, float]]

_STATUSES = {"degraded": Status.DEGRADED, "failed": Status.FAILED, "ok": Status.OK}


def _known_status(text: str) -> str:
    if text not in _STATUSES:
        raise ValueError(f"{text!r} is none of {', '.join(_STATUSES)}")
    return text


def option(what: str) -> Option:
    """The setting ``siblings`` of a check that compares ``what``."""
    text = f"status of {what} worse than two thirds of its kind: degraded, failed, ok (not shown)"
    return Option("siblings", Kind.TEXT, "degraded", text, _known_status)


def usual_level(levels: Iterable[float]) -> float:
    """The highest level that two thirds of them reach, and two at least; 0 where there is none."""
    ordered = sorted(levels, reverse=True)
    needed = max(_FEWEST, -(-2 * len(ordered) // 3))
    return ordered[needed - 1] if len(ordered) >= needed else 0.0


def outliers(parts: Levels) -> dict[str, float]:
    """The parts below the usual level of their kind, each with that level."""
    kinds: dict[Hashable, list[float]] = {}
    for kind, level in parts.values():
        if kind:
            kinds.setdefault(kind, []).append(level)
    usual = {kind: usual_level(levels) for kind, levels in kinds.items()}
    return {
        name: usual[kind] for name, (kind, level) in parts.items() if kind and level < usual[kind]
    }


@dataclass(slots=True)
class SiblingWatch:
    """Remembers since when a part has been worse than its siblings.

    ``has_read``: another run has gone before. Set for values that one failed call makes worse.
    """

    has_read: bool = False
    _since: dict[str, float] = field(default_factory=dict)

    def lasting(self, parts: Levels, now: float) -> dict[str, float]:
        """Those of `outliers` that have been so for `PATIENCE`, each with its kind's usual level.

        ``now``: seconds since the boot. A part that is worse in the first run, long after the
        boot, has been so before.
        """
        found = outliers(parts)
        if now < BOOT_GRACE:
            self._since.clear()
            return {}
        first = now if self.has_read else now - PATIENCE
        self.has_read = True
        self._since = {name: self._since.get(name, first) for name in found}
        return {name: found[name] for name, at in self._since.items() if now - at >= PATIENCE}


def status_of(setting: str) -> Status:
    """The status that the option `siblings` names."""
    return _STATUSES[setting]
