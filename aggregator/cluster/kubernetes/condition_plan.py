"""Which conditions for other tools are written; those of other writers are left alone. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aggregator.cluster.condition_record import WrittenCondition
from aggregator.cluster.kubernetes.objects import Condition, NodeObject
from aggregator.cluster.port import NodeCondition


@dataclass(slots=True)
class ConditionPlan:
    """``patches``: the entries of a strategic merge patch; ``written``: the record then.

    ``worsens``: one of the patches makes a condition unhealthy.
    """

    patches: list[dict[str, object]] = field(default_factory=list)
    written: dict[str, WrittenCondition] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    worsens: bool = False


def plan_conditions(
    found: NodeObject,
    before: Mapping[str, WrittenCondition],
    wanted: Mapping[str, NodeCondition | None],
    installation: str,
    now: str | None,
) -> ConditionPlan:
    plan = ConditionPlan(written=dict(before))
    for kind, want in wanted.items():
        there = found.condition(kind)
        recorded = before.get(kind)
        if recorded is not None and recorded.installation != installation:
            plan.foreign.add(kind)
        elif there is not None and (recorded is None or _is_changed(there, recorded)):
            plan.foreign.add(kind)
            plan.written.pop(kind, None)
        elif want is None:
            plan.written.pop(kind, None)
            if there is not None:
                plan.patches.append({"type": kind, "$patch": "delete"})
        elif (want.unhealthy or recorded is not None) and (
            there is None or there.status != want.status
        ):
            plan.patches.append(_entry(kind, want, now))
            plan.worsens |= want.unhealthy
            plan.written[kind] = WrittenCondition(want.status, want.reason, installation)
    return plan


def _is_changed(there: Condition, recorded: WrittenCondition) -> bool:
    return (there.status, there.reason) != (recorded.status, recorded.reason)


def _entry(kind: str, want: NodeCondition, now: str | None) -> dict[str, object]:
    return {
        "type": kind,
        "status": want.status,
        "reason": want.reason,
        "message": want.message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
