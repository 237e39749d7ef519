"""Other replicas' reports on their nodes, as the leader keeps them; and our nodes yet to report.

A node whose replica has left, or which has changed hands, is not forgotten at once: its last report
stands until its new owner reports it, for `LEAVING` at most. Else each failover would take a third
of the fleet out of every count, and end a common cause that still exists.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from aggregator.policy.check_traits import SHARED_TARGETS
from aggregator.quarantine.decide.replica_messages import NodeReport

#: A node's last report stands for so long (seconds) after its replica reports it no more. Within
#: half of that its agent has found the new owner.
LEAVING = 60.0


@dataclass(frozen=True, slots=True)
class RemoteReport:
    """The last replica to report a node, and its report; times are of our own monotonic clock."""

    member: str
    report: NodeReport


class RemoteNodes:
    """The nodes of other replicas, by name. Empty where there is only one, or where we follow."""

    def __init__(self) -> None:
        self._told: dict[str, RemoteReport] = {}
        self._leaving: dict[str, float] = {}
        #: How many nodes have reported in all, by the leader's count; we may know fewer.
        self.reported = 0
        self._on_change: Callable[[str], None] | None = None

    def __contains__(self, node: str) -> bool:
        return node in self._told

    def __len__(self) -> int:
        return len(self._told)

    @property
    def is_empty(self) -> bool:
        """Whether no report stands, and none is to become void."""
        return not (self._told or self._leaving)

    def on_change(self, call: Callable[[str], None]) -> None:
        """Have it called for each node whose report came, changed, or is void."""
        self._on_change = call

    def get(self, node: str) -> NodeReport | None:
        found = self._told.get(node)
        return found.report if found is not None else None

    def teller(self, node: str) -> str:
        """The replica that reported it last; empty before a report."""
        found = self._told.get(node)
        return found.member if found is not None else ""

    def tellers(self) -> set[str]:
        """The replicas with reports that still stand."""
        return {told.member for told in self._told.values()}

    def reports(self) -> Iterator[NodeReport]:
        return (told.report for told in self._told.values())

    def copy(self) -> list[RemoteReport]:
        """All reports as they are now, for a visit in slices: reports may come in between."""
        return list(self._told.values())

    def apply_reports(self, member: str, report: NodeReport) -> None:
        """A replica reports a node of its own."""
        counted = tuple(one for one in report.sees if one[0] in SHARED_TARGETS)
        self._told[report.node] = RemoteReport(member, replace(report, sees=counted, assigned=()))
        self._leaving.pop(report.node, None)
        self._changed(report.node)

    def reclaim(self, node: str) -> None:
        """The node reports here now."""
        self._leaving.pop(node, None)
        if self._told.pop(node, None) is not None:
            self._changed(node)

    def leave(self, node: str, now: float) -> None:
        """The replica that reported the node, we or another, does so no more."""
        self._leaving.setdefault(node, now + LEAVING)

    def leave_all(self, member: str, now: float) -> None:
        """The replica has left, or begins to report anew."""
        for node, told in self._told.items():
            if told.member == member:
                self.leave(node, now)

    def is_leaving(self, node: str) -> bool:
        return node in self._leaving

    def take_expired(self, now: float) -> list[str]:
        """The nodes that no replica has reported for too long: their last reports are void."""
        expired = [node for node, until in self._leaving.items() if now >= until]
        for node in expired:
            self.reclaim(node)
        return expired

    def take_all(self) -> list[str]:
        """Forget all reports; returns their nodes."""
        nodes = list(self._told.keys() | self._leaving.keys())
        self._told.clear()
        self._leaving.clear()
        for node in nodes:
            self._changed(node)
        return nodes

    def _changed(self, node: str) -> None:
        if self._on_change is not None:
            self._on_change(node)


class DirtyNodes:
    """Our nodes that have changed since their last report.

    Collected only while a listener is set.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, None] = {}
        self._stir: Callable[[], None] | None = None

    def mark(self, node: str) -> None:
        if self._stir is not None:
            first = not self._nodes
            self._nodes[node] = None
            if first:
                self._stir()

    def listen(self, stir: Callable[[], None] | None) -> None:
        """Call this when the first node becomes dirty; with None, stop collecting."""
        self._nodes.clear()
        self._stir = stir

    def take_dirty(self) -> str:
        """The one that has waited longest; it counts as reported. There must be one."""
        node = next(iter(self._nodes))
        del self._nodes[node]
        return node

    def __len__(self) -> int:
        return len(self._nodes)
