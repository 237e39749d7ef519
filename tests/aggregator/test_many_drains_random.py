"""Random delays, failures, people and crashes between the marks of a node and its drain's end."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import (
    ClusterError,
    EvictionResult,
    Node,
    Phase,
    Pod,
    Quarantine,
    QuarantineStatus,
    Unreachable,
)
from aggregator.health.model import Cleared, Delta
from tests.support.drains import ILL, world_with
from tests.support.invariants import Watch
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

#: Between two empty reads, as in production (conftest.py).
EMPTY_FOR = 5.0
SEEDS = 40
MORE_ILL = snapshot(fault(), fault("xid:48"))
SIGN = Delta(cleared=(Cleared("xid:48", "GPU-2", "gpu-reset"),))


class Busy(MemoryCluster):
    """Each call takes a random time, before and after its effect.

    ``early``: the uids of pods that were there, or came before the taint was 4.9 s old. ``wrong``:
    what must never be seen.
    """

    def __init__(self, world: World, rng: random.Random, early: set[str], **more: Any) -> None:
        super().__init__(world, **more)
        self.rng, self.early = rng, early
        self.wrong: list[str] = []

    async def _waits(self, most: float) -> None:
        await asyncio.sleep(self.rng.choice([0.0, 0.0, 0.05, self.rng.random() * most]))

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        await self._waits(12)
        if status.phase is Phase.DRAINED and quarantine.status.phase is not Phase.DRAINED:
            pods = self.world.pods.values()
            self.wrong += [f"Drained with {pod.name}" for pod in pods if pod.uid in self.early]
        written = await super().write_quarantine_status(quarantine, status)
        await self._waits(2)
        return written

    async def pods_on(self, node: str, **how: Any) -> list[Pod]:
        await self._waits(8)
        pods = await super().pods_on(node, **how)
        await self._waits(1)
        return pods

    async def read_node(self, name: str, **how: bool) -> Node | None:
        await self._waits(2)
        return await super().read_node(name, **how)

    async def evict(self, pod: Pod, **how: Any) -> EvictionResult:
        if phase_of(self.world, "n1") is not Phase.DRAINING:
            self.wrong.append(f"an eviction in phase {phase_of(self.world, 'n1')}")
        return await super().evict(pod, **how)


class Run:
    """One node that becomes unhealthy, and up to three events after its taint."""

    def __init__(self, seed: int, *, fails: bool) -> None:
        self.rng = random.Random(seed)
        self.world = world_with(*["a"] * (self.rng.random() < 0.3))
        self.watch = Watch(self.world, asyncio.get_running_loop().time)
        self.early = {pod.uid for pod in self.world.pods.values()}
        self.fails_until = asyncio.get_running_loop().time() + 70.0 if fails else 0.0
        self.told: list[str] = []
        self.wrong: list[str] = []
        self.replica = self._started()

    def _error(self, share: float, text: str) -> Callable[[str], ClusterError | None]:
        loop = asyncio.get_running_loop()

        def fails(name: str) -> ClusterError | None:
            due = self.rng.random() < share and loop.time() < self.fails_until
            return Unreachable(text) if due and name != "list_nodes" else None

        return fails

    def _started(self) -> Replica:
        more = {"fails": self._error(0.4, "503"), "loses": self._error(0.2, "the answer is lost")}
        cluster = Busy(self.world, self.rng, self.early, **more)
        cluster.wrong = self.wrong
        return Replica(self.world, clock=Running(), settings=SETTINGS, cluster=cluster)

    async def event(self, what: str, since: float) -> None:
        world, loop = self.world, asyncio.get_running_loop()
        match what:
            case "uncordon":
                world.person_uncordons("n1")
            case "delete":
                world.person_deletes("n1")
            case "label on the Quarantine":
                world.put_quarantine(world.quarantines["n1"])
            case "stop and resume":
                world.person_stops("wait")
                await asyncio.sleep(self.rng.random() * 4)
                world.person_stops("")
            case "pod":
                name = f"late-{loop.time()}"
                world.add_pod("n1", name)
                self.early |= {f"uid-{name}"} if loop.time() - since < 4.9 else set()
            case "watch":
                world.interrupt_view("the API server restarts")
            case "evidence" | "sign":
                self.replica.agent("n1", MORE_ILL if what == "evidence" else SIGN)
            case "taint removed":
                world.set_node(replace(world.nodes["n1"], taints=()))
            case "crash":
                await self.replica.stop()
                self.replica = self._started()
                await until(lambda: not self.replica.fleet.view_lost, within=300)
                self.replica.agent("n1", ILL)

    async def go(self) -> None:
        world, loop = self.world, asyncio.get_running_loop()
        await until(lambda: not self.replica.fleet.view_lost, within=300)
        await asyncio.sleep(30)
        self.replica.agent("n1", ILL)
        await until(lambda: world.nodes["n1"].taints, within=300)
        since, uid = loop.time(), world.quarantines["n1"].uid
        ways_out, crashed = ("uncordon", "delete"), False
        others = ("label on the Quarantine", "stop and resume", "pod", "watch", "evidence", "sign")
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(self.rng.random() * self.rng.choice([1, 6, 12]))
            what = self.rng.choice([*ways_out, *others, "taint removed", "crash"])
            self.told.append(f"{what} after {loop.time() - since:.2f} s")
            await self.event(what, since)
            crashed |= what == "crash"
            if what in ways_out:
                break
        else:
            await self._is_drained(crashed=crashed)
            return
        await until(lambda: self._ended(uid), self._story, within=400)

    def _ended(self, uid: str) -> bool:
        self.world.kubelets_finish()
        return "n1" not in self.world.quarantines or self.world.quarantines["n1"].uid != uid

    async def _is_drained(self, *, crashed: bool) -> None:
        def drained() -> bool:
            self.world.kubelets_finish()
            return phase_of(self.world, "n1") is Phase.DRAINED

        await until(drained, self._story, within=400)
        await asyncio.sleep(60)
        kinds = self.replica.notes.kinds("n1")
        for kind in ("cordoned", "draining", "drained"):
            if kinds.count(f"quarantine.{kind}") != 1 and not crashed:
                self.wrong.append(f"{kind} told {kinds.count(f'quarantine.{kind}')} times")

    def _story(self) -> str:
        return f"{self.told}, phase {phase_of(self.world, 'n1')}, {self.wrong + self.watch.wrong}"

    async def stop(self) -> None:
        await self.replica.stop()
        assert not self.wrong + self.watch.wrong, self._story()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
@in_virtual_time
async def test_a_node_is_drained_or_released_as_its_people_want(seed: int, *, fails: bool) -> None:
    run = Run(seed, fails=fails)
    await run.go()
    await run.stop()
