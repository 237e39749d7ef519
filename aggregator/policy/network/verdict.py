"""Triangulation's verdict: the node or domain that a failure is blamed on, and the edges
behind it.
"""

from dataclasses import dataclass

from aggregator.health.model import Status

#: The name of the check with a verdict about a node, among the node's evidence.
CHECK = "triangulation"

#: Why a node is blamed. The first two are of a node whose agent speaks and that no observer
#: contradicts.
UNREACHABLE = "unreachable"  # no observer reaches it, though they reach others
CUT_OFF = "cut-off"  # by its own report: neither its gateway nor two thirds of its peers
UNREACHABLE_SILENT = "unreachable-silent"  # the first, and its agent is silent
ONE_WAY = "one-way"  # the second, but its observers reach it

#: Why a suspected node is not blamed.
SHARED = "shared"  # too many at once, and no label names what they share
DOMAIN = "domain"  # the rack or switch that it is in is blamed
DISPUTED = "disputed"  # enough observers miss it for a suspicion, and others reach it

#: Edges that a verdict names.
NAMED = 8


@dataclass(frozen=True, slots=True)
class Edge:
    """An observer, and the address that it did not reach."""

    observer: str
    target: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one node in the graph. ``since`` is when status and reason became so.

    FAILED: blamed. OK: at least half of its observers reach it, and it does not report that it is
    cut off. UNKNOWN: there is too little evidence, or its failure may be shared.
    """

    status: Status
    reason: str
    message: str
    since: float
    edges: tuple[Edge, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkVerdict:
    """A target or a domain that is blamed. ``kind`` is "target", "domain" or "unnamed".

    "unnamed" is a cause that several nodes share that fail at once and that no label names: no node
    is blamed for it. ``count`` of ``total`` nodes miss the target or are lost; ``nodes`` are the
    first few of them.
    """

    kind: str
    name: str
    message: str
    since: float
    count: int
    total: int
    nodes: tuple[str, ...]

    @property
    def subject(self) -> str:
        return f"{self.kind} {self.name}".rstrip()
