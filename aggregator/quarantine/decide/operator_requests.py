"""Operators' requests in annotations of a node: leave it alone, put it in, keep it in. Pure.

A request that can't be understood is reported, and errs on the side that loses no work: an unclear
exemption keeps evictions off (work that runs is lost for good) and no cordon (which is undone in a
second); an unclear force has no effect; a pin is a pin, whatever its value.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.cluster.port import Action
from aggregator.rfc3339 import read_time, write_time

EXEMPT = "sickbay.dev/exempt"
FORCE = "sickbay.dev/force"
PIN = "sickbay.dev/pin"

#: The requester of a quarantine made by a force annotation.
FORCED = FORCE

_MOST_TEXT = 300
_EXEMPT_FORM = 'expected "until TIME REASON", TIME such as 2026-12-01T00:00:00Z'
_FORCE_FORM = 'expected "cordon REASON" or "drain REASON"'


@dataclass(frozen=True, slots=True)
class OperatorRequests:
    """The requests on a node. ``exempt_until`` is wall clock seconds, 0: not exempt.

    ``force_requested``: there is a force annotation, be it understood (``force``) or not.
    """

    exempt_until: float = 0.0
    exempt_reason: str = ""
    exempt_unclear: str = ""
    force: Action | None = None
    force_reason: str = ""
    force_requested: bool = False
    force_unclear: str = ""
    pinned: bool = False
    pin_reason: str = ""

    def exempt(self, wall: float) -> bool:
        """Whether sickbay leaves the node alone at this moment."""
        return wall < self.exempt_until

    def cap(self, wall: float) -> Action:
        """The strongest action that sickbay may take on the node by itself."""
        if self.exempt(wall):
            return Action.OBSERVE
        return Action.CORDON if self.exempt_unclear else Action.DRAIN

    def forced(self, wall: float) -> Action | None:
        """The action that a person forces on the node now; an exemption goes before a force."""
        return None if self.exempt(wall) else self.force

    def why_capped(self, wall: float) -> str:
        """Why `cap` limits the action, for people; empty without a limit."""
        if self.exempt(wall):
            return f"exempt until {write_time(self.exempt_until)}: {self.exempt_reason}"
        return f"{EXEMPT}: {self.exempt_unclear}" if self.exempt_unclear else ""


NONE = OperatorRequests()


def read_operator_requests(annotations: Mapping[str, str]) -> OperatorRequests:
    """The requests in the node's annotations. Never raises: the text may be any."""
    if EXEMPT not in annotations and FORCE not in annotations and PIN not in annotations:
        return NONE  # as on nearly every node
    until, reason, unclear = _exemption(annotations.get(EXEMPT))
    force, why, no_force = _force(annotations.get(FORCE))
    return OperatorRequests(
        exempt_until=until,
        exempt_reason=reason,
        exempt_unclear=unclear,
        force=force,
        force_reason=why,
        force_requested=FORCE in annotations,
        force_unclear=no_force,
        pinned=PIN in annotations,
        pin_reason=_short(annotations.get(PIN, "")),
    )


def describe(requests: OperatorRequests, wall: float) -> tuple[str, ...]:
    """The requests on the node, and those that can't be followed, in sentences."""
    texts = []
    if requests.exempt(wall):
        texts.append(requests.why_capped(wall))
    elif requests.exempt_until:
        texts.append(f"its exemption ended at {write_time(requests.exempt_until)} and is ignored")
    if requests.exempt_unclear:
        texts.append(f"{EXEMPT}: {requests.exempt_unclear}; not exempt, and its work stays")
    if requests.force is not None:
        texts.append(f"forced to {requests.force}: {requests.force_reason}")
        if requests.exempt(wall):
            texts.append("both exempt and forced: the exemption counts")
    if requests.force_unclear:
        texts.append(f"{FORCE}: {requests.force_unclear}; no action is taken")
    if requests.pinned:
        texts.append(f"pinned: {requests.pin_reason or 'no reason given'}")
    return tuple(texts)


def exemption(until: float, reason: str) -> str:
    """The annotation's text. ``until`` is wall clock seconds."""
    return f"until {write_time(until)} {reason}"


def _exemption(text: str | None) -> tuple[float, str, str]:
    """The exemption's end, its reason, and its error."""
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
    return Action(word), _short(reason) or "forced, no reason given", ""


def _short(text: str) -> str:
    return " ".join(text.split())[:_MOST_TEXT]
