"""docs/reference/quarantine.md: the fields of Quarantine and Operation, as `kubectl explain` has
them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from release.reference.tables import table
from release.tree import ROOT

_HEAD = """# Fields of the Quarantine and the Operation
Made from `deploy/kubernetes/crd.yaml` by `make docs-reference`. [release.md](../release.md)
explains what people may edit, [fences.md](../fences.md) each phase and condition.
"""


def page() -> str:
    """The page's Markdown."""
    text = (ROOT / "deploy" / "kubernetes" / "crd.yaml").read_text("utf-8")
    lines = [_HEAD]
    for definition in yaml.safe_load_all(text):
        kind = definition["spec"]["names"]["kind"]
        for version in definition["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]["properties"]
            for part in ("spec", "status"):
                lines += [f"## {kind}: {part} ({version['name']})", ""]
                lines += [*table(("field", "type", "meaning"), _fields(part, schema[part])), ""]
    return "\n".join(lines).rstrip() + "\n"


def _fields(path: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, field in schema.get("properties", {}).items():
        several = field.get("type") == "array"
        inner = field["items"] if several else field
        where = f"{path}.{name}{'[]' if several else ''}"
        kind = " or ".join(f"`{one}`" for one in inner.get("enum", ())) or inner.get("type", "")
        yield f"`{where}`", inner.get("format", kind), field.get("description", "")
        yield from _fields(where, inner)
