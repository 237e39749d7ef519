"""The gaps in a leader's knowledge of other replicas, and admission despite them. Pure."""

import enum
from dataclasses import dataclass

#: While a leader lacks other replicas' knowledge, so many nodes may be admitted within a window:
#: counted by the record, so that a new leader every minute admits no more of them.
UNSURE = 3


class EvidenceBasis(enum.StrEnum):
    """The kind of evidence that asks for a quarantine, as far as admission cares."""

    FAULT = "fault"  # includes a latched fault of the catalogue, which is explicit
    REACH = "reach"  # only that other nodes do not reach it
    OTHER = "other"  # checks, silence, faults that came back again and again


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """The gaps in a leader's knowledge of the others, in words. Empty: it knows all of it.

    ``unsure``: why another one may lead by now (we were paused, say). ``differing``: replicas that
    judge by another policy or version. ``missing``: replicas that have not reported all their
    nodes. ``network``: why reachability is not judged yet.
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

    def against(self, basis: EvidenceBasis) -> str:
        """Why no node is admitted on this basis now, whatever the limits; empty: it may be."""
        if self.unsure:
            return f"no new quarantine is admitted: {self.unsure}"
        if self.differing:
            return f"no new quarantine is admitted until all replicas judge alike: {self.differing}"
        if self.missing and basis is not EvidenceBasis.FAULT:
            return (
                "until the leader knows of all nodes, only faults that the catalogue knows pass: "
                f"{self.missing}"
            )
        return self.network if basis is EvidenceBasis.REACH else ""


#: The replicas agree and are complete, or there is only one.
NO_UNCERTAINTY = Uncertainty()
