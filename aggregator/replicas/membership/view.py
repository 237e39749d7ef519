"""The replicas as one of them sees them, and the owner of each node. Pure.

A node belongs to the live replica whose name hashes highest together with the node's (rendezvous
hashing, also known as highest random weight: Thaler and Ravishankar, 1996). So each node has an
order of all replicas that never changes, and two things hold, on which docs/shards.md builds:

- A replica acts for a node only if it believes that all before it in that node's order are gone. So
  whether two may act for one node is always a question of two replicas only: does the later one
  rightly believe that the earlier one is gone?
- A replica that leaves moves its own nodes and no others; one that joins takes only its own nodes.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Member:
    """One replica, as its Lease describes it."""

    name: str
    """Stable over restarts: the pod's name in its StatefulSet."""
    epoch: str = ""
    """Random, of this life of the process."""
    address: str = ""
    """host:port of its gRPC listener, for agents and replicas."""
    page: str = ""
    """Base URL of its page and API, such as https://host:8443."""
    policy_hash: str = ""
    version: str = ""
    mode: str = ""
    """observe, cordon or drain. Empty: not reported."""
    limits_hash: str = ""
    """Of its limits, which apply to the whole fleet while it leads. Empty: not reported."""
    since: float = 0.0
    """When it joined. Only ever compared among members, to choose the leader."""


@dataclass(frozen=True, slots=True)
class MembershipView:
    """The live replicas, as far as one replica knows: an immutable view."""

    me: str
    members: Mapping[str, Member]
    """The live members, by name. Includes me once my Lease was written."""
    frozen: str = ""
    """Why it is not known to be current. Empty: it is."""
    settled: bool = False
    """The newcomer's wait is over: the former owners of my nodes have surely stopped acting on
    them.
    """
    term: int = 0
    """How often I have joined. Another number than before: I may have been taken for dead, and my
    nodes may have been another's."""
    leader: Member | None = field(init=False, repr=False, compare=False)
    """The replica for work that only one should do: the one that joined first, of several by name.

    The oldest, because a roll then changes the leader least often. It proves no exclusivity: every
    write of a leader is still compare-and-set.
    """

    def __post_init__(self) -> None:
        """The leader is found once for a view, since each admission asks for it several times."""
        oldest = min(self.members.values(), key=lambda m: (m.since, m.name), default=None)
        object.__setattr__(self, "leader", oldest)

    def owner(self, node: str) -> Member | None:
        """The node's owner, or None while no replica is known."""
        if not self.members:
            return None
        return self.members[
            max(self.members, key=lambda name: (rendezvous_score(name, node), name))
        ]

    @property
    def among_others(self) -> str:
        """My own address, host:port, if I am not alone; else empty."""
        mine = self.members.get(self.me)
        return mine.address if mine is not None and len(self.members) > 1 else ""

    @property
    def differing(self) -> str:
        """Which replicas run another version, policy, mode or limits than I do, in words.

        Empty if there is no difference.
        """
        mine = self.members.get(self.me)
        if mine is None:
            return ""
        told = ((name, _difference(self.members[name], mine)) for name in sorted(self.members))
        return "; ".join(f"{name} {text}" for name, text in told if text)


def _difference(other: Member, mine: Member) -> str:
    """The first difference between them, in words; empty if there is none in the fields of both."""
    if other.version != mine.version:
        return _runs("version", other.version, mine.version)
    if other.policy_hash != mine.policy_hash:
        return _runs("policy", other.policy_hash[:12], mine.policy_hash[:12])
    if other.mode and mine.mode and other.mode != mine.mode:
        return f"runs in mode {other.mode} (here {mine.mode})"
    if other.limits_hash and mine.limits_hash and other.limits_hash != mine.limits_hash:
        return "has other limits or pools than this one"
    return ""


def _runs(what: str, other: str, mine: str) -> str:
    """A Lease that a person has edited may lack the field."""
    return f"{f'runs {what} {other}' if other else f'tells no {what}'} (here {mine or 'none'})"


def rendezvous_score(name: str, node: str) -> bytes:
    """The score of the replica of that name for the node: larger wins.

    The same in every version of sickbay that may run beside this one: changing it moves nodes.
    """
    return hashlib.blake2b(f"{name}\0{node}".encode(), digest_size=8).digest()


#: A replica whose last message is older (seconds) does not respond: it may know more than it told.
RESPONDS_WITHIN = 4.0


def is_responding(last_message_at: float, now: float) -> bool:
    """Whether another replica responds, by its last message on either channel (monotonic seconds).

    A replica that does not respond still owns its nodes until its Lease expires.
    """
    return now - last_message_at <= RESPONDS_WITHIN


class Ownership(Protocol):
    """The queries of other packages: is this node mine, may I act. Implemented by `LeaseManager`
    and `SingleReplica`.
    """

    @property
    def membership_view(self) -> MembershipView:
        """The latest view of the members."""

    def owns(self, node: str) -> bool:
        """Ours by the last known view, also while it is frozen.

        Every node is ours before there is a view with us in it and before any other is known.
        """

    def may_act(self, node: str) -> bool:
        """Whether we may act on it now.

        It is ours, our wait is over, the view is current, and our own Lease is certainly valid at
        this moment: the clock is read, so that a process that was paused does not act on waking.
        """

    def owner_address(self, node: str) -> str:
        """The replica that its agent belongs to, host:port. Empty: here, or not known."""

    def leads(self) -> bool:
        """Whether this replica is the one for work that only one should do, and may act."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Have it called, in the event loop, whenever `membership_view` has changed."""


class SingleReplica:
    """One replica and no other: every node is its own, and it always may act."""

    def __init__(self, me: Member | None = None) -> None:
        """``me`` is the member for display; without one its name is "here"."""
        member = me or Member(name="here")
        self._membership_view = MembershipView(
            me=member.name, members=MappingProxyType({member.name: member}), settled=True
        )

    @property
    def membership_view(self) -> MembershipView:
        """A view of this replica alone, for ever."""
        return self._membership_view

    def owns(self, node: str) -> bool:  # noqa: ARG002 - as the protocol has it
        """Every node."""
        return True

    def may_act(self, node: str) -> bool:  # noqa: ARG002 - as the protocol has it
        """Always."""
        return True

    def owner_address(self, node: str) -> str:  # noqa: ARG002 - as the protocol has it
        """Here."""
        return ""

    def leads(self) -> bool:
        """Always, as there is no other replica."""
        return True

    def on_change(self, call: Callable[[], None]) -> None:
        """Never calls, because the view never changes."""
