"""The requests that the drain of one node costs, and the changes that its few reads still show."""

import asyncio
from dataclasses import replace

import pytest

from aggregator.cluster.port import Phase
from aggregator.quarantine.decide.drain_plan import DrainRules, Leave, NamespaceRule
from aggregator.quarantine.decide.operator_requests import EXEMPT
from aggregator.quarantine.drain import drainer
from aggregator.quarantine.reconcile.poller import DRAINING_EVERY
from tests.support import virtual_time
from tests.support.drains import begun, status, world_with
from tests.support.memory_cluster import phase_of
from tests.support.replica import SETTINGS
from tests.support.waiting import until

#: The poller sleeps so long between two rounds (seconds), and a little for each node.
ROUND = 6.0


@pytest.fixture(autouse=True)
def _in_full_time(monkeypatch: pytest.MonkeyPatch, _soon_drained: None) -> None:
    monkeypatch.setattr(drainer, "EMPTY_FOR", 5.0)


def test_a_node_is_read_once_at_the_begin_of_its_drain_and_first_polled_later() -> None:
    async def scenario() -> None:
        world = world_with("a")
        waits = NamespaceRule("jobs", Leave.WAIT, wait=3600.0)
        replica = await begun(world, replace(SETTINGS, drain=DrainRules(namespaces=(waits,))))
        await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
        before = replica.cluster.asked["read_node"]
        await asyncio.sleep(DRAINING_EVERY - 1)
        assert replica.cluster.asked["read_node"] == before
        await asyncio.sleep(ROUND + 1)
        assert replica.cluster.asked["read_node"] == before + 1
        await replica.stop()

    virtual_time.run(scenario())


@pytest.mark.parametrize("after", [0.1, 10.0, 40.0])
def test_an_exemption_is_seen_within_one_interval_at_any_time_of_a_drain(after: float) -> None:
    async def scenario() -> None:
        world = world_with("a")
        waits = NamespaceRule("jobs", Leave.WAIT, wait=3600.0)
        replica = await begun(world, replace(SETTINGS, drain=DrainRules(namespaces=(waits,))))
        await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
        await asyncio.sleep(after)
        world.person_annotates("n1", EXEMPT, "until 2100-01-01T00:00:00Z the job must end")
        await until(
            lambda: "the job must end" in status(world).message, within=DRAINING_EVERY + ROUND
        )
        await replica.stop()

    virtual_time.run(scenario())
