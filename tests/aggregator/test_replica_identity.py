"""A replica's address and identity for others, and that they could verify it there."""

from pathlib import Path
from typing import Any

import pytest

from aggregator.composition.identity import ReplicaIdentityError, local_candidate
from aggregator.config.settings import Config
from aggregator.leader.lease import Candidate
from tests.support.pki import Authority

DOMAIN = "sickbay-aggregator.sickbay.svc"


def candidate(config: Config, hostname: str = "sickbay-aggregator-1") -> Candidate:
    return local_candidate(config, hostname=hostname, epoch="e", version="v")


def with_certificate(folder: Path, names: list[str], **replicas: Any) -> Config:
    pair = Authority.create(folder / "pki").server("replica", names)
    return Config.model_validate(
        {
            "listen": {"tls": {"cert_file": pair.certificate, "key_file": pair.key}},
            "replicas": replicas,
        }
    )


def test_without_the_section_it_has_no_address_for_others() -> None:
    assert candidate(Config()) == Candidate("sickbay-aggregator-1", "e", version="v")
    assert candidate(Config(), "My_Host.example").name == "my_host"


def test_in_a_stateful_set_it_is_reached_at_its_pods_name(tmp_path: Path) -> None:
    config = with_certificate(tmp_path, [DOMAIN, f"*.{DOMAIN}"], domain=DOMAIN)
    assert candidate(config) == Candidate(
        name="sickbay-aggregator-1",
        epoch="e",
        address=f"sickbay-aggregator-1.{DOMAIN}:8443",
        page=f"https://sickbay-aggregator-1.{DOMAIN}:8080",
        version="v",
    )


def test_an_address_of_its_own_goes_before(tmp_path: Path) -> None:
    config = with_certificate(
        tmp_path, ["127.0.0.1"], address="127.0.0.1:9", page="https://p.test/", name="b"
    )
    found = candidate(config)
    assert (found.name, found.address, found.page) == ("b", "127.0.0.1:9", "https://p.test")


@pytest.mark.parametrize("address", ["[::1]:9", "localhost:9"])
def test_without_tls_its_page_is_plain_too(address: str) -> None:
    config = Config.model_validate({"replicas": {"address": address}})
    found = candidate(config)
    assert found.page == f"http://{address.removesuffix(':9')}:8080"


@pytest.mark.parametrize(
    "names", [[DOMAIN], ["*.svc"], [f"*.x.{DOMAIN}"], ["127.0.0.1"], ["localhost"]]
)
def test_a_certificate_that_agents_would_not_take_there_is_refused(
    tmp_path: Path, names: list[str]
) -> None:
    config = with_certificate(tmp_path, names, domain=DOMAIN)
    with pytest.raises(ReplicaIdentityError) as raised:
        candidate(config)
    said = str(raised.value)
    assert f"sickbay-aggregator-1.{DOMAIN}" in said
    assert f'expected a certificate for "*.{DOMAIN}"' in said
    assert all(name in said for name in names)


def test_a_hostname_that_can_name_no_replica_is_refused() -> None:
    config = Config.model_validate({"replicas": {"address": "localhost:9"}})
    with pytest.raises(
        ReplicaIdentityError,
        match=r'"my_host" can\'t be a replica\'s name; expected replicas\.name',
    ):
        candidate(config, "my_host.example")


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    config = with_certificate(tmp_path, [f"*.{DOMAIN}"], domain=DOMAIN)
    assert config.listen.tls is not None
    config.listen.tls.cert_file.write_text("x")
    with pytest.raises(ReplicaIdentityError, match="is no certificate in PEM"):
        candidate(config)
