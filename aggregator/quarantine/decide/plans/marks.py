"""The next act on the node of a Quarantine in force: its marks, and a person's force. Pure."""

import enum
from dataclasses import dataclass

from aggregator.cluster.port import Action, Quarantine
from aggregator.quarantine.decide.admission import AdmissionStep
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.quarantine.decide.plans.step import UNTOUCHED, NextStep, unless_stopped
from aggregator.quarantine.decide.uncordon import (
    CORDONED_BY_OTHERS,
    describe_left,
    has_given_up,
    is_left_schedulable,
)
from aggregator.rfc3339 import write_time


class MarkStep(enum.StrEnum):
    """A step about the node's marks."""

    CORDON = "cordon"
    RECORDON = "recordon"  # the node was uncordoned, and that is no release
    RESTORE = "restore"  # set marks again that were removed or changed
    REPORT_CORDON = "report-cordon"  # the status reports that the node is, or was, left schedulable


@dataclass(slots=True)
class MarkView:
    """The inputs of the node's marks.

    ``schedulable``: the node is schedulable again; ``recordon``: cordoning it again, if that
    follows, is due. ``restore_due``: it is time to set lost marks again. ``maintained``: another
    party is at work on the node; a quarantine made by hand continues meanwhile, ours does not.
    """

    quarantine: Quarantine
    mode: Action
    forced: Action | None = None
    exempt: bool = False
    maintained: bool = False
    stopped: bool = False
    node_gone: bool = False
    schedulable: bool = False
    recordon: bool = False
    recordon_at: float = 0.0
    restore_due: bool = False


def plan_marks(now: MarkView) -> NextStep | None:
    """The next step about the marks of a quarantine in force; None: they are as they should be."""
    quarantine = now.quarantine
    unreported = _unreported_cordon(now, quarantine)
    if unreported:
        return NextStep(MarkStep.REPORT_CORDON, unreported)
    step = _act(now, quarantine)
    return None if step is None else unless_stopped(NextStep(step), stopped=now.stopped)


def _act(now: MarkView, quarantine: Quarantine) -> enum.StrEnum | None:
    """A step that changes the intent or acts on the node. A stop holds all of them."""
    forced_here = now.forced is not None and quarantine.spec.requester == FORCED
    if forced_here and now.forced is not (quarantine.spec.intent_action or quarantine.spec.action):
        # An edit of the object's action holds until the annotation changes.
        return AdmissionStep.FORCE
    ours = quarantine.spec.requester == OURS
    if now.node_gone or (ours and (now.mode is Action.OBSERVE or now.maintained)):
        return None
    if quarantine.status.phase in UNTOUCHED:
        return MarkStep.CORDON
    if now.schedulable:
        return MarkStep.RECORDON if now.recordon else None
    return MarkStep.RESTORE if now.restore_due else None


def _unreported_cordon(now: MarkView, quarantine: Quarantine) -> str:
    """The text about the node's cordon that the status lacks; empty: it is up to date.

    The step that undoes an uncordon at once reports it itself. This text is about a node that is
    left schedulable.
    """
    if quarantine.status.phase in UNTOUCHED or now.node_gone:
        return ""
    left = is_left_schedulable(quarantine.status)
    if not now.schedulable:
        return CORDONED_BY_OTHERS if left else ""
    why = _keeps_it_schedulable(now, quarantine)
    if not why:
        return ""
    text = describe_left(quarantine, why)
    return text if text != quarantine.status.uncordoned else ""


def _keeps_it_schedulable(now: MarkView, quarantine: Quarantine) -> str:
    """Why an uncordoned node is not cordoned again now; empty: it is, or that is reported."""
    ours = quarantine.spec.requester == OURS
    if now.stopped:
        return "it is left so while the stop switch is set"
    if ours and now.maintained:
        return "it is left so while another tool or person is at work on it"
    if ours and now.exempt:
        return "it is left so while people want it left alone (sickbay.dev/exempt)"
    if ours and now.mode is Action.OBSERVE:
        return "it is left so in mode observe"
    status = quarantine.status
    if now.recordon or (has_given_up(status) and not is_left_schedulable(status)):
        return ""
    return f"new work is kept off again at {write_time(now.recordon_at)}"
