"""Which drain is ours, and what may be done about it. Pure.

Slurm has no compare-and-set: `scontrol update` replaces the reason, the user and the time of an
earlier drain without a question. So the state is read before each write and after it, and only a
drain with the words, the user and the time that were recorded is ours.
"""

import enum
from dataclasses import dataclass

from aggregator.cluster.slurm.state import SlurmNode

PREFIX = "sickbay: "
#: Characters of a reason. `sinfo -R` shows the first 20; Slurm keeps any number of them.
LONGEST = 200


@dataclass(frozen=True, slots=True)
class OurDrain:
    """A drain that ``user`` has requested for us. ``at`` is 0 until it was seen in force.

    ``before`` are the words that the node's reason had, of a node that was DOWN, say.
    """

    reason: str
    user: str
    at: int = 0
    before: str = ""
    instance_id: str = ""


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
    return Whose.OURS if ours is not None and has_our_words(node, ours) else Whose.ANOTHER


def has_our_words(node: SlurmNode, ours: OurDrain) -> bool:
    """Whether the reason is still ours, with a drain or without one (a node that is DOWN)."""
    written = (node.reason, node.reason_user) == (ours.reason, ours.user)
    return written and ours.at in (0, node.reason_at)
