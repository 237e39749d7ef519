"""Validates JSON against the part of JSON Schema that the OpenAPI document uses.

A keyword that it doesn't know is an error, so that no part passes unchecked.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

_KNOWN = {
    "$ref",
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "anyOf",
    "enum",
    "format",
    "title",
    "description",
    "default",
}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "null": type(None),
    "object": dict,
    "array": list,
    "number": (int, float),
    "integer": int,
}


def problems(
    value: Any, schema: Mapping[str, Any], document: Mapping[str, Any], at: str = "$"
) -> Iterator[str]:
    """All parts of ``value`` that the schema does not allow."""
    assert set(schema) <= _KNOWN, f"{at}: unknown keywords {set(schema) - _KNOWN}"
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        yield from problems(value, document["components"]["schemas"][name], document, at)
        return
    if "anyOf" in schema:
        found = [list(problems(value, one, document, at)) for one in schema["anyOf"]]
        if all(found):
            yield f"{at}: none of anyOf: {found}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    kind = schema.get("type")
    if kind is not None:
        right = isinstance(value, _TYPES[kind]) and not (
            kind in {"number", "integer"} and isinstance(value, bool)
        )
        if not right:
            yield f"{at}: {value!r} is no {kind}"
            return
    if schema.get("format") == "date-time":
        assert dt.datetime.fromisoformat(value).tzinfo is not None
    if isinstance(value, dict):
        yield from _members(value, schema, document, at)
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from problems(item, schema["items"], document, f"{at}[{number}]")


def _members(
    value: Mapping[str, Any], schema: Mapping[str, Any], document: Mapping[str, Any], at: str
) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}.{name} is missing"
    for name, item in value.items():
        if name in properties:
            yield from problems(item, properties[name], document, f"{at}.{name}")
            continue
        others = schema.get("additionalProperties", True)
        if others is False:
            yield f"{at}.{name} is not described"
        elif isinstance(others, Mapping):
            yield from problems(item, others, document, f"{at}.{name}")
