"""`make deploy-check`: kubeconform, with the schemas of the oldest and the newest Kubernetes.

A server-side dry-run (check_install.py) is the stronger check, of the version that runs; this is
the one that a person can run without a cluster, so that the chart must pass it too. Kubernetes' own
source gives the schemas, because kubeconform's are on a host that tests must not ask.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart import by_kustomize
from tests.chart.renderings import BUILT_IN, Rendering, render
from tests.controlplane import binaries, sources


@pytest.fixture(scope="module", params=["oldest", "newest"])
def schemas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schemas of one version."""
    return write_schemas(request.param, tmp_path_factory.mktemp("schemas"))


def write_schemas(version: str, folder: Path) -> Path:
    """``folder`` with a JSON schema for each kind: KIND-GROUP-VERSION.json, in lower case."""
    document = sources.kubernetes_openapi(version)
    definitions = {name: strict(body) for name, body in document["definitions"].items()}
    for name, body in document["definitions"].items():
        for kind in body.get("x-kubernetes-group-version-kind", []):
            group = kind["group"].partition(".")[0]
            parts = [kind["kind"], *([group] if group else []), kind["version"]]
            needed = closure(name, definitions)
            schema = {"$ref": f"#/definitions/{name}", "definitions": needed}
            (folder / f"{'-'.join(parts).lower()}.json").write_text(json.dumps(schema))
    return folder


def closure(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """The definition of this name and all that it refers to. A file must stand alone."""
    found: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = definitions[each]
            text = json.dumps(found[each])
            waiting += re.findall(r'"#/definitions/([^"]+)"', text)
    return found


def strict(schema: Any) -> Any:
    """The schema with unknown fields refused, and in JSON schema's own words."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    changed = {key: strict(value) for key, value in schema.items()}
    if changed.get("format") == "quantity":
        changed = {"type": ["string", "number"]}
    reference = changed.get("$ref")
    if isinstance(reference, str):
        target = reference.rpartition("/")[2]
        if target.endswith("api.resource.Quantity"):
            return {"type": ["string", "number", "null"]}
        if target.endswith(("util.intstr.IntOrString",)):
            return {"type": ["string", "integer"]}
        return {"$ref": f"#/definitions/{target}"}
    if isinstance(changed.get("properties"), dict) and "additionalProperties" not in changed:
        changed["additionalProperties"] = False
    return changed


def validated(schemas: Path, objects: list[dict[str, Any]]) -> "subprocess.CompletedProcess[str]":
    location = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    command = [
        str(binaries.program("kubeconform")),
        "-summary",
        "-strict",
        *("-skip", "CustomResourceDefinition"),
        "-schema-location",
        location,
    ]
    text = yaml.safe_dump_all(objects)
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("rendering", BUILT_IN, ids=lambda r: r.name)
def test_every_object_of_the_chart_is_valid(schemas: Path, rendering: Rendering) -> None:
    done = validated(schemas, render(binaries.program("helm"), rendering))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Invalid: 0, Errors: 0, Skipped: 1" in done.stdout


def test_every_object_of_kustomize_is_valid(schemas: Path, tmp_path: Path) -> None:
    done = validated(schemas, by_kustomize.objects(BUILT_IN[2], tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def with_field_of_the_agents_pod(name: str, value: Any) -> list[dict[str, Any]]:
    """The objects of the chart, with one more field in the spec of the agents' pods."""
    objects = render(binaries.program("helm"), BUILT_IN[0])
    [agent] = [
        e for e in objects if (e["kind"], e["metadata"]["name"]) == ("DaemonSet", "sickbay-agent")
    ]
    agent["spec"]["template"]["spec"][name] = value
    return objects


def test_an_unknown_field_is_found(schemas: Path) -> None:
    done = validated(schemas, with_field_of_the_agents_pod("hostPids", True))
    assert done.returncode != 0
    assert "hostPids" in done.stdout


def test_a_field_of_a_later_version_is_found_by_the_oldest_alone(tmp_path: Path) -> None:
    """`hostnameOverride` came with Kubernetes 1.34."""
    objects = with_field_of_the_agents_pod("hostnameOverride", "a")
    for version, refused in (("oldest", True), ("newest", False)):
        folder = tmp_path / version
        folder.mkdir()
        done = validated(write_schemas(version, folder), objects)
        assert ("hostnameOverride" in done.stdout) is refused, done.stdout
