"""Whether a quarantine may end, and whether an operation keeps it: shared by the plans. Pure."""

from dataclasses import dataclass
from typing import Protocol

from aggregator.cluster.port import Action, Phase, Quarantine
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.quarantine.decide.repair import busy_attempt

NODE_ABSENT = "its Node has been gone for longer than limits.absent_node_after"


# Not frozen, as each view of a plan: a frozen one takes 2 us more to make.
@dataclass(slots=True)
class EndView:
    """The part of a view that decides whether a quarantine may end.

    ``recovered``: every incident is closed by positive signs. ``unforced``: the annotation of a
    person that forced the quarantine is gone. ``exempt``: people want the node left alone.
    ``untested``: a test comes before a release by recovery. ``reborn``: it is another Node, in
    another boot, which ends all evidence of the quarantine.
    """

    quarantine: Quarantine
    mode: Action
    recovered: bool
    unforced: bool
    exempt: bool
    untested: bool
    node_gone: bool
    node_replaced: bool
    reborn: bool

    @property
    def is_withdrawn(self) -> bool:
        other = self.node_gone or self.node_replaced or self.reborn
        return is_withdrawn(self.quarantine, unforced=self.unforced, other_node=other)


def is_withdrawn(quarantine: Quarantine, *, unforced: bool, other_node: bool) -> bool:
    """Whether a person has taken their force back, on the very Node that they had forced."""
    return quarantine.spec.requester == FORCED and unforced and not other_node


class EndFacts(Protocol):
    """The part of a view by which a quarantine ends whatever its evidence is: see `ReleaseView`."""

    unforced: bool
    exempt: bool
    absent_too_long: bool
    node_gone: bool
    reborn: bool


def is_kept(now: EndView, quarantine: Quarantine) -> bool:
    """Whether an order may still reach the node, which then must not be in use."""
    busy = busy_attempt(quarantine.status.repair)
    if busy is None or now.is_withdrawn:
        return False
    # People may want a recovered node left alone: a test alone can be ended at any time.
    return not (now.exempt and now.recovered and busy.repair == TEST)


def is_to_be_tested(now: EndView, quarantine: Quarantine) -> bool:
    """Whether a recovered node is kept until it has passed a test."""
    if quarantine.spec.requester != OURS or not (now.recovered and now.untested):
        return False
    return not (now.exempt or now.reborn or now.mode is Action.OBSERVE)


def why_over(now: EndFacts, quarantine: Quarantine) -> str:
    """Why it ends although its evidence may still be in force; empty: it does not."""
    if quarantine.spec.requester == FORCED and now.unforced:
        return "the force was taken back"
    if quarantine.spec.requester != OURS:
        return ""
    if now.absent_too_long and now.node_gone:
        return NODE_ABSENT
    if now.reborn:
        return "the node was made anew, in another boot"
    if now.exempt and quarantine.status.phase is Phase.ADMITTED:
        return "exempted by a person before it was begun"
    return ""
