"""A repairer's section ``external``: the object of a site's own kind that requests a repair."""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from aggregator.config.field_path import parse_field_path
from aggregator.configfile.section import Section
from aggregator.configfile.values import PLACE, kind_of, refuse, show, wrong_places
from aggregator.configfile.yaml_source import Key

#: The placeholders that are filled in, in each text of the template.
PLACES = (
    *("operation", "repair", "node", "node_uid", "boot_id", "quarantine", "reason"),
    "gpus",
)
#: A name must have one of these, as the objects of two nodes must not have the same name.
_DISTINCT = ("{operation}", "{node}", "{node_uid}")
_NAME_PLACES = ("operation", "repair", "node", "node_uid", "quarantine")

_API_VERSION = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?v[0-9][a-z0-9]*")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]*")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME_TEXT = re.compile(r"[a-z0-9.-]*")
_PARTS = ("metadata", "spec")
#: Keys of metadata that a site may set; the others are the API server's or ours.
_METADATA = ("name", "namespace", "labels", "annotations")


def _field_path(value: str) -> str:
    try:
        parse_field_path(value)
    except ValueError as error:
        raise refuse(str(error), "a path such as status.phase or status.nodes[0].state") from None
    return value


def _scalar(value: Any) -> Any:
    """YAML reads an unquoted True as a boolean."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _status(value: Any) -> Any:
    return str(value) if isinstance(value, bool) else value


class OutcomeSection(Section):
    """The sign of an outcome on the object: a condition, or a field."""

    condition: str = ""
    """The type of an entry of ``status.conditions`` that shows this outcome."""
    status: Annotated[Literal["True", "False", "Unknown"], BeforeValidator(_status)] = "True"
    """With ``condition``: its status."""
    field: Annotated[str, AfterValidator(_field_path)] = ""
    """Instead, the path of a field, such as ``status.phase`` or ``status.nodes[0].state``."""
    equals: Annotated[str, BeforeValidator(_scalar)] = ""
    """With ``field``: its value as text."""


class ExternalSection(Section):
    """An object that another controller carries out."""

    template: Annotated[Mapping[str, Any], Field(strict=False)]
    """The manifest of an object that another controller carries out: apiVersion, kind,
    metadata.namespace, spec. In its texts placeholders are filled in
    (docs/repair.md#an-object-of-your-own).
    """
    succeeded: OutcomeSection | None = None
    """The sign of success. The Node is the proof of a reboot or a replacement."""
    failed: OutcomeSection | None = None
    """The sign of a failure."""


def external_errors(section: ExternalSection, key: Key) -> Iterator[tuple[Key, str]]:
    """The errors of the section: the key, and the value to write instead."""
    yield from _template_errors(section.template, (*key, "template"))
    for name in ("succeeded", "failed"):
        outcome = getattr(section, name)
        if outcome is not None:
            yield from _outcome_errors(outcome, (*key, name))
    if section.succeeded is not None and section.succeeded == section.failed:
        yield (*key, "failed"), "is the same as succeeded; expected another condition or value"


def template_warnings(template: Mapping[str, Any], key: Key) -> Iterator[tuple[Key, str]]:
    """Keys that look like a part that the object lacks; a kind may have keys of any name."""
    for name in template:
        near = difflib.get_close_matches(name, _PARTS, 1, 0.7) if name not in _PARTS else []
        if near and near[0] not in template:
            yield (*key, name), f'is sent as it is; did you mean "{near[0]}"?'


def _outcome_errors(outcome: OutcomeSection, key: Key) -> Iterator[tuple[Key, str]]:
    if bool(outcome.condition) == bool(outcome.field):
        given = "condition and field" if outcome.condition else "no condition and no field"
        yield key, f"has {given}; expected one of them"
    if outcome.field and not outcome.equals:
        yield key, "has a field without a value; expected equals too"
    if outcome.equals and not outcome.field:
        yield (*key, "equals"), "is about a field; expected field too"


def _template_errors(template: Mapping[str, Any], key: Key) -> Iterator[tuple[Key, str]]:
    for name, pattern, expected in (
        ("apiVersion", _API_VERSION, '"GROUP/VERSION", such as "batch/v1"'),
        ("kind", _KIND, 'an object\'s kind, such as "Job"'),
    ):
        value = template.get(name)
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            yield (*key, name), f"{show(value)}; expected {expected}"
    if "status" in template:
        yield (*key, "status"), "is the other controller's; expected no status"
    yield from _metadata_errors(template.get("metadata", {}), (*key, "metadata"))
    for name, value in template.items():
        yield from _place_errors(value, (*key, name))


def _metadata_errors(metadata: Any, key: Key) -> Iterator[tuple[Key, str]]:
    if not isinstance(metadata, dict):
        yield key, f"{kind_of(metadata)}; expected {', '.join(_METADATA)}"
        return
    for name in metadata:
        if name not in _METADATA:
            yield (*key, name), f"can't be set; expected {', '.join(_METADATA)}"
    namespace = metadata.get("namespace", "")
    if namespace != "" and not (isinstance(namespace, str) and _NAMESPACE.fullmatch(namespace)):
        text = f"{show(namespace)}; expected the name of one namespace, without a placeholder"
        yield (*key, "namespace"), text
    for name in ("labels", "annotations"):
        texts = metadata.get(name, {})
        if not isinstance(texts, dict) or not all(isinstance(one, str) for one in texts.values()):
            yield (*key, name), f"{kind_of(texts)}; expected keys with texts (in quotes)"
    name = metadata.get("name")
    if name is None:
        return
    if not isinstance(name, str) or _NAME_TEXT.fullmatch(PLACE.sub("", name)) is None:
        text = f"{show(name)}; expected small letters, digits, '-', '.' and placeholders"
        yield (*key, "name"), text
    elif not any(place in name for place in _DISTINCT):
        text = f"{show(name)} is the same for every node; expected one of {', '.join(_DISTINCT)}"
        yield (*key, "name"), text
    elif any(place[1] not in _NAME_PLACES for place in PLACE.finditer(name)):
        known = ", ".join(f"{{{one}}}" for one in _NAME_PLACES)
        yield (*key, "name"), f"{show(name)}; expected none but {known} in a name"


def _place_errors(value: Any, key: Key) -> Iterator[tuple[Key, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if PLACE.search(name):
                yield key, f"has a placeholder in the key {show(name)}; expected it in values alone"
            yield from _place_errors(inner, (*key, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _place_errors(inner, (*key, number))
    elif isinstance(value, str):
        known = ", ".join(f"{{{one}}}" for one in PLACES)
        for what in wrong_places(value, PLACES):
            yield key, f"{what}; expected one of {known}"
    elif not isinstance(value, bool | int | float | None):
        yield key, f"{show(value)}; expected a text (in quotes), a number, true or false"
