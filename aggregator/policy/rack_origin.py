"""Names the GPU from which the NVLink errors of one rack came. Pure.

One GPU or its link fails, and the driver of each GPU of the fabric logs an error. The one that
differs is the origin. In this order: the only Xid that names a lost link (149, 150, or a fatal 144
or 146-148) among Xids 145; a GPU whose link had errors before; the only line that NVIDIA's table
does not send to the link's other end; the first in time. Facts: marin-community/marin#9086.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aggregator.policy.nvlink5 import Row
from aggregator.runtime.text import counted

#: The error that GPUs log which lost a link's other end.
FOLLOWS = "xid:145"
_EXPLICIT = frozenset({"xid:149", "xid:150"})
_EXPLICIT_IF_FATAL = frozenset({"xid:144", "xid:146", "xid:147", "xid:148"})
#: The line by which the driver warns of a bad link: by NVIDIA's catalogue it is no fault.
_WARNING = "NETIR_BER_EVENT"
PRECURSOR = "fleet-precursor:nvlink-recoveries"
#: Later investigations of NVIDIA's table that lead elsewhere: the link's other end, an error that
#: another one caused, the host, or software.
_ELSEWHERE = (
    "INVESTIGATE_PEER_DEVICE",
    "SYMPATHETIC",
    "INVESTIGATE_HOST",
    "INVESTIGATE_SW",
    "CHECK_NVLINK_FAILURE_FLOW",
)
#: The first line is the first where the next node's comes later than this (seconds): clocks differ.
_FIRST_BY = 1.0


class Confidence(enum.StrEnum):
    """How far the evidence names the origin."""

    EXPLICIT = "explicit"  # one node alone has a code that names its own link
    LIKELY = "likely"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FabricSign:
    """NVLink evidence of one GPU, or its precursor (`PRECURSOR`).

    ``at`` is when it began, in seconds of any clock that the signs share. ``row`` is the line's
    entry in NVIDIA's table, ``severity`` the driver's own word. ``level``: it is a check's result,
    whose time is that of a run.
    """

    node: str
    gpu: str
    code: str
    at: float
    row: Row | None = None
    severity: str = ""
    level: bool = False

    @property
    def is_warning(self) -> bool:
        """Whether it came before the event, of the link that fails then."""
        return self.code == PRECURSOR or (self.row is not None and self.row.unit == _WARNING)

    @property
    def explicit(self) -> bool:
        """Whether the line names a lost link."""
        if self.row is not None and self.row.action == "ignore":
            return False
        fatal = "fatal" in (self.row.severity if self.row else self.severity).split()
        return self.code in _EXPLICIT or (self.code in _EXPLICIT_IF_FATAL and fatal)

    @property
    def elsewhere(self) -> bool:
        """Whether NVIDIA's table leads from this line to another part."""
        return self.row is not None and self.row.then.startswith(_ELSEWHERE)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a rack event; without a ``node`` it is unknown, and ``reason`` states why."""

    node: str
    gpu: str
    reason: str
    confidence: Confidence

    @property
    def text(self) -> str:
        """A clause for people."""
        if not self.node:
            return f"origin unknown: {self.reason}"
        where = f"{self.gpu} of {self.node}" if self.gpu else self.node
        return f"origin {where} ({self.confidence}): {self.reason}"


def find_origin(signs: Iterable[FabricSign]) -> Origin:
    """The origin, by all signs of the nodes of one fabric."""
    found = sorted(signs, key=lambda one: (one.at, one.node, one.gpu, one.code))
    nodes = {one.node for one in found if not one.is_warning}
    explicit = [one for one in found if one.explicit]
    if len({one.node for one in explicit}) == 1 and len(nodes) > 1:
        return _only_explicit(explicit, found, len(nodes))
    warnings = [one for one in found if one.is_warning and one.node in nodes]
    if len({one.node for one in warnings}) == 1 and len(nodes) > 1:
        reason = "its link had errors before, and no other's had"
        return _likely(warnings[0], reason)
    here = [one for one in explicit if one.row is not None and not one.elsewhere]
    others = {one.node for one in explicit if one.elsewhere}
    if (
        len({one.node for one in here}) == 1
        and others
        and len(others | {here[0].node}) == len({one.node for one in explicit})
    ):
        reason = "NVIDIA's table leads from the lines of the others to the other end of a link"
        return _likely(here[0], reason)
    return _first(found)


def _only_explicit(
    explicit: Sequence[FabricSign], found: Sequence[FabricSign], nodes: int
) -> Origin:
    """One node alone has lines that name a lost link."""
    first = next((one for one in explicit if not one.elsewhere), explicit[0])
    number = first.code.removeprefix("xid:")
    others = [one for one in found if one.node != first.node and not one.is_warning]
    lines = [one for one in others if not one.level]
    all_follow = lines and all(one.code == FOLLOWS for one in lines)
    if first.elsewhere and first.row is not None:
        reason = f"the only Xid {number} of {nodes} nodes, but its register has {first.row.then}"
        return _likely(first, reason)
    if first.row is None and first.severity.startswith("non"):  # it may be a warning
        return _likely(first, f"the only Xid {number}, which the driver calls {first.severity}")
    if not all_follow:
        return _likely(first, f"the only Xid {number}; not all others have Xid 145 alone")
    rest = counted(nodes - 1, "other node has", "other nodes have")
    reason = f"the only Xid {number}; the {rest} Xid 145"
    return Origin(first.node, first.gpu, reason, Confidence.EXPLICIT)


def _first(found: Sequence[FabricSign]) -> Origin:
    lines: dict[str, FabricSign] = {}
    for one in found:
        if not (one.level or one.is_warning):
            lines.setdefault(one.node, one)
    ordered = list(lines.values())
    if len(ordered) > 1 and ordered[1].at - ordered[0].at > _FIRST_BY:
        seconds = ordered[1].at - ordered[0].at
        return _likely(ordered[0], f"its first error came {seconds:.1f} s before all others")
    return unknown("no GPU differs by code, earlier errors, register or time; a switch may")


def unknown(reason: str) -> Origin:
    """No origin is named."""
    return Origin("", "", reason, Confidence.UNKNOWN)


def _likely(sign: FabricSign, reason: str) -> Origin:
    return Origin(sign.node, sign.gpu, reason, Confidence.LIKELY)
