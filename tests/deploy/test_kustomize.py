"""The base and its profiles as kustomize builds them: they combine, in any namespace."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kustomized import kustomized
from tests.deploy.manifests import NAMESPACE, PROFILES, container, documents, installed

NAMES = sorted(path.name for path in PROFILES.iterdir())
PROBER = ("DaemonSet", "sickbay-pod-prober")
MONITORING = [
    ("ConfigMap", "sickbay-dashboard"),
    ("PodMonitor", "sickbay-agent"),
    ("PodMonitor", "sickbay-aggregator"),
    ("PrometheusRule", "sickbay"),
    ("Secret", "sickbay-agent-metrics"),
    ("Secret", "sickbay-pod-monitor"),
    ("Secret", "sickbay-service-monitor"),
    ("ServiceAccount", "sickbay-agent-metrics"),
    ("ServiceMonitor", "sickbay-aggregator"),
]
REPAIR = [
    (kind, f"sickbay-repair-{way}")
    for kind in ("ClusterRole", "ClusterRoleBinding")
    for way in ("cluster-api", "karpenter")
] + [
    ("PriorityClass", "sickbay-idle-test"),
    ("Role", "sickbay-repair-jobs"),
    ("RoleBinding", "sickbay-repair-jobs"),
]


def keys(objects: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((each["kind"], each["metadata"]["name"]) for each in objects)


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [e for e in objects if (e["kind"], e["metadata"]["name"]) == (kind, name)]
    return found


def test_each_profile_is_a_component() -> None:
    for name in NAMES:
        [kustomization] = documents(PROFILES / name / "kustomization.yaml")
        assert kustomization["kind"] == "Component", name


def test_the_base_alone_is_every_manifest(tmp_path: Path) -> None:
    assert keys(kustomized(tmp_path)) == keys(list(installed()))


def test_all_profiles_combine_in_another_namespace(tmp_path: Path) -> None:
    order = [name for name in NAMES if name != "namespace"] + ["namespace"]
    objects = kustomized(tmp_path, order, "gpu-health")

    assert keys(objects) == sorted(
        (kind, "gpu-health" if kind == "Namespace" else name)
        for kind, name in [*keys(list(installed())), PROBER, *MONITORING, *REPAIR]
    )
    spec = one(objects, "StatefulSet", "sickbay-aggregator")["spec"]
    assert spec["replicas"] == 3
    assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["data"]
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    assert "history" in volumes
    assert "data" not in volumes
    agent = one(objects, "DaemonSet", "sickbay-agent")["spec"]["template"]["spec"]
    assert container(agent)["securityContext"]["privileged"] is False
    assert "/dev" not in [mount["mountPath"] for mount in container(agent)["volumeMounts"]]


def test_no_object_is_left_in_the_namespace_sickbay(tmp_path: Path) -> None:
    order = [name for name in NAMES if name != "namespace"] + ["namespace"]
    objects = kustomized(tmp_path, order, "gpu-health")
    namespaces = {e["metadata"].get("namespace", "") for e in objects}
    # Events about nodes are in "default"; the Jobs of active tests have a namespace of their own.
    assert namespaces == {"", "default", "gpu-health", "sickbay-tests"}
    text = yaml.safe_dump_all(each for each in objects if "Definition" not in each["kind"])
    for old in (f"serviceaccount:{NAMESPACE}:", f"{NAMESPACE}.svc", f"namespace: {NAMESPACE}\n"):
        assert old not in text
    named = re.findall(r"namespaces:\n\s*- (\S+)", text)
    assert set(named) == {"gpu-health", "'*'"}


@pytest.mark.parametrize("namespace", [NAMESPACE, "gpu-health"])
def test_a_site_changes_images_and_configuration_beside_them(
    tmp_path: Path, namespace: str
) -> None:
    patch = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "sickbay-aggregator", "namespace": namespace},
        "data": {"aggregator.yaml": "mode: cordon\n"},
    }
    more = {
        "images": [{"name": "sickbay-agent", "newName": "images.test/sickbay-agent"}],
        "patches": [{"patch": yaml.safe_dump(patch)}],
    }
    profiles = ["pod-network", *(["namespace"] if namespace != NAMESPACE else [])]
    objects = kustomized(tmp_path, profiles, namespace, more=more)
    config = one(objects, "ConfigMap", "sickbay-aggregator")
    assert config["data"]["aggregator.yaml"] == "mode: cordon\n"
    for kind, name in (("DaemonSet", "sickbay-agent"), PROBER):
        image = container(one(objects, kind, name)["spec"]["template"]["spec"])["image"]
        assert image == "images.test/sickbay-agent:0.1.0"
