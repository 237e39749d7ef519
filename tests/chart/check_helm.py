"""`make deploy-check`, without a cluster: a real Helm against the chart and its golden renderings.

Not part of `make test`, because Helm takes minutes to build.
"""

import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.chart import copy_chart
from tests.chart import by_kustomize
from tests.chart.renderings import (
    GOLDEN_RENDERINGS,
    RENAMED,
    RENDERINGS,
    HelmError,
    Rendering,
    render,
    written,
)
from tests.chart.same_objects import comparable, differences
from tests.chart.templates import CHART
from tests.controlplane import binaries
from tests.support.yaml_documents import read_yaml

SMALL = RENDERINGS[0]
PROGRAMS = ("aggregator", "agent")
_ACCOUNT = "ServiceAccount"


@pytest.fixture(scope="session")
def helm() -> Path:
    return binaries.program("helm")


def with_values(values: dict[str, Any]) -> Rendering:
    return replace(SMALL, values=values)


def test_helm_finds_no_fault_in_it(helm: Path) -> None:
    for rendering in GOLDEN_RENDERINGS:
        done = subprocess.run(
            [helm, "lint", "--strict", CHART, "--values", "-"],
            input=yaml.safe_dump(rendering.values),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rendering", GOLDEN_RENDERINGS, ids=lambda r: r.name)
def test_the_golden_rendering_is_current(helm: Path, rendering: Rendering) -> None:
    assert rendering.golden.read_text("utf-8") == written(render(helm, rendering)), "`make chart`"


@pytest.mark.parametrize("rendering", RENDERINGS, ids=lambda r: r.name)
def test_kustomize_makes_the_same_objects_with_the_definition_too(
    helm: Path, rendering: Rendering, tmp_path: Path
) -> None:
    charts = comparable(render(helm, rendering))
    assert ("CustomResourceDefinition", "", "quarantines.sickbay.dev") in charts
    assert not differences(charts, comparable(by_kustomize.objects(rendering, tmp_path)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mode": "dranin"}, ["/mode", "'observe', 'cordon', 'drain'"]),
        ({"aggregator": {"replicas": "three"}}, ["/aggregator/replicas", "want null or integer"]),
        ({"agent": {"expect": {"gpus": 8}}}, ["/agent", "'expect' not allowed"]),
        (
            {"aggregator": {"config": {"limits": {"concurent": 5}}}},
            ["/aggregator/config/limits", "'concurent' not allowed"],
        ),
        (
            {"agent": {"config": {"expect": {"gpu": 8}}}},
            ["/agent/config/expect", "'gpu' not allowed"],
        ),
        (
            {"aggregator": {"config": {"drain": {"deadline": "soon"}}}},
            ["/aggregator/config/drain/deadline"],
        ),
        ({"fullnameOverride": "Sickbay"}, ["/fullnameOverride", "does not match"]),
        ({"nameOverride": "a" * 31}, ["/nameOverride", "does not match"]),
        ({"monitoring": {"agents": {"port": 0}}}, ["/monitoring/agents/port"]),
        ({"image": {"agentDigest": "latest"}}, ["/image/agentDigest", "does not match"]),
        ({"agent": {"maxUnavailable": "some"}}, ["/agent/maxUnavailable"]),
        ({"agent": {"maxUnavailable": "0%"}}, ["/agent/maxUnavailable"]),
        ({"agent": {"maxUnavailable": 0}}, ["/agent/maxUnavailable"]),
        ({"history": {"database": "mysql://x"}}, ["/history/database", "postgresql"]),
        ({"profile": "large"}, ["history.database is empty: set it", "--set history.database="]),
        (
            {"agent": {"config": {"checks": {"reach": {"targets": [{"a": 1}]}}}}},
            ["/agent/config/checks/reach/targets/0", "got object, want string"],
        ),
        ({"history": None}, ["missing property 'history'"]),
        ({"admissionPolicies": {"enabled": None}}, ["/admissionPolicies", "property 'enabled'"]),
        ({"agent": {"tolerations": None}}, ["/agent", "missing property 'tolerations'"]),
        ({"aggregator": {"config": {"marks": "x"}}}, ["/aggregator/config/marks", "got string"]),
        ({"aggregator": {"config": {"mode": "dranin"}}}, ["/aggregator/config/mode"]),
        # What the pod's ports, Services and probes can't follow: they would kill a healthy pod.
        *(
            ({"aggregator": {"config": {"listen": {key: value}}}}, [f"/config/listen/{key}"])
            for key, value in (
                *(("grpc", "0.0.0.0:9443"), ("web", "0.0.0.0:9090"), ("web", "127.0.0.1:8080")),
                ("insecure_plaintext", True),
            )
        ),
        ({"aggregator": {"config": {"conditions": [{}]}}}, ["/conditions/0", "property 'type'"]),
        ({"aggregator": {"config": {"conditions": [{"type": "a'b"}]}}}, ["/conditions/0/type"]),
        (
            {"agent": {"config": {"checks": {"reach": {"targets": [None]}}}}},
            ["/agent/config/checks/reach/targets/0", "got null, want string"],
        ),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(
    helm: Path, values: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(HelmError) as refused:
        render(helm, with_values(values))
    assert [word for word in words if word not in str(refused.value)] == []


def test_a_null_in_a_configuration_is_as_a_key_that_was_not_given(helm: Path) -> None:
    nulls: dict[str, Any] = {
        "aggregator": {"config": {"marks": None, "listen": None, "limits": None, "replicas": None}},
        "agent": {"config": {"checks": {"disk-write": None}, "expect": None, "own": None}},
    }
    assert render(helm, with_values(nulls)) == render(helm, SMALL)


def test_the_prober_gets_its_image_and_its_nodes_as_the_agent_does(helm: Path) -> None:
    agent = {
        "nodeSelector": {"example.com/gpu": "yes"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "site-critical",
        "affinity": {},
    }
    secrets = [{"name": "registry"}]
    values = {
        "agent": agent,
        "image": {"pullSecrets": secrets},
        "podNetworkProber": {"enabled": True},
    }
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in render(helm, with_values(values))
        if each["kind"] in {"StatefulSet", "DaemonSet"}
    }
    assert [pod["imagePullSecrets"] for pod in pods.values()] == [secrets] * 3
    for key in agent:
        assert pods["sickbay-pod-prober"][key] == pods["sickbay-agent"][key], key


def test_a_null_takes_an_amount_of_the_resources_away(helm: Path) -> None:
    nulls = {program: {"resources": {"limits": {"memory": None}}} for program in PROGRAMS}
    for each in render(helm, with_values(nulls)):
        if each["kind"] in {"StatefulSet", "DaemonSet"}:
            [container] = each["spec"]["template"]["spec"]["containers"]
            assert container["resources"]["limits"] == {}
            assert container["resources"]["requests"]["memory"]


def test_large_numbers_of_a_configuration_stay_whole(helm: Path) -> None:
    values = {"aggregator": {"config": {"history": {"most_rows": 20_000_000}}}}
    [text] = [
        each["data"]["aggregator.yaml"]
        for each in render(helm, with_values(values))
        if "aggregator.yaml" in each.get("data", {})
    ]
    assert type(read_yaml(text)["history"]["most_rows"]) is int


def test_pools_reach_the_configuration_as_they_were_written(helm: Path) -> None:
    pool = {
        "name": "canary",
        "selector": {
            "matchLabels": {"example.com/pool": "canary"},
            "matchExpressions": [{"key": "gpu", "operator": "NotIn", "values": ["none"]}],
        },
        "mode": "drain",
        "limits": {"concurrent": 2, "concurrent_percent": "10%", "new_per_window": 1},
    }
    [text] = [
        each["data"]["aggregator.yaml"]
        for each in render(helm, with_values({"aggregator": {"config": {"pools": [pool]}}}))
        if "aggregator.yaml" in each.get("data", {})
    ]
    assert read_yaml(text)["pools"] == [pool]
    assert read_yaml(text)["mode"] == "observe"


#: Where a template reads a key below, so that another type would end in an error about Go.
SECTIONS = [
    ("aggregator", key)
    for key in ("access", "conditions", "history", "listen", "marks", "pools", "replicas")
] + [("agent", "expect")]


@pytest.mark.parametrize(("program", "key"), SECTIONS, ids=str)
@pytest.mark.parametrize("wrong", ["x", 7, True], ids=str)
def test_a_section_of_a_configuration_of_the_wrong_type_is_refused_by_name(
    helm: Path, program: str, key: str, wrong: Any
) -> None:
    with pytest.raises(HelmError, match=f"/{program}/config/{key}"):
        render(helm, with_values({program: {"config": {key: wrong}}}))


@pytest.mark.parametrize("namespace", ["2026", "1e3", "on", "null", "true"])
def test_a_namespace_that_yaml_would_not_read_as_a_text_will_do(helm: Path, namespace: str) -> None:
    objects = render(helm, replace(SMALL, namespace=namespace))
    named = [each["metadata"]["namespace"] for each in objects if "namespace" in each["metadata"]]
    assert set(named) == {namespace, "default"}, "the Role for Events about nodes is in default"
    subjects = [s["namespace"] for each in objects for s in each.get("subjects", ())]
    assert set(subjects) == {namespace}


def test_names_of_objects_that_look_like_numbers_stay_texts(helm: Path) -> None:
    values = {
        "certificates": {"secretName": "1"},
        "history": {"database": "postgresql+asyncpg://db/x", "secretName": "2"},
        "aggregator": {
            "priorityClassName": "3",
            "persistence": {"enabled": True, "storageClassName": "4"},
        },
        "agent": {"priorityClassName": "5"},
    }
    text = yaml.safe_dump(render(helm, with_values(values)))
    for line in ("secretName", "priorityClassName", "storageClassName"):
        assert f"{line}: '" in text, line
    for number in range(1, 6):
        assert f"Name: '{number}'" in text, number


def notes(helm: Path, values: dict[str, Any]) -> str:
    """The text after the install."""
    done = subprocess.run(
        [helm, "install", "sickbay", CHART, "--dry-run=client", "--values", "-"],
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


def test_the_notes_name_the_mode_that_is_in_force_and_three_commands(helm: Path) -> None:
    shipped = notes(helm, {})
    assert "in mode observe: it writes to no node." in shipped
    for number, command in enumerate(("helm test", "kubectl -n", "helm upgrade"), start=1):
        assert f"\n{number}. " in shipped
        assert command in shipped.partition(f"\n{number}. ")[2]
    by_config = notes(helm, {"aggregator": {"config": {"mode": "drain"}}})
    assert "in mode drain." in by_config
    assert "writes to no node" not in by_config
    pool = {"name": "canary", "selector": {"matchLabels": {"a": "b"}}, "mode": "cordon"}
    assert "writes to no node" not in notes(helm, {"aggregator": {"config": {"pools": [pool]}}})
    assert "create token sickbay-viewer" in shipped
    opened = notes(helm, {"aggregator": {"config": {"access": {"anonymous": True}}}})
    assert "Every client that reaches it may read it" in opened


def test_what_a_site_adds_to_pods_and_objects_reaches_them(helm: Path) -> None:
    env: list[Any] = [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}]
    pods: dict[str, Any] = {
        "podLabels": {"team": "gpu"},
        "podAnnotations": {"example.test/scan": "no"},
        "extraEnv": env,
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}},
        "priorityClassName": "",
    }
    affinity: dict[str, Any] = {"podAffinity": {}}
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
    values = {
        "commonLabels": {"cost-centre": "42"},
        "agent": pods | {"affinity": affinity},
        "aggregator": pods | {"topologySpreadConstraints": spread},
    }
    objects = render(helm, with_values(values))
    labelled = [each for each in objects if "labels" in each["metadata"]]
    hooks = "helm.sh/hook"
    assert all(
        each["metadata"]["labels"].get("cost-centre") == "42"
        for each in labelled
        if hooks not in each["metadata"].get("annotations", {}) and each["kind"] != "PrometheusRule"
    )
    for kind, name in (("DaemonSet", "sickbay-agent"), ("StatefulSet", "sickbay-aggregator")):
        [found] = [e for e in objects if (e["kind"], e["metadata"]["name"]) == (kind, name)]
        template = found["spec"]["template"]
        assert template["metadata"]["labels"]["team"] == "gpu"
        assert template["metadata"]["annotations"]["example.test/scan"] == "no"
        assert env[0] in template["spec"]["containers"][0]["env"]
        assert "priorityClassName" not in template["spec"]
        if name == "sickbay-agent":
            assert template["spec"]["affinity"] == affinity
        else:
            assert template["spec"]["topologySpreadConstraints"] == spread
        [account] = [e for e in objects if (e["kind"], e["metadata"]["name"]) == (_ACCOUNT, name)]
        assert account["metadata"]["annotations"] == pods["serviceAccount"]["annotations"]
    with pytest.raises(HelmError, match="invalid propertyName"):
        render(helm, with_values({"agent": {"podLabels": {"app.kubernetes.io/name": "x"}}}))


def test_a_reconciler_that_is_left_out_takes_its_rights_with_it(helm: Path) -> None:
    def rights(reconcilers: dict[str, Any]) -> set[str]:
        config = {"aggregator": {"config": {"reconcilers": reconcilers}}}
        return {
            f"{verb} {resource}"
            for each in render(helm, with_values(config))
            if each["kind"] in ("Role", "ClusterRole") and "aggregator" in each["metadata"]["name"]
            for rule in each["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    every = rights({"drain": None})
    assert every - rights({"drain": False}) == {"create pods/eviction"}
    assert every - rights({"publish": False}) == {"create events"}
    verbs = ("get", "list", "watch", "patch", "delete", "create")
    operations = {"patch operations/status", *(f"{verb} operations" for verb in verbs)}
    assert every - rights({"operations": False}) == operations


def test_one_name_override_does_as_the_other(helm: Path) -> None:
    values = {key: value for key, value in RENAMED.values.items() if key != "fullnameOverride"}
    by_name = replace(RENAMED, values=values | {"nameOverride": "gpu-nurse"})
    assert render(helm, by_name) == render(helm, RENAMED)
    dashboard = {"monitoring": {"dashboard": {"enabled": True}}}
    odd = render(helm, with_values({"fullnameOverride": "on"} | dashboard))
    assert {"on", "on-aggregator", "on-dashboard"} <= {each["metadata"]["name"] for each in odd}


def test_agents_have_no_pod_on_nodes_without_a_kubelet_of_their_own(helm: Path) -> None:
    for each in render(helm, with_values({"podNetworkProber": {"enabled": True}})):
        if each["kind"] == "DaemonSet":
            node = each["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
            [term] = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            assert [(one["operator"], one["values"]) for one in term["matchExpressions"]] == [
                ("NotIn", ["fargate"]),
                ("NotIn", ["virtual-kubelet"]),
            ]


def test_a_monitor_sends_a_token_and_links_follow_the_sites_addresses(helm: Path) -> None:
    config = {
        "alerts": {"page": "https://sickbay.example.test/"},
        "documentation_url": "https://docs.example.test",
    }
    monitoring = {"rules": {"enabled": True}, "dashboard": {"enabled": True}}
    for scrape in ("PodMonitor", "ServiceMonitor"):
        values = {"monitoring": monitoring | {"scrape": scrape}, "aggregator": {"config": config}}
        objects = {(e["kind"], e["metadata"]["name"]): e for e in render(helm, with_values(values))}
        spec = objects[scrape, "sickbay-aggregator"]["spec"]
        [endpoint] = spec.get("podMetricsEndpoints") or spec["endpoints"]
        named = endpoint["authorization"]["credentials"]
        secret = objects["Secret", named["name"]]
        assert secret["type"] == "kubernetes.io/service-account-token"
        [account] = secret["metadata"]["annotations"].values()
        assert objects["ClusterRoleBinding", account]["roleRef"]["name"] == "sickbay-metrics-reader"
        groups = objects["PrometheusRule", "sickbay"]["spec"]["groups"]
        links = [
            rule["annotations"]["runbook_url"]
            for group in groups
            for rule in group["rules"]
            if "alert" in rule
        ]
        assert all(link.startswith("https://docs.example.test/docs/") for link in links)
        dashboard = objects["ConfigMap", "sickbay-dashboard"]["data"]["sickbay.json"]
        assert '"https://sickbay.example.test"' in dashboard
        assert "localhost" not in dashboard


def test_a_published_chart_links_to_its_release(helm: Path, tmp_path: Path) -> None:
    published = copy_chart(tmp_path, "https://a.test/sickbay", "https://a.test/sickbay/v1/")
    rules = with_values({"monitoring": {"rules": {"enabled": True}}})
    objects = render(helm, rules, chart=published)
    text = yaml.safe_dump(objects)
    assert "runbook_url: https://a.test/sickbay/v1/docs/alert-rules.md#" in text
    assert "runbook_url: docs/" not in text
    [config] = [
        e["data"]["aggregator.yaml"] for e in objects if "aggregator.yaml" in e.get("data", ())
    ]
    assert read_yaml(config)["documentation_url"] == "https://a.test/sickbay/v1"


def test_a_cluster_that_is_too_old_is_refused(helm: Path) -> None:
    with pytest.raises(HelmError, match=r"1\.30 or newer, and this cluster is v1\.29\.3"):
        render(helm, SMALL, "--kube-version", "v1.29.3")
    render(helm, SMALL, "--kube-version", "v1.30.0-eks-1234")


def test_the_agents_settings_keep_their_types(helm: Path) -> None:
    config = {
        "expect": {"gpus": 8},
        "log_level": "debug",
        "checks": {
            "reach": {"targets": ["tcp://a:1", "tcp://b:2"], "on": False},
            "disk-space": {"fail_above": "97%"},
        },
        "own": {"odd name": {"ratio": 0.5, "empty": None, "text": 'de"bug'}},
    }
    objects = render(helm, with_values({"agent": {"config": config}}))
    [text] = [
        each["data"]["agent.toml"] for each in objects if "agent.toml" in each.get("data", {})
    ]
    found = tomllib.loads(text)
    assert found["expect"] == {"gpus": 8}
    assert type(found["expect"]["gpus"]) is int
    assert found["log_level"] == config["log_level"]
    assert found["checks"]["reach"] == {"targets": ["tcp://a:1", "tcp://b:2"], "on": False}
    assert found["own"]["odd name"] == {"ratio": 0.5, "text": 'de"bug'}
    assert found["checks"]["disk-write"] == {"paths": ["/var/lib/sickbay"]}, "the shipped ones stay"
    assert found["host_root"] == "/host"


def test_only_a_change_that_needs_a_restart_restarts_agents(helm: Path) -> None:
    def checksum(config: dict[str, Any]) -> str:
        objects = render(helm, with_values({"agent": {"config": config}}))
        [agent] = [
            each
            for each in objects
            if each["metadata"]["name"] == "sickbay-agent" and each["kind"] == "DaemonSet"
        ]
        return str(agent["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    shipped = checksum({})
    for live in (
        {"checks": {"reach": {"on": False}}},
        {"own": {"mine": {"command": ["/bin/true"], "protocol": "nagios"}}},
        {"kernel_lines": {"mine": {"pattern": "x"}}},
        {"kernel_monitor": "/etc/monitor.json"},
        {"log_level": "debug"},
        {"expect": {"gpus": 8}},
    ):
        assert checksum(live) == shipped, live
    assert checksum({"state_dir": "/var/lib/other"}) != shipped


def test_one_value_moves_all_images(helm: Path) -> None:
    values = {
        "image": {"repository": "images.test:5000/x/", "tag": "9"},
        "podNetworkProber": {"enabled": True},
    }
    objects = render(helm, with_values(values))
    images = {
        container["image"]
        for each in objects
        for spec in [each.get("spec", {}).get("template", {}).get("spec") or each.get("spec", {})]
        for container in spec.get("containers", [])
    }
    assert images == {
        "images.test:5000/x/sickbay-agent:9",
        "images.test:5000/x/sickbay-aggregator:9",
    }
    digest = f"sha256:{'0' * 64}"
    objects = render(helm, with_values({"image": {"agentDigest": digest}}))
    assert f"sickbay-agent@{digest}" in yaml.safe_dump_all(objects)


def test_the_admission_policy_allows_what_the_configuration_asks_for(helm: Path) -> None:
    def own(values: dict[str, Any]) -> dict[str, str]:
        [policy] = [
            each
            for each in render(helm, with_values(values))
            if (each["kind"], each["metadata"]["name"])
            == ("ValidatingAdmissionPolicy", "sickbay-aggregator")
        ]
        return {each["name"]: each["expression"] for each in policy["spec"]["variables"]}

    marks = {"taint": {"key": "example.com/broken"}, "reason_annotation": "example.com/why"}
    conditions = [{"type": "GpuReady", "rules": ["gpu-*"], "unhealthy": "False"}]
    former = {"taints": ["old.test/t"], "annotations": ["old.test/a"], "conditions": ["Old"]}
    found = own(
        {
            "aggregator": {"config": {"marks": marks, "conditions": conditions}},
            "admissionPolicies": former,
        }
    )
    assert found["ownTaints"] == "['sickbay.dev/quarantine', 'example.com/broken', 'old.test/t']"
    assert found["ownNotices"].endswith("'example.com/why', 'old.test/a']")
    assert found["ownConditions"] == "['SickbayQuarantined', 'GpuReady', 'Old']"
    new_nodes = {"taint": "example.com/untested", "profile": "quick"}
    tests = own({"aggregator": {"config": {"repair": {"new_nodes": new_nodes}}}})
    assert tests["ownTaints"] == "['sickbay.dev/quarantine', 'example.com/untested']"
    assert tests["ownConditions"] == "['SickbayQuarantined', 'SickbayTestPassed']"
    idle = own({"aggregator": {"config": {"repair": {"idle_nodes": {}}}}})
    assert idle["ownTaints"] == "['sickbay.dev/quarantine']"
    assert idle["ownConditions"] == "['SickbayQuarantined', 'SickbayTestPassed']"
    assert own({"aggregator": {"config": {"marks": {"restore_times": 1}}}})["ownTaints"] == (
        "['sickbay.dev/quarantine']"
    )


def test_certificates_from_elsewhere_are_named_in_the_configuration(helm: Path) -> None:
    values = {"certificates": {"source": "provided", "secretName": "mine"}}
    objects = render(helm, with_values(values))
    [text] = [
        e["data"]["aggregator.yaml"] for e in objects if "aggregator.yaml" in e.get("data", {})
    ]
    config = read_yaml(text)
    assert config["listen"]["tls"]["cert_file"] == "/etc/sickbay-tls/tls.crt"
    assert config["replicas"]["ca_file"] == "/etc/sickbay-ca/ca.crt"
    assert "secretName: mine" in yaml.safe_dump_all(objects)


def test_volumes_of_a_site_stand_beside_a_volume_claim(helm: Path) -> None:
    volume = {"name": "alerts", "secret": {"secretName": "sickbay-alerts"}}
    mount = {"name": "alerts", "mountPath": "/etc/sickbay-alerts", "readOnly": True}
    values = {
        "persistence": {"enabled": True},
        "extraVolumes": [volume],
        "extraVolumeMounts": [mount],
    }
    objects = render(helm, with_values({"aggregator": values}))
    [spec] = [each["spec"] for each in objects if each["kind"] == "StatefulSet"]
    assert volume in spec["template"]["spec"]["volumes"]
    assert mount in spec["template"]["spec"]["containers"][0]["volumeMounts"]
    assert [claim["kind"] for claim in spec["volumeClaimTemplates"]] == ["PersistentVolumeClaim"]
