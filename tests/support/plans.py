"""The plans of all reconcilers as one function, in their order, over one flat situation."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from operator import attrgetter
from typing import Any

from aggregator.cluster.port import Action, Quarantine, RepairAttempt, RepairState
from aggregator.policy.repairs import REPLACE
from aggregator.quarantine.decide.admission import AdmissionView, plan_admission
from aggregator.quarantine.decide.intent import DesiredState
from aggregator.quarantine.decide.plans import step as steps
from aggregator.quarantine.decide.plans.drain import DrainView, plan_drain_step
from aggregator.quarantine.decide.plans.marks import MarkView, plan_marks
from aggregator.quarantine.decide.plans.object import ObjectView, plan_object
from aggregator.quarantine.decide.plans.operations import (
    OperationView,
    plan_open_operation,
    plan_operation,
)
from aggregator.quarantine.decide.plans.publish import PublishView, plan_publish
from aggregator.quarantine.decide.plans.release import ReleaseView, plan_release
from aggregator.quarantine.decide.repair import is_busy


class Step(enum.StrEnum):
    """The steps of all plans."""

    NOTHING = "nothing"
    HOLD = "hold"
    PROPOSE = "propose"
    CREATE = "create"
    FORCE = "force"
    FORGET = "forget"
    REFUSE = "refuse"
    UNREAD = "unread"
    ABSENCE = "absence"
    RESTART = "restart"
    ENTER = "enter"
    VOID = "void"
    UNHOLD = "unhold"
    UPDATE = "update"
    OVERRIDE = "override"
    REPORT_MARKS = "report-marks"
    REPORT_CORDON = "report-cordon"
    CORDON = "cordon"
    RECORDON = "recordon"
    RESTORE = "restore"
    DRAIN = "drain"
    REPAIR = "repair"
    RELEASE = "release"
    UNDO = "undo"
    LET_GO = "let-go"
    CONDITIONS = "conditions"


@dataclass(frozen=True, slots=True)
class NextStep:
    do: Step
    because: str = ""
    overruled: bool = False


@dataclass(slots=True)
class Situation:
    """Every field of every view. ``repair_busy`` and ``repair_replaces`` are an attempt that the
    object has besides its own.
    """

    quarantine: Quarantine | None
    in_record: bool
    wanted: DesiredState | None
    mode: Action
    knows: bool
    fresh: bool
    recovered: bool
    uncordoned: bool = False
    schedulable: bool = False
    recordon: bool = False
    recordon_at: float = 0.0
    evictions_wait: bool = False
    node_replaced: bool = False
    reborn: bool = False
    node_gone: bool = False
    node_found: bool = False
    absent_too_long: bool = False
    maintained: bool = False
    stopped: bool = False
    conflict: bool = False
    definition_going: bool = False
    release_held: bool = False
    poll_later: bool = False
    forced: Action | None = None
    unforced: bool = False
    exempt: bool = False
    unclaimed: bool = False
    marks_unreported: bool = False
    restore_due: bool = False
    conditions_old: bool = False
    entered_by_hand: bool = False
    repair_busy: bool = False
    repair_replaces: bool = False
    repair_due: bool = False
    untested: bool = False

    @property
    def due(self) -> bool:
        return self.repair_due

    @property
    def release_waits(self) -> bool:
        return self.release_held and self.poll_later


@cache
def _values_of(view: Any) -> Callable[[Situation], tuple[Any, ...]]:
    """Reads the fields of a view: their names take longer to list than most plans to make."""
    return attrgetter(*(one.name for one in fields(view)))


def next_step(now: Situation) -> NextStep:
    """The first step of the first reconciler that has one."""
    quarantine = _with_attempt(now)
    if quarantine is not now.quarantine:
        now = replace(now, quarantine=quarantine)

    def view(made: Any) -> Any:
        return made(*_values_of(made)(now))

    found: steps.NextStep | None
    if quarantine is None:
        found = plan_admission(view(AdmissionView))
    else:
        found = plan_release(view(ReleaseView))
        found = found or plan_open_operation(view(OperationView))
        found = found or plan_object(view(ObjectView)) or plan_marks(view(MarkView))
        found = found or plan_drain_step(view(DrainView)) or plan_operation(view(OperationView))
        found = found or plan_publish(view(PublishView))
    if found is None or found.do is steps.Pause.WAIT:
        return NextStep(Step.NOTHING)
    return NextStep(Step(found.do.value), found.because, found.overruled)


def _with_attempt(now: Situation) -> Quarantine | None:
    quarantine = now.quarantine
    if quarantine is None or not now.repair_busy or is_busy(quarantine.status.repair):
        return quarantine
    repair = REPLACE if now.repair_replaces else "reset-gpus"
    before = quarantine.status.repair
    attempt = RepairAttempt("o", repair, RepairState.ORDERED)
    status = replace(quarantine.status, repair=replace(before, attempts=(attempt,)))
    return replace(quarantine, status=status)
