"""Which drain is ours, and what may be done about it. Pure.

Slurm has no compare-and-set: `scontrol update` replaces the reason, the user and the time of an
earlier drain without a question. So the state is read before each write and after it. Only a drain
with the words, the user and the time that were recorded is ours.
"""

import enum
from dataclasses import dataclass

from aggregator.cluster.slurm.state import SlurmNode
from aggregator.policy.slurm_reason import REBOOT_TIMED_OUT, condition_of, is_by_slurm

PREFIX = "sickbay: "
#: slurmctld puts this before the words that it appends to a reason (`set_node_reason`).
_APPENDED = " : "
#: Characters of a reason. `sinfo -R` shows the first 20; Slurm keeps any number of them.
LONGEST = 200


@dataclass(frozen=True, slots=True)
class OurDrain:
    """A drain that ``user`` has requested for us. ``at`` is 0 until it was seen in force.

    ``before`` are the words that the node's reason had, for example of a node that was DOWN.

    ``slurm_user`` is SlurmUser, the author of the words that slurmctld appends; empty: not known.
    ``reboot`` is the operation of the last reboot that we have ordered from Slurm, and ``booted``
    when the node had booted before that.

    ``started``: the start of slurmctld under which the drain was last seen in force; empty: not
    known. ``foreign``: another had drained the node when a quarantine needed that, and the node has
    the other's words; no other field counts then.
    """

    reason: str
    user: str
    at: int = 0
    before: str = ""
    slurm_user: str = ""
    reboot: str = ""
    booted: int = 0
    started: str = ""
    foreign: bool = False

    @property
    def was_seen(self) -> bool:
        """Whether the drain was in force once, so that its end or its change has an author."""
        return self.foreign or bool(self.at)


#: The record of a node in quarantine that another has drained.
FOREIGN = OurDrain("", "", foreign=True)


class Whose(enum.StrEnum):
    """The author of a node's present drain."""

    NOBODY = "nobody"  # it is not drained
    OURS = "ours"
    ANOTHER = "another"  # it was drained before, or somebody has taken it over


def reason_of(text: str) -> str:
    """The reason that Slurm gets: one line of printable ASCII, without quotes."""
    line = " ".join(text.encode("ascii", "replace").decode().split())
    kept = "".join(char for char in line if char.isprintable() and char not in "\"'`\\")
    return f"{PREFIX}{kept}"[:LONGEST].rstrip()


def whose(node: SlurmNode, ours: OurDrain | None) -> Whose:
    """The author of its drain. One that was not yet seen is ours by words and user alone."""
    if not node.has_drain:
        return Whose.NOBODY
    if ours is None:
        return Whose.ANOTHER
    # Slurm 22.05 empties the reason of a drained node that it powers up. A person's has words.
    emptied = bool(ours.at) and not (node.reason or node.reason_user or node.reason_at)
    return Whose.OURS if emptied or has_our_words(node, ours) else Whose.ANOTHER


def has_changed(author: Whose, ours: OurDrain | None) -> bool:
    """Whether a drain that was seen in force has ended since, or has another author now."""
    if ours is None or not ours.was_seen:
        return False
    return author is not (Whose.ANOTHER if ours.foreign else Whose.OURS)


def is_ended_by_slurm(node: SlurmNode, ours: OurDrain, *, was_off: bool) -> bool:
    """Whether Slurm itself has ended our drain: it powers the node down, or gave up its boot.

    ``was_off``: the drain was in force while the node was off, so only a person has ended it since.
    """
    if node.has_drain or not has_our_words(node, ours):
        return False
    gave_up = condition_of(next(reversed(words_of_slurm(node, ours)), "")) == REBOOT_TIMED_OUT
    return (node.is_off and not was_off) or (node.is_down and gave_up)


def has_our_words(node: SlurmNode, ours: OurDrain) -> bool:
    """Whether the reason is still ours, with a drain or without one (a node that is DOWN)."""
    if ours.foreign:
        return False
    if node.reason == ours.reason:
        return node.reason_user == ours.user and ours.at in (0, node.reason_at)
    by_slurm = node.reason_user in (ours.user, ours.slurm_user) if ours.slurm_user else True
    return by_slurm and bool(words_of_slurm(node, ours)) and node.reason_at >= ours.at


def words_to_leave(node: SlurmNode, ours: OurDrain) -> str:
    """The reason that a node gets which stays DOWN after our drain; empty: what it has.

    Slurm sets a node DOWN under the words of its drain when slurmd does not answer. It returns the
    node by itself (ReturnToService) where the reason is "Not responding" and nothing else.
    """
    if node.has_drain or not node.is_down or not has_our_words(node, ours):
        return ""
    return next(reversed(words_of_slurm(node, ours)), ours.before or "Not responding")


def words_of_slurm(node: SlurmNode, ours: OurDrain) -> tuple[str, ...]:
    """The words that slurmctld has appended to our reason, such as "Not responding".

    Empty where there are none, or where somebody else has changed the reason.
    """
    if not node.reason.startswith(ours.reason + _APPENDED):
        return ()
    words = tuple(node.reason.removeprefix(ours.reason + _APPENDED).split(_APPENDED))
    return words if all(is_by_slurm(one) for one in words) else ()
