"""People's actions by the page, on a real API server: with their rights, by the aggregator's
account, within its admission policies.
"""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.kind import OpenOptions
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.composition.access import build_access
from aggregator.composition.page_actions import build_actions
from aggregator.config.access import AccessConfig
from aggregator.config.settings import Config
from aggregator.events import Transition
from aggregator.quarantine.decide.operator_requests import PIN
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_page_access import bind
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.web.support import Hands, Served, running_clocks, serving, small_fleet

QUARANTINES = "/apis/sickbay.dev/v1alpha1/quarantines"
STOP = "/api/v1/namespaces/sickbay/configmaps/sickbay-stop"


@dataclass
class Site:
    served: Served
    plane: ControlPlane
    space: Space
    happened: list[Transition] = field(default_factory=list)

    def token(self, account: str, role: str = "") -> str:
        """Of a new account, with this ClusterRole."""
        self.plane.create_service_account(self.space.namespace, account)
        if role:
            bind(self.plane, self.space, role, account)
        return self.plane.token_for(self.space.namespace, account, None)

    def name(self, account: str) -> str:
        return f"system:serviceaccount:{self.space.namespace}:{account}"

    async def ask(self, path: str, token: str, **body: object) -> tuple[int, Any]:
        async with self.served.session.post(
            f"{self.served.url}/api/v1/{path}",
            json=body,
            headers={"Authorization": f"Bearer {token}"},
        ) as answer:
            return answer.status, json.loads(await answer.text())


@pytest.fixture
async def site(
    control_plane: ControlPlane, aggregator: Path, cluster_space: Space, policies: None
) -> AsyncIterator[Site]:
    plane, account = control_plane, aggregator
    plane.apply(DEPLOY / "access.yaml")
    plane.apply(DEPLOY.parent / "examples" / "page-actions-rbac.yaml")
    happened = list[Transition]()
    config = Config(access=AccessConfig(anonymous=False, actions=True))
    options = OpenOptions(agents="sickbay:x", access=True, actions=True)
    async with kube_cluster(account, options=options) as cluster:
        assert isinstance(cluster, KubeCluster)
        access = build_access(config, cluster, None, now=time.monotonic, wall=time.time)
        actions = build_actions(
            config, cluster, happened.append, known=lambda _: True, wall=time.time
        )
        async with serving(
            small_fleet(Hands()), running_clocks(), access=access, actions=actions
        ) as served:
            yield Site(served, plane, cluster_space, happened)


async def test_an_operator_quarantines_and_releases_in_their_name(site: Site) -> None:
    [node] = site.space.create_nodes(1)
    token = site.token("alice", "sickbay-operator")
    status, told = await site.ask(f"nodes/{node}/release", token)
    assert status == 409
    assert "is not in quarantine" in told["error"]
    dry, _ = await site.ask(f"nodes/{node}/quarantine", token, reason="fan", dry_run=True)
    assert dry == 200
    assert site.plane.client.request("GET", f"{QUARANTINES}/{node}").status == 404
    status, told = await site.ask(f"nodes/{node}/quarantine", token, reason="fan", action="drain")
    assert status == 200, told
    made = site.plane.call("GET", f"{QUARANTINES}/{node}")
    assert made["spec"]["requester"] == site.name("alice")
    assert (made["spec"]["action"], made["spec"]["kind"]) == ("drain", "manual")
    status, told = await site.ask(f"nodes/{node}/release", token)
    assert status == 200, told
    assert site.plane.client.request("GET", f"{QUARANTINES}/{node}").status == 404
    assert [one.details["action"] for one in site.happened] == ["quarantine", "release"]
    assert {one.details["user"] for one in site.happened} == {site.name("alice")}


async def test_annotations_and_the_stop_switch_are_written_for_an_operator(site: Site) -> None:
    [node] = site.space.create_nodes(1)
    token = site.token("alice", "sickbay-operator")
    assert (await site.ask(f"nodes/{node}/pin", token, reason="look"))[0] == 200
    annotations = site.plane.call("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
    assert annotations[PIN] == f"look ({site.name('alice')})"
    site.plane.client.request("DELETE", STOP)
    for _ in range(2):  # it makes the object, then changes it
        status, told = await site.ask("stop", token, reason="power test")
        assert status == 200, told
        reason = site.plane.call("GET", STOP)["data"]["reason"]
        assert reason == f"power test ({site.name('alice')})"
        assert (await site.ask("resume", token))[0] == 200
        assert site.plane.call("GET", STOP)["data"]["reason"] == ""


async def test_a_reader_can_not_act(site: Site) -> None:
    [node] = site.space.create_nodes(1)
    token = site.token("bob", "sickbay-viewer")
    for path, needs in (
        (f"nodes/{node}/quarantine", "create quarantines.sickbay.dev"),
        (f"nodes/{node}/release", f"delete quarantines.sickbay.dev {node}"),
        (f"nodes/{node}/pin", f"get nodes {node}"),
        ("stop", "get configmaps sickbay-stop in namespace sickbay"),
    ):
        status, told = await site.ask(path, token, reason="x")
        assert status == 403
        assert needs in told["error"]
        assert "--clusterrole=sickbay-operator" in told["hint"]
    assert site.plane.client.request("GET", f"{QUARANTINES}/{node}").status == 404
    assert site.happened == []


async def test_a_node_that_is_none_is_a_plain_answer(site: Site) -> None:
    token = site.token("alice", "sickbay-operator")
    status, told = await site.ask("nodes/none-such/quarantine", token, reason="x")
    assert status == 409
    assert told["error"] == 'there is no node "none-such"'


async def test_without_the_right_on_the_switch_the_answer_names_the_file(
    site: Site,
) -> None:
    token = site.token("alice", "sickbay-operator")
    await site.ask("stop", token, reason="x")
    await site.ask("resume", token)
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/sickbay/rolebindings"
    site.plane.unbind(f"{path}/sickbay-aggregator-actions")
    status, told = await site.ask("stop", token, reason="x")
    assert status == 409
    assert "page-actions-rbac.yaml" in told["hint"]
