"""The replicas as one of them sees them, and whose node is whose. Pure.

A node belongs to the live replica whose name hashes highest together with the node's (rendezvous
hashing, also known as highest random weight: Thaler and Ravishankar, 1996). So each node has an
order of all replicas that nothing can change, and two things hold, on which docs/shards.md builds:

- A replica acts for a node only if it believes that all before it in that node's order are gone. So
  whether two may act for one node is always a question of two replicas only: does the later one
  rightly believe that the earlier one is gone?
- A replica that leaves moves its own nodes and no others; one that joins takes only what is its.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Member:
    """One replica, as its Lease tells of it."""

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
    """observe, cordon or drain. Empty: it does not tell."""
    limits_hash: str = ""
    """Of its limits, which are everybody's while it leads. Empty: it does not tell."""
    since: float = 0.0
    """When it joined. Only ever compared among members, to choose the leader."""


@dataclass(frozen=True, slots=True)
class Council:
    """Who is there, as far as one replica knows: a picture that never changes."""

    me: str
    members: Mapping[str, Member]
    """Those alive, by name. Has me once my Lease was written."""
    frozen: str = ""
    """Why it is not known to be current. Empty: it is."""
    settled: bool = False
    """The newcomer's wait is over: who had my nodes before me has surely let go of them."""
    term: int = 0
    """How often I have joined. Another number than before: I may have been taken for dead, and my
    nodes may have been another's."""

    def owner(self, node: str) -> Member | None:
        """Whose the node is; None while nobody is known."""
        if not self.members:
            return None
        return self.members[max(self.members, key=lambda name: (weight(name, node), name))]

    @property
    def leader(self) -> Member | None:
        """Who tries what only one should try: the one that joined first, of several by name.

        The oldest, as a roll then changes the leader least often. It proves nothing: what a leader
        does is compare-and-set all the same.
        """
        return min(self.members.values(), key=lambda m: (m.since, m.name), default=None)

    @property
    def among_others(self) -> str:
        """My own address, host:port, if I am not alone; else empty."""
        mine = self.members.get(self.me)
        return mine.address if mine is not None and len(self.members) > 1 else ""

    @property
    def differing(self) -> str:
        """Which replicas run another version, policy, mode or limits than I do, in words.

        Empty: none.
        """
        mine = self.members.get(self.me)
        if mine is None:
            return ""
        told = ((name, _difference(self.members[name], mine)) for name in sorted(self.members))
        return "; ".join(f"{name} {text}" for name, text in told if text)


def _difference(other: Member, mine: Member) -> str:
    """The first thing in which they differ, in words; empty: none that both tell of."""
    if other.version != mine.version:
        return _runs("version", other.version, mine.version)
    if other.policy_hash != mine.policy_hash:
        return _runs("policy", other.policy_hash[:12], mine.policy_hash[:12])
    if other.mode and mine.mode and other.mode != mine.mode:
        return f"runs in mode {other.mode} (here {mine.mode})"
    if other.limits_hash and mine.limits_hash and other.limits_hash != mine.limits_hash:
        return "has other limits than this one"
    return ""


def _runs(what: str, other: str, mine: str) -> str:
    """A Lease that somebody has edited may tell of none."""
    return f"{f'runs {what} {other}' if other else f'tells no {what}'} (here {mine or 'none'})"


def weight(name: str, node: str) -> bytes:
    """How much the replica of that name is drawn to the node: larger wins.

    The same in every version of sickbay that may stand beside this one: changing it moves nodes.
    """
    return hashlib.blake2b(f"{name}\0{node}".encode(), digest_size=8).digest()


class Shards(Protocol):
    """What the rest asks: is this node mine, may I act. `Tenure` answers, or `Alone`."""

    @property
    def council(self) -> Council:
        """The latest picture of who is there."""

    def owns(self, node: str) -> bool:
        """Ours by the council as last known, also while it is frozen.

        Every node is, before there is a council with us in it and before any other is known.
        """

    def may_act(self, node: str) -> bool:
        """Whether we may do something to it now.

        It is ours, our wait is over, the council is current, and our own Lease certainly stands at
        this moment: the clock is asked, so that a process that was paused does not act on waking.
        """

    def home(self, node: str) -> str:
        """Where its agent belongs, host:port. Empty: here, or not known."""

    def leads(self) -> bool:
        """Whether we are the one that tries what only one should try, and may act."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Have it called, in the event loop, whenever `council` has become another."""


class Alone:
    """One replica and no other: every node is its own, and it always may act."""

    def __init__(self, me: Member | None = None) -> None:
        """``me`` as it is to be shown; without one it is called "here"."""
        member = me or Member(name="here")
        self._council = Council(
            me=member.name, members=MappingProxyType({member.name: member}), settled=True
        )

    @property
    def council(self) -> Council:
        """Me alone, for ever."""
        return self._council

    def owns(self, node: str) -> bool:  # noqa: ARG002 - as the protocol has it
        """Every node."""
        return True

    def may_act(self, node: str) -> bool:  # noqa: ARG002 - as the protocol has it
        """Always."""
        return True

    def home(self, node: str) -> str:  # noqa: ARG002 - as the protocol has it
        """Here."""
        return ""

    def leads(self) -> bool:
        """Nobody else could."""
        return True

    def on_change(self, call: Callable[[], None]) -> None:
        """Never calls: nothing changes."""
