"""The whole fleet, merged from this replica's state and the others' reports. Pure.

Each node is shown once, by the source that knows most of it: the replica that owns it; another that
still reports it while the owner has no report from its agent yet; the last report of the owner, if
that does not answer, or of its earlier owner, until its agent has come to the new one; else as
unknown. Every replica knows which nodes there are, so a node that no replica reports is shown too.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from aggregator.quarantine.state.fleet import FleetState, NodeSummary, QuarantineSummary
from aggregator.replicas.membership.view import MembershipView, Ownership
from aggregator.web import models
from aggregator.web.fleet_view import FleetViewBuilder, FleetViewFindings, natural
from aggregator.web.replica_messages import NodeReports, ReplicaReport

#: Owners that are remembered at most.
_MOST_KNOWN = 200_000


class Scope(Protocol):
    """The nodes of a snapshot, and the source of each."""

    def names(self) -> Collection[str]:
        """All of them, in any order."""

    def begin(self) -> None:
        """A snapshot begins: until the next one the same reports count."""

    def add(self, builder: FleetViewBuilder, name: str) -> None:
        """Add one node."""

    def conclude(self, builder: FleetViewBuilder, names: Iterable[str]) -> FleetViewFindings:
        """The findings, by names in the order in which people read them."""


class Owners:
    """The owner of each node, remembered, because finding it costs some hashes."""

    def __init__(self, shards: Ownership) -> None:
        self._shards = shards
        self._known: dict[str, str] = {}
        self._membership_view: MembershipView | None = None

    def of(self, node: str) -> str:
        """The owner's name; empty where no replica is known."""
        membership_view = self._shards.membership_view
        if membership_view is not self._membership_view:
            self._turn(membership_view)
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._owner(membership_view, node)
        return found

    def mine(self, node: str) -> bool:
        """Whether it is this replica's own."""
        return self.of(node) == self._shards.membership_view.me

    def _turn(self, membership_view: MembershipView) -> None:
        before, self._membership_view = self._membership_view, membership_view
        same = before is not None and before.members.keys() == membership_view.members.keys()
        # Requests for unknown names must not make it grow for ever.
        if not same or len(self._known) > _MOST_KNOWN:
            self._known = {}

    def _owner(self, membership_view: MembershipView, node: str) -> str:
        if self._shards.owns(node):
            return membership_view.me
        owner = membership_view.owner(node)
        return owner.name if owner is not None else ""


class LocalScope:
    """All nodes by this replica's own state: the whole fleet, where it is alone."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet

    def names(self) -> Collection[str]:
        return self._fleet.node_summaries.keys()

    def begin(self) -> None:
        """Use the fleet's present state."""

    def add(self, builder: FleetViewBuilder, name: str) -> None:
        node_summary = self._fleet.node_summaries.get(name)
        if node_summary is not None:
            builder.add(node_summary)

    def conclude(self, builder: FleetViewBuilder, names: Iterable[str]) -> FleetViewFindings:
        return builder.conclude(names)


class OwnedScope:
    """The content of this replica's metrics: its own nodes, and how many others there are."""

    def __init__(self, fleet: FleetState, owners: Owners) -> None:
        self._fleet = fleet
        self._owners = owners

    def names(self) -> Collection[str]:
        return self._fleet.node_summaries.keys()

    def begin(self) -> None:
        """Use the fleet's present state."""

    def add(self, builder: FleetViewBuilder, name: str) -> None:
        node_summary = self._fleet.node_summaries.get(name)
        if node_summary is None:
            return
        if self._owners.mine(name):
            builder.add(node_summary)
        else:
            builder.count(node_summary)

    def conclude(self, builder: FleetViewBuilder, names: Iterable[str]) -> FleetViewFindings:
        return builder.conclude(names)


class ReplicaReports(Protocol):
    """The others' last reports; implemented in ``aggregator.web.replica_poller``."""

    def tellings(self) -> Mapping[str, ReplicaReport]:
        """By replica's name, including those that don't answer. Empty: there is no other."""


class MergedScope:
    """All nodes, with any owner. ``ready`` returns the complaints of this replica's /readyz."""

    def __init__(
        self,
        fleet: FleetState,
        shards: Ownership,
        owners: Owners,
        others: ReplicaReports,
        ready: Callable[[], list[str]],
    ) -> None:
        self._fleet = fleet
        self._shards = shards
        self._owners = owners
        self._others = others
        self._ready = ready
        self._tellings: Mapping[str, ReplicaReport] = {}

    def names(self) -> Collection[str]:
        tellings = self._others.tellings()
        if not tellings:
            return self._fleet.node_summaries.keys()
        # The report of a replica that does not answer no longer counts for nodes that are gone
        # since.
        told = (one.nodes for one in tellings.values() if not one.trouble)
        return set(self._fleet.node_summaries).union(*told)

    def begin(self) -> None:
        self._tellings = self._others.tellings()

    def add(self, builder: FleetViewBuilder, name: str) -> None:
        node_summary = self._fleet.node_summaries.get(name)
        if not self._tellings:
            if node_summary is not None:
                builder.add(node_summary)
            return
        said = best_report(name, node_summary, self._owners, self._tellings)
        if said is not None:
            builder.add_told(*said, node_summary)
        elif node_summary is not None:
            builder.add(node_summary)

    def conclude(self, builder: FleetViewBuilder, names: Iterable[str]) -> FleetViewFindings:
        found, membership_view = builder.conclude(names), self._shards.membership_view
        leader = membership_view.leader
        counts = Counter(map(self._owners.of, found.names)) if self._tellings else Counter()
        here = found.attached - sum(map(_attached, self._tellings.values()))
        return replace(
            found,
            replicas=tuple(
                replicas(
                    membership_view,
                    leader.name if leader is not None else "",
                    counts,
                    here,
                    self._ready() if self._tellings else [],
                    self._tellings,
                )
            ),
            frozen=membership_view.frozen,
            differing=membership_view.differing,
        )


def best_report(
    name: str,
    node_summary: NodeSummary | None,
    owners: Owners,
    tellings: Mapping[str, ReplicaReport],
) -> tuple[NodeReports, ReplicaReport] | None:
    """The best source for the node, and its report, or None where that is this replica's memory.

    It is None for nodes of ours, and while an agent that is attached here has not moved yet.
    """
    mine = owners.mine(name)
    if (
        node_summary is not None
        and node_summary.agent.health is not None
        and (mine or node_summary.agent.attached)
    ):
        return None
    owner, unheard = tellings.get(owners.of(name)), None
    past: tuple[NodeReports, ReplicaReport] | None = None
    for telling in (owner, *tellings.values()) if owner is not None else tellings.values():
        told = telling.nodes.get(name)
        if told is not None and not telling.trouble:
            if told.agent != "never":
                return told, telling
            unheard = unheard or (told, telling)
        for old in (telling, telling.before):
            word = old.nodes.get(name) if old is not None and old.trouble else None
            if old is not None and word is not None:
                past = (word, old) if past is None or old.seen_at > past[1].seen_at else past
    if past is not None or (mine and node_summary is not None):
        return past
    return unheard or nobodys(name, owner or ReplicaReport(owners.of(name)))


def nobodys(name: str, owner: ReplicaReport) -> tuple[NodeReports, ReplicaReport]:
    """The report for a node that no replica reports."""
    why = owner.note if owner.trouble else "its replica has told nothing of it yet"
    return NodeReports(name, QuarantineSummary.UNKNOWN, "unknown", why=why), owner


def lemons(
    mine: Collection[models.Lemon], others: Mapping[str, ReplicaReport]
) -> list[models.Lemon]:
    """Those of all histories, each node once, by the replica that saw most of it."""
    worst = {one.node: one for one in mine}
    for telling in others.values():
        for one in telling.lemons:
            known = worst.get(one.node)
            if known is None or _bad(one) > _bad(known):
                worst[one.node] = one
    return sorted(worst.values(), key=_bad, reverse=True) if others else list(mine)


def _bad(one: models.Lemon) -> tuple[int, int, int, int]:
    return (len(one.strikes), one.quarantines, one.days, one.returns)


def replicas(
    membership_view: MembershipView,
    leader: str,
    counts: Mapping[str, int],
    attached_here: int,
    not_ready: Collection[str],
    others: Mapping[str, ReplicaReport],
) -> list[models.Replica]:
    """A line for each, by name; empty where there is only one. ``counts``: nodes by owner."""
    names = {*membership_view.members, *others}
    if not others and len(names) <= 1:
        return []
    lines = []
    for name in sorted(names, key=natural):
        member, here = membership_view.members.get(name), name == membership_view.me
        telling = others.get(name) or ReplicaReport(name)
        trouble = "" if here else telling.trouble
        lines.append(
            models.Replica(
                name=name,
                here=here,
                leads=name == leader,
                nodes=counts.get(name, 0),
                attached=attached_here if here else _attached(telling),
                version=member.version if member else "",
                policy=member.policy_hash if member else "",
                trouble=trouble,
                last_answer=telling.at if trouble else None,
                not_ready=[] if trouble else list(not_ready if here else telling.not_ready),
            )
        )
    return lines


def _attached(telling: ReplicaReport) -> int:
    return sum(one.agent == "attached" for one in telling.nodes.values())
