"""A real aggregator that is its own CA, and a real agent that trusts what the ConfigMap says."""

import json
import re
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from aggregator.demo.ports import free_port
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.e2e.conftest import Start
from tests.support.stack import NAMESPACE, NodeAgent, Stack

pytestmark = pytest.mark.cluster

CORE = f"/api/v1/namespaces/{NAMESPACE}"
SECRET, CONFIG_MAP = f"{CORE}/secrets/sickbay-ca-keys", f"{CORE}/configmaps/sickbay-ca"


class Site:
    """A stack without a certificate of its own, and the agent's mounted ConfigMap."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.ca_file = folder / "agents-ca.crt"

    def project(self) -> None:
        """The kubelet's update of the agent's volume, from time to time."""
        new = self.ca_file.with_suffix(".new")
        new.write_text(self.stack.plane.call("GET", CONFIG_MAP)["data"]["ca.crt"])
        new.replace(self.ca_file)

    def authorities(self) -> int:
        self.project()
        return self.ca_file.read_text().count("BEGIN CERTIFICATE")

    def agent(self, node: str) -> NodeAgent:
        self.project()
        agent = self.stack.agent(node, start=False)
        agent.uplink = f'ca_file = "{self.ca_file}"\ntoken_file = "{agent.folder / "token"}"\n'
        agent.start()
        self.stack.attached(agent)
        return agent

    def trusts(self, port: int) -> bool:
        """Whether a client that trusts the ConfigMap alone ends a handshake with the listener."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.set_alpn_protocols(["h2"])
        try:
            with socket.create_connection(("localhost", port), timeout=300) as plain:
                context.wrap_socket(plain, server_hostname="localhost").close()
        except ConnectionRefusedError:
            return False
        return True

    def page(self, path: str) -> str:
        """Asked by a client that trusts the ConfigMap alone."""
        trusts = ssl.create_default_context(cafile=str(self.ca_file))
        url = f"https://localhost:{self.stack.aggregator.web_port}{path}"
        with urllib.request.urlopen(url, context=trusts, timeout=300) as answer:
            return str(answer.read().decode())

    def expires(self) -> dict[str, float]:
        name = "sickbay_certificate_expires_timestamp_seconds"
        pattern = rf'^{name}{{certificate="(\w+)"}} (\S+)$'
        found = re.findall(pattern, self.page("/metrics"), re.MULTILINE)
        return {purpose: float(until) for purpose, until in found}


@pytest.fixture
def site(stack_of: Start, cluster_space: Space, tmp_path: Path) -> Site:
    for path in (SECRET, CONFIG_MAP):
        cluster_space.plane.request("DELETE", path)
    automatic = {"automatic": True, "folder": str(tmp_path / "tls"), "publish_wait": "3s"}
    more: dict[str, Any] = {"listen": {"tls": None}, "certificates": automatic}
    return Site(stack_of(more), tmp_path)


def opened(agent: NodeAgent) -> int:
    return agent.log().count('"stream to the aggregator opened"')


def test_an_agent_stays_connected_through_a_rotation_and_connects_again_after_it(
    site: Site, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    stack = site.stack
    agent = site.agent(node)
    before = site.expires()
    assert set(before) == {"serving", "authority"}
    assert before["serving"] < before["authority"]

    rotate = {"metadata": {"annotations": {"sickbay.dev/rotate-ca": "now"}}}
    stack.plane.call("PATCH", SECRET, rotate, MERGE_PATCH)
    stack.until(lambda: site.authorities() == 2, "the next authority to be published")
    log = '"authority": 2'
    stack.until(lambda: log in stack.aggregator.log(), "a certificate of the next authority")
    stack.until(lambda: site.expires()["authority"] > before["authority"], "the page to serve it")
    assert opened(agent) == 1, "its stream went on"

    # A person ends the trust in the first one: the agent knows the next one alone.
    gone = {"data": {"ca-1.crt": None, "ca-1.key": None}}
    stack.plane.call("PATCH", SECRET, gone, MERGE_PATCH)
    stack.until(lambda: site.authorities() == 1, "the first authority to be withdrawn")
    assert opened(agent) == 1
    stack.aggregator.stop()
    stack.aggregator.start()
    stack.until(lambda: opened(agent) == 2, "the agent to be back", timeout_s=60)
    assert json.loads(site.page("/api/v1/nodes"))["items"][0]["node"] == node
    assert "certificate" not in agent.log().lower(), "it never met one that it did not trust"


def test_agents_trust_the_aggregator_after_a_restart_without_the_api_server(
    site: Site, cluster_space: Space
) -> None:
    """It can take no Lease then: the agents' streams wait for a controller."""
    [node] = cluster_space.create_nodes(1)
    stack = site.stack
    site.agent(node)
    stack.aggregator.stop()
    away = free_port()

    def unreachable(kubeconfig: Path) -> Path:
        text = re.sub(r"(https://[^:]+):\d+", rf"\1:{away}", kubeconfig.read_text())
        there = kubeconfig.with_name("away")
        there.write_text(text)
        return there

    stack.aggregator.goes_by(unreachable)
    stack.aggregator.start()
    stack.until(lambda: site.trusts(stack.aggregator.port), "a listener that agents trust")
    assert site.page("/healthz")
    assert "can't be read or written" in stack.aggregator.log()
