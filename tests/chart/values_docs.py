"""The chart's README.md: every value with its type, its default and the comment above it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.chart import values_schema
from tests.chart.templates import CHART
from tests.support.present import of_type
from tests.support.yaml_documents import read_yaml

README = CHART / "README.md"

_HEAD = """# The chart sickbay
Made from `values.yaml` and `values.schema.json` by `make chart`.

```
helm upgrade --install sickbay ./deploy/helm/sickbay --namespace sickbay --create-namespace \\
  --set image.repository=YOUR-REGISTRY
```
installs all of sickbay in mode observe, and can be repeated, also after a failure.
[docs/install.md](../../../docs/install.md) goes on from there. The names of objects do not depend
on the release's name, because a cluster has one sickbay; a second release is refused, also under
another `fullnameOverride`.

A value can't be null, except where its type has null: leave it out for its default. In
`aggregator.config` and `agent.config` a null is as a key that is left out; in `resources` it takes
an amount away.

| value | type | default | meaning |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its dotted name, its default, and the comment above it."""

    name: str
    default: Any
    meaning: str


def values() -> list[Value]:
    """Every value of values.yaml, in its order."""
    text = (CHART / "values.yaml").read_text("utf-8")
    root = of_type(yaml.compose(text), yaml.MappingNode)
    return list(_values(root, read_yaml(text), text.splitlines()))


def _values(
    node: yaml.MappingNode, data: dict[str, Any], lines: list[str], prefix: str = ""
) -> Iterator[Value]:
    for key, value in node.value:
        name, line = f"{prefix}{key.value}", key.start_mark.line
        comment = lines[line - 1].strip() if line else ""
        if comment.startswith("#"):
            yield Value(name, data[key.value], comment.removeprefix("# "))
        else:
            assert isinstance(value, yaml.MappingNode), f"{name} has no comment above it"
            yield from _values(value, data[key.value], lines, f"{name}.")


def schema_of(name: str) -> dict[str, Any]:
    """The schema of a value, or KeyError."""
    schema = json.loads(values_schema.OWN.read_text("utf-8"))
    found: dict[str, Any] = schema
    for part in name.split("."):
        found = found["properties"][part]
        if "$ref" in found:
            found = schema["definitions"][found["$ref"].rpartition("/")[2]]
    return found


def readme() -> str:
    """The text of README.md."""
    rows = (
        f"| `{value.name}` | {_type(schema_of(value.name))} | `{json.dumps(value.default)}` "
        f"| {value.meaning.replace('|', chr(92) + '|')} |\n"
        for value in values()
    )
    return _HEAD + "".join(rows)


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    types = schema["type"]
    return " or ".join(types) if isinstance(types, list) else str(types)


def write(path: Path = README) -> None:
    """Write README.md anew."""
    path.write_text(readme(), encoding="utf-8")
