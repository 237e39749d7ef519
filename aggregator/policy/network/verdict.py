"""What triangulation says: whom a failing network is blamed on, and on which edges that rests."""

from dataclasses import dataclass

from aggregator.health.model import Status

#: The check's name under which a verdict about a node stands among the node's evidence.
CHECK = "triangulation"

#: Why a node is blamed. The first two are of a node whose agent speaks and that nobody contradicts.
UNREACHABLE = "unreachable"  # no observer reaches it, though they reach others
CUT_OFF = "cut-off"  # by its own word: neither its gateway nor two thirds of its peers
UNREACHABLE_SILENT = "unreachable-silent"  # the first, and its agent is silent
ONE_WAY = "one-way"  # the second, but its observers reach it

#: Why a node that looks bad is not blamed.
SHARED = "shared"  # too many at once, and no label names what they share
DOMAIN = "domain"  # the rack or switch that it is in is blamed

#: Edges that a verdict names.
NAMED = 8


@dataclass(frozen=True, slots=True)
class Edge:
    """Who did not reach what."""

    observer: str
    target: str


@dataclass(frozen=True, slots=True)
class Finding:
    """How one node stands in the graph. ``since`` is when status and reason became so.

    FAILED: blamed. OK: at least half of those who look at it reach it, and it does not say itself
    that it is cut off. UNKNOWN: too little is known, or what is wrong may be shared.
    """

    status: Status
    reason: str
    message: str
    since: float
    edges: tuple[Edge, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target or a domain that is blamed. ``kind`` is "target", "domain" or "unnamed".

    "unnamed" is what several nodes share that fail at once and that no label names: nobody is
    blamed for it. ``count`` of ``total`` nodes miss the target or are lost; ``nodes`` are the first
    few of them.
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
