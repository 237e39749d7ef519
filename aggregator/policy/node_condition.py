"""Node conditions that other programs write, as evidence where a rule names their type. Pure.

Only a status that a rule calls unhealthy is a failure, and only its opposite is a positive sign.
``Unknown``, a condition that is not there, and one whose writer has not renewed it are silence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aggregator.health.model import Component, Status
from aggregator.policy.rules import CONDITION_CHECK, Rule
from aggregator.runtime.text import visible

#: Conditions of sickbay itself: they would be evidence of their own.
OWN_TYPES = frozenset({"SickbayQuarantined", "SickbayTestPassed"})
#: Seconds. Node-problem-detector and the kubelet renew the heartbeat every 5 minutes.
STALE_AFTER = 900.0
_OPPOSITE = {"True": "False", "False": "True"}
_MOST_REASON = 128
_MOST_MESSAGE = 512


@dataclass(frozen=True, slots=True)
class ReportedCondition:
    """A condition as its Node has it. Times are wall clock seconds, by the clock of its writer; 0
    for none.
    """

    type: str
    status: str
    reason: str
    message: str
    heartbeat: float
    since: float


@dataclass(frozen=True, slots=True)
class ReportedConditions:
    """Those conditions of one Node that were requested."""

    node: str
    uid: str
    conditions: Mapping[str, ReportedCondition]


def unhealthy_statuses(rules: Iterable[Rule]) -> Mapping[str, str]:
    """By the types that some rule names, the status that is unhealthy."""
    return {rule.condition: rule.unhealthy for rule in rules if rule.condition}


def as_evidence(
    kind: str,
    condition: ReportedCondition | None,
    unhealthy: str,
    *,
    now: float,
    earliest: float,
    latest: float,
) -> Component:
    """Level evidence: failed, ok, or unknown where the condition has no verdict.

    ``now`` is monotonic; ``earliest`` and ``latest`` are the bounds of the wall clock's time.
    """
    if condition is None or not _is_fresh(condition, earliest, latest):
        text = "not there" if condition is None else "its writer has not renewed it"
        return Component(CONDITION_CHECK, kind, Status.UNKNOWN, "silent", text, now)
    status = Status.UNKNOWN
    if condition.status == unhealthy:
        status = Status.FAILED
    elif condition.status == _OPPOSITE[unhealthy]:
        status = Status.OK
    lasted = earliest - condition.since if condition.since else 0.0
    return Component(
        CONDITION_CHECK,
        kind,
        status,
        visible(condition.reason, _MOST_REASON).replace(":", "-")
        if status is Status.FAILED
        else "",
        visible(condition.message, _MOST_MESSAGE),
        now - max(0.0, lasted),
    )


def _is_fresh(condition: ReportedCondition, earliest: float, latest: float) -> bool:
    """Whether its heartbeat is recent by any time that it may be now, and none of the future."""
    return latest - STALE_AFTER <= condition.heartbeat <= earliest + STALE_AFTER
