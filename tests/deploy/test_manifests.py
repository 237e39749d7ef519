"""The manifests agree with each other and with the programs: read as files, no cluster needed."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aggregator.cluster.kubernetes.objects import CA_NAME, PodObject, to_pod
from aggregator.cluster.port import Action
from aggregator.config import settings as aggregator_config
from aggregator.quarantine.decide.drain_plan import DrainRules, kept_because
from aggregator.relay.auth import AUDIENCE
from nodeagent.checks import pod_network
from nodeagent.config import settings as agent_config
from tests.deploy.manifests import (
    DEPLOY,
    KUBERNETES,
    NAMESPACE,
    PROFILES,
    container,
    documents,
    find,
    installed,
    mounts,
    pod_spec,
)
from tests.support.text_files import text_file
from tests.support.yaml_documents import read_yaml

AGENT = ("DaemonSet", "sickbay-agent")
AGGREGATOR = ("StatefulSet", "sickbay-aggregator")


def agent_toml(profile: str = "") -> str:
    if not profile:
        text = find("ConfigMap", "sickbay-agent")["data"]["agent.toml"]
    else:
        [document] = documents(PROFILES / profile / "agent-config.yaml")
        text = document["data"]["agent.toml"]
    assert isinstance(text, str)
    return text


def paths_in(value: Any) -> Iterator[str]:
    """Every absolute path in a configuration."""
    if isinstance(value, str) and value.startswith("/"):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from paths_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from paths_in(each)


# -- everything is in, and in order ----------------------------------------------------------------


def test_the_kustomization_names_every_manifest() -> None:
    [kustomization] = documents(KUBERNETES / "kustomization.yaml")
    files = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files


def test_nothing_is_installed_before_its_namespace() -> None:
    seen = set()
    for document in installed():
        if document["kind"] == "Namespace":
            seen.add(document["metadata"]["name"])
        namespace = document["metadata"].get("namespace", "default")
        assert namespace in seen | {"default"}, document["metadata"]["name"]


def test_every_image_is_one_that_a_dockerfile_makes_and_that_the_kustomization_renames() -> None:
    [kustomization] = documents(KUBERNETES / "kustomization.yaml")
    renamed = {f"{image['name']}:{image['newTag']}" for image in kustomization["images"]}
    used = {container(pod_spec(*each))["image"] for each in (AGENT, AGGREGATOR)}
    assert used == renamed
    for image in used:
        dockerfile = DEPLOY / f"Dockerfile.{image.partition(':')[0].removeprefix('sickbay-')}"
        assert image in dockerfile.read_text("utf-8")


def test_the_pod_networks_prober_has_nothing_but_its_socket() -> None:
    [prober] = documents(PROFILES / "pod-network" / "pod-prober.yaml")
    spec = prober["spec"]["template"]["spec"]
    assert not spec.get("hostNetwork", False)
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec  # the agents' own identifies agents
    assert container(spec)["image"] == container(pod_spec(*AGENT))["image"]
    assert container(spec)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    socket = Path(pod_network.SOCKET)
    assert container(spec)["args"] == ["pod-prober", "--socket", str(socket)]
    assert list(mounts(spec)) == [str(socket.parent)]
    assert [v["hostPath"]["path"] for v in spec["volumes"]] == [str(socket.parent)]


# -- the configurations load -----------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["", "restricted"])
def test_the_agents_configuration_loads(profile: str, tmp_path: Path) -> None:
    text = agent_toml(profile)
    # The same text, with the pod's folders moved below tmp_path.
    moved = re.sub(r'"(/(?:host|etc/sickbay|var/run/secrets/sickbay))', rf'"{tmp_path}\1', text)
    assert moved != text
    (tmp_path / "host" / "proc").mkdir(parents=True)
    for name in ("etc/sickbay/ca.crt", "var/run/secrets/sickbay/token"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    file = text_file(tmp_path / "agent.toml", moved)

    config = agent_config.load(file, agent_environment("gpu-1"))

    assert config.node == "gpu-1"
    assert config.kernel_log.enabled is (profile == "")
    assert config.nvml.enabled is (profile == "")
    assert not config.kernel_log.insecure_accept_user_records
    assert not config.uplink.insecure_plaintext


@pytest.mark.parametrize("profile", ["", "restricted"])
def test_every_path_of_the_agents_configuration_is_a_mount_of_its_pod(profile: str) -> None:
    there = mounts(pod_spec(*AGENT))
    if profile:
        del there["/dev"]
    for path in paths_in(tomllib.loads(agent_toml(profile))):
        assert any(path == at or path.startswith(f"{at}/") for at in there), path


@pytest.mark.parametrize("profile", ["", "restricted"])
def test_what_is_write_probed_is_the_nodes_own_folder_and_writable(profile: str) -> None:
    probed = tomllib.loads(agent_toml(profile))["checks"]["disk-write"]["paths"]
    there = mounts(pod_spec(*AGENT))
    for path in probed:
        mount, volume = there[path]
        assert volume["hostPath"]["path"] == path
        assert not mount.get("readOnly", False)


def test_the_aggregators_configuration_loads_and_observes(tmp_path: Path) -> None:
    text = find("ConfigMap", "sickbay-aggregator")["data"]["aggregator.yaml"]
    file = text_file(tmp_path / "aggregator.yaml", text)
    for name in (
        *("etc/sickbay-tls/tls.crt", "etc/sickbay-tls/tls.key"),  # of a Secret kubernetes.io/tls
        *("etc/sickbay-ca/ca.crt", "var/run/secrets/sickbay-replicas/token"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    config = aggregator_config.load(file, root=tmp_path, environ={"POD_NAMESPACE": NAMESPACE})

    assert config.mode is Action.OBSERVE
    assert config.cluster.namespace == NAMESPACE
    assert config.identity.kind == "token"
    assert not config.listen.insecure_plaintext
    written = [str(config.identity.keys_cache), config.history.database.partition("///")[2]]
    assert all(path.startswith("/var/lib/sickbay-aggregator/") for path in written)
    assert "/var/lib/sickbay-aggregator" in mounts(pod_spec(*AGGREGATOR))


# -- what one side says, the other holds to --------------------------------------------------------


def agent_environment(node: str) -> dict[str, str]:
    """The agent's variables, as a kubelet sets them."""
    fields = {"spec.nodeName": node, "metadata.namespace": NAMESPACE}
    environ: dict[str, str] = {}
    for variable in container(pod_spec(*AGENT))["env"]:
        if "valueFrom" in variable:
            environ[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            value = variable["value"]
            for name, earlier in environ.items():
                value = value.replace(f"$({name})", earlier)
            environ[variable["name"]] = value
    return environ


def test_agents_are_told_the_name_and_port_that_the_service_has() -> None:
    service = find("Service", "sickbay-aggregator")
    [port] = service["spec"]["ports"]
    expected = f"{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}"
    assert agent_environment("gpu-1")["AGGREGATOR_ADDRESS"] == expected
    for profile in ("", "restricted"):
        assert "address" not in tomllib.loads(agent_toml(profile))["aggregator"]


def test_both_certificate_recipes_cover_the_names_that_are_asked_for() -> None:
    needed = {
        f"sickbay-aggregator.{NAMESPACE}.svc",
        f"*.sickbay-aggregator.{NAMESPACE}.svc",
        f"sickbay-page.{NAMESPACE}.svc",
        "localhost",
    }
    [certificate] = [
        each
        for each in documents(DEPLOY / "examples" / "certificate.yaml")
        if each["metadata"]["name"] == "sickbay-aggregator-tls"
    ]
    assert set(certificate["spec"]["dnsNames"]) == needed
    there = mounts(pod_spec(*AGGREGATOR))
    tls, ca = there["/etc/sickbay-tls"][1]["secret"], there["/etc/sickbay-ca"][1]["configMap"]
    assert certificate["spec"]["secretName"] == tls["secretName"]
    assert ca["name"] == CA_NAME
    assert tls["optional"] is ca["optional"] is True
    recipe = (DEPLOY.parent / "docs" / "certificates.md").read_text("utf-8")
    assert "{cert_file: /etc/sickbay-tls/tls.crt, key_file: /etc/sickbay-tls/tls.key}" in recipe
    assert "ca_file: /etc/sickbay-ca/ca.crt" in recipe
    assert {name for name in needed if f"DNS:{name}" in recipe} == needed


def test_the_patch_for_a_shared_history_fits_the_aggregator_and_what_the_docs_say() -> None:
    [patch] = documents(DEPLOY / "examples" / "history-postgresql.yaml")
    spec = patch["spec"]["template"]["spec"]
    [added] = spec["containers"]
    assert added["name"] == container(pod_spec(*AGGREGATOR))["name"]
    [mount], [volume] = added["volumeMounts"], spec["volumes"]
    assert mount["name"] == volume["name"]
    assert volume["name"] not in {one["name"] for one in pod_spec(*AGGREGATOR)["volumes"]}
    page = (DEPLOY.parent / "docs" / "history.md").read_text("utf-8")
    for key, file in (("password_file", "password"), ("ca_file", "ca.crt")):
        assert f"{key}: {mount['mountPath']}/{file}" in page
        text = (DEPLOY / "examples" / "history-postgresql.yaml").read_text("utf-8")
        assert f"--from-file={file}" in text


def test_the_aggregators_own_pod_holds_up_no_drain_of_the_node_that_it_is_on() -> None:
    template = find(*AGGREGATOR)["spec"]["template"]
    made = template | {"metadata": template["metadata"] | {"name": "a", "namespace": NAMESPACE}}
    owner = {"kind": "StatefulSet", "name": "sickbay-aggregator", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    pod = to_pod(msgspec.json.decode(json.dumps(made), type=PodObject))
    assert pod.empty_dirs
    assert kept_because(pod, DrainRules()) == ""


def test_the_aggregator_listens_where_its_services_and_probes_point() -> None:
    config = read_yaml(find("ConfigMap", "sickbay-aggregator")["data"]["aggregator.yaml"])
    only = container(pod_spec(*AGGREGATOR))
    ports = {port["name"]: port["containerPort"] for port in only["ports"]}
    for name in ("grpc", "web"):
        assert config["listen"][name] == f"0.0.0.0:{ports[name]}"
    for service, name in (("sickbay-aggregator", "grpc"), ("sickbay-page", "web")):
        [port] = find("Service", service)["spec"]["ports"]
        assert (port["targetPort"], port["port"]) == (name, ports[name])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert only[probe]["httpGet"]["scheme"] == "HTTPS"  # listen.tls serves both


def test_the_agents_token_is_of_the_audience_and_account_that_the_aggregator_believes() -> None:
    identity = aggregator_config.Config().identity
    spec = pod_spec(*AGENT)
    sources = mounts(spec)["/var/run/secrets/sickbay"][1]["projected"]["sources"]
    [token] = [source["serviceAccountToken"] for source in sources]
    assert token == {"audience": identity.audience, "expirationSeconds": 86400, "path": "token"}
    assert identity.service_account == f"{NAMESPACE}:{spec['serviceAccountName']}"


def test_replicas_find_and_believe_each_other_however_many_there_are() -> None:
    config = read_yaml(find("ConfigMap", "sickbay-aggregator")["data"]["aggregator.yaml"])
    stateful_set = find(*AGGREGATOR)["spec"]
    spec = stateful_set["template"]["spec"]
    there = mounts(spec)
    assert config["replicas"]["domain"] == stateful_set["serviceName"]
    service = find("Service", stateful_set["serviceName"])
    assert service["spec"]["clusterIP"] == "None"  # each pod has a name of its own
    assert service["spec"]["publishNotReadyAddresses"] is True  # also when it has just started
    # Without files of a site's own they make their certificates themselves.
    assert "tls" not in config["listen"]
    assert "ca_file" not in config["replicas"]

    replicas = aggregator_config.Config().replicas
    volume = there[str(replicas.token_file.parent)][1]
    [source] = volume["projected"]["sources"]
    token = source["serviceAccountToken"]
    assert (token["audience"], token["path"]) == (AUDIENCE, replicas.token_file.name)
    assert token["audience"] != aggregator_config.Config().identity.audience
    # The kubelet renews it after 80 % of its time: an outage of the API server may be that long.
    assert token["expirationSeconds"] == 86400
    assert replicas.service_account == f"{NAMESPACE}:{spec['serviceAccountName']}"


def test_the_network_policy_lets_replicas_reach_each_other_and_no_other_pod_the_page() -> None:
    [policy] = documents(KUBERNETES / "networkpolicy.yaml")
    for rule in policy["spec"]["ingress"]:
        if {"port": "web"} in rule["ports"]:
            assert all("podSelector" in one or "namespaceSelector" in one for one in rule["from"])
    labels = find(*AGGREGATOR)["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    [ports] = [
        {port["port"] for port in rule["ports"]}
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
        if peer.get("podSelector", {}).get("matchLabels") == labels
    ]
    assert ports == {port["name"] for port in container(pod_spec(*AGGREGATOR))["ports"]}


# -- what the pods may -----------------------------------------------------------------------------


def test_the_agent_holds_no_cluster_credentials() -> None:
    spec = pod_spec(*AGENT)
    assert spec["automountServiceAccountToken"] is False
    assert find("ServiceAccount", "sickbay-agent")["automountServiceAccountToken"] is False
    bound = [
        subject["name"]
        for document in installed()
        if document["kind"].endswith("RoleBinding")
        for subject in document["subjects"]
    ]
    assert set(bound) == {"sickbay-aggregator", "sickbay-metrics", "sickbay-viewer"}
    for volume in spec["volumes"]:
        assert "secret" not in volume


def test_the_account_of_readers_lists_quarantines_and_no_pod_has_its_token() -> None:
    assert find("ServiceAccount", "sickbay-viewer")["automountServiceAccountToken"] is False
    [role] = [
        document["roleRef"]["name"]
        for document in installed()
        if document["kind"].endswith("RoleBinding")
        for subject in document["subjects"]
        if subject["name"] == "sickbay-viewer"
    ]
    assert role == "sickbay-viewer"
    [rule] = find("ClusterRole", role)["rules"]
    assert rule["resources"] == ["quarantines", "operations"]
    assert set(rule["verbs"]) == {"get", "list", "watch"}
    for workload in (AGENT, AGGREGATOR):
        assert pod_spec(*workload)["serviceAccountName"] != "sickbay-viewer"


def test_the_agent_may_write_to_its_two_folders_alone() -> None:
    spec = pod_spec(*AGENT)
    assert container(spec)["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {at for at, (mount, _) in mounts(spec).items() if not mount.get("readOnly", False)}
    # The second folder is there again where the host's programs see it, by the path that the node's
    # own root has for it: an active test gives them a folder in it.
    assert writable == {"/run/sickbay", "/var/lib/sickbay", "/host/var/lib/sickbay"}
    _, state = mounts(spec)["/host/var/lib/sickbay"]
    assert state == mounts(spec)["/var/lib/sickbay"][1]
    assert state["hostPath"]["path"] == "/var/lib/sickbay"
    host, _ = mounts(spec)["/host"]
    assert host["mountPropagation"] == "HostToContainer"


def test_the_agent_goes_everywhere_and_rolls_a_tenth_at_a_time() -> None:
    spec = pod_spec(*AGENT)
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["priorityClassName"] == "system-node-critical"
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    strategy = find(*AGENT)["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"]["maxUnavailable"] == "10%"


def test_the_restricted_profile_takes_the_privileges_away() -> None:
    [patch] = documents(PROFILES / "restricted" / "agent-daemonset.yaml")
    spec = patch["spec"]["template"]["spec"]
    assert container(spec)["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["hostPID"] is False
    # A patch says what it removes; it must be there to be removed.
    removed = [m["mountPath"] for m in container(spec)["volumeMounts"] if m["$patch"] == "delete"]
    assert set(removed) <= set(mounts(pod_spec(*AGENT)))


def test_no_manifest_names_a_registry() -> None:
    for path in DEPLOY.rglob("*.yaml"):
        images = re.findall(r"^\s*image: (\S+)", path.read_text("utf-8"), re.MULTILINE)
        assert all("/" not in image for image in images), path
