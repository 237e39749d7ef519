"""The Quarantine object: JSON to and from the protocol's spec and status.

The schema in deploy/kubernetes/crd.yaml refuses most nonsense at the door. What gets past it (an
object older than the schema, or of a newer version) is told with its `problem`, and never raises:
one broken object must not blind us to the others.
"""

import datetime as dt

import msgspec

from aggregator.kube.objects import Meta, decode, seconds
from aggregator.quarantine.cluster import (
    Action,
    Blocker,
    EvidenceItem,
    HookState,
    HookStatus,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)

GROUP = "sickbay.dev"
VERSION = "v1alpha1"
PLURAL = "quarantines"
DEFINITION = f"{PLURAL}.{GROUP}"
FINALIZER = f"{GROUP}/undo"


class Evidence(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    code: str = ""
    component: str = ""
    boot_id: str = msgspec.field(default="", name="bootID")
    cleared_by: str = ""
    rule: str = ""
    incident: str = ""
    message: str = ""
    cleared: str = ""


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """spec. The defaults are the schema's: what a hand-made one may leave out."""

    action: Action = Action.CORDON
    kind: str = "manual"
    reason: str = ""
    requester: str | None = None
    incident: str | None = None
    boot_id: str | None = msgspec.field(default=None, name="bootID")
    policy_hash: str | None = None
    evidence: list[Evidence] | None = None


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    pod: str
    reason: str = ""
    since: str | None = None


class Hook(msgspec.Struct, frozen=True, rename="camel"):
    """status.preEvict. None is sent as null, which removes the field."""

    state: HookState
    asked_at: str | None = None
    ended_at: str | None = None
    message: str | None = None


class State(msgspec.Struct, frozen=True, rename="camel"):
    """status. None is sent as null, which removes the field."""

    phase: Phase = Phase.ADMITTED
    message: str | None = None
    node_uid: str | None = msgspec.field(default=None, name="nodeUID")
    admitted_at: str | None = None
    cordoned_at: str | None = None
    drain_started_at: str | None = None
    drained_at: str | None = None
    deadline_at: str | None = None
    overdue_at: str | None = None
    pre_evict: Hook | None = None
    released_because: str | None = None
    overruled: bool | None = None
    release_held: str | None = None
    pods_remaining: int | None = None
    blockers: list[Block] | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_SPEC = msgspec.json.Decoder(Spec)
_STATE = msgspec.json.Decoder(State)


def decode_quarantine(body: bytes | msgspec.Raw) -> Quarantine:
    """A Quarantine as the API server sent it; ``problem`` says what can't be understood.

    Raises Refused for what is no object at all.
    """
    found = decode(body, _Object)
    meta = found.metadata
    spec, spec_problem = _decode_spec(found.spec)
    status, status_problem = _decode_status(found.status)
    return Quarantine(
        node=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        spec=spec,
        status=status,
        created_at=seconds(meta.creation_timestamp),
        deleting=meta.deletion_timestamp is not None,
        has_finalizer=FINALIZER in (meta.finalizers or ()),
        problem="; ".join(problem for problem in (spec_problem, status_problem) if problem),
    )


def encode_spec(spec: QuarantineSpec) -> Spec:
    """The spec as JSON values; what is empty is left out (null, in a patch)."""
    return Spec(
        action=spec.action,
        kind=spec.kind,
        reason=spec.reason,
        requester=spec.requester or None,
        incident=spec.incident or None,
        boot_id=spec.boot_id or None,
        policy_hash=spec.policy_hash or None,
        evidence=[
            Evidence(
                code=item.code,
                component=item.component,
                boot_id=item.boot_id,
                cleared_by=item.cleared_by,
                rule=item.rule,
                incident=item.incident,
                message=item.message,
                cleared=item.cleared,
            )
            for item in spec.evidence
        ]
        or None,
    )


def encode_status(status: QuarantineStatus) -> State:
    """The status as JSON values, for a merge patch: null removes what is no longer so."""
    return State(
        phase=status.phase,
        message=status.message or None,
        node_uid=status.node_uid or None,
        admitted_at=timestamp(status.admitted_at),
        cordoned_at=timestamp(status.cordoned_at),
        drain_started_at=timestamp(status.drain_started_at),
        drained_at=timestamp(status.drained_at),
        deadline_at=timestamp(status.deadline_at),
        overdue_at=timestamp(status.overdue_at),
        pre_evict=_encode_hook(status.pre_evict),
        released_because=status.released_because or None,
        overruled=status.overruled or None,
        release_held=status.release_held or None,
        pods_remaining=status.pods_remaining,
        blockers=[
            Block(blocker.pod, blocker.reason, timestamp(blocker.since))
            for blocker in status.blockers
        ]
        or None,
    )


def timestamp(at: float) -> str | None:
    """RFC 3339 with microseconds, in UTC; None for 0, which stands for "not yet"."""
    if not at:
        return None
    # A third faster than strftime; there are several for each node that fails.
    return dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _encode_hook(hook: HookStatus | None) -> Hook | None:
    if hook is None:
        return None
    return Hook(
        hook.state, timestamp(hook.asked_at), timestamp(hook.ended_at), hook.message or None
    )


def _decode_hook(hook: Hook | None) -> HookStatus | None:
    if hook is None:
        return None
    return HookStatus(
        hook.state, seconds(hook.asked_at), seconds(hook.ended_at), hook.message or ""
    )


def _decode_spec(raw: msgspec.Raw) -> tuple[QuarantineSpec, str]:
    try:
        spec = _SPEC.decode(raw)
    except msgspec.ValidationError as error:
        return QuarantineSpec(Action.CORDON, "manual", ""), f"spec: {error}"
    problem = "spec.action: observe is no action of a quarantine: cordon or drain"
    evidence = [
        EvidenceItem(
            code=item.code,
            component=item.component,
            boot_id=item.boot_id,
            cleared_by=item.cleared_by,
            rule=item.rule,
            incident=item.incident,
            message=item.message,
            cleared=item.cleared,
        )
        for item in spec.evidence or ()
    ]
    decoded = QuarantineSpec(
        action=spec.action,
        kind=spec.kind,
        reason=spec.reason,
        requester=spec.requester or "",
        incident=spec.incident or "",
        boot_id=spec.boot_id or "",
        policy_hash=spec.policy_hash or "",
        evidence=tuple(evidence),
    )
    if spec.action is Action.OBSERVE:
        return decoded, problem
    if spec.requester == "sickbay" and not evidence:
        return decoded, (
            "spec.requester: sickbay is the aggregator's own name, and it writes its evidence; "
            "expected yours"
        )
    return decoded, ""


def _decode_status(raw: msgspec.Raw) -> tuple[QuarantineStatus, str]:
    try:
        state = _STATE.decode(raw)
        return (
            QuarantineStatus(
                phase=state.phase,
                message=state.message or "",
                node_uid=state.node_uid or "",
                admitted_at=seconds(state.admitted_at),
                cordoned_at=seconds(state.cordoned_at),
                drain_started_at=seconds(state.drain_started_at),
                drained_at=seconds(state.drained_at),
                deadline_at=seconds(state.deadline_at),
                overdue_at=seconds(state.overdue_at),
                pre_evict=_decode_hook(state.pre_evict),
                released_because=state.released_because or "",
                overruled=bool(state.overruled),
                release_held=state.release_held or "",
                pods_remaining=state.pods_remaining,
                blockers=tuple(
                    Blocker(block.pod, block.reason, seconds(block.since))
                    for block in state.blockers or ()
                ),
            ),
            "",
        )
    except ValueError as error:  # msgspec's own are ValueErrors too; so is a time that is none
        return QuarantineStatus(), f"status: {error}"
