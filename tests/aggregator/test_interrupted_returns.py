"""Pods come back to a draining node, and the aggregator dies at any call.

As in test_interruption: it dies before or after each of its calls, another takes over with an empty
memory, and the end is the same. Each pod that comes back is evicted a few times and then named, and
no node counts as drained while such a pod runs there, or may be on its way.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from aggregator.cluster.port import Phase, Pod, Quarantine, Toleration
from tests.support.deaths import at_each_change, sees, until_it_dies
from tests.support.drains import ILL, status
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import Replica
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.support.waiting import until

#: Between two empty reads, as in production (conftest.py).
EMPTY_FOR = 5.0
#: How long a controller takes to make a pod again: the node is empty meanwhile.
SLOW = 3.0
TOLERATES_ALL = (Toleration(operator="Exists"),)
COMES_BACK = {"set-0": TOLERATES_ALL, "bound-0": ()}


@dataclass
class Returning(World):
    """A world whose controllers make the pods of `COMES_BACK` again until ``returns`` is unset."""

    returns: bool = True
    #: Since when no pod that would go is on the node (seconds of the loop).
    empty_since: float = float("-inf")
    wrong: list[str] = field(default_factory=list)

    def finish(self) -> None:
        """A pod that was told to go is gone; its controller makes it anew a little later."""
        loop = asyncio.get_running_loop()
        for key, pod in list(self.pods.items()):
            if pod.deleting:
                del self.pods[key]
                self.empty_since = loop.time()
                if self.returns and pod.name in COMES_BACK:
                    loop.call_later(SLOW, self.make_again, pod)

    def make_again(self, pod: Pod) -> None:
        version, at = self.tick(), float(int(asyncio.get_running_loop().time()))
        again = replace(pod, uid=f"{pod.name}-{version}", version=version, deleting=False)
        self.pods[f"n1/{pod.name}"] = replace(again, created_at=at)

    def store_quarantine(self, quarantine: Quarantine) -> Quarantine:
        before = self.quarantines.get(quarantine.node)
        if quarantine.status.phase is Phase.DRAINED and (
            before is None or before.status.phase is not Phase.DRAINED
        ):
            now = asyncio.get_running_loop().time()
            if self.pods or now - self.empty_since < EMPTY_FOR:
                self.wrong.append(f"drained at {now}: {[*self.pods]}, since {self.empty_since}")
        return super().store_quarantine(quarantine)

    def evictions(self) -> Counter[str]:
        """How often each pod was evicted, by its name."""
        first = [uid.removeprefix("uid-") for uid in self.evicted]
        return Counter(name if name in self.names else name.rpartition("-")[0] for name in first)

    @property
    def names(self) -> set[str]:
        return {"a", *COMES_BACK}


def world_whose_pods_come_back(names: tuple[str, ...]) -> Returning:
    world = Returning()
    world.add_node("n1")
    world.add_pod("n1", "a")
    for name in names:
        tolerations = COMES_BACK[name]
        set_of = {"owner_kind": "StatefulSet", "owner_name": name}
        world.add_pod("n1", name, tolerations=tolerations, **set_of)
    return world


@contextlib.asynccontextmanager
async def kubelet(world: Returning) -> AsyncIterator[None]:
    async def works() -> None:
        while True:
            await asyncio.sleep(0.25)
            world.finish()

    task = asyncio.create_task(works())
    try:
        yield
    finally:
        task.cancel()


def named(world: World) -> dict[str, str]:
    """The reason on the Quarantine for each pod that is in the way."""
    found = world.quarantines.get("n1")
    return {one.pod: one.reason for one in found.status.blockers} if found is not None else {}


@pytest.mark.parametrize("names", [("set-0",), ("bound-0",)])
@in_virtual_time
async def test_death_at_any_call_of_a_drain_whose_pods_come_back_names_them_and_evicts_few(
    names: tuple[str, ...],
) -> None:
    (name,) = names
    tolerates = bool(COMES_BACK[name])

    def is_named(world: World) -> bool:
        return "came back" in named(world).get(f"jobs/{name}", "")

    async def one(crash_at: int | None, *, after: bool) -> int:
        world = world_whose_pods_come_back(names)
        async with kubelet(world):
            first = Replica(world, clock=Running(), crash_at=crash_at, after=after)
            await sees(first, n1=ILL)
            await until_it_dies(first, lambda: is_named(world))
            second = Replica(world, clock=Running())
            await sees(second, n1=ILL)
            await until(lambda: is_named(world), within=120)
            await asyncio.sleep(120)
            assert is_named(world)
            assert phase_of(world, "n1") is Phase.DRAINING
            counts = world.evictions()
            assert counts["a"] == 1
            # Each process may evict it once as a pod that was there before; one that does not
            # tolerate the taint may have been placed by a stale view, once more.
            assert 1 <= counts[name] <= (2 if tolerates else 4)
            await second.stop()
            # A successor does not evict a pod that is named already.
            second = Replica(world, clock=Running())
            await sees(second, n1=ILL)
            await asyncio.sleep(60)
            assert world.evictions() == counts
            world.returns = False
            world.pods.clear()
            world.empty_since = loop_time()
            await until(lambda: phase_of(world, "n1") is Phase.DRAINED, within=120)
            assert status(world).blockers == ()
            assert world.wrong == []
            await second.stop()
        return first.cluster.changes

    await at_each_change(one, least=5)


@in_virtual_time
async def test_death_at_any_call_between_two_empty_reads_takes_no_node_for_drained_too_early() -> (
    None
):
    """The aggregator that takes over does not know of the first empty read, and reads twice."""

    async def one(crash_at: int | None, *, after: bool) -> int:
        world = world_whose_pods_come_back(())
        async with kubelet(world):
            first = Replica(world, clock=Running(), crash_at=crash_at, after=after)
            await sees(first, n1=ILL)
            await until_it_dies(first, lambda: phase_of(world, "n1") is Phase.DRAINED)
            second = Replica(world, clock=Running())
            await sees(second, n1=ILL)
            await until(lambda: phase_of(world, "n1") is Phase.DRAINED, within=120)
            await asyncio.sleep(600)
            assert world.wrong == []
            assert world.evictions() == {"a": 1}
            await second.stop()
        return first.cluster.changes

    await at_each_change(one, least=5)
