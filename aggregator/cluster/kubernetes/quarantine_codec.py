"""The Quarantine object: JSON to and from the protocol's spec and status.

The schema in deploy/kubernetes/crd.yaml refuses most invalid objects. An invalid object that gets
past it (older than the schema) is reported with its `problem`. One whose status a later version
wrote is reported with the fields that are ``unread``. Neither raises: one broken object must not
hide the others.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from aggregator.cluster.kubernetes.object_codec import ObjectCodec, ObjectForm
from aggregator.cluster.kubernetes.objects import SpecAndStatus, decode, seconds
from aggregator.cluster.objects import QUARANTINE
from aggregator.cluster.port import (
    Action,
    AppliedChanges,
    Blocker,
    EvictedWorkload,
    EvictionNotice,
    EvidenceItem,
    HookStatus,
    MarksStatus,
    ObjectCondition,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairStatus,
)

GROUP, _, VERSION = QUARANTINE.api_version.partition("/")
PLURAL = "quarantines"
DEFINITION = f"{PLURAL}.{GROUP}"
FINALIZER = f"{GROUP}/undo"


CONDITION = ObjectForm(
    required=frozenset({"type", "status", "reason", "message"}),
    is_item=True,
)
#: How the objects differ from what `object_codec` makes of the port's dataclasses.
FORMS: Mapping[type, ObjectForm] = {
    # A spec's `always` are the schema's defaults: fields that a hand-made one may leave out.
    QuarantineSpec: ObjectForm(always={"action": Action.CORDON, "kind": "manual", "reason": ""}),
    QuarantineStatus: ObjectForm(always={"phase": Phase.ADMITTED}),
    EvidenceItem: ObjectForm(is_item=True),
    Blocker: ObjectForm(required=frozenset({"pod"}), is_item=True),
    EvictedWorkload: ObjectForm(required=frozenset({"workload"}), is_item=True),
    EvictionNotice: ObjectForm(
        required=frozenset({"workload", "ident", "state"}), names={"ident": "id"}, is_item=True
    ),
    HookStatus: ObjectForm(required=frozenset({"state"})),
    ObjectCondition: CONDITION,
    MarksStatus: ObjectForm(always={"restored": 0}),
    # They are objects of their own: `operations`.
    RepairStatus: ObjectForm(elsewhere=frozenset({"attempts", "requests"})),
    AppliedChanges: ObjectForm(
        names={"taint": "taintBefore", "label": "labelBefore", "codes": "codesBefore"},
        required=frozenset({"cordoned"}),
        always={"value": ""},
    ),
}
SPEC = ObjectCodec(QuarantineSpec, FORMS)
STATUS = ObjectCodec(QuarantineStatus, FORMS)


#: As JSON values, for a merge patch: null removes fields that no longer apply.
encode_spec, encode_status = SPEC.encode, STATUS.encode


def decode_quarantine(body: bytes | msgspec.Raw, installation: str = "") -> Quarantine:
    """A Quarantine as the API server sent it; ``problem`` states what is wrong in its spec.

    ``installation`` is ours: one of another's is ``foreign``. Raises Refused where the body is no
    object at all.
    """
    found = decode(body, SpecAndStatus)
    meta = found.metadata
    spec, spec_problem = _decode_spec(found.spec)
    status, why, unread_fields = STATUS.load_fields(found.status)
    return Quarantine(
        node=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        spec=spec,
        status=status,
        created_at=seconds(meta.creation_timestamp),
        deleting=meta.deletion_timestamp is not None,
        has_finalizer=FINALIZER in (meta.finalizers or ()),
        problem=spec_problem,
        foreign=spec.installation if installation not in ("", spec.installation) else "",
        generation=meta.generation,
        unread=f"status: {why}" if why is not None else "",
        unread_fields=unread_fields,
    )


def encode_changes(before: Quarantine, status: QuarantineStatus) -> dict[str, Any]:
    """The fields of the status that change, for a merge patch; none of those that are unread.

    Except for the phase of a release, which a person may want from any phase.
    """
    old = msgspec.to_builtins(STATUS.encode(before.status))
    new = msgspec.to_builtins(STATUS.encode(status))
    kept = {STATUS.names[field] for field in before.unread_fields - {"phase"}}
    always = {STATUS.names[field] for field in before.unread_fields & {"phase"}}
    return {
        name: value
        for name, value in new.items()
        if name not in kept and (name in always or value != old[name])
    }


def _decode_spec(raw: msgspec.Raw) -> tuple[QuarantineSpec, str]:
    try:
        spec = SPEC.load(raw)
    except msgspec.ValidationError as error:
        return QuarantineSpec(Action.CORDON, "manual", ""), f"spec: {error}"
    if spec.action is Action.OBSERVE:
        return spec, "spec.action: observe is no action of a quarantine: cordon or drain"
    if spec.requester == "sickbay" and not spec.evidence:
        return spec, (
            "spec.requester: sickbay is the aggregator's own name, and it writes its evidence; "
            "expected yours"
        )
    return spec, ""
