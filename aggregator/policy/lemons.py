"""Lemons: nodes that come back again and again, after any repair. Pure.

After Meta's "lemon nodes" ("Revisiting Reliability in Large-Scale Machine Learning Research
Clusters", 2024): over 28 days, how often a node left the scheduler (out_count), how many different
Xids it had (xid_cnt), its repair tickets, and how many jobs failed on it or excluded it. We see no
jobs and no tickets. In their place we count: quarantines, different codes, days with an incident,
and how often it was back soon after a release.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from aggregator.configfile.section import Positive, SectionDataclass
from aggregator.health.model import Component, Status

#: The check that reports a lemon, in the aggregator's own name: a rule can be about it.
CHECK, REASON = "lemon", "repeat-offender"
#: Seconds. A quarantine that begins so soon after a release is a return.
SOON = 7 * 86400.0

_DAY = 86_400.0
#: Seconds. Earlier events do not count.
WINDOW = 28 * _DAY


@dataclass(frozen=True, slots=True)
class LemonThresholds(SectionDataclass):
    """The section ``lemons``: the value within `WINDOW` from which each signal counts, and how many
    of the four signals make a lemon. ``returns`` are quarantines within `SOON` of a release.

    With the published rate of 6.5 failures per 1,000 node-days a healthy node has four in 28 days
    once in 30,000 such windows, three once in 1,200.
    """

    quarantines: Annotated[int, Field(ge=2)] = 4
    """From this many quarantines in 28 days on, they are a signal (docs/policy.md#lemons)."""
    codes: Annotated[int, Field(ge=2)] = 3
    """From this many different codes and reasons on, they are a signal."""
    days: Annotated[int, Field(ge=2)] = 4
    """From this many days with an incident on, they are a signal."""
    returns: Positive = 2
    """From this many quarantines within a week of a release on, they are a signal."""
    signals: Annotated[int, Field(ge=1, le=4)] = 2
    """From this many of these four signals on, the node is a lemon."""


@dataclass(frozen=True, slots=True)
class LemonEvent:
    """One event of a node's past. ``what`` is "opened", "closed" (an incident that calls for an
    action), "quarantined" or "released"; ``at`` is in wall clock seconds.
    """

    at: float
    what: str
    incident: str = ""
    codes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Lemon:
    """A repeat offender, and the reasons. ``strikes`` are the signals that count, in words."""

    node: str
    quarantines: int
    codes: tuple[str, ...]
    days: int
    returns: int
    last: float
    strikes: tuple[str, ...]

    @property
    def why(self) -> str:
        return "again and again within four weeks: " + ", ".join(self.strikes)


def evaluate_past(
    node: str, deeds: Iterable[LemonEvent], bounds: LemonThresholds, now: float
) -> Lemon | None:
    """The node as a lemon, or None if it is not one. ``now`` is in wall clock seconds."""
    past = sorted(
        (deed for deed in deeds if now - WINDOW <= deed.at <= now), key=lambda deed: deed.at
    )
    opened = _opened(past)
    quarantined = [deed for deed in past if deed.what == "quarantined"]
    released = [deed.at for deed in past if deed.what == "released"]
    # In a mode that only observes no node is quarantined: the would-be quarantines count.
    quarantines = max(len(quarantined), len(opened))
    codes = tuple(sorted({code for deed in opened for code in deed.codes}))
    days = len({deed.at // _DAY for deed in opened})
    returns = sum(1 for deed in quarantined if any(0 < deed.at - then <= SOON for then in released))
    strikes = tuple(
        f"{count} {words}"
        for count, least, words in (
            (quarantines, bounds.quarantines, "quarantines"),
            (len(codes), bounds.codes, "different codes"),
            (days, bounds.days, "days with an incident"),
            (returns, bounds.returns, "returns within a week of a release"),
        )
        if count >= least
    )
    if len(strikes) < bounds.signals:
        return None
    last = max(deed.at for deed in past)
    return Lemon(node, quarantines, codes, days, returns, last, strikes)


def _opened(past: Iterable[LemonEvent]) -> Sequence[LemonEvent]:
    """Openings, each once: an aggregator that was restarted reports open incidents again."""
    found: dict[str, LemonEvent] = {}
    every: list[LemonEvent] = []
    for deed in past:
        if deed.what == "closed" and deed.incident in found:
            every.append(found.pop(deed.incident))
        elif deed.what == "opened":
            known = found.get(deed.incident, deed)
            found[deed.incident] = replace(known, codes=known.codes | deed.codes)
    return [*every, *found.values()]


def evidence(lemon: Lemon | None, since: float) -> Component:
    """The evidence on a node in the aggregator's own name. ``since`` is monotonic seconds."""
    if lemon is None:
        return Component(CHECK, "", Status.OK, "", "no repeat offender any more", since)
    return Component(CHECK, "", Status.FAILED, REASON, lemon.why, since)
