"""A field of a quarantine is defined once; what can't be derived from that is compared with it."""

import dataclasses
import enum
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given

from aggregator.cluster.kubernetes import operation_client
from aggregator.cluster.kubernetes.object_codec import ObjectCodec
from aggregator.cluster.kubernetes.quarantine_codec import (
    FORMS,
    SPEC,
    STATUS,
    decode_quarantine,
    encode_spec,
    encode_status,
)
from aggregator.cluster.port import (
    Action,
    OperationSpec,
    OperationStatus,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.quarantine.state.fleet import FleetState, NodeSummary
from aggregator.web import node_view
from aggregator.web.models import Quarantine as Page
from aggregator.web.node_view import ViewMoment
from tests.deploy.manifests import ROOT
from tests.support.field_values import values, without_operations
from tests.support.yaml_documents import read_documents

#: Fields that the page does not show under their own name, and why.
NOT_SHOWN = {
    "boot_id": "the evidence has it",
    "policy_hash": "the fleet's page has that of now",
    "intent_action": "override says it",
    "record_generation": "for the aggregator alone",
    "installation": "why says it where it is another's",
    "node_uid": "for the aggregator alone",
    "uncordoned_at": "uncordoned says it",
    "recordons": "uncordoned says it",
    "evictions_held_until": "the hold says it",
    "pods_read_at": "for the aggregator alone",
    "observed_generation": "for kubectl and other controllers",
    "conditions": "for kubectl and other controllers: phase and the other fields say it",
    "applied": "for the aggregator alone",
    "notices": "the blockers say it",
    "gpu_scope": "the blockers say it",
    "evicted_workloads": "the blockers say it",
    "marks": "unmarked and unmarked_since say it",
}


def crd_schema(kind: str = "Quarantine") -> Mapping[str, Any]:
    definitions = read_documents((ROOT / "deploy/kubernetes/crd.yaml").read_text())
    [crd] = (one for one in definitions if one["spec"]["names"]["kind"] == kind)
    [version] = crd["spec"]["versions"]
    properties: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return properties


def form(hint: Any) -> dict[str, Any]:
    """A field's type as a schema has it."""
    if typing.get_origin(hint) is not None and type(None) in typing.get_args(hint):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) is tuple:
        return {"type": "array"}
    if dataclasses.is_dataclass(hint):
        return {"type": "object"}
    if hint is float:
        return {"type": "string", "format": "date-time"}
    if hint is Action:  # observe is no action of a quarantine
        return {"type": "string", "enum": ["cordon", "drain"]}
    if issubclass(hint, str):
        return {"type": "string", **({} if hint is str else {"enum": [one.value for one in hint]})}
    return {"type": {bool: "boolean", int: "integer"}[hint]}


def differences(kind: type, codec: ObjectCodec[Any], schema: Mapping[str, Any]) -> Iterator[str]:
    """The fields that the dataclass and the schema do not have alike."""
    hints, properties = typing.get_type_hints(kind), schema["properties"]
    names = list(codec.names.items())
    for name in properties.keys() ^ {name for _, name in names}:
        yield f"{kind.__name__}: {name}"
    for field, name in names:
        expected = form(hints[field])
        found = properties.get(name, expected)
        # A kind is any text to the code, and one of a few to the schema.
        if any(found.get(key) != value for key, value in expected.items()):
            yield f"{kind.__name__}.{field}: {found}"
        if field in codec.nested and name in properties:
            inner = codec.nested[field]
            yield from differences(inner.kind, inner, found.get("items", found))


def test_the_definition_has_every_field_and_no_other() -> None:
    schema = crd_schema()
    assert list(differences(QuarantineSpec, SPEC, schema["spec"])) == []
    assert list(differences(QuarantineStatus, STATUS, schema["status"])) == []
    schema = crd_schema("Operation")
    assert list(differences(OperationSpec, operation_client.SPEC, schema["spec"])) == []
    assert list(differences(OperationStatus, operation_client.STATUS, schema["status"])) == []


def test_a_field_that_the_definition_lacks_is_found() -> None:
    @dataclasses.dataclass(frozen=True)
    class WithOneMore(QuarantineStatus):
        one_more: str = ""

    @dataclasses.dataclass(frozen=True)
    class WithAnother(QuarantineStatus):
        recordons: bool = False

    status = crd_schema()["status"]
    forms = {**FORMS, WithOneMore: FORMS[QuarantineStatus], WithAnother: FORMS[QuarantineStatus]}
    added = list(differences(WithOneMore, ObjectCodec(WithOneMore, forms), status))
    assert added == ["WithOneMore: oneMore"]
    [changed] = differences(WithAnother, ObjectCodec(WithAnother, forms), status)
    assert changed.startswith("WithAnother.recordons")


@pytest.mark.parametrize("kind", [QuarantineSpec, QuarantineStatus])
def test_the_page_shows_every_field_or_says_why_not(kind: type) -> None:
    shown = set(Page.__struct_fields__)
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields - shown - NOT_SHOWN.keys() == set()
    assert not shown & NOT_SHOWN.keys()


def test_no_field_is_left_out_that_is_there_no_more() -> None:
    fields = (*dataclasses.fields(QuarantineSpec), *dataclasses.fields(QuarantineStatus))
    assert NOT_SHOWN.keys() <= {field.name for field in fields}


@given(spec=values(QuarantineSpec), status=values(QuarantineStatus))
def test_every_field_is_read_as_it_was_written(
    spec: QuarantineSpec, status: QuarantineStatus
) -> None:
    patch = {"metadata": {"name": "n1"}, "spec": encode_spec(spec), "status": encode_status(status)}
    found = decode_quarantine(msgspec.json.encode(patch))
    assert found.status == without_operations(status)
    assert found.spec == spec


def test_the_page_shows_what_each_of_its_fields_holds() -> None:
    """The model has defaults, so that a field that is never filled in would look empty."""
    spec = QuarantineSpec(**{name: filled(hint) for name, hint in hints_of(QuarantineSpec)})
    status = QuarantineStatus(**{name: filled(hint) for name, hint in hints_of(QuarantineStatus)})
    found = Quarantine("n1", "u", "1", spec, status)
    page = node_view.quarantine(FleetState(), NodeSummary("n1"), found, ViewMoment(0.0, 0.0))
    names = {name for kind in (QuarantineSpec, QuarantineStatus) for name, _ in hints_of(kind)}
    for name in names & set(Page.__struct_fields__):
        assert getattr(page, name), name


def hints_of(kind: type) -> Iterator[tuple[str, Any]]:
    yield from typing.get_type_hints(kind).items()


def filled(hint: Any) -> Any:
    """A value that is not empty."""
    if dataclasses.is_dataclass(hint):
        return typing.cast("type[Any]", hint)(
            **{n: filled(inner) for n, inner in hints_of(typing.cast("type[Any]", hint))}
        )
    if typing.get_origin(hint) is tuple:
        return (filled(typing.get_args(hint)[0]),)
    if typing.get_origin(hint) is not None:
        return filled(typing.get_args(hint)[0])
    if issubclass(hint, enum.Enum):
        return next(iter(hint))
    return "taint" if hint is str else hint(1)
