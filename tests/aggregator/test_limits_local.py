"""Limits on the local cluster: the record is a row of a real file, and outlives who wrote it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from aggregator.local.cluster import Commands, LocalCluster
from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.controller import Controller
from aggregator.quarantine.decide.admission import FLEET
from aggregator.quarantine.decide.record import parse_record
from aggregator.quarantine.fleet import Fleet
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
from tests.support.waiting import until

NAMES = [f"n{number}" for number in range(6)]
LIMITS = replace(OPEN, new_per_window=2, window=600.0, cooldown=900.0)


@asynccontextmanager
async def life(file: Path, clock: Turned) -> AsyncIterator[tuple[Fleet, LocalCluster]]:
    """One process, and agents of six nodes that are all ill."""
    cluster, fleet = LocalCluster(file, commands=Commands(), wall=clock), Fleet()
    await cluster.start()
    controller = Controller(
        cluster=cluster,
        policy=POLICY,
        settings=replace(SETTINGS, limits=LIMITS),
        fleet=fleet,
        ledger=Notes(),
        clocks=Clocks(clock, clock),
        rng=random.Random(7),
    )
    task = asyncio.create_task(controller.run())
    try:
        await until(lambda: not fleet.view_lost)
        for name in NAMES:
            controller.attached(hello(name), FakeLine())
            controller.heard(name, snapshot(fault()), clock())
        yield fleet, cluster
    finally:
        task.cancel()
        await asyncio.wait({task})
        await cluster.close()


def sick(fleet: Fleet) -> set[str]:
    return {one.node for one in fleet.patients.values() if one.quarantine is not None}


def holds(fleet: Fleet) -> set[str]:
    return {one.hold.limit for one in fleet.patients.values() if one.hold is not None}


async def test_the_rate_and_the_cooldown_outlive_the_process(tmp_path: Path) -> None:
    file, clock = tmp_path / "cluster.db", Turned()
    async with life(file, clock) as (fleet, cluster):
        await until(lambda: len(sick(fleet)) == 2 and len(fleet.patients) == 6)
        await until(lambda: holds(fleet) <= {"limits.new_per_window", "limits.cooldown"})
        first = sick(fleet)
        record = parse_record((await cluster.read_record()).text)
        assert set(record.entries) == first
        assert len(record.admissions) == 2
        assert record.cooldowns[FLEET].because == (
            "2 nodes were admitted within 10m; the limit is 2"
        )
    clock.time += 700  # the window is empty again
    async with life(file, clock) as (fleet, cluster):
        await until(lambda: holds(fleet) == {"limits.cooldown"})
        assert sick(fleet) == first
        clock.time += 250
        await until(lambda: len(sick(fleet)) == 4)
        assert sick(fleet) >= first
        await until(lambda: bool(holds(fleet)))
        assert len(parse_record((await cluster.read_record()).text).entries) == 4
