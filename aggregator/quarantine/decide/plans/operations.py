"""When a node's repair, or the test before its release, is looked after. Pure."""

import enum
from dataclasses import dataclass

from aggregator.cluster.port import Action
from aggregator.policy.repairs import REPLACE
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.plans.release_reasons import EndView, is_kept, is_to_be_tested
from aggregator.quarantine.decide.plans.step import WAIT, NextStep, unless_stopped
from aggregator.quarantine.decide.repair import busy_attempt


class OperationStep(enum.StrEnum):
    """The one step: begin an operation, prove it, end it."""

    REPAIR = "repair"


_REPAIR = NextStep(OperationStep.REPAIR)


@dataclass(slots=True)
class OperationView(EndView):
    """The inputs of an operation's next step.

    ``due``: it is time for it. ``knows``: a snapshot has come since this process started, or the
    node has been silent for long enough. ``maintained``: another party is at work on the node.
    ``release_waits``: a check holds the release, and it is not yet time to check again.
    """

    knows: bool
    due: bool = False
    release_waits: bool = False
    maintained: bool = False
    stopped: bool = False


def plan_open_operation(now: OperationView) -> NextStep | None:
    """The next step of an operation that may act already, or of the test before a release.

    It comes before the steps of the quarantine. The stop switch holds its order, not its proof.
    """
    quarantine = now.quarantine
    if quarantine.unread or quarantine.problem:
        return None
    if is_kept(now, quarantine):
        if now.due:
            return _REPAIR
        # The Node that replaced the old one proves the repair, and is not marked before.
        busy = busy_attempt(quarantine.status.repair)
        replaces = busy is not None and busy.repair == REPLACE
        return WAIT if replaces and (now.reborn or now.node_replaced) else None
    if now.release_waits or not is_to_be_tested(now, quarantine):
        return None
    # A stop holds its order; a mode and a person's request end it.
    return _REPAIR if now.due and not now.node_gone else None


def plan_operation(now: OperationView) -> NextStep | None:
    """The next step of an operation that is to begin, after the marks and the drain."""
    quarantine = now.quarantine
    # After a start no agent has reported yet: the evidence in the object may be over.
    if not (now.due and now.knows) or now.node_gone:
        return None
    ours = quarantine.spec.requester == OURS
    if ours and (now.mode is Action.OBSERVE or now.maintained):
        return None
    return unless_stopped(_REPAIR, stopped=now.stopped)
