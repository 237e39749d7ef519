"""The Lease on a real API server: the store, and holders that see each other by it."""

import asyncio
import datetime as dt
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aggregator.cluster.kubernetes.credentials import CredentialSources
from aggregator.cluster.kubernetes.lease import NAME, KubeLease
from aggregator.cluster.kubernetes.limiter import Limiter
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.leader.election import LeaseTiming
from aggregator.leader.holder import LeaseHolder
from aggregator.leader.lease import (
    Candidate,
    Draft,
    LeaseConflict,
    LeaseStoreError,
)
from tests.controlplane.pytest_plugin import Space
from tests.support.present import present
from tests.support.waiting import until

ME = Candidate(
    name="sickbay-aggregator-0",
    epoch="e1",
    address="sickbay-aggregator-0.sickbay-aggregator.sickbay.svc:8443",
    page="https://sickbay-aggregator-0.sickbay-aggregator.sickbay.svc:8080",
    version="0.2.0",
)
#: Quicker than the shipped one. A process that does not run for some seconds keeps its Lease.
QUICK = LeaseTiming(8.0, 6.0, 0.4, 2.5, 4.0)


@asynccontextmanager
async def store_of(
    kubeconfig: Path, namespace: str, *, deadline: float = 10.0
) -> AsyncIterator[KubeLease]:
    # The limiter stands still after one request: the Lease must not notice.
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
        yield KubeLease(transport, namespace, deadline=deadline, wall=time.time)
    finally:
        await transport.close()


@pytest.fixture
async def store(cluster_space: Space) -> AsyncIterator[KubeLease]:
    async with store_of(cluster_space.plane.kubeconfig, cluster_space.namespace) as made:
        yield made


def path(space: Space) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{space.namespace}/leases/{NAME}"


async def test_what_a_holder_writes_all_can_read(store: KubeLease, cluster_space: Space) -> None:
    assert await store.read() is None
    written = await store.write(Draft(ME, "", 0, acquires=True))
    assert (written.holder, await store.read()) == (ME, written)
    renewed = await store.write(Draft(ME, written.version, 0, acquires=False))
    assert renewed.version != written.version
    assert renewed.uid == written.uid
    assert await store.read() == renewed
    stands = cluster_space.plane.call("GET", path(cluster_space))
    assert stands["spec"]["holderIdentity"] == ME.name, "kubectl get leases shows it"
    assert stands["spec"]["leaseDurationSeconds"] == 15
    renewed_at = dt.datetime.fromisoformat(stands["spec"]["renewTime"])
    assert abs(renewed_at.timestamp() - time.time()) < 60
    assert stands["spec"]["acquireTime"] < stands["spec"]["renewTime"]
    assert stands["metadata"]["labels"]["app.kubernetes.io/name"] == "sickbay"
    released = await store.write(Draft(None, renewed.version, 3, acquires=False))
    assert (released.holder, released.transitions) == (None, 3)


async def test_a_write_at_another_version_is_refused(store: KubeLease) -> None:
    first = await store.write(Draft(ME, "", 0, acquires=True))
    with pytest.raises(LeaseConflict):
        await store.write(Draft(ME, "", 0, acquires=True))
    await store.write(Draft(ME, first.version, 0, acquires=False))
    with pytest.raises(LeaseConflict):
        await store.write(Draft(ME, first.version, 0, acquires=False))


async def test_one_that_was_deleted_by_hand_is_made_anew_by_its_renewal(
    store: KubeLease, cluster_space: Space
) -> None:
    """Leases differ from all else that we write: the API server lets an update create them."""
    first = await store.write(Draft(ME, "", 0, acquires=True))
    cluster_space.plane.call("DELETE", path(cluster_space))
    assert await store.read() is None
    again = await store.write(Draft(ME, first.version, 0, acquires=False))
    assert again.uid != first.uid
    assert await store.read() == again


async def test_one_without_the_right_is_told_so(cluster_space: Space) -> None:
    nobody = cluster_space.plane.kubeconfig_for("nobody")
    async with store_of(nobody, cluster_space.namespace) as refused:
        with pytest.raises(LeaseStoreError, match="403"):
            await refused.read()
    async with store_of(nobody, "there-is-none") as refused:
        with pytest.raises(LeaseStoreError):
            await refused.write(Draft(ME, "", 0, acquires=True))


async def test_one_holds_at_a_time_and_another_takes_over_when_it_is_dead_or_leaves(
    cluster_space: Space,
) -> None:
    plane = cluster_space.plane
    async with (
        store_of(plane.kubeconfig, cluster_space.namespace) as of_a,
        store_of(plane.kubeconfig, cluster_space.namespace) as of_b,
    ):
        a = LeaseHolder(Candidate("a", "a1"), of_a, clock=time.monotonic, times=QUICK)
        b = LeaseHolder(Candidate("b", "b1"), of_b, clock=time.monotonic, times=QUICK)
        first = asyncio.create_task(a.run())
        await until(a.may_act)
        second = asyncio.create_task(b.run())
        await until(lambda: b.other() == a.me)
        seen = set[str]()
        while len(seen) < 1.2 * QUICK.lease_duration / QUICK.retry_period:
            lease = present(await of_b.read())
            assert lease.holder == a.me
            seen.add(lease.version)
            await asyncio.sleep(QUICK.retry_period / 2)  # each read costs the server some
        assert (a.may_act(), b.may_act()) == (True, False)
        first.cancel()
        await until(b.may_act, within=15)
        assert not a.may_act(), "its clock tells it"
        third = asyncio.create_task(a.run())
        await until(third.done, "the end of one that finds that another has held the Lease")
        again = LeaseHolder(
            Candidate("a", "a2"), of_a, clock=time.monotonic, times=QUICK, starts=False
        )
        fourth = asyncio.create_task(again.run())
        await until(lambda: again.other() == b.me)
        began = time.monotonic()
        second.cancel()
        await b.release()
        await until(again.may_act, within=15)
        assert time.monotonic() - began < QUICK.lease_duration, "it did not wait for the end"
        fourth.cancel()
        await asyncio.gather(first, second, fourth, return_exceptions=True)
