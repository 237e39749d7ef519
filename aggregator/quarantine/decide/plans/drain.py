"""Whether a node's pods are evicted now. Pure."""

import enum
from dataclasses import dataclass

from aggregator.cluster.port import Action, Phase, Quarantine
from aggregator.quarantine.decide.intent import OURS, DesiredState, is_overridden
from aggregator.quarantine.decide.plans.step import UNTOUCHED, NextStep, unless_stopped


class DrainStep(enum.StrEnum):
    """The one step."""

    DRAIN = "drain"


@dataclass(slots=True)
class DrainView:
    """The inputs of evictions.

    ``knows``: a snapshot has come since this process started, or the node has been silent for long
    enough that an admitted drain continues with the recorded evidence. ``fresh``: the agent is
    attached and has reported since. ``evictions_wait`` until the response to an uncordon is
    decided.
    """

    quarantine: Quarantine
    wanted: DesiredState | None
    mode: Action
    knows: bool
    fresh: bool
    release_held: bool = False
    evictions_wait: bool = False
    maintained: bool = False
    stopped: bool = False
    node_gone: bool = False


def plan_drain_step(now: DrainView) -> NextStep | None:
    """The drain, where it may continue or begin."""
    if not _may_evict(now, now.quarantine):
        return None
    return unless_stopped(NextStep(DrainStep.DRAIN), stopped=now.stopped)


def _may_evict(now: DrainView, quarantine: Quarantine) -> bool:
    """Evictions need intent, the mode's permission, and evidence that is known to be open."""
    if quarantine.status.phase in UNTOUCHED:
        return False
    if quarantine.spec.action is not Action.DRAIN or quarantine.status.phase is Phase.DRAINED:
        return False
    if now.mode is not Action.DRAIN or now.node_gone or now.release_held or now.evictions_wait:
        return False
    if quarantine.spec.requester != OURS:
        return True
    if now.maintained:
        return False
    if now.wanted is not None:
        if is_overridden(quarantine.spec):  # a person set the drain: any evidence in force will do
            return now.knows and now.wanted.in_force is not Action.OBSERVE
        return now.knows and now.wanted.in_force is Action.DRAIN
    recorded = any(not item.cleared for item in quarantine.spec.evidence)
    return now.knows and not now.fresh and recorded
