"""People's and controllers' view of a repair, by the whole controller in virtual time."""

from dataclasses import replace

import pytest

from aggregator.cluster.port import ObjectCondition, Phase
from aggregator.health.model import Cleared
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.reconcile.rounds import ROUNDS
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.present import present
from tests.support.repair_shop import TIMEOUT, Shop, ShopRepairer, repair_settings
from tests.support.replica import SETTINGS, Replica, fault, shipped_policy, snapshot
from tests.support.virtual_replica import Running, later, soon
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

POLICY = shipped_policy("rules:\n  - {name: gpu-gone, repair: [reboot, ticket]}\n")
ILL, WELL = snapshot(fault()), snapshot(cleared=(Cleared("xid:79", "GPU-1", "reboot"),))


class Site:
    """One node, one machine, one replica with a repairer of reboots."""

    def __init__(self, *, mode: RepairMode = RepairMode.REPAIR) -> None:
        self.world = World()
        self.world.add_node("n1")
        self.shop = Shop(self.world, on_boot=self.report)
        cluster = MemoryCluster(self.world)
        repairer = ShopRepairer(self.shop, cluster)
        settings = repair_settings(("reboot", repairer), mode=mode)
        self.replica = Replica(
            self.world,
            clock=Running(),
            settings=replace(SETTINGS, repair=settings),
            policy=POLICY,
            cluster=cluster,
        )
        self.seen: list[tuple[str, str]] = []
        self.report("n1")

    def report(self, name: str) -> None:
        boot = self.world.nodes[name].boot_id
        self.replica.agent(name, ILL if boot == "boot-1" else WELL, boot_id=boot)

    def condition(self) -> ObjectCondition | None:
        found = self.world.quarantines.get("n1")
        conditions = found.status.conditions if found is not None else ()
        return next((one for one in conditions if one.type == "Repaired"), None)

    def note_condition(self) -> None:
        """Remember each state of the condition."""
        self.world.kubelets_finish()
        one = self.condition()
        state = (one.status, one.reason) if one is not None else ("", "")
        if not self.seen or self.seen[-1] != state:
            self.seen.append(state)

    async def until(self, reason: str) -> None:
        def reached() -> bool:
            self.note_condition()
            return bool(self.seen) and self.seen[-1][1] == reason

        await soon(reached, within=4 * TIMEOUT)


async def test_a_repair_shows_as_a_condition_and_counts_until_the_node_is_back() -> None:
    site = Site()
    await site.until("Ordered")
    fleet, stages = site.replica.fleet, site.replica.fleet.stages
    await soon(lambda: fleet.repairing == 1, within=3 * ROUNDS)
    await site.until("Succeeded")
    assert site.seen[-2:] == [("False", "Ordered"), ("True", "Succeeded")]
    assert stages.repair_attempts == {("reboot", "Succeeded"): 1}
    assert 60 <= stages.repair_durations["reboot"].total < TIMEOUT
    await soon(lambda: not site.world.quarantines, within=TIMEOUT)
    told = [one.reason for one in site.world.events if one.action == "Repair"]
    assert told == ["RepairOrdered", "RepairEnded"]
    assert stages.node_return.count == 1
    assert stages.node_return.total == stages.quarantine_to_release.total
    await soon(lambda: fleet.repairing == 0, within=3 * ROUNDS)


async def test_a_ladder_that_ends_shows_so_and_counts_the_attempt_that_failed() -> None:
    site = Site()
    site.shop.answer = RepairAnswer(AnswerState.FAILED, "the BMC refuses")
    await site.until("Exhausted")
    found = present(site.condition())
    assert found.status == "False"
    assert found.message == "no further repair is on its ladder"
    told = [(one.reason, one.warning) for one in site.world.events if one.action == "Repair"]
    assert told == [("RepairOrdered", False), ("RepairEnded", True), ("RepairExhausted", True)]
    assert site.replica.fleet.stages.repair_attempts == {("reboot", "Failed"): 1}


async def test_without_repairs_there_is_no_condition_about_them() -> None:
    site = Site(mode=RepairMode.OFF)
    await soon(
        lambda: (
            site.world.quarantines and site.world.quarantines["n1"].status.phase is Phase.DRAINED
        ),
        within=TIMEOUT,
    )
    await later(3600)
    assert site.condition() is None


async def test_a_request_of_an_earlier_quarantine_is_not_followed_in_a_later_one() -> None:
    site = Site()
    site.shop.answer = RepairAnswer(AnswerState.FAILED, "the BMC refuses")
    site.world.operations.person_requests("n1", "reboot", "a1", quarantine="an-earlier-one")
    await site.until("Exhausted")
    await later(3600)
    [order] = site.shop.orders  # the ladder's
    attempts = site.world.quarantines["n1"].status.repair
    assert [one.request for one in attempts.attempts] == [""]
    uid = site.world.quarantines["n1"].uid
    site.world.operations.person_requests("n1", "reboot", "a2", quarantine=uid)
    await soon(lambda: len(site.shop.orders) == 2, within=TIMEOUT)
    assert site.shop.orders[1].operation != order.operation
