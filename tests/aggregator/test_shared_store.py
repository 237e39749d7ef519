"""The state of a cluster without Kubernetes in a real PostgreSQL, which replicas share."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cli.local_actions import LocalActions, local_actions
from aggregator.cluster.local import cluster as local_module
from aggregator.cluster.local.cluster import LocalCluster
from aggregator.cluster.local.place import StorePlace
from aggregator.cluster.local.postgres_lease import PostgresLease
from aggregator.cluster.local.settings import Commands
from aggregator.cluster.port import (
    UNGUARDED,
    Conflict,
    NodeChange,
    QuarantineSeen,
    Refused,
    StopSeen,
    Unreachable,
    WatchLost,
    WatchSynced,
)
from aggregator.config.shared_store import shared_place
from aggregator.history.engine import DatabaseCredentials
from aggregator.leader.election import LeaseTiming
from aggregator.leader.holder import LeaseHolder
from aggregator.leader.lease import (
    Candidate,
    Draft,
    LeaseConflict,
    LeaseNotFound,
    LeaseStoreError,
)
from tests.aggregator.local_file import OURS, SPEC
from tests.aggregator.test_local_cluster import Late, collected_events, each_late_change
from tests.aggregator.test_slurm_interleavings import expect_nothing_undone
from tests.support.postgres import PostgresServer, StartPostgres
from tests.support.present import of_type, present
from tests.support.waiting import until

ME = Candidate("a", "a1", "a.example.test:8443", "https://a.example.test:8080", "0.1.0")
#: A tenth of the shipped value, with room for a busy machine.
QUICK = LeaseTiming(3.0, 2.0, 0.3, 0.6, 1.6)


def place_on(server: PostgresServer, url: str) -> StorePlace:
    return shared_place(url, DatabaseCredentials(server.password_file))


@pytest.fixture
def place(postgres: PostgresServer) -> StorePlace:
    return place_on(postgres, postgres.new_database())


@asynccontextmanager
async def opened(
    place: StorePlace, commands: Commands | None = None
) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(place, commands=commands or Commands(), wall=time.time)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


def lease_of(place: StorePlace, deadline: float = 3.0) -> PostgresLease:
    assert place.lease is not None
    return of_type(place.lease(deadline), PostgresLease)


# -- compare-and-set -----------------------------------------------------------------------------


@each_late_change
async def test_whoever_decided_on_an_older_picture_fails(place: StorePlace, late: Late) -> None:
    async with opened(place) as one, opened(place) as other:
        with pytest.raises(Conflict):
            await late(one, other)


async def test_no_write_of_several_replicas_is_lost(place: StorePlace) -> None:
    """Each adds to the record what it read there: the record has all that was accepted."""
    accepted = refused = 0
    rng = random.Random(33)

    async def add(cluster: LocalCluster, times: int) -> None:
        nonlocal accepted, refused
        for _ in range(times):
            read = await cluster.read_record()
            await asyncio.sleep(rng.choice((0, 0, 0.002)))
            try:
                written = await cluster.write_record(f"{read.text}x", read.version, guard=UNGUARDED)
            except Conflict:
                refused += 1
            else:
                accepted += 1
                assert written.text == f"{read.text}x", "its own write, and not a later one"

    async with AsyncExitStack() as ending:
        replicas = [await ending.enter_async_context(opened(place)) for _ in range(3)]
        await asyncio.gather(*(add(one, 20) for one in replicas))
        assert len((await replicas[0].read_record()).text) == accepted
    assert accepted + refused == 60
    assert refused, "they came in between"


async def test_replicas_that_start_together_make_the_tables_once(place: StorePlace) -> None:
    clusters = [LocalCluster(place, commands=Commands(), wall=time.time) for _ in range(4)]
    await asyncio.gather(*(one.start() for one in clusters))
    assert {(await one.read_record()).version for one in clusters} == {"1"}
    for one in clusters:
        await one.close()


async def test_a_newer_format_is_refused(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    async with opened(place_on(postgres, url)):
        pass
    statement = "UPDATE sickbay_cluster.format SET version = 99"
    await asyncio.to_thread(postgres.run, statement, url.rpartition("/")[2])
    newer = LocalCluster(place_on(postgres, url), commands=Commands(), wall=time.time)
    with pytest.raises(Refused, match=r"newer sickbay .*cluster\.store\.database"):
        await newer.start()
    await newer.close()


async def test_a_replica_that_stops_within_a_change_holds_the_others_up_for_seconds_only(
    postgres: PostgresServer,
) -> None:
    """The server ends its transaction, and undoes its change."""
    url = postgres.new_database()
    place = place_on(postgres, url)
    begun, thread = asyncio.Event(), ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    stuck = await loop.run_in_executor(thread, place.open, time.time)
    going_on: list[bool] = []

    def stops(run: Callable[..., Any]) -> None:
        run("UPDATE record SET text = 'late', version = version + 1")
        loop.call_soon_threadsafe(begun.set)
        while not going_on:
            time.sleep(0.01)
        run("UPDATE record SET text = 'late', version = version + 1")

    with thread:
        change = loop.run_in_executor(thread, stuck._rows.change, stops)
        try:
            await begun.wait()
            async with opened(place) as other:
                read = await other.read_record()
                assert (await other.write_record("x", read.version, guard=UNGUARDED)).text == "x"
                going_on.append(True)
                with pytest.raises(Unreachable):
                    await change
                assert (await other.read_record()).text == "x"
        finally:
            going_on.append(True)
            await loop.run_in_executor(thread, stuck.close)


async def test_what_another_replica_writes_is_news(place: StorePlace) -> None:
    async with opened(place) as one, opened(place) as other, collected_events(one) as heard:
        await until(lambda: any(isinstance(item, WatchSynced) for item in heard))
        made = await other.create_quarantine("n1", SPEC, guard=UNGUARDED)
        await until(lambda: QuarantineSeen(made) in heard)
        await other._write(other._open.set_stop, "drill")
        await until(lambda: any(isinstance(item, StopSeen) and item.stop.reason for item in heard))


# -- a database that is away -----------------------------------------------------------------------


async def test_a_database_that_is_away_loses_the_view_and_brings_all_of_it_back(
    start_postgres: StartPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_module, "AGAIN", 0.05)
    server = await asyncio.to_thread(start_postgres)
    place = place_on(server, await asyncio.to_thread(server.new_database))
    async with opened(place) as cluster, collected_events(cluster) as heard:
        made = await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        node = present(await cluster.read_node("n1"))
        await until(lambda: QuarantineSeen(made) in heard)
        await asyncio.to_thread(server.kill)
        await until(lambda: any(isinstance(item, WatchLost) for item in heard))
        with pytest.raises(Unreachable, match="postgresql://sickbay@127"):
            await cluster.patch_node(node, NodeChange(taints=(OURS,)), guard=UNGUARDED)
        heard.clear()
        await asyncio.to_thread(server.start)
        await until(lambda: any(isinstance(item, WatchSynced) for item in heard))
        assert QuarantineSeen(made) in heard
        assert (
            await cluster.patch_node(node, NodeChange(taints=(OURS,)), guard=UNGUARDED)
        ).taints == (OURS,)


async def test_the_lease_of_a_server_that_hangs_fails_in_its_time_and_comes_back(
    start_postgres: StartPostgres,
) -> None:
    server = await asyncio.to_thread(start_postgres)
    place = place_on(server, await asyncio.to_thread(server.new_database))
    lease = lease_of(place, deadline=1.0)
    written = await _first(lease)
    await asyncio.to_thread(server.pause)
    for _ in range(3):
        with pytest.raises(LeaseStoreError, match="no answer within 1 s"):
            await lease.write(Draft(ME, written.version, 0, acquires=False))
    await asyncio.to_thread(server.resume)
    found = None
    while found is None or found.holder is None:
        try:
            found = await lease.read()
        except LeaseStoreError:
            continue
    assert found.holder == ME
    await lease.close()


async def _first(lease: PostgresLease) -> Any:
    """Its first write; the first connection makes the tables, which takes this machine a while."""
    while True:
        try:
            return await lease.write(Draft(ME, "", 0, acquires=True))
        except LeaseConflict:
            return present(await lease.read())
        except LeaseStoreError:
            continue


# -- the Lease -------------------------------------------------------------------------------------


async def test_what_a_holder_writes_all_can_read(place: StorePlace) -> None:
    mine, other = lease_of(place, 300), lease_of(place, 300)
    assert await mine.read() is None
    written = await mine.write(Draft(ME, "", 0, acquires=True))
    assert (written.holder, await other.read()) == (ME, written)
    renewed = await mine.write(Draft(ME, written.version, 0, acquires=False))
    assert renewed.version != written.version
    assert renewed.uid == written.uid
    with pytest.raises(LeaseConflict):
        await other.write(Draft(ME, "", 0, acquires=True))
    with pytest.raises(LeaseConflict):
        await other.write(Draft(replace(ME, name="b"), written.version, 1, acquires=True))
    released = await mine.write(Draft(None, renewed.version, 3, acquires=False))
    assert (released.holder, released.transitions) == (None, 3)
    for lease in (mine, other):
        await lease.close()


async def test_a_row_made_anew_is_at_no_earlier_version(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    lease = lease_of(place_on(postgres, url), 300)
    first = await lease.write(Draft(ME, "", 0, acquires=True))
    statement = "DELETE FROM sickbay_cluster.lease"
    await asyncio.to_thread(postgres.run, statement, url.rpartition("/")[2])
    assert await lease.read() is None
    with pytest.raises(LeaseNotFound):
        await lease.write(Draft(ME, first.version, 0, acquires=False))
    again = await lease.write(Draft(replace(ME, name="b"), "", 0, acquires=True))
    with pytest.raises(LeaseConflict):
        await lease.write(Draft(ME, first.version, 0, acquires=False))
    assert await lease.read() == again
    await lease.close()


async def test_one_holds_at_a_time_and_another_takes_over_when_it_is_dead_or_leaves(
    place: StorePlace,
) -> None:
    async with opened(place):  # makes the tables
        pass
    of_a, of_b = lease_of(place, QUICK.deadline), lease_of(place, QUICK.deadline)
    a = LeaseHolder(Candidate("a", "a1"), of_a, clock=time.monotonic, times=QUICK)
    b = LeaseHolder(Candidate("b", "b1"), of_b, clock=time.monotonic, times=QUICK)
    first = asyncio.create_task(a.run())
    await until(a.may_act)
    second = asyncio.create_task(b.run())
    await until(lambda: b.other() == a.me)
    first.cancel()
    await until(b.may_act)
    assert not a.may_act(), "its clock shows it"
    third = asyncio.create_task(a.run())
    await until(third.done, "a to see that another has held the Lease")
    again = LeaseHolder(Candidate("a", "a2"), of_a, clock=time.monotonic, times=QUICK, starts=False)
    fourth = asyncio.create_task(again.run())
    await until(lambda: again.other() == b.me)
    await b.release()
    second.cancel()
    await until(again.may_act)
    fourth.cancel()
    await asyncio.wait([first, second, fourth])
    for lease in (of_a, of_b):
        await lease.close()


async def test_drains_in_slurm_are_told_apart_by_what_the_database_has_of_them(
    place: StorePlace,
) -> None:
    await expect_nothing_undone(place, range(8))


# -- people ----------------------------------------------------------------------------------------


async def test_people_act_on_it_and_a_dry_run_writes_nothing(place: StorePlace) -> None:
    def dry() -> str:
        with local_actions(place, how="", dry_run=True) as actions:
            actions.stop("drill")
            return actions.release("n1")

    async with opened(place) as cluster:
        await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        assert "n1" in await asyncio.to_thread(dry)
        found = present(await cluster.read_quarantine("n1"))
        assert (found.deleting, (await cluster.read_stop()).reason) == (False, None)
        actions = LocalActions(place, how="")
        await asyncio.to_thread(actions.release, "n1")
        await asyncio.to_thread(actions.stop, "drill")
        found = present(await cluster.read_quarantine("n1"))
        assert (found.deleting, (await cluster.read_stop()).reason) == (True, "drill")
