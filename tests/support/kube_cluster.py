"""KubeCluster in tests: one that is started for a plane, and a listener that waits for events."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from aggregator.cluster.agent_pods import PodEvent
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Cluster, ClusterEvent
from aggregator.ingest.deleted_pods import DeletedPods
from tests.support.tasks import end_tasks
from tests.support.waiting import PATIENCE

N = TypeVar("N")

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"


class _Unreviewed(KubeCluster):
    """Its start asks for no review of its rights, which it has."""

    async def start(self) -> None:
        await self._transport.open()


@asynccontextmanager
async def kube_cluster(kubeconfig: Path, **arguments: Any) -> AsyncIterator[KubeCluster]:
    """A started KubeCluster, closed at the end. Its randomness is the same each time."""
    cluster = KubeCluster(kubeconfig=str(kubeconfig), rng=random.Random(1), **arguments)
    async with _started(cluster):
        yield cluster


@asynccontextmanager
async def unreviewed_cluster(kubeconfig: Path, **arguments: Any) -> AsyncIterator[KubeCluster]:
    """As `kube_cluster`, except that the start does not ask whether it has each of its rights.

    Its 24 requests were a quarter of all requests of some files, so fixtures of tests that are
    about other things leave them out. test_kube_rbac.py has the tests of the start.
    """
    cluster = _Unreviewed(kubeconfig=str(kubeconfig), rng=random.Random(1), **arguments)
    async with _started(cluster):
        yield cluster


@asynccontextmanager
async def _started(cluster: KubeCluster) -> AsyncIterator[None]:
    try:
        await cluster.start()
        yield
    finally:
        await cluster.close()


class Listener:
    """Keeps the events of a cluster, and waits for them."""

    def __init__(self) -> None:
        self.heard: list[ClusterEvent] = []
        self._more = asyncio.Event()

    async def follow(self, cluster: Cluster) -> None:
        async for news in cluster.events():
            self.heard.append(news)
            self._more.set()

    def of(self, kind: type[N]) -> list[N]:
        """All events of one kind, in order."""
        return [news for news in self.heard if isinstance(news, kind)]

    async def wait(
        self, kind: type[N], which: Callable[[N], bool] = lambda _: True, *, since: int = 0
    ) -> N:
        """The first event of a kind that fits, at or after place `since`; bounded."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for news in self.heard[since:]:
                    if isinstance(news, kind) and which(news):
                        return news
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def listening(cluster: Cluster) -> AsyncIterator[Listener]:
    """A listener that follows the cluster's events until the end of the block."""
    listener = Listener()
    task = asyncio.create_task(listener.follow(cluster))
    try:
        yield listener
    finally:
        await end_tasks(task)


class PodListener:
    """Passes on what the cluster says about the agents' pods, and keeps it."""

    def __init__(self, deleted: DeletedPods) -> None:
        self.heard: list[PodEvent] = []
        self._deleted = deleted

    def take(self, news: PodEvent) -> None:
        self.heard.append(news)
        self._deleted.take(news)

    def wants_list(self) -> bool:
        return self._deleted.wants_list()

    def has(self, kind: type[PodEvent]) -> bool:
        return any(isinstance(news, kind) for news in self.heard)


@asynccontextmanager
async def following_pods(
    cluster: KubeCluster, deleted: DeletedPods | None = None
) -> AsyncIterator[PodListener]:
    """A listener that follows the agents' pods until the end of the block."""
    listener = PodListener(deleted or DeletedPods(now=time.monotonic))
    task = asyncio.create_task(cluster.follow_agent_pods(listener))
    try:
        yield listener
    finally:
        await end_tasks(task)
