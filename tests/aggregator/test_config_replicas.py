"""The section of replicas in the aggregator's configuration."""

from pathlib import Path

import pytest

from aggregator.config.settings import load
from tests.aggregator.config_files import LOCAL, problems, written

# -- several replicas ---------------------------------------------------------------------------


def replicas(folder: Path, text: str, *, head: str = "") -> str:
    """A file with that section, and with TLS; the files that it names are there."""
    for name in ("tls.crt", "tls.key", "ca.crt", "token"):
        (folder / name).write_text("x")
    listen = "listen: {tls: {cert_file: tls.crt, key_file: tls.key}}\n"
    return f"{head or listen}replicas: {{token_file: token, ca_file: ca.crt, {text}}}\n"


def test_one_replica_alone_needs_no_token_of_its_own(tmp_path: Path) -> None:
    config = load(written(tmp_path, LOCAL))
    assert not config.replicas.on
    assert not config.replicas.token_file.exists()


def test_several_replicas_are_known_by_their_domain_or_by_an_address(tmp_path: Path) -> None:
    config = load(written(tmp_path, replicas(tmp_path, "domain: sickbay-aggregator.sickbay.svc")))
    assert config.replicas.on
    assert config.replicas.ca_file == tmp_path / "ca.crt"
    config = load(written(tmp_path, replicas(tmp_path, "address: 'here.test:8443', name: a-0")))
    assert config.replicas.on


@pytest.mark.parametrize(
    ("text", "head", "said"),
    [
        ("domain: a.test, address: 'a:1'", "", "replicas.domain: given next to replicas.address"),
        ("domain: .a.test", "", 'replicas.domain: ".a.test"; expected the DNS name of'),
        ("domain: a.test, name: A_0", "", 'replicas.name: "A_0"; expected small letters, digits'),
        ("address: a.test", "", 'replicas.address: "a.test" is no address; expected "HOST:PORT"'),
        ("address: 'a.test:0'", "", 'replicas.address: "a.test:0" can\'t be connected to'),
        ("address: '0.0.0.0:1'", "", 'replicas.address: "0.0.0.0:1" is every address'),
        ("address: 'unix:/x'", "", 'replicas.address: "unix:/x" can\'t be connected to'),
        (
            "address: 'https://a.test:1'",
            "",
            'replicas.address: this text is no address; expected "HOST:PORT" as others reach it',
        ),
        ("domain: a.test, page: here", "", 'replicas.page: "here" is no URL of a page; expected'),
        (
            "domain: a.test, page: 'https://a.test:1/x?y'",
            "",
            'replicas.page: "https://a.test:1/x?y" is no URL of a page',
        ),
        ("name: a-0", "", "replicas.name: given, and neither replicas.domain nor replicas.address"),
        ("page: 'https://a.test'", "", "replicas.page: given, and neither replicas.domain nor"),
        (
            "domain: a.test",
            "listen: {grpc: 'unix:/x', tls: {cert_file: tls.crt, key_file: tls.key}}\n",
            'replicas.domain: listen.grpc "unix:/x" has no port that others could know',
        ),
        (
            "domain: a.test, page: ''",
            "listen: {web: 'h:0', tls: {cert_file: tls.crt, key_file: tls.key}}\n",
            'replicas.page: not given, and listen.web "h:0" has no port',
        ),
        (
            "domain: a.test",
            "listen: {insecure_plaintext: true}\n",
            "replicas.domain: without TLS replicas are on one machine only; expected listen.tls",
        ),
        (
            "address: 'localhost:1'",
            (
                "listen: {grpc: 'localhost:1', web: 'localhost:2'}\n"
                "identity: {kind: insecure-trust-hello}\ncluster: {kind: local}\n"
            ),
            "replicas.address: a file has the cluster's state, which one replica uses alone",
        ),
    ],
)
def test_replicas_that_could_not_find_or_trust_each_other_are_refused(
    tmp_path: Path, text: str, head: str, said: str
) -> None:
    [problem] = problems(tmp_path, replicas(tmp_path, text, head=head))
    assert said in problem


@pytest.mark.parametrize("key", ["ca_file", "token_file", "service_account"])
def test_a_section_of_replicas_that_forgot_where_they_are_is_refused(
    tmp_path: Path, key: str
) -> None:
    """Each would take itself for the only one, and all would do all the work."""
    value = "a:b" if key == "service_account" else "ca.crt"
    text = replicas(tmp_path, "").partition("replicas:")[0] + f"replicas: {{{key}: '{value}'}}\n"
    [problem] = problems(tmp_path, text)
    assert f"replicas.{key}: given, and neither replicas.domain nor replicas.address" in problem


def test_an_empty_domain_says_that_it_is_alone_and_lets_the_rest_of_the_section_stand(
    tmp_path: Path,
) -> None:
    assert not load(written(tmp_path, replicas(tmp_path, "domain: ''"))).replicas.on


def test_replicas_need_their_token_and_who_signed_their_certificates(tmp_path: Path) -> None:
    text = replicas(tmp_path, "domain: a.test").replace("token_file: token, ca_file: ca.crt, ", "")
    said = [problem.partition("; ")[0].split(": ", 1)[1] for problem in problems(tmp_path, text)]
    assert said == [
        "replicas.ca_file: not given",
        (
            "replicas.token_file: /var/run/secrets/sickbay-replicas/token can't be read: "
            "No such file or directory"
        ),
    ]
