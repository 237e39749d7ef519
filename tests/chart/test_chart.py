"""The chart is current, its values are documented, and it installs the objects that kustomize does.

Helm itself is not needed here: the renderings are in golden/, and `make deploy-check` compares them
with the output of a real Helm.
"""

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aggregator.cluster.port import Action
from aggregator.config import settings as aggregator_config
from nodeagent.config import settings as agent_config
from tests.chart import by_kustomize, values_docs, values_schema
from tests.chart.manifest_edits import ManifestText
from tests.chart.renderings import RENAMED, RENDERINGS, Rendering, golden
from tests.chart.same_objects import comparable, differences
from tests.chart.templates import CHART, chart_files
from tests.deploy.manifests import ROOT, container, mounts
from tests.support.text_files import text_file
from tests.support.yaml_documents import read_yaml

MADE = chart_files()
each_rendering = pytest.mark.parametrize("rendering", RENDERINGS, ids=lambda r: r.name)


def one(rendering: Rendering, kind: str, name: str) -> dict[str, Any]:
    [found] = [
        each
        for each in golden(rendering)
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


# -- the chart's files -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_a_file_that_is_made_from_a_manifest_is_current(path: Path) -> None:
    assert path.read_text("utf-8") == MADE[path], "run `make chart`"


def test_the_documentation_of_the_values_is_current() -> None:
    assert values_docs.README.read_text("utf-8") == values_docs.readme(), "run `make chart`"


def test_every_value_is_in_the_schema_and_no_other_is() -> None:
    schema = json.loads(values_schema.OWN.read_text("utf-8"))
    described = {value.name for value in values_docs.values()}
    for name in described:
        values_docs.schema_of(name)
    assert set(schema["properties"]) - {"global"} == {name.partition(".")[0] for name in described}
    for name, section in schema["properties"].items():
        for key in section.get("properties", {}):
            assert any(f"{each}.".startswith(f"{name}.{key}.") for each in described), (
                f"{name}.{key}"
            )


def test_a_value_that_is_null_is_missing_for_helm_and_the_schema_says_so() -> None:
    """Helm takes a default away that is set to null; a template would fail on it, or leave its
    objects out.
    """
    schema = json.loads(values_schema.OWN.read_text("utf-8"))
    shipped = read_yaml((CHART / "values.yaml").read_text("utf-8"))

    def unguarded(of: dict[str, Any], data: dict[str, Any], path: str = "") -> Iterator[str]:
        of = schema["definitions"].get(of.get("$ref", "").rpartition("/")[2], of)
        for key, value in data.items():
            if value is not None and key not in of.get("required", ()):
                yield f"{path}{key}"
            inner = of.get("properties", {}).get(key, {})
            if isinstance(value, dict) and ("properties" in inner or "switch" in str(inner)):
                yield from unguarded(inner, value, f"{path}{key}.")

    assert list(unguarded(schema, shipped)) == []


def test_the_templates_use_every_value_and_no_other() -> None:
    files = [*(CHART / "templates").rglob("*.*")]
    text = "".join(file.read_text("utf-8") for file in files)
    used = set(re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", text))
    assert used == {value.name for value in values_docs.values()}


def test_the_charts_versions_are_the_programs() -> None:
    chart = read_yaml((CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


# -- its objects -----------------------------------------------------------------------------------


@each_rendering
def test_kustomize_makes_the_same_objects(rendering: Rendering, tmp_path: Path) -> None:
    charts = comparable(golden(rendering))
    others = comparable(by_kustomize.objects(rendering, tmp_path))
    others = {key: value for key, value in others.items() if key[0] != "CustomResourceDefinition"}
    assert len(charts) > 25
    assert not differences(charts, others), "run `make chart`, which needs helm"


def test_the_agents_monitor_has_the_token_that_agents_want_and_that_opens_nothing_else() -> None:
    rendering = next(each for each in RENDERINGS if each.name == "pod-monitor")
    [endpoint] = one(rendering, "PodMonitor", "sickbay-agent")["spec"]["podMetricsEndpoints"]
    named = endpoint["authorization"]["credentials"]
    agent = one(rendering, "DaemonSet", "sickbay-agent")["spec"]["template"]["spec"]
    env = {each["name"]: each.get("value") for each in container(agent)["env"]}
    [port] = [each for each in container(agent)["ports"] if each["name"] == endpoint["port"]]
    assert env["METRICS_LISTEN"] == f"0.0.0.0:{port['hostPort']}"
    folder, _, file = str(env["METRICS_TOKEN_FILE"]).rpartition("/")
    _, volume = mounts(agent)[folder]
    assert volume["secret"]["secretName"] == named["name"]
    assert volume["secret"]["items"] == [{"key": named["key"], "path": file}]
    secret = one(rendering, "Secret", named["name"])
    [account] = secret["metadata"]["annotations"].values()
    assert one(rendering, "ServiceAccount", account)["automountServiceAccountToken"] is False
    subjects = [s["name"] for each in golden(rendering) for s in each.get("subjects", ())]
    assert subjects
    assert account not in subjects


#: What programs and people's commands know by name.
KNOWN_BY_NAME = {
    "operations.sickbay.dev",
    "quarantines.sickbay.dev",
    "sickbay-ca",
    "sickbay-idle-test",
    "sickbay-metrics",
    "sickbay-metrics-reader",
    "sickbay-operator",
    "sickbay-page",
    "sickbay-quarantine-editor",
    "sickbay-stop",
    "sickbay-viewer",
}


def test_a_name_override_changes_every_name_but_those_that_are_known() -> None:
    """And each reference with its object: the same objects under the shipped names are there."""
    objects = golden(RENAMED)
    named = {each["metadata"]["name"] for each in objects}
    assert {name for name in named if not name.startswith("gpu-nurse")} <= KNOWN_BY_NAME
    assert {"gpu-nurse", "gpu-nurse-aggregator", "gpu-nurse-agent"} <= named
    text = one(RENAMED, "ConfigMap", "gpu-nurse-aggregator")["data"]["aggregator.yaml"]
    config = read_yaml(text)
    assert config["replicas"]["domain"] == "gpu-nurse-aggregator"
    assert config["identity"]["service_account"] == "sickbay:gpu-nurse-agent"
    back = comparable(read_yaml(yaml.safe_dump(objects).replace("gpu-nurse", "sickbay")))
    for key, shipped in comparable(golden(RENDERINGS[0])).items():
        kind, _, name = key
        found = back[key]
        if (kind, name) == ("ConfigMap", "sickbay-aggregator"):
            continue  # it names both service accounts
        if (kind, name) == ("DaemonSet", "sickbay-agent"):
            [one_] = found["spec"]["template"]["spec"]["containers"]
            assert "sickbay-aggregator.$(POD_NAMESPACE)" in yaml.safe_dump(one_["env"])
            continue  # it has the port for metrics
        assert found == shipped, key


def test_the_comparison_sees_any_difference() -> None:
    objects = golden(RENDERINGS[0])
    changed = copy.deepcopy(objects)
    [aggregator] = [each for each in changed if each["kind"] == "StatefulSet"]
    container(aggregator["spec"]["template"]["spec"])["image"] = "other"
    [config] = [e for e in changed if "aggregator.yaml" in e.get("data", {})]
    config["data"]["aggregator.yaml"] += "log_level: debug\n"
    found = differences(comparable(objects), comparable(changed[1:]))
    assert len(found) == 3, found
    assert not differences(comparable(objects), comparable(copy.deepcopy(objects)))


@each_rendering
def test_the_aggregator_starts_with_its_configuration(rendering: Rendering, tmp_path: Path) -> None:
    text = one(rendering, "ConfigMap", "sickbay-aggregator")["data"]["aggregator.yaml"]
    file = text_file(tmp_path / "aggregator.yaml", text)
    spec = one(rendering, "StatefulSet", "sickbay-aggregator")["spec"]["template"]["spec"]
    for at in mounts(spec):  # the files of each volume that could be named
        for name in ("tls.crt", "tls.key", "ca.crt", "token", "password"):
            (tmp_path / at.lstrip("/")).mkdir(parents=True, exist_ok=True)
            (tmp_path / at.lstrip("/") / name).write_text("x")
    environ = {"POD_NAMESPACE": rendering.namespace}
    config = aggregator_config.load(file, root=tmp_path, environ=environ)
    assert config.mode is Action(rendering.values.get("mode", "observe"))
    assert config.cluster.namespace == rendering.namespace
    assert config.replicas.domain == f"sickbay-aggregator.{rendering.namespace}.svc"


@each_rendering
def test_the_agent_starts_with_its_configuration(rendering: Rendering, tmp_path: Path) -> None:
    text = one(rendering, "ConfigMap", "sickbay-agent")["data"]["agent.toml"]
    moved = re.sub(r'"(/(?:host|etc/sickbay|var/run/secrets/sickbay))', rf'"{tmp_path}\1', text)
    for name in ("host/x", "etc/sickbay/ca.crt", "var/run/secrets/sickbay/token"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    file = text_file(tmp_path / "agent.toml", moved)
    environ = {"NODE_NAME": "gpu-1", "AGGREGATOR_ADDRESS": "a:1"}
    config = agent_config.load(file, environ)
    assert config.kernel_log.enabled is not rendering.values.get("agent", {}).get("restricted")


def test_without_values_it_needs_nothing_prepared_and_only_observes() -> None:
    small = RENDERINGS[0]
    assert not small.values
    aggregator = one(small, "StatefulSet", "sickbay-aggregator")["spec"]
    assert aggregator["replicas"] == 1
    assert "volumeClaimTemplates" not in aggregator  # no StorageClass
    kinds = {each["apiVersion"].partition("/")[0] for each in golden(small)}
    assert not [group for group in kinds if "." in group and not group.endswith(".k8s.io")], kinds
    config = one(small, "ConfigMap", "sickbay-aggregator")["data"]["aggregator.yaml"]
    assert read_yaml(config)["mode"] == "observe"


def test_an_uninstall_keeps_the_stop_switch() -> None:
    """The aggregator runs for moments longer, and must not act in them on a stopped cluster."""
    stop = one(RENDERINGS[0], "ConfigMap", "sickbay-stop")
    assert stop["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "data" not in stop  # an upgrade leaves a person's reason as it is
    crd = MADE[CHART / "templates" / "crd.yaml"]
    assert "helm.sh/resource-policy: keep" in crd


def test_an_insertion_stands_in_its_entry_where_an_outer_one_ends_too() -> None:
    text = ManifestText("a:\n  b:\n    - c\nlast: d\n")
    text.guard(("a",), "outer")
    text.insert_after(("a", "b"), ["inner"])
    text.guard(("last",), "last")
    assert text.edited().splitlines() == [
        "{{- if outer }}",
        "a:",
        "  b:",
        "    - c",
        "  inner",
        "{{- end }}",
        "{{- if last }}",
        "last: d",
        "{{- end }}",
    ]
