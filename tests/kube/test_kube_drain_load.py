"""Many drains that begin together on a real API server.

Drains that budgets block are in tests/aggregator/test_drain_blocked.py, in virtual time.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.events import EventKind, Transition
from aggregator.quarantine.drain import drainer
from aggregator.quarantine.drain.drainer import MANY_BEGIN
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_kube_drain import aggregator
from tests.support.replica import Notes
from tests.support.waiting import until

BURST = 200
EMPTY = 80


@dataclass
class TimedNotes(Notes):
    """Keeps when the first transition of each kind was noted of a node (monotonic seconds)."""

    at: dict[tuple[str, EventKind], float] = field(default_factory=dict)

    def record_event(self, transition: Transition) -> None:
        super().record_event(transition)
        self.at.setdefault((transition.node, transition.kind), time.monotonic())

    def all_have(self, nodes: list[str], kind: EventKind) -> Callable[[], bool]:
        return lambda: all((node, kind) in self.at for node in nodes)


def create_pods(space: Space, nodes: list[str], app: str) -> None:
    space.plane.create_pods(space.namespace, nodes, prefix=f"{app}-", labels={"app": app})


async def test_of_many_drains_that_begin_together_the_first_evicts_soon_after_the_taints(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """A drain that is begun goes on before the next begins, so that no eviction waits for all."""
    space, notes = cluster_space, TimedNotes()
    nodes = await asyncio.to_thread(space.create_nodes, BURST)
    await asyncio.to_thread(create_pods, space, nodes, "job")
    async with aggregator(kube, space, notes=notes) as running:
        began = time.monotonic()
        for node in nodes:
            running.falls_ill(node)
        await until(notes.all_have(nodes, EventKind.MOVED), "all evicted", within=240)
    tainted = max(notes.at[node, EventKind.CORDONED] for node in nodes) - began
    first, *_, last = sorted(notes.at[node, EventKind.MOVED] - began for node in nodes)
    told = f"tainted {tainted:.2f} s, first eviction {first:.2f} s, last {last:.2f} s"
    print(told)
    assert first <= 1.6 * tainted, told


async def test_many_nodes_without_pods_are_drained_by_hardly_more_than_a_write_each(
    kube: KubeCluster, cluster_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drainer, "EMPTY_FOR", 3.0)
    space, notes = cluster_space, TimedNotes()
    nodes = await asyncio.to_thread(space.create_nodes, EMPTY)
    async with aggregator(kube, space, notes=notes) as running:
        before = Counter(kube.counters.answers)
        for node in nodes:
            running.falls_ill(node)
        await until(notes.all_have(nodes, EventKind.DRAINED), "all drained", within=120)
        asked = Counter(kube.counters.answers) - before
    written = asked["PATCH", "quarantines/status", 200]
    assert EMPTY <= written <= EMPTY + 2 * MANY_BEGIN, asked
    for node in nodes:
        waited = notes.at[node, EventKind.DRAINED] - notes.at[node, EventKind.CORDONED]
        assert waited >= 3.0
        assert notes.kinds(node).count("quarantine.draining") == 1
