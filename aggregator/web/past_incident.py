"""A closed incident as its events have it: what it was, and the rules that had decided. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aggregator.web import models

#: "xid:79 GPU-1 (gpu-off-bus); xid:48 GPU-1 (ecc)", as the events have the evidence.
_RULE = re.compile(r"\(([^()]+)\)(?=; |$)")
_WELL_AGAIN = ": well again"
_KINDS = ("incident.opened", "incident.changed", "incident.closed")


@dataclass(frozen=True, slots=True)
class PastIncident:
    """``evidence``: code, component and rule of each; ``rules``: theirs, each once."""

    summary: str
    action: str
    evidence: tuple[str, ...]
    rules: tuple[str, ...]


def past_incident(events: Sequence[models.Event]) -> PastIncident | None:
    """By the newest of the events that has the evidence, or None without one."""
    for one in events:
        found = one.details.get("evidence", "")
        if one.kind in _KINDS and found:
            summary = one.summary.removeprefix(f"{one.node}: ").removesuffix(_WELL_AGAIN)
            return PastIncident(
                summary=summary,
                action=one.details.get("action", ""),
                evidence=tuple(found.split("; ")),
                rules=tuple(dict.fromkeys(_RULE.findall(found))),
            )
    return None
