"""Leases on a real API server: the store, and lease managers that see each other by it."""

import asyncio
import datetime as dt
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from aggregator.cluster.kubernetes.credentials import CredentialSources
from aggregator.cluster.kubernetes.leases import KubeLeases
from aggregator.cluster.kubernetes.limiter import Limiter
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.replicas.membership.lease_manager import LeaseManager
from aggregator.replicas.membership.lease_store import (
    LeaseConflict,
    LeaseForbidden,
    LeaseNotFound,
    LeaseStoreError,
)
from aggregator.replicas.membership.lease_timing import TIMES
from aggregator.replicas.membership.membership import Membership
from aggregator.replicas.membership.view import Member
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.support.faulty_proxy import ApiFaults, FaultyProxy
from tests.support.waiting import until

MEMBER = Member(
    name="sickbay-aggregator-0",
    epoch="e1",
    address="sickbay-aggregator-0.sickbay-aggregator.sickbay.svc:8443",
    page="https://sickbay-aggregator-0.sickbay-aggregator.sickbay.svc:8080",
    policy_hash="abc",
    version="0.2.0",
    since=1_700_000_000.123456,
)
#: A quarter of the shipped value.
QUICK = TIMES.scaled(0.25)
NODES = [f"gpu-{number}" for number in range(20)]


@asynccontextmanager
async def board_of(
    kubeconfig: Path, namespace: str, *, deadline: float = 10.0
) -> AsyncIterator[KubeLeases]:
    # The limiter stands still after one request: Leases must not notice.
    limiter = Limiter(qps=0.0001, burst=1, clock=time.monotonic)
    transport = Transport(
        CredentialSources(str(kubeconfig), "", {}),
        limiter,
        clock=time.monotonic,
        rng=random.Random(1),
        deadline=10.0,
    )
    try:
        await transport.open()
        yield KubeLeases(transport, namespace, deadline=deadline, wall=time.time)
    finally:
        await transport.close()


@pytest.fixture
async def board(cluster_space: Space) -> AsyncIterator[KubeLeases]:
    async with board_of(cluster_space.plane.kubeconfig, cluster_space.namespace) as made:
        yield made


def path(space: Space, name: str = "") -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{space.namespace}/leases" + (
        f"/sickbay-{name}" if name else ""
    )


async def test_what_a_replica_writes_all_can_read(board: KubeLeases, cluster_space: Space) -> None:
    written = await board.write(MEMBER, "")
    assert list(await board.list()) == [written]
    renewed = await board.write(MEMBER, written.version)
    assert renewed.version != written.version
    assert [lease.version for lease in await board.list()] == [renewed.version]
    left = await board.write(MEMBER, renewed.version, leaving=True)
    assert [lease.leaving for lease in await board.list()] == [True]
    assert not (await board.write(MEMBER, left.version)).leaving

    stands = cluster_space.plane.call("GET", path(cluster_space, MEMBER.name))
    assert stands["spec"]["holderIdentity"] == MEMBER.name, "kubectl get leases shows it"
    renewed_at = dt.datetime.fromisoformat(stands["spec"]["renewTime"])
    assert abs(renewed_at.timestamp() - time.time()) < 60
    assert stands["metadata"]["labels"]["app.kubernetes.io/name"] == "sickbay"


async def test_a_write_at_another_version_is_refused_and_says_how(
    board: KubeLeases, cluster_space: Space
) -> None:
    first = await board.write(MEMBER, "")
    with pytest.raises(LeaseConflict):
        await board.write(MEMBER, "")
    await board.write(MEMBER, first.version)
    with pytest.raises(LeaseConflict):
        await board.write(MEMBER, first.version)


async def test_one_that_was_deleted_by_hand_is_made_anew_by_its_renewal(
    board: KubeLeases, cluster_space: Space
) -> None:
    """Leases differ from all else that we write: the API server lets an update create them."""
    first = await board.write(MEMBER, "")
    cluster_space.plane.call("DELETE", path(cluster_space, MEMBER.name))
    assert await board.list() == []
    again = await board.write(MEMBER, first.version)
    assert list(await board.list()) == [again]


async def test_what_is_no_replicas_lease_is_none_and_a_damaged_one_is_still_seen(
    board: KubeLeases, cluster_space: Space
) -> None:
    other = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    plane = cluster_space.plane
    for name in ("sickbay-operator", "another"):
        plane.call("POST", path(cluster_space), {**other, "metadata": {"name": name}})
    await board.write(MEMBER, "")
    await board.write(Member("b", epoch="b1"), "")
    spoilt = {"metadata": {"annotations": {"sickbay.dev/since": "x", "sickbay.dev/epoch": None}}}
    plane.call("PATCH", path(cluster_space, "b"), spoilt, MERGE_PATCH)
    found = {lease.member.name: lease.member for lease in await board.list()}
    assert found == {MEMBER.name: MEMBER, "b": Member("b")}


@pytest.mark.parametrize("since", ["nan", "inf", "-inf", "1e308", "-1"])
async def test_a_lease_whose_time_is_none_reads_the_same_each_time_and_lets_others_join(
    board: KubeLeases, cluster_space: Space, since: str
) -> None:
    await board.write(MEMBER, "")
    spoilt = {"metadata": {"annotations": {"sickbay.dev/since": since}}}
    cluster_space.plane.call("PATCH", path(cluster_space, MEMBER.name), spoilt, MERGE_PATCH)
    [lease] = await board.list()
    assert [lease] == await board.list(), "or it would be taken for one that is renewed"
    membership = Membership(Member("b", epoch="b1"), TIMES)
    membership.listed([lease], asked=0.0, answered=0.0)
    write = membership.next_write(now=0.0, wall=time.time())
    assert write is not None
    await board.write(write.member, write.version)


async def test_without_the_namespace_it_says_so_and_does_not_take_it_for_a_deleted_lease(
    cluster_space: Space,
) -> None:
    async with board_of(cluster_space.plane.kubeconfig, "nowhere") as board:
        with pytest.raises(LeaseStoreError, match="nowhere") as raised:
            await board.write(MEMBER, "")
        assert not isinstance(raised.value, LeaseNotFound)
        with pytest.raises(LeaseNotFound):
            await board.write(MEMBER, "12345")


async def test_who_has_no_right_to_them_is_told_so(cluster_space: Space) -> None:
    nobody = cluster_space.plane.kubeconfig_for("nobody-in-particular")
    async with board_of(nobody, cluster_space.namespace) as board:
        with pytest.raises(LeaseForbidden, match="cannot list resource"):
            await board.list()


async def test_an_answer_that_does_not_come_is_not_waited_for(cluster_space: Space) -> None:
    silent = await asyncio.start_server(lambda *_: asyncio.sleep(3600), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    config = cluster_space.plane.kubeconfig.read_text()
    own = cluster_space.plane.folder / f"silent-{port}"
    own.write_text(config.replace(cluster_space.plane.url, f"https://127.0.0.1:{port}"))
    own.chmod(0o600)
    async with silent, board_of(own, cluster_space.namespace, deadline=0.2) as board:
        began = time.monotonic()
        with pytest.raises(LeaseStoreError, match=r"no answer in 0\.2 s"):
            await board.list()
        assert time.monotonic() - began < 5.0  # and not the transport's own ten


def account(space: Space) -> Path:
    """An account with the shipped rights on Leases, in the test's own namespace."""
    plane, namespace = space.plane, space.namespace
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    subject = {"kind": "ServiceAccount", "name": "replica", "namespace": namespace}
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["list", "create", "update"],
    }
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "replica"}
    named = {"metadata": {"name": "replica"}}
    plane.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", named)
    plane.call("POST", f"{rbac}/roles", {**named, "rules": [rule]})
    plane.call("POST", f"{rbac}/rolebindings", {**named, "roleRef": ref, "subjects": [subject]})
    return plane.kubeconfig_for_service_account(namespace, "replica")


class Replica:
    """A lease manager on the real clock."""

    def __init__(self, name: str, board: KubeLeases) -> None:
        self.lease_manager = LeaseManager(
            Member(name, epoch=f"{name}-1", address=f"{name}:1"),
            board,
            clock=time.monotonic,
            wall=time.time,
            times=QUICK,
        )
        self.task = asyncio.create_task(self.lease_manager.run())

    async def die(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def acts(self) -> set[str]:
        return {node for node in NODES if self.lease_manager.may_act(node)}

    @property
    def members(self) -> set[str]:
        return set(self.lease_manager.membership_view.members)


async def test_two_share_the_nodes_through_cuts_deletions_and_deaths(
    cluster_space: Space, tmp_path: Path
) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    direct = account(cluster_space)
    async with AsyncExitStack() as stack:
        proxy = stack.enter_context(FaultyProxy(plane, tmp_path / "proxy", ApiFaults()))
        way_of_a = await stack.enter_async_context(
            board_of(direct, namespace, deadline=QUICK.deadline)
        )
        way_of_b = await stack.enter_async_context(
            board_of(proxy.kubeconfig(direct), namespace, deadline=QUICK.deadline)
        )
        a, both = Replica("a", way_of_a), set(NODES)
        stack.push_async_callback(a.die)
        await until(lambda: a.acts() == both, "a acts for all")
        b = Replica("b", way_of_b)
        stack.push_async_callback(b.die)
        await until(lambda: b.acts() and a.acts() | b.acts() == both, "they share the nodes")
        assert not a.acts() & b.acts()
        shares = a.acts(), b.acts()
        assert {a.lease_manager.owner_address(node) for node in shares[1]} == {"b:1"}
        assert a.lease_manager.leads()

        # A Lease deleted by hand: its holder makes it anew, and no node moves.
        plane.call("DELETE", path(cluster_space, "b"))
        await until(lambda: _there(cluster_space, "b"), "b's Lease is there again")
        assert b.members == {"a", "b"}
        assert a.members == {"a", "b"}

        # b is cut off: it freezes, and a takes over; then b is back, and has its own again.
        proxy.faults.resets = 1.0
        await until(lambda: b.lease_manager.membership_view.frozen, "b is frozen")
        assert not b.acts()
        assert b.members == {"a", "b"}, "as last known"
        await until(lambda: a.acts() == both, "a has b's nodes")
        proxy.faults.resets = 0.0
        await until(lambda: (a.acts(), b.acts()) == shares, "all is as before")
        assert a.lease_manager.leads()

        # a dies without a word, and b takes over; b leaves in order.
        await a.die()
        await until(lambda: b.acts() == both, "b has a's nodes")
        assert b.lease_manager.leads()
        assert await b.lease_manager.leave()
        assert not b.acts()
        stands = plane.call("GET", path(cluster_space, "b"))
        assert "sickbay.dev/leaving" in stands["metadata"]["annotations"]


def _there(space: Space, name: str) -> bool:
    return space.plane.client.request("GET", path(space, name)).status == 200
