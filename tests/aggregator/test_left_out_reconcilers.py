"""The product without one of the reconcilers that the configuration can leave out."""

from dataclasses import replace

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Action, Phase, QuarantineSpec, RepairStatus
from aggregator.quarantine.settings import ReconcilerRules, Settings
from tests.aggregator.repair_site import ILL, POLICY, WELL
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.repair_shop import Shop, ShopRepairer, repair_settings
from tests.support.replica import SETTINGS, Replica
from tests.support.virtual_replica import Running, later, soon
from tests.support.virtual_time import in_virtual_time

HOUR = 3600.0


def start(world: World, settings: Settings) -> tuple[Replica, Shop]:
    """A node with a pod, and a repairer that would reboot it."""
    world.add_node("n1")
    world.add_pod("n1", "job-n1")

    def booted(name: str) -> None:
        replica.agent(name, WELL, boot_id=world.nodes[name].boot_id)

    shop, cluster = Shop(world, on_boot=booted), MemoryCluster(world)
    settings = replace(settings, repair=repair_settings(("reboot", ShopRepairer(shop, cluster))))
    replica = Replica(world, clock=Running(), settings=settings, policy=POLICY, cluster=cluster)
    return replica, shop


@in_virtual_time
@pytest.mark.parametrize("left_out", ["", "drain", "operations", "publish"])
async def test_a_fault_is_marked_and_released_without_what_is_left_out(left_out: str) -> None:
    rules = replace(ReconcilerRules(), **({left_out: False} if left_out else {}))
    world = World()
    replica, shop = start(world, replace(SETTINGS, reconcilers=rules))
    await later(1)
    replica.agent("n1", ILL)
    await soon(lambda: is_marked(world.nodes["n1"]))
    if left_out != "drain":
        await soon(lambda: world.evicted)
        world.kubelets_finish()
        await soon(lambda: world.quarantines["n1"].status.phase is Phase.DRAINED)
    await later(HOUR)
    assert bool(world.evicted) == (left_out != "drain")
    assert bool(shop.orders) == (left_out in ("", "publish"))
    assert bool(world.events) == (left_out in ("", "operations"))
    if left_out in ("drain", "operations"):
        assert world.quarantines["n1"].status.repair == RepairStatus()
        world.set_node(replace(world.nodes["n1"], boot_id="boot-2"))
        replica.agent("n1", WELL, boot_id="boot-2")
    await soon(lambda: not world.quarantines, within=HOUR)
    assert not is_marked(world.nodes["n1"])


@in_virtual_time
async def test_a_persons_drain_stays_a_cordon_where_drains_are_left_out() -> None:
    world = World()
    settings = replace(SETTINGS, mode=Action.CORDON, reconcilers=ReconcilerRules(drain=False))
    _replica, _ = start(world, settings)
    await later(1)
    world.person_creates("n1", QuarantineSpec(Action.DRAIN, "manual", "smoke", "alice"))
    await soon(lambda: is_marked(world.nodes["n1"]))
    await later(HOUR)
    assert world.quarantines["n1"].status.phase is Phase.CORDONED
    assert world.evicted == []
    world.person_deletes("n1")
    await soon(lambda: not world.quarantines and not is_marked(world.nodes["n1"]))
