"""The API: its OpenAPI document, and docs/reference/api-fields.md, the fields of each answer."""

from collections.abc import Iterator, Mapping
from typing import Any

from release.reference.openapi import document
from release.reference.tables import table
from release.tree import version

_HEAD = """# Fields of the JSON API
Made from the code that answers by `make docs-reference`. [api.md](../api.md) explains the
endpoints; [openapi.json](../../aggregator/web/openapi.json) is the same as an OpenAPI 3.1 document,
which `/api/v1/openapi.json` serves.
"""


def openapi() -> dict[str, Any]:
    """The document of this version."""
    return document(version())


def page() -> str:
    """The page's Markdown."""
    found = openapi()
    lines = [_HEAD, "## Endpoints"]
    lines += [*table(("request", "query or body", "answer"), _endpoints(found["paths"])), ""]
    for name, schema in sorted(found["components"]["schemas"].items()):
        if "properties" in schema:
            body = ((f"`{key}`", _kind(one)) for key, one in schema["properties"].items())
            lines += [f"## {name}", _prose(schema), "", *table(("field", "type"), body), ""]
        elif "enum" in schema:
            values = ", ".join(f"`{value}`" for value in schema["enum"])
            lines += [f"## {name}", f"One of {values}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _prose(schema: Mapping[str, Any]) -> str:
    return " ".join(schema.get("description", "").replace("``", "`").split())


def _endpoints(paths: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    found = ((path, method, one) for path, of in paths.items() for method, one in of.items())
    for path, method, one in found:
        query = [f"`{p['name']}`" for p in one.get("parameters", []) if p["in"] == "query"]
        text = f"{one['summary']} {' '.join(_shapes(one['responses'].get('200', {})))}".strip()
        name = path if method == "get" else f"{method.upper()} {path}"
        yield f"`{name}`", ", ".join([*query, *_shapes(one.get("requestBody", {}))]), text


def _shapes(body: Mapping[str, Any]) -> Iterator[str]:
    """The links to the shapes of a body."""
    for content in body.get("content", {}).values():
        kind = _kind(content.get("schema", {}))
        if "#" in kind:
            yield kind


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(_kind(one) for one in schema.get("anyOf") or schema["oneOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{_kind(schema['additionalProperties'])} by name"
    found = schema.get("format") or schema.get("type") or "any"
    return str(found) if isinstance(found, str) else " or ".join(found)
