"""A drained node, its repairer and its controller, on a cluster in memory."""

import copy
from dataclasses import replace
from typing import Any, Self

from aggregator.cluster.port import (
    Quarantine,
    RepairState,
)
from aggregator.health.model import Cleared
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.protocol import (
    RepairSettings,
)
from aggregator.repairers.gpu_use import GpuUseRequests
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.repair_shop import (
    TIMEOUT,
    Shop,
    ShopRepairer,
    repair_settings,
    unless_in_use,
)
from tests.support.replica import (
    SETTINGS,
    Replica,
    fault,
    shipped_policy,
    snapshot,
)
from tests.support.virtual_replica import Running, soon

#: The rule of Xid 79 with two rungs.
POLICY = shipped_policy("rules:\n  - {name: gpu-gone, repair: [reboot, replace, ticket]}\n")
ILL, WELL = snapshot(fault()), snapshot(cleared=(Cleared("xid:79", "GPU-1", "reboot"),))


class Site:
    """A world, its machines, and one replica after the other."""

    def __init__(self, *nodes: str, kinds: tuple[str, ...] = ("reboot", "ticket")) -> None:
        self.world = World()
        for name in nodes or ("n1",):
            self.world.add_node(name)
            self.world.add_pod(name, f"job-{name}")
        self.shop = Shop(self.world, on_boot=self.report)
        self.kinds = kinds
        self.twice = self.seen = False
        #: Whether orders leave objects in the cluster.
        self.keeps_objects = True
        #: What the nodes' agents report of GPU users before each order; None: nobody requests it.
        self.gpu_use: GpuUseRequests | None = None
        self.replica: Replica
        self.mode, self.policy, self.settings = RepairMode.REPAIR, POLICY, SETTINGS
        self.rules: dict[str, Any] = {}
        self.ill = dict.fromkeys(nodes or ("n1",), ILL)

    def start(self, cluster: MemoryCluster | None = None, **more: Any) -> Replica:
        cluster = cluster or MemoryCluster(self.world, **more)
        self.replica = Replica(
            self.world,
            clock=Running(),
            settings=replace(self.settings, repair=self.repair(cluster)),
            policy=self.policy,
            cluster=cluster,
        )
        for name in self.ill:
            self.report(name)
        return self.replica

    async def stop(self) -> None:
        """End the process, and forget it."""
        await self.replica.stop()
        del self.replica
        self.world.listeners.clear()

    def copy(self) -> Self:
        """All as it is after `stop`, so that each of several ends begins there."""
        kept = {id(one): one for one in (self.policy, self.settings)}
        return copy.deepcopy(self, kept)

    def repair(self, cluster: MemoryCluster) -> RepairSettings:
        """The repairers of a process with this connection."""
        made = [
            (kind, ShopRepairer(self.shop, cluster, sends_twice=self.twice)) for kind in self.kinds
        ]
        settings = repair_settings(*made, mode=self.mode, **self.rules)
        if self.gpu_use is not None:
            settings = unless_in_use(settings, self.gpu_use)
        if self.keeps_objects:
            return settings
        found = {kind: replace(one, clean_up=None) for kind, one in settings.repairers.items()}
        return replace(settings, repairers=found)

    def report(self, name: str) -> None:
        """The node's agent attaches, in the machine's present boot: another one is well."""
        boot = self.world.nodes[name].boot_id
        told = self.ill[name] if boot == "boot-1" else WELL
        self.replica.agent(name, told, boot_id=boot)

    def quarantine(self, name: str = "n1") -> Quarantine:
        return self.world.quarantines[name]

    def attempts(self, name: str = "n1") -> list[tuple[str, RepairState]]:
        found = self.world.quarantines.get(name)
        repair = found.status.repair if found is not None else None
        return [(one.repair, one.state) for one in repair.attempts] if repair else []

    def is_exhausted(self, name: str = "n1") -> bool:
        found = self.world.quarantines.get(name)
        return bool(found and found.status.repair.exhausted)

    def is_released(self) -> bool:
        """It was in quarantine, and is not any more."""
        self.seen = self.seen or bool(self.world.quarantines)
        return self.seen and not self.world.quarantines

    async def drained_by_hand(self) -> None:
        """A person has node n1 drained, which has no evidence."""
        await self.person_annotates("sickbay.dev/force", "drain fan 3")
        await self.settles(lambda: self.world.quarantines and self.quarantine().status.drained_at)

    async def settles(self, what: Any, within: float = 4 * TIMEOUT) -> None:
        def settled() -> bool:
            self.go_on()
            return bool(what())

        await soon(settled, within=within)

    async def runs_until(self, what: Any, within: float = 4 * TIMEOUT) -> None:
        """Start a process, and wait for this."""
        self.start()
        await self.settles(what, within)

    async def ends_well(self, what: Any) -> None:
        """It comes to this, and nothing was wrong on the way."""
        await self.settles(what)
        self.check()

    async def person_annotates(self, key: str, value: str | None) -> None:
        """A person annotates node n1, and the controller lists the nodes."""
        self.world.person_annotates("n1", key, value)
        await self.replica.controller.parts.cluster_events.refresh_nodes()

    def go_on(self) -> None:
        """The acts of others in the cluster meanwhile."""
        self.world.kubelets_finish()

    def check(self) -> None:
        assert self.shop.wrong == []

    @property
    def repaired(self) -> list[str]:
        return [one.repair for one in self.shop.orders]


def reported_ends(site: Site) -> list[str]:
    notes = site.replica.notes.transitions
    return [one.details["outcome"] for one in notes if one.kind == "repair.ended"]


def phases(site: Site) -> dict[str, str]:
    """The phase of each operation, by its name."""
    return {name: one.status.phase.value for name, one in site.world.operations.by_name.items()}
