"""The chart's schema: its own values, and the schemas of both configuration files within them.

So `helm` refuses a misspelt key of `aggregator.config` or `agent.config` before anything is
installed. Helm removes a default whose value is null, so each key may be null.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from release.reference.schemas import agent_schema, aggregator_schema

#: The hand-written part, for the chart's own values.
OWN = Path(__file__).with_name("values.schema.json")
#: Texts for people, which docs/reference has; without them the chart is 60 KB smaller.
_LEFT_OUT = frozenset({"$schema", "title", "description", "default", "examples", "format"})
_KEYED = ("properties", "patternProperties")
_LISTED = ("anyOf", "oneOf", "allOf")


def text() -> str:
    """The content of values.schema.json."""
    schema = json.loads(OWN.read_text("utf-8"))
    for name, config in (("aggregator", aggregator_schema()), ("agent", agent_schema())):
        schema["definitions"][f"{name}Config"] = _for_helm(config)
        described = schema["properties"][name]["properties"]["config"]
        described["allOf"] = [{"$ref": f"#/definitions/{name}Config"}]
    return json.dumps(schema, indent=1) + "\n"


def _for_helm(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same without texts for people, and without what Go's regular expressions lack."""
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _LEFT_OUT or key == "required":
            continue  # a value may come from the shipped file that the chart merges with it
        if key in _KEYED:
            made[key] = {name: _or_null(_for_helm(one)) for name, one in value.items()}
        elif key in _LISTED:
            made[key] = [_for_helm(one) for one in value]
        elif key == "pattern" and "(?" in value:
            continue  # RE2 has no look-ahead; the program checks the value at its start
        else:
            made[key] = _for_helm(value) if isinstance(value, Mapping) else value
    return made


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if not schema:
        return schema
    return {"anyOf": [schema, {"type": "null"}]} if "type" not in schema else _typed(schema)


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    made = schema | {"type": list(dict.fromkeys([*kinds, "null"]))}
    if "enum" in schema:
        made["enum"] = list(dict.fromkeys([*schema["enum"], None]))
    if "const" in schema:
        made["enum"] = [made.pop("const"), None]
    return made
