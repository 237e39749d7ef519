"""What people ask of a node, in annotations on it: leave it alone, put it in, keep it in. Pure.

A wish that can't be understood is said, and errs to the side that takes nothing away from anybody:
an unclear exemption keeps evictions off (work that runs is lost for good) and no cordon (which is
undone in a second); an unclear force does nothing; a pin is a pin, whatever stands after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.quarantine.cluster import Action
from aggregator.quarantine.times import read_time, write_time

EXEMPT = "sickbay.dev/exempt"
FORCE = "sickbay.dev/force"
PIN = "sickbay.dev/pin"

#: Who asks for the quarantine that a force makes.
FORCED = FORCE

_MOST_TEXT = 300
_EXEMPT_FORM = 'expected "until TIME REASON", TIME such as 2026-12-01T00:00:00Z'
_FORCE_FORM = 'expected "cordon REASON" or "drain REASON"'


@dataclass(frozen=True, slots=True)
class Wishes:
    """What stands on a node. ``exempt_until`` is wall clock seconds, 0: not exempt.

    ``force_asked``: there is a force annotation, be it understood (``force``) or not.
    """

    exempt_until: float = 0.0
    exempt_reason: str = ""
    exempt_unclear: str = ""
    force: Action | None = None
    force_reason: str = ""
    force_asked: bool = False
    force_unclear: str = ""
    pinned: bool = False
    pin_reason: str = ""

    def exempt(self, wall: float) -> bool:
        """Whether sickbay leaves the node alone at this moment."""
        return wall < self.exempt_until

    def cap(self, wall: float) -> Action:
        """The most that sickbay may do to the node of its own accord."""
        if self.exempt(wall):
            return Action.OBSERVE
        return Action.CORDON if self.exempt_unclear else Action.DRAIN

    def forced(self, wall: float) -> Action | None:
        """What a person wants done to the node now; who exempts it as well is heard instead."""
        return None if self.exempt(wall) else self.force

    def why_capped(self, wall: float) -> str:
        """Why no more is done than `cap`, for people; empty where nothing caps."""
        if self.exempt(wall):
            return f"exempt until {write_time(self.exempt_until)}: {self.exempt_reason}"
        return f"{EXEMPT}: {self.exempt_unclear}" if self.exempt_unclear else ""


NONE = Wishes()


def read_wishes(annotations: Mapping[str, str]) -> Wishes:
    """What the node's annotations ask for. Never raises: anybody may have written them."""
    until, reason, unclear = _exemption(annotations.get(EXEMPT))
    force, why, no_force = _force(annotations.get(FORCE))
    return Wishes(
        exempt_until=until,
        exempt_reason=reason,
        exempt_unclear=unclear,
        force=force,
        force_reason=why,
        force_asked=FORCE in annotations,
        force_unclear=no_force,
        pinned=PIN in annotations,
        pin_reason=_short(annotations.get(PIN, "")),
    )


def describe(wishes: Wishes, wall: float) -> tuple[str, ...]:
    """What people ask of the node, and what of it can't be done, in sentences."""
    said = []
    if wishes.exempt(wall):
        said.append(wishes.why_capped(wall))
    elif wishes.exempt_until:
        said.append(f"its exemption ended at {write_time(wishes.exempt_until)} and is ignored")
    if wishes.exempt_unclear:
        said.append(f"{EXEMPT}: {wishes.exempt_unclear}; not exempt, but nothing is evicted")
    if wishes.force is not None:
        said.append(f"forced to {wishes.force}: {wishes.force_reason}")
        if wishes.exempt(wall):
            said.append("both exempt and forced: the exemption is heard")
    if wishes.force_unclear:
        said.append(f"{FORCE}: {wishes.force_unclear}; nothing is done")
    if wishes.pinned:
        said.append(f"pinned: {wishes.pin_reason or 'no reason given'}")
    return tuple(said)


def exemption(until: float, reason: str) -> str:
    """The annotation's text. ``until`` is wall clock seconds."""
    return f"until {write_time(until)} {reason}"


def _exemption(text: str | None) -> tuple[float, str, str]:
    """Until when, why, and what is wrong with it."""
    if text is None:
        return 0.0, "", ""
    word, _, rest = text.strip().partition(" ")
    time, _, reason = rest.strip().partition(" ")
    if word != "until":
        return 0.0, "", f"{_short(text)!r} makes no sense; {_EXEMPT_FORM}"
    try:
        at = read_time(time)
    except (ValueError, OverflowError):
        return 0.0, "", f"{_short(time)!r} is no time with its zone; {_EXEMPT_FORM}"
    return max(at, 1.0), _short(reason) or "no reason given", ""


def _force(text: str | None) -> tuple[Action | None, str, str]:
    if text is None:
        return None, "", ""
    word, _, reason = text.strip().partition(" ")
    if word not in (Action.CORDON, Action.DRAIN):
        return None, "", f"{_short(text)!r} makes no sense; {_FORCE_FORM}"
    return Action(word), _short(reason) or "forced by annotation, no reason given", ""


def _short(text: str) -> str:
    return " ".join(text.split())[:_MOST_TEXT]
