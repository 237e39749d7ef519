"""Objects in a form in which those of the chart and those of kustomize can be compared.

Left out is what only one of the two has, each for a reason:
- `helm.sh/resource-policy` and hooks, which only Helm reads, and the labels of a release;
- `checksum/config`, by which Helm restarts pods whose configuration has changed (for kustomize,
  docs/install.md restarts them);
- the Namespace, which Helm makes by `--create-namespace`.
Configurations are compared as data, because comments are kept only in the manifests.
"""

import tomllib
from typing import Any

from tests.support.yaml_documents import read_yaml

_HELMS_OWN = {
    "helm.sh/resource-policy",
    "checksum/config",
    "helm.sh/chart",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
}
_NAMED_LISTS = {"volumes", "volumeMounts", "env"}

Objects = dict[tuple[str, str, str], Any]


def comparable(objects: list[dict[str, Any]]) -> Objects:
    """The objects by kind, namespace and name."""
    found: Objects = {}
    for each in objects:
        metadata = each["metadata"]
        if each["kind"] == "Namespace" or "helm.sh/hook" in metadata.get("annotations", {}):
            continue
        key = each["kind"], metadata.get("namespace", ""), metadata["name"]
        assert key not in found, f"{key} is there twice"
        found[key] = _normal(each)
    return found


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two values differ: PATH: ONE, OTHER."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            line
            for key in sorted(one.keys() | other.keys(), key=str)
            for line in differences(one.get(key), other.get(key), f"{path}.{key}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for n, pair in pairs for line in differences(*pair, f"{path}[{n}]")]
    return [] if one == other else [f"{path}: {one!r}, {other!r}"]


def _normal(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        kept = {k: _normal(v, k) for k, v in value.items() if k not in _HELMS_OWN}
        return {k: v for k, v in kept.items() if not (k == "annotations" and not v)}
    if isinstance(value, list):
        items = [_normal(item) for item in value]
        return sorted(items, key=lambda item: item["name"]) if key in _NAMED_LISTS else items
    if key == "aggregator.yaml":
        return read_yaml(value)
    if key == "agent.toml":
        return tomllib.loads(value)
    return value
