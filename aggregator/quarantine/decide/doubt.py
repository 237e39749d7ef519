"""What a leader does not know of the other replicas, and what is admitted all the same. Pure."""

import enum
from dataclasses import dataclass

#: While a leader lacks what other replicas know, so many may be admitted within a window: by the
#: record, so that a new leader every minute admits no more of them.
UNSURE = 3


class Basis(enum.StrEnum):
    """What asks for a quarantine, as far as admission cares."""

    FAULT = "fault"  # among it a latched fault of the catalogue, which speaks for itself
    REACH = "reach"  # nothing but that other nodes do not reach it
    OTHER = "other"  # checks, silence, what came back again and again


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a leader does not know of the others, in words. Empty: it knows all of it.

    ``unsure``: why another one may lead by now (we were paused, say). ``differing``: replicas that
    judge by another policy or version. ``missing``: replicas that have not told of all their nodes.
    ``network``: why who reaches whom is not judged yet.
    """

    unsure: str = ""
    differing: str = ""
    missing: str = ""
    network: str = ""

    @property
    def value(self) -> str:
        """In a word."""
        if self.unsure:
            return "no leader"
        return "differing" if self.differing else "incomplete"

    def against(self, basis: Basis) -> str:
        """Why nothing of this basis is admitted now, whatever the numbers; empty: it may be."""
        if self.unsure:
            return f"nothing new is admitted: {self.unsure}"
        if self.differing:
            return f"nothing new is admitted until all replicas judge alike: {self.differing}"
        if self.missing and basis is not Basis.FAULT:
            return (
                "until the leader knows of all nodes, only faults that the catalogue knows pass: "
                f"{self.missing}"
            )
        return self.network if basis is Basis.REACH else ""


#: Nothing is amiss among the replicas, or there is but one.
CERTAIN = Doubt()
