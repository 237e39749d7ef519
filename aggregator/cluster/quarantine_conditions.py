"""The conditions of a Quarantine, as `kubectl wait` and other controllers read them. Pure.

They follow from the spec and the rest of the status, and are written with it: no request is made
for them alone, unless another client has changed the object since.
"""

from collections.abc import Iterator
from dataclasses import replace

from aggregator.cluster.port import (
    Action,
    ObjectCondition,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.policy.repairs import TEST
from aggregator.runtime.text import counted

TAINTED, DRAINED, BLOCKED = "Tainted", "Drained", "Blocked"
RELEASE_HELD, RELEASING = "ReleaseHeld", "Releasing"
REPAIRED = "Repaired"
#: By these kstatus, and so Argo CD and Flux, read how far the object is.
READY, RECONCILING, STALLED = "Ready", "Reconciling", "Stalled"
#: The others are always there, except `REPAIRED`, which comes with the first attempt or hold of a
#: repair.
_FROM_FIRST_TRUE = frozenset({RECONCILING, STALLED, BLOCKED, RELEASE_HELD, RELEASING})

_MARKED = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)
#: Characters. The API's convention allows 32,768.
_MOST_MESSAGE = 1024
_MOST_NAMED = 3


def with_conditions(
    quarantine: Quarantine, status: QuarantineStatus, now: float
) -> QuarantineStatus:
    """The ``status`` that is about to be written to the quarantine, with its conditions.

    ``now`` (wall clock seconds) is the time of those whose status changes.
    """
    before = {one.type: one for one in quarantine.status.conditions}
    generation, conditions = quarantine.generation, []
    for kind, (is_true, reason, message) in _conditions(quarantine.node, quarantine.spec, status):
        known, value = before.get(kind), "True" if is_true else "False"
        if known is None and kind in _FROM_FIRST_TRUE and not is_true:
            continue
        since = known.last_transition_time if known is not None and known.status == value else now
        text = message[:_MOST_MESSAGE]
        conditions.append(ObjectCondition(kind, value, reason, text, generation, since))
    return replace(status, observed_generation=generation, conditions=tuple(conditions))


def are_conditions_current(quarantine: Quarantine) -> bool:
    """Whether the object's conditions are those of its present spec and status.

    They are not after a write of the spec, and in an object that another client made.
    """
    status = quarantine.status
    if status.observed_generation != quarantine.generation:
        return False
    return with_conditions(quarantine, status, 0.0).conditions == status.conditions


#: Whether a condition is true, its reason and its message.
_Found = tuple[bool, str, str]


def _conditions(
    node: str, spec: QuarantineSpec, status: QuarantineStatus
) -> Iterator[tuple[str, _Found]]:
    tainted, drained = _tainted(node, spec, status), _drained(spec, status)
    yield TAINTED, tainted
    yield DRAINED, drained
    blocked = status.phase is Phase.DRAINING and bool(status.blockers)
    named = "; ".join(f"{one.pod}: {one.reason}" for one in status.blockers[:_MOST_NAMED])
    yield BLOCKED, (blocked, "PodsBlocked" if blocked else "NoPodBlocked", named)
    held = status.release_held
    yield RELEASE_HELD, (bool(held), "ChecksHold" if held else "NotHeld", held)
    going = status.phase is Phase.RELEASING
    reason = ("Overruled" if status.overruled else "CauseOver") if going else "InForce"
    yield RELEASING, (going, reason, status.released_because if going else "")
    repair = status.repair
    if repair.attempts or repair.held or repair.exhausted:
        yield REPAIRED, _repaired(spec, repair)
    # Ready: the node is as the spec requires. Stalled: a person has to act. Else it is on its way.
    last = tainted if spec.action is not Action.DRAIN or not tainted[0] else drained
    overdue = status.phase is Phase.DRAINING and bool(status.overdue_at)
    stalled = status.phase is Phase.INVALID or overdue
    ready = last[0] and not stalled
    _, reason, message = last
    yield READY, (ready, reason, message)
    under_way = not (ready or stalled)
    yield RECONCILING, (under_way, reason if under_way else "NotReconciling", message)
    yield STALLED, (stalled, reason if stalled else "NotStalled", message)


def _tainted(node: str, spec: QuarantineSpec, status: QuarantineStatus) -> _Found:
    phase = status.phase
    if phase is Phase.INVALID:
        return False, "Invalid", status.message
    if phase is Phase.RELEASING:
        return False, "Releasing", status.released_because
    if status.node_absent_since:
        return False, "NodeAbsent", f"the cluster has no node {node}"
    if phase not in _MARKED:
        return False, "Pending", f"node {node} is not marked yet"
    if "taint" in status.marks.missing:
        return False, "TaintRemoved", f"the taint was removed from node {node}"
    value = status.applied.value if status.applied is not None else ""
    return True, "Marked", f"node {node} is tainted for {value or spec.kind}"


def _drained(spec: QuarantineSpec, status: QuarantineStatus) -> _Found:
    phase, left = status.phase, status.pods_remaining
    if phase is Phase.DRAINED:
        return True, "PodsReturned" if left else "NoPodsLeft", status.message
    if phase in (Phase.INVALID, Phase.RELEASING):
        return False, str(phase.value), status.message
    if spec.action is not Action.DRAIN:
        return False, "NotRequested", "spec.action is cordon"
    if phase is not Phase.DRAINING:
        return False, "Pending", "no pod is evicted yet"
    if status.overdue_at:
        return False, "Overdue", status.message
    count = "" if left is None else f"{counted(left, 'pod has', 'pods have')} to leave"
    return False, "Blocked" if status.blockers else "Draining", count


def _repaired(spec: QuarantineSpec, repair: RepairStatus) -> _Found:
    """True from the success of the last attempt until the next one is due.

    It is due when evidence is still open after the time of verification: then the next attempt, a
    hold or the end of the ladder is written. So no time is needed here.
    """
    last = repair.attempts[-1] if repair.attempts else None
    busy = last is not None and last.state in (RepairState.ORDERING, RepairState.ORDERED)
    if repair.exhausted and not (busy and last is not None and last.repair == TEST):
        return False, "Exhausted", repair.exhausted
    if last is not None and busy:
        return False, last.state.value, _describe_attempt(last)
    done = last is not None and last.state is RepairState.SUCCEEDED
    # An earlier hold stays written when the evidence goes, and holds no repair then.
    over = done and all(item.cleared for item in spec.evidence)
    if repair.held and (repair.test_waits_since or not over):
        return False, "Held", repair.held
    assert last is not None  # `_conditions` calls it only where there is an attempt or a reason
    return done, last.state.value, _describe_attempt(last)


def _describe_attempt(last: RepairAttempt) -> str:
    named = f"{last.repair} {last.profile}".rstrip()
    return f"{named}: {last.message}".removesuffix(": ")
