"""Network triangulation: the node or domain to blame for failures. Pure; an edge's update is cheap.

In this order, a suspected node (see `graph`) is not blamed
- when enough nodes of its rack or switch, as a label names it, were suspected within `WINDOW`: then
  the domain is blamed;
- when more than `MOST_AT_ONCE` others that no domain explains were suspected within `WINDOW`, or
  many nodes that are not suspected miss many of theirs: they share a cause that no label names (for
  example a network in pieces), and no node is blamed for it.
So a rule that waits (``for``) longer than failures take to be detected blames no node for a cause
that it shares with others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nsmallest
from math import ceil

from aggregator.health.model import Status
from aggregator.policy.network.graph import Graph
from aggregator.policy.network.shared_targets import Target, Targets
from aggregator.policy.network.verdict import (
    DISPUTED,
    DOMAIN,
    NAMED,
    SHARED,
    Finding,
    NetworkVerdict,
)

#: Failures that begin within this number of seconds of one another are taken to have one cause.
WINDOW = 300.0
#: This number of nodes may fail independently within the window.
MOST_AT_ONCE = 3
#: Failures of this number of a domain's nodes, and of this share of them, are the domain's.
FEWEST_OF_DOMAIN = 2
SHARE_OF_DOMAIN = 0.05

PEERS = "peers"
REACH = "reach"
_GATEWAYS = ("gateway", "gateway-ipv6")


@dataclass(slots=True)
class _Domain:
    """``accused``: since when each of its nodes has been suspected. ``since``: since when it is
    blamed.
    """

    members: set[str] = field(default_factory=set)
    accused: dict[str, float] = field(default_factory=dict)
    since: float | None = None

    @property
    def needed(self) -> int:
        return max(FEWEST_OF_DOMAIN, ceil(SHARE_OF_DOMAIN * len(self.members)))

    def evaluate(self, now: float) -> bool:
        """Evaluate it. Returns whether its blame has changed."""
        blamed = self.since is not None
        if blamed and len(self.accused) < FEWEST_OF_DOMAIN:
            self.since = None
        elif not blamed and len(self.accused) >= self.needed:
            lately = sum(1 for since in self.accused.values() if now - since <= WINDOW)
            if lately >= self.needed:
                self.since = now
        return blamed != (self.since is not None)


class Triangulation:
    """Takes the agents' reports on the network, and finds the node or domain to blame. Times are
    monotonic.
    """

    def __init__(self) -> None:
        self._graph = Graph()
        self._targets = Targets()
        self._findings: dict[str, Finding] = {}
        self._domains: dict[str, _Domain] = {}
        self._domains_of: dict[str, tuple[str, ...]] = {}
        self._accused: dict[str, float] = {}
        self._sudden: dict[str, float] = {}  # the latest suspects that no domain explains
        self._shared: dict[str, None] = {}
        self._shared_since = 0.0
        self._unrest = False
        self._relabelled: set[str] = set()

    # -- inputs ------------------------------------------------------------------------

    def place(self, node: str, address: str) -> None:
        """The node is probed at ``address``; empty: no node probes it."""
        self._graph.place(node, address)

    def label(self, node: str, domains: Iterable[str]) -> None:
        """The racks, switches and the like that the node is in ("rack=r7")."""
        wanted = tuple(sorted(set(domains)))
        before = self._domains_of.get(node, ())
        if wanted == before:
            return
        for name in before:
            domain = self._domains[name]
            domain.members.discard(node)
            domain.accused.pop(node, None)
            if not domain.members:
                del self._domains[name]
        for name in wanted:
            domain = self._domains.setdefault(name, _Domain())
            domain.members.add(node)
            if node in self._accused:
                domain.accused[node] = self._accused[node]
        self._relabelled.update(before, wanted)
        self._domains_of[node] = wanted
        self._graph.touch(node)

    def set_report(self, node: str, *, reporting: bool) -> None:
        """Set whether the node's agent is attached and has given its snapshot."""
        self._graph.set_report(node, reporting=reporting)
        self._count(node)

    def enlist(self, node: str, *, listed: bool) -> None:
        """Set whether the cluster lists the node; an unlisted node's reports are no evidence."""
        self._graph.enlist(node, listed=listed)
        self._count(node)

    def assign(self, observer: str, addresses: tuple[str, ...]) -> frozenset[str]:
        """The observer is assigned to probe these addresses, and no others (any more).

        Returns the new ones: known results for them must be given to `set_edge`, again if need be.
        """
        return self._graph.assign(observer, addresses)

    def set_edge(self, observer: str, check: str, component: str, status: Status | None) -> None:
        """The result of a network check of the observer, or None if the component is gone."""
        reached = None if status in (None, Status.UNKNOWN) else status is not Status.FAILED
        if check == PEERS:
            self._graph.peer(observer, component, reached=reached)
        elif check == REACH and component in _GATEWAYS:
            self._graph.gateway(observer, component, reached=reached)
        else:
            self._targets.set_report(observer, (check, component), reached=reached)

    def forget_node(self, node: str) -> None:
        """The node no longer exists."""
        self.label(node, ())
        self._domains_of.pop(node, None)
        self._graph.forget_node(node)
        self._targets.forget_node(node)

    # -- conclusions -------------------------------------------------------------------

    def settle(self, now: float) -> tuple[dict[str, Finding], bool]:
        """Evaluate the changes since the last call.

        Returns the findings that differ from before, by node, and whether `verdicts` may.
        """
        changed: dict[str, Finding] = {}
        dirty = self._graph.take_dirty()
        others = False
        for name in self._relabelled & self._domains.keys():
            others |= self._domains[name].evaluate(now)
        self._relabelled.clear()
        for node in dirty:
            others |= self._weigh(node, now)
        unrest = self._graph.unrest(self._accused.keys())
        if unrest != self._unrest:
            self._unrest, others = unrest, True
            self._shared_since = self._shared_since if self._shared else now
        # A second evaluation: one node's effect on a domain or the burst counts for all of them.
        affected = dict.fromkeys(dirty)
        if others:
            affected.update(dict.fromkeys(self._accused))
        for node in affected:
            finding = self._finding(node, now)
            if finding is not None:
                changed[node] = finding
        return changed, self._targets.settle(now) or others

    def finding(self, node: str) -> Finding | None:
        """The node's finding as of the last `settle`."""
        return self._findings.get(node)

    def verdicts(self) -> list[NetworkVerdict]:
        """The targets and domains that are blamed now, and the unnamed causes that nodes share."""
        found = list(self._targets.verdicts())
        for name, domain in self._domains.items():
            if domain.since is not None:
                count, total = len(domain.accused), len(domain.members)
                found.append(
                    NetworkVerdict(
                        "domain",
                        name,
                        f"{count} of the {total} nodes of {name} were lost to the network together",
                        domain.since,
                        count,
                        total,
                        tuple(nsmallest(NAMED, domain.accused)),
                    )
                )
        if self._shared or self._unrest:
            found.append(self._unnamed())
        return found

    def _unnamed(self) -> NetworkVerdict:
        nodes = self._accused if self._unrest else self._shared
        text = (
            "many nodes miss many of their peers: the network is in pieces, and no node is blamed"
            if self._unrest
            else f"{len(nodes)} nodes were lost to the network together, and no label names what "
            "they share: no node is blamed"
        )
        named = tuple(nsmallest(NAMED, nodes))
        count, total = len(nodes), len(self._findings)
        return NetworkVerdict("unnamed", "", text, self._shared_since, count, total, named)

    def _count(self, node: str) -> None:
        """Set whether the node's reports on targets count: it speaks, and is not lost itself."""
        self._targets.count(node, counts=self._graph.has_report(node) and node not in self._accused)

    def _weigh(self, node: str, now: float) -> bool:
        """Add the node to the suspects or remove it. Returns whether that changes others'
        results.
        """
        accused = self._graph.knows(node) and bool(self._graph.count_view(node).accusation)
        if accused == (node in self._accused):
            return False
        if accused:
            self._accused[node] = now
        else:
            del self._accused[node]
        self._count(node)
        changed = False
        for name in self._domains_of.get(node, ()):
            domain = self._domains[name]
            if accused:
                domain.accused[node] = now
            else:
                domain.accused.pop(node, None)
            if domain.evaluate(now):
                changed = True
                for explained in domain.accused if domain.since is not None else ():
                    self._unsuspect(explained)
        if accused:
            return self._suspect(node, now) or changed
        return self._unsuspect(node) or changed

    def _suspect(self, node: str, now: float) -> bool:
        """Count it among those that no domain explains. Returns whether they have a shared cause.

        The latest few are enough to know whether there were too many within the window.
        """
        if self._blamed_domain(node):
            return False
        self._sudden[node] = now
        oldest = next(iter(self._sudden))
        while now - self._sudden[oldest] > WINDOW or len(self._sudden) > MOST_AT_ONCE + 1:
            del self._sudden[oldest]
            oldest = next(iter(self._sudden))
        if len(self._sudden) <= MOST_AT_ONCE:
            return False
        if not self._shared:
            self._shared_since = now
        self._shared.update(dict.fromkeys(self._sudden))
        return True

    def _unsuspect(self, node: str) -> bool:
        """It is healthy, or explained. Returns whether others' results may change by it."""
        self._sudden.pop(node, None)
        return self._shared.pop(node, "") is None

    def _blamed_domain(self, node: str) -> str:
        """The domain that is blamed for the node's failure, or empty."""
        for name in self._domains_of.get(node, ()):
            if self._domains[name].since is not None:
                return name
        return ""

    def _finding(self, node: str, now: float) -> Finding | None:
        """The node's finding where it differs from the last; it is kept."""
        if not self._graph.knows(node):
            self._findings.pop(node, None)
            return None
        view = self._graph.count_view(node)
        status, reason, message = Status.UNKNOWN, "", view.message
        if view.accusation:
            domain = self._blamed_domain(node)
            if domain:
                reason, message = DOMAIN, f"{view.message}; so it is for others of {domain}"
            elif self._unrest or node in self._shared:
                reason = SHARED
                message = f"{view.message}; so it is for too many others at once"
            else:
                status, reason = Status.FAILED, view.accusation
        elif view.well:
            status = Status.OK
        elif view.disputed:
            reason = DISPUTED
        before = self._findings.get(node)
        if before is not None and (before.status, before.reason) == (status, reason):
            return None
        found = Finding(status, reason, message, now, view.edges)
        self._findings[node] = found
        return found


__all__ = ["PEERS", "REACH", "Target", "Triangulation"]
