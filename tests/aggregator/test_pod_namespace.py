"""One configuration file serves any namespace: its defaults follow from the pod's own."""

from pathlib import Path

import pytest

from aggregator.config.settings import Config, ConfigError, load
from tests.support.text_files import text_file

LOCAL = "listen: {grpc: '127.0.0.1:0', web: 'localhost:0'}\n"


def loaded(folder: Path, text: str, namespace: str = "") -> Config:
    file = text_file(folder / "aggregator.yaml", LOCAL + text)
    return load(file, environ={"POD_NAMESPACE": namespace} if namespace else {})


def test_the_pods_namespace_is_the_default_of_all_that_lies_in_it(tmp_path: Path) -> None:
    config = loaded(tmp_path, "", "gpu-health")
    assert config.cluster.namespace == "gpu-health"
    assert config.identity.service_account == "gpu-health:sickbay-agent"
    assert config.replicas.service_account == "sickbay:sickbay-aggregator", "unused: one replica"


@pytest.mark.parametrize("namespace", ["", "Not A Namespace"])
def test_without_a_usable_one_it_is_sickbay(tmp_path: Path, namespace: str) -> None:
    config = loaded(tmp_path, "", namespace)
    assert config.cluster.namespace == "sickbay"
    assert config.identity.service_account == "sickbay:sickbay-agent"


def test_the_file_decides_before_the_pod(tmp_path: Path) -> None:
    config = loaded(tmp_path, "cluster: {namespace: here}", "elsewhere")
    assert config.cluster.namespace == "here"
    assert config.identity.service_account == "here:sickbay-agent"
    named = "identity: {service_account: 'a:b'}\n"
    assert loaded(tmp_path, named, "elsewhere").identity.service_account == "a:b"
    empty = "cluster:\nidentity:\n  service_account:\n"
    assert loaded(tmp_path, empty, "there").identity.service_account == "there:sickbay-agent"


@pytest.mark.parametrize(
    ("written", "domain"),
    [("sickbay-aggregator", "sickbay-aggregator.gpu-health.svc"), ("a.b.svc", "a.b.svc")],
)
def test_a_domain_of_one_label_is_a_service_of_that_namespace(
    written: str, domain: str, tmp_path: Path
) -> None:
    file, some = tmp_path / "aggregator.yaml", tmp_path / "some"
    some.write_text("s")
    tls = f"tls: {{cert_file: {some}, key_file: {some}}}"
    file.write_text(
        f"listen: {{grpc: '127.0.0.1:1', web: '127.0.0.1:2', {tls}}}\n"
        f"replicas: {{domain: {written}, token_file: {some}, ca_file: {some}}}\n"
    )
    config = load(file, environ={"POD_NAMESPACE": "gpu-health"})
    assert config.replicas.domain == domain
    assert config.replicas.service_account == "gpu-health:sickbay-aggregator"


def test_a_section_of_another_type_is_left_to_the_validation(tmp_path: Path) -> None:
    for text in ("cluster: 5", "identity: [a]", "cluster: {namespace: 7}", "replicas: x"):
        with pytest.raises(ConfigError):
            loaded(tmp_path, text, "gpu-health")


def test_a_cluster_without_kubernetes_has_no_namespace(tmp_path: Path) -> None:
    text = "cluster: {kind: local}\nidentity: {kind: insecure-trust-hello}\n"
    assert loaded(tmp_path, text, "gpu-health").cluster.namespace == "sickbay"
