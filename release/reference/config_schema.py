"""The JSON Schema of the configuration file, for editors.

It describes the file as people write it ("30s", "5%"), one section inside the other. It knows less
than `load`: `sickbay-aggregator config check` finds contradictions, files and rules as well.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from aggregator.alerts import settings as alerts
from aggregator.config.settings import Config
from aggregator.configfile import values
from aggregator.rfc3339 import span

#: Draft 7 is the one that every editor's language server knows.
DIALECT = "http://json-schema.org/draft-07/schema#"
DURATION = r"^\d+(\.\d+)?(ms|s|m|h|d)$"
PERCENT = r"^\d+(\.\d+)?%$"
_TEXT: JsonSchemaValue = {"type": "string"}
_FORMS: Mapping[Callable[..., object], JsonSchemaValue] = {
    values.duration: {"type": "string", "pattern": DURATION, "examples": ["30s"]},
    values.percent: {"type": "string", "pattern": PERCENT, "examples": ["5%"]},
    values.address: {"type": "string", "examples": ["HOST:PORT", "unix:/PATH"]},
    values.tcp_address: {"type": "string", "examples": ["HOST:PORT"]},
    values.http_url: {"type": "string", "pattern": "^https?://"},
    values.page_url: {"type": "string", "pattern": "^(https?://.*)?$"},
    values.documentation_url: {"type": "string", "pattern": "^(https?://.*)?$"},
    values.database_url: {"type": "string", "pattern": "^(sqlite|postgresql)"},
    values.shared_database_url: {"type": "string", "pattern": "^(postgresql.*)?$"},
    values.ordinary_path: {"type": "string", "minLength": 1},
    values.maybe_path: _TEXT,
    values.rules_path: {"type": "string", "minLength": 1},
    values.selector: {"type": "string", "examples": ["app=trainer,team=a"]},
    alerts.moment: {"type": "string", "examples": ["2026-12-01T08:00:00Z"]},
}
_BOUNDS = {
    "ge": "at least",
    "minimum": "at least",
    "gt": "more than",
    "exclusiveMinimum": "more than",
    "le": "at most",
    "maximum": "at most",
}


class _FileSchema(GenerateJsonSchema):
    """Of a value that a validator reads from text: the form of that text."""

    def function_before_schema(
        self, schema: core_schema.BeforeValidatorFunctionSchema
    ) -> JsonSchemaValue:
        function = cast("Callable[..., object]", schema["function"]["function"])
        if isinstance(function, values.Shaped):
            # Python's end of text is "$" in the dialect of editors.
            pattern = function.pattern.replace(r"\Z", "$")
            return {"type": "string", "pattern": f"^{pattern}$"}
        form = _FORMS.get(function)
        return super().function_before_schema(schema) if form is None else dict(form)


def config_schema() -> dict[str, Any]:
    """The schema of the whole file; each section is where the file has it."""
    found = Config.model_json_schema(schema_generator=_FileSchema)
    whole = _inlined(found, found.get("$defs", {}))
    return {"$schema": DIALECT, "title": "Configuration of the sickbay aggregator", **whole}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema without references, and without the words of classes, which people don't see."""
    if isinstance(schema, list):
        return [_inlined(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        return _inlined({**target, **{k: v for k, v in schema.items() if k != "$ref"}}, definitions)
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            found[key] = {name: _inlined(one, definitions) for name, one in value.items()}
        elif key not in ("$defs", "title", "description"):
            found[key] = value if key == "default" else _inlined(value, definitions)
    return _as_written(_without_null(found))


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A key that may be left out: null is no value that anyone writes."""
    choices = schema.get("anyOf", [])
    others = [one for one in choices if one != {"type": "null"}]
    if len(others) == 1 and len(choices) == 2:
        schema = {**others[0], **{k: v for k, v in schema.items() if k != "anyOf"}}
    return {k: v for k, v in schema.items() if k != "default" or v is not None}


def _as_written(schema: dict[str, Any]) -> dict[str, Any]:
    """Defaults and bounds of durations and percentages in the form of the file."""
    unit = {DURATION: span, PERCENT: percent}.get(schema.get("pattern", ""))
    default = schema.get("default")
    if isinstance(default, dict) or (unit is None and _is_other(schema)):
        del schema["default"]  # a section's, which its keys have; or no value of the file
    elif unit is not None and isinstance(default, int | float):
        schema["default"] = unit(default)
    if schema.get("type") == "string":
        bounds = [
            f"{words} {unit(schema.pop(key)) if unit else schema.pop(key)}"
            for key, words in _BOUNDS.items()
            if key in schema
        ]
        if bounds:
            schema["description"] = ", ".join(bounds)
    return schema


def _is_other(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string" and not isinstance(schema.get("default", ""), str)


def percent(number: float) -> str:
    """A percentage with its sign."""
    return f"{number:g}%"


def properties(schema: Mapping[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Every key's schema by its dotted name; the keys of a list's entries follow ``[]``."""
    found: dict[str, dict[str, Any]] = {}
    for name, one in schema.get("properties", {}).items():
        inner = one.get("items", one)
        if inner.get("properties"):  # a section without keys is a key itself
            found |= properties(inner, f"{prefix}{name}{'[]' if 'items' in one else ''}.")
        else:
            found[prefix + name] = one
    return found
