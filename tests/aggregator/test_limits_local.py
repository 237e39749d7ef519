"""Limits on the local cluster: the record is a row of a real file, and outlives its writer."""

import asyncio
import random
import shlex
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.local.cluster import LocalCluster
from aggregator.cluster.local.settings import Commands
from aggregator.composition.core import build_controller
from aggregator.quarantine.controller import Controller
from aggregator.quarantine.decide.admission_record import FLEET, parse_record
from aggregator.quarantine.state.fleet import FleetState
from tests.support.replica import (
    OPEN,
    POLICY,
    SETTINGS,
    FakeLine,
    Notes,
    Turned,
    fault,
    hello,
    snapshot,
)
from tests.support.tasks import end_tasks
from tests.support.waiting import PATIENCE, until

NAMES = [f"n{number}" for number in range(6)]
LIMITS = replace(OPEN, new_per_window=2, window=600.0, cooldown=900.0)


@asynccontextmanager
async def life(
    file: Path, clock: Turned
) -> AsyncIterator[tuple[FleetState, LocalCluster, Controller]]:
    """One process, and agents of six nodes that are all unhealthy."""
    cluster, fleet = LocalCluster(file, commands=Commands(), wall=clock), FleetState()
    await cluster.start()
    controller = build_controller(
        cluster=cluster,
        policy=POLICY,
        settings=replace(SETTINGS, limits=LIMITS),
        fleet=fleet,
        event_sink=Notes(),
        clocks=Clocks(clock, clock),
        rng=random.Random(7),
    )
    task = asyncio.create_task(controller.run())
    try:
        await until(lambda: not fleet.view_lost)
        for name in NAMES:
            controller.on_connect(hello(name), FakeLine())
            controller.on_evidence(name, snapshot(fault()), clock())
        yield fleet, cluster, controller
    finally:
        await end_tasks(task)
        await cluster.close()


def sick(fleet: FleetState) -> set[str]:
    return {one.node for one in fleet.node_summaries.values() if one.quarantine is not None}


def holds(fleet: FleetState) -> set[str]:
    return {
        one.decision.hold.limit
        for one in fleet.node_summaries.values()
        if one.decision.hold is not None
    }


async def test_the_rate_and_the_cooldown_outlive_the_process(tmp_path: Path) -> None:
    file, clock = tmp_path / "cluster.db", Turned()
    async with life(file, clock) as (fleet, cluster, _):
        await until(lambda: len(sick(fleet)) == 2 and len(fleet.node_summaries) == 6)
        await until(lambda: holds(fleet) <= {"limits.new_per_window", "limits.cooldown"})
        first = sick(fleet)
        record = parse_record((await cluster.read_record()).text)
        assert set(record.entries) == first
        assert len(record.admissions) == 2
        assert record.cooldowns[FLEET].because == (
            "2 nodes were admitted within 10m; the limit is 2"
        )
    clock.time += 700  # the window is empty again
    async with life(file, clock) as (fleet, cluster, _):
        await until(lambda: holds(fleet) == {"limits.cooldown"})
        assert sick(fleet) == first
        clock.time += 250
        await until(lambda: len(sick(fleet)) == 4)
        assert sick(fleet) >= first
        await until(lambda: bool(holds(fleet)))
        assert len(parse_record((await cluster.read_record()).text).entries) == 4


async def test_a_record_that_cannot_be_read_says_where_what_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The advice in the message repairs it: the record is made anew from the existing objects."""
    caplog.set_level("INFO")
    file, clock = tmp_path / "cluster.db", Turned()

    def sql(text: str) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as database:
            database.execute(text)

    async with life(file, clock) as (fleet, cluster, controller):
        await until(lambda: len(sick(fleet)) == 2)
        sql("UPDATE record SET text = '{,}', version = version + 1")
        await until(lambda: bool(controller.record_problem))
        said = "the admission record can't be used: no new quarantine is admitted"
        (line,) = (one for one in caplog.records if one.msg == said)
        assert vars(line)["error"] == controller.record_problem
        said, _, command = controller.record_problem.partition(" in force: ")
        assert said == (
            f"the admission record can't be read: table record of {file}: it is not as sickbay "
            "writes it: JSON is malformed: object keys must be strings (byte 1). No new quarantine "
            "is admitted. To have it made anew from the Quarantines"
        )
        program, database, statement = shlex.split(command)
        assert (program, database) == ("sqlite3", str(file))
        sql(statement)
        await until(lambda: not controller.record_problem)
        assert "the admission record can be read again" in caplog.messages
        stored = await cluster.read_record()
        async with asyncio.timeout(PATIENCE):
            while set(parse_record(stored.text).entries) != sick(fleet):
                await asyncio.sleep(0.01)
                stored = await cluster.read_record()


def test_on_kubernetes_the_command_empties_the_record() -> None:
    place = KubeCluster(namespace="health").record_place
    assert place.where == "ConfigMap health/sickbay-record, data.record"
    assert shlex.split(place.empties)[-1] == '{"data":{"record":""}}'
    assert " -n health patch configmap sickbay-record --type merge " in place.empties
