"""`make deploy-check`: the profile `large` runs, with three replicas and a history in PostgreSQL.

Real: API server, controllers, scheduler, Helm, PostgreSQL with TLS, and the container of every pod;
each replica has a network of its own. One install for all; the tests are steps, in this order.
"""

import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.installation import NEEDS_CONTAINERS, NODES, Installation, node_facts
from tests.chart.pod_network import GATEWAY, PodNetwork
from tests.chart.templates import CHART
from tests.controlplane import binaries
from tests.controlplane.pki import Authority
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.postgres import PASSWORD, USER, PostgresServer

REPLICAS = [f"sickbay-aggregator-{number}" for number in range(3)]
DATABASE = "history.example.test"

pytestmark = [pytest.mark.timeout(400), *NEEDS_CONTAINERS]


@pytest.fixture(scope="module")
def network() -> Iterator[PodNetwork]:
    with PodNetwork() as made:
        yield made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def database(authority: Authority, postgres_template: Path) -> Iterator[PostgresServer]:
    """A server that the pods reach, and that takes no connection without TLS and a password."""
    server = PostgresServer(postgres_template, listen_addresses="*")
    rules = f"local all all trust\nhostssl all {USER} {GATEWAY}/24 scram-sha-256\n"
    (server.data / "pg_hba.conf").write_text(rules)
    server.show(authority.server("database", [DATABASE]))
    yield server.start()
    server.close()


@pytest.fixture(scope="module")
def sickbay(
    plane: ControlPlane, network: PodNetwork, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("install")
    installation = Installation(plane, binaries.program("helm"), folder, network=network)
    installation.kubelets.names[DATABASE] = GATEWAY
    with installation.kubelets:
        yield installation


def page(network: PodNetwork, replica: str) -> str:
    return f"https://{network.address(replica)}:8080"


def test_three_replicas_that_start_together_serve_all_agents(
    plane: ControlPlane,
    sickbay: Installation,
    network: PodNetwork,
    authority: Authority,
    database: PostgresServer,
) -> None:
    database.run("CREATE DATABASE history", "postgres")
    plane.create_namespace("sickbay")
    secret = {
        "metadata": {"name": "sickbay-history"},
        "stringData": {"password": PASSWORD, "ca.crt": authority.certificate.read_text()},
    }
    plane.call("POST", "/api/v1/namespaces/sickbay/secrets", secret)
    url = f"postgresql+asyncpg://{USER}@{DATABASE}:{database.port}/history"
    values = ["--set", "profile=large", "--set", f"history.database={url}", "--set", "mode=drain"]
    sickbay.helm_do("install", str(CHART), *values)
    pages = [page(network, replica) for replica in REPLICAS]
    # The first of them has all agents until the others have joined.
    wait_until(
        lambda: all(len((sickbay.fleet(at) or {}).get("replicas", ())) == 3 for at in pages),
        what="every replica to know all three",
        timeout_s=120,
    )
    for at in pages:
        sickbay.until_all_report(NODES, page=at)
    assert "Succeeded" in sickbay.helm_do("test", "--timeout", "200s").stdout


def test_all_of_them_show_certificates_of_one_authority(
    plane: ControlPlane, network: PodNetwork
) -> None:
    path = "/api/v1/namespaces/sickbay/configmaps/sickbay-ca"
    [trusted] = plane.call("GET", path)["data"].values()
    assert trusted.count("BEGIN CERTIFICATE") == 1
    context = ssl.create_default_context(cadata=trusted)
    context.check_hostname = False  # it names the Service and the pods, not their addresses
    for replica in REPLICAS:
        with urllib.request.urlopen(f"{page(network, replica)}/healthz", context=context) as answer:
            assert answer.status == 200


def in_history(sickbay: Installation, network: PodNetwork, replica: str, kind: str) -> bool:
    """Whether this replica's history, which must be whole, has a transition of the kind."""
    found = sickbay.read(f"{page(network, replica)}/api/v1/transitions")
    assert not found["trouble"]
    return f'"{kind}"' in json.dumps(found)


def test_a_quarantine_is_in_the_history_of_every_replica(
    plane: ControlPlane, sickbay: Installation, network: PodNetwork
) -> None:
    quarantine = {
        "apiVersion": "sickbay.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": "gpu-00000"},
        "spec": {"action": "cordon", "reason": "fan 3 is dead"},
    }
    plane.call("POST", "/apis/sickbay.dev/v1alpha1/quarantines", quarantine)
    wait_until(
        lambda: all(in_history(sickbay, network, one, "quarantine.cordoned") for one in REPLICAS),
        what="the quarantine in the history of every replica",
        timeout_s=90,
    )
    assert plane.node("gpu-00000")["spec"]["unschedulable"]


def test_the_others_take_over_from_a_replica_that_is_killed(
    plane: ControlPlane, sickbay: Installation, network: PodNetwork
) -> None:
    before = node_facts(plane)
    [killed] = [one for one in sickbay.kubelets.running("aggregator") if one.name == REPLICAS[0]]
    killed.container.signal("KILL")
    wait_until(killed.container.ended, what="its end", timeout_s=30)
    for replica in REPLICAS[1:]:
        fleet = sickbay.until_all_report(NODES, page=page(network, replica))
        assert fleet["quarantines"] == 1
    plane.call("DELETE", f"/api/v1/namespaces/sickbay/pods/{REPLICAS[0]}")
    fleet = sickbay.until_all_report(NODES, page=page(network, REPLICAS[0]))
    assert fleet["quarantines"] == 1
    assert node_facts(plane) == before


def test_an_uninstall_touches_no_node(plane: ControlPlane, sickbay: Installation) -> None:
    before = node_facts(plane)
    sickbay.helm_do("uninstall")
    sickbay.until_none_runs()
    for each in sickbay.kubelets.past:
        assert "Traceback" not in each.container.log.read_text("utf-8"), each.name
    assert node_facts(plane) == before
