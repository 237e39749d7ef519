"""The Quarantine object: JSON to and from the protocol's spec and status.

The schema in deploy/kubernetes/crd.yaml refuses most invalid objects. An invalid object that gets
past it (older than the schema, or of a newer version) is reported with its `problem`, and never
raises: one broken object must not hide the others.
"""

import datetime as dt

import msgspec

from aggregator.cluster.kubernetes.objects import Meta, decode, seconds
from aggregator.cluster.port import (
    Action,
    Blocker,
    Did,
    EvidenceItem,
    HookState,
    HookStatus,
    MarksStatus,
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


class EvidenceObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    code: str = ""
    component: str = ""
    boot_id: str = msgspec.field(default="", name="bootID")
    cleared_by: str = ""
    rule: str = ""
    incident: str = ""
    message: str = ""
    cleared: str = ""


class SpecObject(msgspec.Struct, frozen=True, rename="camel"):
    """spec. The defaults are the schema's: fields that a hand-made one may leave out."""

    action: Action = Action.CORDON
    kind: str = "manual"
    reason: str = ""
    requester: str | None = None
    incident: str | None = None
    boot_id: str | None = msgspec.field(default=None, name="bootID")
    policy_hash: str | None = None
    evidence: list[EvidenceObject] | None = None
    intent_action: Action | None = None
    record_generation: int | None = None
    installation: str | None = None


class BlockObject(msgspec.Struct, frozen=True, omit_defaults=True):
    pod: str
    reason: str = ""
    since: str | None = None


class HookObject(msgspec.Struct, frozen=True, rename="camel"):
    """status.preEvict. A value of None is sent as null, which removes the field."""

    state: HookState
    asked_at: str | None = None
    ended_at: str | None = None
    message: str | None = None


class DoneObject(msgspec.Struct, frozen=True, rename="camel"):
    """status.did. A value of None is sent as null, which removes the field."""

    cordoned: bool
    value: str = ""
    off_balancers: bool | None = None
    taint_before: str | None = None
    label_before: str | None = None
    codes_before: str | None = None


class MarksObject(msgspec.Struct, frozen=True, rename="camel"):
    """status.marks. A value of None is sent as null, which removes the field."""

    missing: list[str] | None = None
    since: str | None = None
    restored: int = 0
    restored_at: str | None = None


class StatusObject(msgspec.Struct, frozen=True, rename="camel"):
    """status. A value of None is sent as null, which removes the field."""

    phase: Phase = Phase.ADMITTED
    message: str | None = None
    node_uid: str | None = msgspec.field(default=None, name="nodeUID")
    admitted_at: str | None = None
    cordoned_at: str | None = None
    drain_started_at: str | None = None
    drained_at: str | None = None
    deadline_at: str | None = None
    overdue_at: str | None = None
    pre_evict: HookObject | None = None
    released_because: str | None = None
    overruled: bool | None = None
    release_held: str | None = None
    override: str | None = None
    uncordoned: str | None = None
    uncordoned_at: str | None = None
    recordons: int | None = None
    evictions_held_until: str | None = None
    pods_remaining: int | None = None
    pods_read_at: str | None = None
    blockers: list[BlockObject] | None = None
    did: DoneObject | None = None
    marks: MarksObject | None = None
    node_absent_since: str | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_SPEC = msgspec.json.Decoder(SpecObject)
_STATE = msgspec.json.Decoder(StatusObject)


def decode_quarantine(body: bytes | msgspec.Raw, installation: str = "") -> Quarantine:
    """A Quarantine as the API server sent it; ``problem`` says which part can't be understood.

    ``installation`` is ours: one of another's is ``foreign``. Raises Refused where the body is no
    object at all.
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
        foreign=spec.installation if installation not in ("", spec.installation) else "",
    )


def encode_spec(spec: QuarantineSpec) -> SpecObject:
    """The spec as JSON values; empty fields are left out (null, in a patch)."""
    return SpecObject(
        action=spec.action,
        kind=spec.kind,
        reason=spec.reason,
        requester=spec.requester or None,
        incident=spec.incident or None,
        boot_id=spec.boot_id or None,
        policy_hash=spec.policy_hash or None,
        evidence=[
            EvidenceObject(
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
        intent_action=spec.intent_action,
        record_generation=spec.record_generation or None,
        installation=spec.installation or None,
    )


def encode_status(status: QuarantineStatus) -> StatusObject:
    """The status as JSON values, for a merge patch: null removes fields that no longer apply."""
    return StatusObject(
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
        override=status.override or None,
        uncordoned=status.uncordoned or None,
        uncordoned_at=timestamp(status.uncordoned_at),
        recordons=status.recordons or None,
        evictions_held_until=timestamp(status.evictions_held_until),
        pods_remaining=status.pods_remaining,
        pods_read_at=timestamp(status.pods_read_at),
        blockers=[
            BlockObject(blocker.pod, blocker.reason, timestamp(blocker.since))
            for blocker in status.blockers
        ]
        or None,
        did=_encode_did(status.did),
        marks=_encode_marks(status.marks),
        node_absent_since=timestamp(status.node_absent_since),
    )


def timestamp(at: float) -> str | None:
    """RFC 3339 with microseconds, in UTC, or None for 0, which stands for "not yet"."""
    if not at:
        return None
    # A third faster than strftime; there are several for each node that fails.
    return dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _encode_marks(marks: MarksStatus | None) -> MarksObject | None:
    if marks is None:
        return None
    return MarksObject(
        list(marks.missing) or None,
        timestamp(marks.since),
        marks.restored,
        timestamp(marks.restored_at),
    )


def _decode_marks(marks: MarksObject | None) -> MarksStatus | None:
    if marks is None:
        return None
    return MarksStatus(
        tuple(marks.missing or ()),
        seconds(marks.since),
        marks.restored,
        seconds(marks.restored_at),
    )


def _encode_did(did: Did | None) -> DoneObject | None:
    if did is None:
        return None
    return DoneObject(
        did.cordoned, did.value, did.off_balancers or None, did.taint, did.label, did.codes
    )


def _decode_did(did: DoneObject | None) -> Did | None:
    if did is None:
        return None
    return Did(
        did.cordoned,
        did.value,
        bool(did.off_balancers),
        did.taint_before,
        did.label_before,
        did.codes_before,
    )


def _encode_hook(hook: HookStatus | None) -> HookObject | None:
    if hook is None:
        return None
    return HookObject(
        hook.state, timestamp(hook.asked_at), timestamp(hook.ended_at), hook.message or None
    )


def _decode_hook(hook: HookObject | None) -> HookStatus | None:
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
        intent_action=spec.intent_action,
        record_generation=spec.record_generation or 0,
        installation=spec.installation or "",
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
                node_absent_since=seconds(state.node_absent_since),
                override=state.override or "",
                uncordoned=state.uncordoned or "",
                uncordoned_at=seconds(state.uncordoned_at),
                recordons=state.recordons or 0,
                evictions_held_until=seconds(state.evictions_held_until),
                pods_remaining=state.pods_remaining,
                pods_read_at=seconds(state.pods_read_at),
                blockers=tuple(
                    Blocker(block.pod, block.reason, seconds(block.since))
                    for block in state.blockers or ()
                ),
                did=_decode_did(state.did),
                marks=_decode_marks(state.marks),
            ),
            "",
        )
    except ValueError as error:  # msgspec's own are ValueErrors too; so is a time that is none
        return QuarantineStatus(), f"status: {error}"
