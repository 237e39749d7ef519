"""Templates of objects: what is filled in stays a text, and names stay names."""

import contextlib
import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.objects import ObjectResource
from aggregator.cluster.port import Refused, RepairStatus
from aggregator.config.external import PLACES, OutcomeSection
from aggregator.config.field_path import parse_field_path, read_field
from aggregator.quarantine.decide.own_pods import OPERATION
from aggregator.quarantine.decide.repair import operation_id
from aggregator.quarantine.repair.protocol import RepairOrder
from aggregator.repairers.template import (
    UnusableNameError,
    fill,
    has_begun,
    manifest,
    object_name,
    shows,
    values_of,
)

UID = "0b0e3a35-3f44-4a0c-9d0c-7cf8f4f1b0aa"
ORDER = RepairOrder(
    operation_id(UID, RepairStatus(), "gpu-reset"),
    *("gpu-reset", "n1", "uid-n1", "boot-1", UID, "xid:79 on GPU-1", 600.0),
    ("GPU-1", "GPU-2"),
)
RESOURCE = ObjectResource("example.test/v1", "Repair", "repairs", namespaced=True)
OWNER = {"kind": "Quarantine", "name": "n1", "uid": UID}

#: Texts of templates: placeholders among anything.
pieces = st.one_of(st.sampled_from([f"{{{name}}}" for name in PLACES]), st.text(max_size=8))
texts = st.lists(pieces, max_size=5).map("".join)
templates = st.recursive(
    st.one_of(texts, st.integers(), st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=12,
)
orders = st.builds(
    RepairOrder,
    *(st.one_of(st.text(max_size=30), texts) for _ in range(7)),
    st.just(600.0),
    st.lists(st.text(max_size=10), max_size=3).map(tuple),
)


def shape(value: Any) -> Any:
    """The structure of a value, without its texts."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return value


@pytest.mark.slow
@given(templates, orders)
def test_no_placeholder_escapes_its_text(template: Any, order: RepairOrder) -> None:
    filled = fill(template, values_of(order))
    assert shape(filled) == shape(template)
    assert shape(json.loads(json.dumps(filled))) == shape(template)


@given(st.sampled_from(PLACES), st.sampled_from(PLACES))
def test_a_value_is_not_looked_through_for_placeholders(place: str, other: str) -> None:
    values = dict.fromkeys(PLACES, f"{{{other}}}")
    assert fill(f"{{{place}}}-{{{place}}}", values) == f"{{{other}}}-{{{other}}}"


@pytest.mark.parametrize("text", ["${node}", "{{node}}", "%{node}", "{other}", "{}", "{node"])
def test_what_is_no_placeholder_of_ours_stays(text: str) -> None:
    assert fill(text, values_of(ORDER)) == text


def test_every_placeholder_has_its_value() -> None:
    filled = fill({name: f"{{{name}}}" for name in PLACES}, values_of(ORDER))
    assert filled == {
        "operation": ORDER.operation,
        "repair": "gpu-reset",
        "node": "n1",
        "node_uid": "uid-n1",
        "boot_id": "boot-1",
        "quarantine": UID,
        "reason": "xid:79 on GPU-1",
        "gpus": "GPU-1,GPU-2",
    }


# -- names ----------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.sampled_from(
        ["{node}", "x-{node}", "{node}.{node_uid}", "{operation}", "{quarantine}{node}"]
    ),
    orders,
)
def test_a_filled_in_name_never_yields_another_path(name: str, order: RepairOrder) -> None:
    try:
        made = object_name({"metadata": {"name": name}}, order)
    except UnusableNameError:
        return  # then no request is sent
    before = paths.objects(RESOURCE, "ns")
    path = f"{before}/{paths.quoted(made)}"
    rest = path.removeprefix(f"{before}/")
    assert unquote(rest) == made
    assert not set(rest) & set("/?#%\\")
    assert rest not in (".", "..")


@pytest.mark.parametrize(
    "node", ["..", ".", "a/b", "../nodes", "a?b", "a#b", "A", "", "a%2fb", "a b", "a\n", "x" * 254]
)
def test_a_name_that_no_object_can_have_is_refused(node: str) -> None:
    with pytest.raises(UnusableNameError, match="expected small letters"):
        object_name({"metadata": {"name": "{node}"}}, replace(ORDER, node=node))


@pytest.mark.parametrize("name", ["..", ".", "/", "", "../"])
def test_a_part_of_a_path_is_no_step_upwards(name: str) -> None:
    with pytest.raises(Refused, match="is no object's name"):
        paths.quoted(name)


@pytest.mark.slow
@given(orders)
def test_without_a_name_it_follows_from_the_operation_alone(order: RepairOrder) -> None:
    name = object_name({}, order)
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name)
    other = replace(order, node="other", reason="other", lasts=1.0)
    assert object_name({"metadata": {"namespace": "x"}}, other) == name
    assert object_name({}, replace(order, operation=order.operation + "x")) != name


def test_a_kubernetes_operation_is_in_the_name_as_it_stands() -> None:
    assert object_name({}, ORDER) == f"sickbay-{UID}-1-gpu-reset"


def test_the_object_has_the_operation_and_its_owner_whatever_the_template_says() -> None:
    template = {
        "apiVersion": "example.test/v1",
        "kind": "Repair",
        "metadata": {
            "namespace": "ns",
            "labels": {"node": "{node}"},
            "annotations": {OPERATION: "another", "why": "{reason}"},
        },
        "spec": {"gpus": ["{gpus}"], "count": 2},
    }
    made = manifest(template, ORDER, name="x", owner=OWNER)
    assert made == {
        "apiVersion": "example.test/v1",
        "kind": "Repair",
        "metadata": {
            "namespace": "ns",
            "name": "x",
            "labels": {"node": "n1"},
            "annotations": {OPERATION: ORDER.operation, "why": "xid:79 on GPU-1"},
            "ownerReferences": [OWNER],
        },
        "spec": {"gpus": ["GPU-1,GPU-2"], "count": 2},
    }


# -- what an object shows ----------------------------------------------------------------

CONTENT = {
    "status": {
        "phase": "Done",
        "ready": True,
        "count": 3,
        "nodes": [{"state": "a"}, {"state": "b"}],
        "conditions": [
            {"type": "Other", "status": "True"},
            {"type": "Succeeded", "status": "True", "reason": "R", "message": "m"},
        ],
    },
    "metadata": {"labels": {"a.b/c": "x"}},
}


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ({"condition": "Succeeded"}, "Succeeded is True: R: m"),
        ({"condition": "Succeeded", "status": "False"}, None),
        ({"condition": "Absent"}, None),
        ({"field": "status.phase", "equals": "Done"}, "status.phase is Done"),
        ({"field": "status.phase", "equals": "done"}, None),
        ({"field": "status.ready", "equals": "true"}, "status.ready is true"),
        ({"field": "status.count", "equals": "3"}, "status.count is 3"),
        ({"field": "status.nodes[1].state", "equals": "b"}, "status.nodes[1].state is b"),
        ({"field": "status.nodes[2].state", "equals": "b"}, None),
        ({"field": "metadata.labels['a.b/c']", "equals": "x"}, "metadata.labels['a.b/c'] is x"),
        ({"field": "status.nodes", "equals": "b"}, None),
    ],
)
def test_an_outcome_is_a_condition_or_a_field(outcome: dict[str, str], words: str | None) -> None:
    assert shows(OutcomeSection(**outcome), CONTENT) == words  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"status": None},
        {"status": []},
        {"status": {"conditions": None}},
        {"status": {"conditions": "x"}},
        {"status": {"conditions": ["x", None, {}]}},
    ],
)
def test_an_object_of_another_shape_shows_no_outcome(content: dict[str, Any]) -> None:
    assert shows(OutcomeSection(condition="Succeeded"), content) is None
    assert shows(OutcomeSection(field="status.a[0].b", equals="x"), content) is None
    assert shows(None, content) is None


def test_a_status_or_a_finalizer_is_another_controllers_work() -> None:
    assert not has_begun({"metadata": {"name": "x"}})
    assert not has_begun({"metadata": {}, "status": {}})
    assert has_begun({"metadata": {}, "status": {"phase": "x"}})
    assert has_begun({"metadata": {"finalizers": ["x"]}})


@given(st.text(max_size=20))
def test_a_path_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        read_field(CONTENT, parse_field_path(text))


@pytest.mark.parametrize("text", ["a..b", "a.", "a[b]", "a[0", "a b", "['']", "a['b", "$.a", "a[]"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no path of a field at character"):
        parse_field_path(text)
