"""The kinds of repair, their order, and where the ladder of a node's evidence begins. Pure."""

import itertools
from collections.abc import Iterable, Sequence

from aggregator.health.model import Status
from aggregator.health.node import NodeHealth

GPU_RESET, REBOOT, EXTERNAL, REPLACE, TICKET = (
    "gpu-reset",
    "reboot",
    "external",
    "replace",
    "ticket",
)
#: Mildest first. A ladder keeps to this order, so that it climbs, and ends.
REPAIRS = (GPU_RESET, REBOOT, EXTERNAL, REPLACE, TICKET)
#: A request to a person: it changes nothing on the node, so it needs no turn among the repairs.
NEEDS_PERSON = frozenset({TICKET})
#: An active test: its verdict lets a node return, and it is no repair and no rung of a ladder.
TEST = "test"
#: The kinds of attempt that a quarantine keeps.
ATTEMPTS = (*REPAIRS, TEST)

_RECOVERY, _LEMON = "gpu-recovery", "lemon"
#: The repair that each verdict of the driver (Xid 154) and reason of gpu-recovery calls for.
_VERDICTS = {
    "gpu-reset": GPU_RESET,
    "drain-and-reset": GPU_RESET,
    "reset": GPU_RESET,
    "node-reboot": REBOOT,
    "reboot": REBOOT,
    "bus-reset": REBOOT,
    "system-reboot": REBOOT,
}


def rank(repair: str) -> int:
    return REPAIRS.index(repair)


def disorder(ladder: Sequence[str]) -> str:
    """Why the repairs are no ladder; empty: they are one."""
    for before, after in itertools.pairwise(ladder):
        if before == after:
            return f"has {after!r} twice; expected each repair once"
        if rank(before) > rank(after):
            return f"{after!r} after {before!r}; expected the order {', '.join(REPAIRS)}"
    return ""


def joined(ladders: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """One ladder for several pieces of evidence: it begins at the strongest of their first rungs.

    Evidence without a ladder is a person's, so all of it is then.
    """
    found = [tuple(ladder) for ladder in ladders]
    if not found or not all(found):
        return ()
    first = max(rank(ladder[0]) for ladder in found)
    named = {repair for ladder in found for repair in ladder}
    return tuple(repair for repair in REPAIRS if repair in named and rank(repair) >= first)


def verdict_of(health: NodeHealth | None) -> str:
    """The mildest repair that the driver's own verdict allows; empty: it has given none."""
    if health is None:
        return ""
    words = [
        fault.details.get("verdict", "") for fault in health.faults.values() if not fault.historical
    ]
    words += [one.reason for one in health.components.of(_RECOVERY) if one.status is not Status.OK]
    verdicts = [_VERDICTS[word] for word in words if word in _VERDICTS]
    return max(verdicts, key=rank, default="")


def is_lemon(health: NodeHealth | None) -> bool:
    """Whether its faults come back whatever is done: a person decides on it."""
    return health is not None and any(
        one.status is Status.FAILED for one in health.components.of(_LEMON)
    )
