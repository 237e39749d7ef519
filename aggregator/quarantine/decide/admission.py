"""Admission: whether a quarantine may be made now, or what holds it. Pure.

Invariants:
- `admit` never returns a record with more entries than a limit allows, except those that it had
  before (a limit that was lowered releases no node) and those made by hand (entered and counted,
  never refused).
- No node trips a rate before it was read, and none counts before it was read or listed without a
  mark: another tool may hold it. The rate holds others meanwhile; a cause trips at once.
- It never admits more within a window than the rate allows, and no node that a common cause
  explains. When either of them holds a node back, a cooldown begins: in the record, so that it
  outlives the process that began it.
- A Quarantine in force without an entry (made by hand, or of a record that was lost) is counted as
  well. After a record was rebuilt no node is admitted until requests that were under way are seen.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from aggregator.cluster.port import Action
from aggregator.configfile.section import Positive, SectionDataclass
from aggregator.configfile.values import Duration, LabelKey, Percent, Share
from aggregator.quarantine.decide.admission_record import FLEET, MOST_ADMISSIONS, Entry, Record
from aggregator.quarantine.decide.held import Held, held_by
from aggregator.quarantine.decide.intent import DesiredState
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.decide.pool_budget import (
    NO_POOLS,
    PoolBudget,
    PoolFacts,
    allowance,
    cooldown_id,
    floored,
)
from aggregator.rfc3339 import span, time_of_day
from aggregator.runtime.text import counted, truncate

#: After the record was rebuilt no node is admitted for this long (seconds): longer than a request
#: that was under way can take, so that a Quarantine that it created is seen, and counted.
SETTLES = 15.0
#: Seconds: of the rate, and of the time that counts as at once.
Window = Annotated[Duration, Field(ge=1)]
#: Characters of a stop's reason.
_LONGEST_REASON = 1_000


@dataclass(frozen=True)
class Limits(SectionDataclass):
    """How many nodes may be in quarantine, and how fast: a part of the section ``limits``.

    A count and a percentage both apply; the smaller one decides. Percentages are of all nodes, or a
    pool; those of nodes at once allow ``small_fleet_floor`` in a fleet of fewer than 40 nodes, up
    to half of the nodes. ``pool_label`` names the node label whose value is the pool; empty: none.
    ``quorum_percent`` is the share of nodes that must have reported before a node is admitted.
    ``new_per_window`` and its percentage bound the admissions of ``window`` seconds, those by hand
    counted; after too many, or after a common cause, no node is admitted for ``cooldown`` seconds.
    ``after_upgrade``: how long evidence must have been open on a node whose version has just
    changed. ``per_workload``: the most nodes from which pods of one gang or job are evicted within
    ``window``. ``absent_node_after``: a quarantine whose Node has been gone for this long ends.
    ``silent_drain_after``: this long after a start, a drain that was admitted before continues
    without a report of its node.
    """

    concurrent: Positive = 20
    """At most this many nodes in quarantine at once. Beyond it proposals are held. docs/limits.md
    has all limits.
    """
    concurrent_percent: Share = 5.0
    """At most this share of all nodes; a fleet of any size can lose one. The smaller of the two
    decides.
    """
    pool_label: LabelKey = ""
    """The node label whose value is the node's pool. Empty: no pools."""
    pool_percent: Share = 20.0
    """At most this share of a pool; a pool of any size can lose one."""
    quorum_percent: Percent = 50.0
    """After a start no quarantine is admitted until this share of the nodes has reported."""
    new_per_window: Annotated[int, Field(ge=1, le=MOST_ADMISSIONS)] = 10
    """At most this many new quarantines within ``limits.window``. At most 5000."""
    new_per_window_percent: Share = 20.0
    """At most this share of all nodes within ``limits.window``; one may always be. The smaller of
    the two decides; ``"100%"`` leaves it to the count.
    """
    window: Window = 600.0
    cooldown: Duration = 900.0
    """Once the rate or a common cause has held a proposal, no quarantine is admitted for this long.
    ``"0s"``: no cooldown.
    """
    after_upgrade: Duration = 120.0
    """Within half an hour of a new driver, kernel or agent on a node, its evidence must have lasted
    that long: by then others that got the same show whether it is the version.
    """
    absent_node_after: Annotated[Duration, Field(ge=60)] = 86400.0
    """A Quarantine that sickbay made ends when its Node has been gone for this long (a machine that
    was replaced under another name). At least a minute. Meanwhile, and if a person made it, it
    counts for no limit.
    """
    evictions_at_once: Positive = 50
    """At most this many evictions under way, in the whole fleet."""
    per_workload: Annotated[int, Field(ge=0, le=10_000)] = 2
    """Pods of one gang, or of one job that loses work with a pod, are evicted from at most this
    many nodes within ``limits.window``. ``0``: from any number.
    """
    silent_drain_after: Duration = 300.0
    """After a start, a drain that was admitted before continues after this time although its agent
    is silent.
    """
    small_fleet_floor: Positive = 2
    """In a fleet of fewer than 40 nodes the two shares of nodes at once allow this many, up to half
    of the nodes (docs/limits.md#every-limit). ``1``: no floor.
    """


@dataclass(frozen=True, slots=True)
class FleetSize:
    """How large the fleet is, and how much of it has reported since this process started.

    ``listed``: the cluster's nodes could be counted; else ``nodes`` is a guess that is too low.
    ``absent``: nodes that are gone while their Quarantine is in force; these count for no limit.
    """

    nodes: int
    reported: int
    pools: Mapping[str, int] = field(default_factory=dict)
    listed: bool = True
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Proposal:
    """A node that policy wants in quarantine. Idempotent by incident.

    ``suspects``: for each piece of evidence that calls for it, the ids of the common causes that
    would explain it. Where each piece has a cause that would explain it, an open one holds the
    node. ``unsettled``: why it is too soon to distinguish the node's own fault from its new
    version's. ``pool`` is the value of the label `Limits.pool_label`, ``policy_pool`` the pool of
    the section ``pools``; empty: not known, or there are no pools. ``read``: its Node was read for
    it, else the list of nodes has no mark of another tool, and the patch checks the rest.
    """

    node: str
    incident: str
    pool: str
    suspects: tuple[frozenset[str], ...] = ()
    unsettled: str = ""
    policy_pool: str = ""
    read: bool = True


#: The answer to a proposal that would trip a rate, and whose node was not read for it. No person
#: sees it: the node is read, and the proposal made again.
UNREAD_NODE = Held("", "", "its Node is read before it trips a rate")


@dataclass(frozen=True, slots=True)
class OpenCause:
    """A common cause that is open: its text for people, and whether it concerns the whole fleet."""

    limit: str
    value: str
    reason: str
    fleetwide: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record to write (the same one if unchanged), and the hold of each held node."""

    record: Record
    admitted: frozenset[str]
    held: Mapping[str, Held]


class AdmissionBatch:
    """Proposals that come one after the other, against one record: each is decided once.

    The arguments are those of the moment at which the batch begins. ``causes`` are the common
    causes that are open, by id. ``unrecorded`` are the pools, by node, of Quarantines in force of
    which the record has no entry (values of `Limits.pool_label`). ``pools`` are those of the
    section ``pools``.
    """

    def __init__(
        self,
        record: Record,
        limits: Limits,
        size: FleetSize,
        *,
        now: float,
        stop: str = "",
        causes: Mapping[str, OpenCause] | None = None,
        unrecorded: Mapping[str, str] | None = None,
        pools: PoolFacts = NO_POOLS,
    ) -> None:
        self._before = record
        self._record = record.pruned(now, window=limits.window, cooldown=limits.cooldown)
        self._limits = limits
        self._size = size
        self._now = now
        self._stop = stop
        self._quorum = quorum(limits, size)
        self._waiting = settling(record, now) or self._quorum
        self._causes = causes or {}
        self._entered: dict[str, Entry] = {}
        self._tripped = False
        #: The rates for each of which one node is to be read: of thousands no more are.
        self._read_for: set[str] = set()
        self._unrecorded = {n: p for n, p in (unrecorded or {}).items() if n not in size.absent}
        self._absent = size.absent & record.entries.keys()
        self._in_force = len(record.entries) - len(self._absent) + len(self._unrecorded)
        self._lately = len(self._record.admissions)
        self._pools: dict[str, int] = {}
        self._policy_pools = PoolBudget(
            pools,
            self._record,
            unrecorded=frozenset(self._unrecorded),
            absent=size.absent,
            now=now,
            window=limits.window,
        )

    def decide(self, proposal: Proposal) -> Held | None:
        """Its hold after those decided so far. Without one it is admitted, and counts for those
        that come after it.
        """
        if self._stop:  # also for nodes admitted before: they would be begun now
            return stopped(self._stop)
        if proposal.node in self._before.entries or proposal.node in self._entered:
            return None
        if self._waiting is not None:
            return self._waiting
        explained = self._explained(proposal)
        if explained is not None:
            self._trip_by(explained.cause, self._causes[explained.cause])
        held = (
            explained
            or self._cooling(proposal)
            or self._unsettled(proposal)
            or self._full(proposal.pool)
            or self._policy_pools.full(proposal.policy_pool)
            or self._pool_too_fast(proposal)  # first: it cools no other pool down
            or self._too_fast(proposal)
        )
        if held is None:
            self._take(proposal)
        return held

    def admit(self, proposals: Sequence[Proposal]) -> Outcome:
        """Decide on all waiting requests, in the order given."""
        holds = {one.node: self.decide(one) for one in proposals}  # the last of each node counts
        held = {node: hold for node, hold in holds.items() if hold is not None}
        admitted = frozenset(holds.keys() - held.keys())
        record = self._record if self._tripped else self._before
        if self._entered:
            record = self._record.enter(self._entered.values())
        return Outcome(record, admitted, held)

    def escalation_hold(self, proposal: Proposal) -> Held | None:
        """The reason to suspect a shared cause and not the node: it also keeps an existing cordon
        from becoming a drain.

        Such a node is counted already, so no limit applies. A cause that many nodes share evicts no
        pods. ``proposal.suspects`` are those of the evidence that calls for more than the cordon.
        """
        return self._explained(proposal) or self._cooling(proposal) or self._unsettled(proposal)

    def repair_hold(self, proposal: Proposal) -> Held | None:
        """The hold on the next repair of a node in quarantine, or None.

        The node is counted already, so no count applies. A cause that was found after its
        admission, a cooldown and a fleet of which too little has reported hold a repair as they
        hold a new node.
        """
        return self._quorum or self.escalation_hold(proposal)

    def _take(self, proposal: Proposal) -> None:
        self._in_force += 1
        self._lately += 1
        if self._limits.pool_label:  # else it is not needed, and it goes through all entries
            self._pools[proposal.pool] = self._in_pool(proposal.pool) + 1
        self._policy_pools.take(proposal.policy_pool)
        self._entered[proposal.node] = Entry(
            proposal.node,
            proposal.incident,
            proposal.pool,
            self._now,
            policy_pool=proposal.policy_pool,
        )

    def _trip(self, ident: str, because: str, spare: int | None = None) -> None:
        """A cooldown begins; ``spare`` as in `Cooldown`."""
        if self._limits.cooldown > 0:
            self._record = self._record.cool(ident, self._now, because, spare)
            self._tripped = True

    def _trip_rate(self, proposal: Proposal, ident: str, held: Held) -> Held:
        """Held by a rate, which trips if the node was read: another tool may hold it."""
        if proposal.read or self._limits.cooldown <= 0:
            self._trip(ident, held.reason, held.spare)
        elif ident not in self._read_for:
            self._read_for.add(ident)
            return UNREAD_NODE
        return held

    def _in_pool(self, pool: str) -> int:
        if pool not in self._pools:
            more = sum(1 for other in self._unrecorded.values() if other == pool)
            gone = sum(1 for node in self._absent if self._before.entries[node].pool == pool)
            self._pools[pool] = self._record.in_pool(pool) + more - gone
        return self._pools[pool]

    # -- suspecting ourselves --------------------------------------------------------------

    def _explained(self, proposal: Proposal) -> Held | None:
        """Held where an open cause explains each piece of evidence."""
        found: dict[str, OpenCause] = {}
        for suspects in proposal.suspects:
            hits = {ident: self._causes[ident] for ident in suspects & self._causes.keys()}
            if not hits:
                return None
            found |= hits
        if not found:
            return None
        ident = min(found)
        cause = found[ident]
        return Held(cause.limit, cause.value, cause.reason, ident)

    def _trip_by(self, ident: str, cause: OpenCause) -> None:
        """A cooldown begins, or that of a cause that lasts is prolonged: seldom, for it is written.

        A rate's cooldown of the fleet may end with a withdrawal; the cause's takes its place.
        """
        known = self._record.cooldowns.get(ident)
        if known is None or self._now - known.at >= self._limits.cooldown / 2:
            self._trip(ident, cause.reason)
        fleet = self._record.cooldowns.get(FLEET)
        if known is None and cause.fleetwide and (fleet is None or fleet.spare is not None):
            self._trip(FLEET, cause.reason)

    def _cooling(self, proposal: Proposal) -> Held | None:
        """Held while the fleet cools down, or all that may explain this node does."""
        cooling = self._record.cooldowns
        if FLEET in cooling:
            return self._cools(FLEET)
        own = cooldown_id(proposal.policy_pool)
        if proposal.policy_pool and own in cooling:
            return self._cools(own, f" in pool {proposal.policy_pool}")
        hits = [suspects & cooling.keys() for suspects in proposal.suspects]
        if hits and all(hits):
            return self._cools(min(min(hit) for hit in hits))
        return None

    def _cools(self, ident: str, where: str = "") -> Held:
        found, length = self._record.cooldowns[ident], self._limits.cooldown
        new = ident == FLEET or where
        whose = f"no {'new quarantine' if new else 'quarantine like it'} is admitted{where}"
        until = f"until {time_of_day(found.at + length)} ({span(length)} after it began)"
        return held_by(self._limits, "cooldown", f"{whose} {until}: {found.because}", cause=ident)

    def _unsettled(self, proposal: Proposal) -> Held | None:
        if not proposal.unsettled:
            return None
        return held_by(self._limits, "after_upgrade", proposal.unsettled)

    def _too_fast(self, proposal: Proposal) -> Held | None:
        """Held by the rate; the fleet cools down then."""
        limits, nodes = self._limits, self._size.nodes
        share = allowance(nodes, limits.new_per_window_percent)
        if limits.new_per_window_percent >= 100:  # a node may be admitted more than once
            share = limits.new_per_window
        spare = self._lately - min(limits.new_per_window, share)
        if spare < 0:
            return None
        if limits.new_per_window <= share:
            key, allowed = "new_per_window", f"the limit is {limits.new_per_window}"
        else:
            key = "new_per_window_percent"
            allowed = f"{limits.new_per_window_percent:g} % of {nodes} allow {share}"
        many = counted(self._lately, "node was", "nodes were")
        reason = f"{many} admitted within {span(limits.window)}; {allowed}"
        return self._trip_rate(proposal, FLEET, held_by(limits, key, reason, spare=spare))

    def _pool_too_fast(self, proposal: Proposal) -> Held | None:
        """Held by the pool's rate; the pool alone cools down then."""
        pool = proposal.policy_pool
        found = self._policy_pools.too_fast(pool)
        return self._trip_rate(proposal, cooldown_id(pool), found) if found is not None else None

    # -- how many are in force ---------------------------------------------------------------

    def _full(self, pool: str) -> Held | None:
        limits, size, in_force = self._limits, self._size, self._in_force
        if in_force >= limits.concurrent:
            many = counted(in_force, "node is", "nodes are")
            text = f"{many} in quarantine; the limit is {limits.concurrent}"
            return held_by(limits, "concurrent", text)
        nodes, floor = size.nodes, limits.small_fleet_floor
        share = allowance(nodes, limits.concurrent_percent)
        most = floored(share, floor, of=nodes, fleet=nodes)
        if in_force >= most:
            text = f"{in_force} of {size.nodes} nodes are in quarantine"
            allowed = _allowed(limits.concurrent_percent, share, most)
            return held_by(limits, "concurrent_percent", f"{text}; {allowed}")
        if limits.pool_label:
            in_pool, total = self._in_pool(pool), size.pools.get(pool, 0)
            share = allowance(total, limits.pool_percent)
            most = floored(share, floor, of=total, fleet=nodes)
            if in_pool >= most:
                whose = f"{in_pool} of {total} nodes of pool {pool or '(none)'}"
                allowed = _allowed(limits.pool_percent, share, most)
                return held_by(limits, "pool_percent", f"{whose} are in quarantine; {allowed}")
        return None


def _allowed(percent: float, share: int, most: int) -> str:
    floor = "" if most == share else " (limits.small_fleet_floor)"
    return f"{percent:g} % allow {most}{floor}"


def stopped(reason: str) -> Held:
    """The hold by the stop switch. Each held node is reported with it, also to other replicas,
    which take only a bounded text.
    """
    reason = truncate(reason, _LONGEST_REASON)
    return Held("stop", reason, f"the fleet-wide stop switch is set: {reason}")


def lost(why: str) -> Held:
    """The hold on all nodes until a record that was lost is rebuilt."""
    return Held(
        "record",
        "lost",
        f"the admission record {why}: it is rebuilt from the Quarantines in force, and no "
        "quarantine is admitted until then",
    )


def settling(record: Record, now: float) -> Held | None:
    """The hold on all nodes for a while after the record was rebuilt, or None when that is over."""
    rebuilt = record.rebuilt
    if rebuilt is None or not abs(now - rebuilt.at) < SETTLES:
        return None
    return Held(
        "record",
        "rebuilt",
        f"the admission record {rebuilt.because}: it was rebuilt from the Quarantines in force, "
        f"and no quarantine is admitted for {span(SETTLES)} after that, so that none is missed",
    )


def quorum(limits: Limits, size: FleetSize) -> Held | None:
    """The hold on all nodes until enough of the fleet has reported, or None when it has."""
    if not size.listed:
        text = "the cluster's nodes could not be counted yet, so no share of them is known"
        return held_by(limits, "quorum_percent", text)
    needed = size.nodes * limits.quorum_percent / 100
    if size.reported < needed:
        text = f"{size.reported} of {size.nodes} nodes have reported since the start"
        must = f"{limits.quorum_percent:g} % must have"
        return held_by(limits, "quorum_percent", f"{text}; {must}")
    return None


# -- a node's next step towards its quarantine ----------------------------------------------------


class AdmissionStep(enum.StrEnum):
    """A step that makes a Quarantine, or removes its entry from the record."""

    PROPOSE = "propose"  # request admission
    CREATE = "create"  # make the object that the record already allows
    FORCE = "force"  # make the object, or change it, by an annotation of a person
    FORGET = "forget"  # an entry without object and without cause


@dataclass(slots=True)
class AdmissionView:
    """The inputs of the begin of a quarantine.

    ``knows``: a snapshot has come since this process started, or the node has been silent for long
    enough. ``forced`` is the action in a person's annotation. ``entered_by_hand``: the entry in the
    record is of a person's quarantine. ``unclaimed``: our marks are set without an object, and the
    mode keeps us from making it.
    """

    in_record: bool
    wanted: DesiredState | None
    knows: bool
    entered_by_hand: bool = False
    forced: Action | None = None
    conflict: bool = False
    definition_going: bool = False
    unclaimed: bool = False
    node_gone: bool = False
    stopped: bool = False


def plan_admission(now: AdmissionView) -> NextStep | None:
    """The next step towards a quarantine; None: there is none to begin."""
    if now.conflict or now.definition_going or now.unclaimed:
        return None
    if now.forced is not None and not now.stopped:
        return NextStep(AdmissionStep.FORCE)
    wanted = now.wanted
    if wanted is not None and Action.OBSERVE not in (wanted.spec.action, wanted.in_force):
        if now.in_record and now.entered_by_hand:
            # A person's entry was refused by no limit: evidence needs an admission of its own.
            because = "a person's quarantine is gone before it was acted on"
            return NextStep(AdmissionStep.FORGET, because)
        # Admitted before a stop, and not begun: admission holds it, and reports that.
        begun = now.in_record and not now.stopped
        return NextStep(AdmissionStep.CREATE if begun else AdmissionStep.PROPOSE)
    if now.in_record and (now.knows or now.node_gone):
        because = "it was not acted on, and no cause of it is known any more"
        return NextStep(AdmissionStep.FORGET, because)
    return None
