"""Admission: whether a quarantine may be made now, or what holds it. Pure.

Invariant: `admit` never returns a record with more entries than a limit allows, but for those that
stood before (a limit that was lowered evicts nobody) and those made by hand (entered and counted,
never refused).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aggregator.quarantine.decide.record import Entry, Record


@dataclass(frozen=True, slots=True)
class Limits:
    """How many nodes may be in quarantine at once. Percentages are of all nodes, or of a pool.

    ``pool_label`` names the node label whose value is the pool; empty: no pools.
    ``quorum_percent`` is the share of nodes that must have reported before anything is admitted.
    """

    concurrent: int = 20
    concurrent_percent: float = 5.0
    pool_label: str = ""
    pool_percent: float = 20.0
    quorum_percent: float = 50.0


@dataclass(frozen=True, slots=True)
class Size:
    """How large the fleet is, and how much of it has reported since this process started.

    ``listed``: the cluster's nodes could be counted; else ``nodes`` is a guess that is too low.
    """

    nodes: int
    reported: int
    pools: Mapping[str, int] = field(default_factory=dict)
    listed: bool = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """A node that policy wants in quarantine. Idempotent by incident."""

    node: str
    incident: str
    pool: str
    action: str


@dataclass(frozen=True, slots=True)
class Held:
    """Why not now: the limit by its name in the configuration, its value, and a sentence."""

    limit: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record to write (the same one when nothing was admitted), and what came of each node."""

    record: Record
    admitted: frozenset[str]
    held: Mapping[str, Held]


def allowance(total: int, percent: float) -> int:
    """How many of ``total`` are ``percent``, such that a pool of three can lose one.

    0 % is none: a person who writes that means it.
    """
    if total <= 0 or percent <= 0:
        return 0
    return max(1, int(total * percent / 100 + 1e-9))  # what is whole but for a float's last bit


def admit(
    record: Record,
    proposals: Sequence[Proposal],
    limits: Limits,
    size: Size,
    *,
    now: float,
    policy_hash: str,
    stop: str = "",
) -> Outcome:
    """Decide on all that waits, in the order given, against one record."""
    entered: list[Entry] = []
    held: dict[str, Held] = {}
    admitted: set[str] = set()
    standing = len(record.entries)
    pools: dict[str, int] = {}
    waiting = quorum(limits, size)
    for proposal in proposals:
        if stop:  # also for what was admitted before: it would be begun now
            held[proposal.node] = stopped(stop)
            continue
        if proposal.node in record.entries or proposal.node in admitted:
            admitted.add(proposal.node)
            continue
        in_pool = pools.get(proposal.pool, record.in_pool(proposal.pool))
        hold = waiting or _full(limits, size, proposal.pool, standing, in_pool)
        if hold is not None:
            held[proposal.node] = hold
            continue
        standing += 1
        pools[proposal.pool] = in_pool + 1
        admitted.add(proposal.node)
        held.pop(proposal.node, None)  # asked for twice, held the first time
        entered.append(Entry(proposal.node, proposal.incident, proposal.pool, proposal.action, now))
    after = record.enter(entered, policy_hash) if entered else record
    return Outcome(after, frozenset(admitted), held)


def stopped(reason: str) -> Held:
    """What the stop switch says."""
    return Held("stop", reason, f"the fleet-wide stop switch is set: {reason}")


def quorum(limits: Limits, size: Size) -> Held | None:
    """What holds everything until enough of the fleet has reported; None when it has."""
    if not size.listed:
        return Held(
            "limits.quorum_percent",
            f"{limits.quorum_percent:g}%",
            "the cluster's nodes could not be counted yet, so no share of them is known",
        )
    needed = size.nodes * limits.quorum_percent / 100
    if size.reported < needed:
        return Held(
            "limits.quorum_percent",
            f"{limits.quorum_percent:g}%",
            f"{size.reported} of {size.nodes} nodes have reported since the start; "
            f"{limits.quorum_percent:g} % must have",
        )
    return None


def _full(limits: Limits, size: Size, pool: str, standing: int, in_pool: int) -> Held | None:
    if standing >= limits.concurrent:
        return Held(
            "limits.concurrent",
            str(limits.concurrent),
            f"{standing} nodes are in quarantine; the limit is {limits.concurrent}",
        )
    most = allowance(size.nodes, limits.concurrent_percent)
    if standing >= most:
        return Held(
            "limits.concurrent_percent",
            f"{limits.concurrent_percent:g}%",
            f"{standing} of {size.nodes} nodes are in quarantine; "
            f"{limits.concurrent_percent:g} % allow {most}",
        )
    if limits.pool_label:
        total = size.pools.get(pool, 0)
        most = allowance(total, limits.pool_percent)
        if in_pool >= most:
            return Held(
                "limits.pool_percent",
                f"{limits.pool_percent:g}%",
                f"{in_pool} of {total} nodes of pool {pool or '(none)'} are in quarantine; "
                f"{limits.pool_percent:g} % allow {most}",
            )
    return None
