"""The least time of a burst on this machine: requests, messages and watches, without evaluating.

Every fault is sent by its agent, to a server that acknowledges it and does nothing else; the client
follows the cluster as the aggregator does, and asks at once for all Quarantines and taints. These
bursts take turns with the same requests without messages and watches, as `limit` has them. The
ratio is what an aggregator that evaluates in no time would have as ``beyond_1000``.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from statistics import median

from aggregator.cluster.kubernetes.cluster import KubeCluster
from tests.bench import watcher
from tests.bench.limit import expected_nodes, lifted_client, quarantine_all
from tests.bench.parts import SETTLE, Findings, bare_streams, burst_size, plane_in_memory
from tests.bench.simulated_agents import Crowd, certify
from tests.bench.small import small_or
from tests.bench.trials import PATIENCE, until_rest
from tests.bench.watcher import Watcher
from tests.controlplane.plane import ControlPlane

SIZE = burst_size(1000)
#: Pairs of bursts; an uneven number, so that the median is one of them.
TURNS = small_or(1, 5)


def floor(found: Findings) -> None:
    """``floor_1000_s``, ``floor_limit_1000_s`` and ``floor_beyond_1000``, medians."""
    turns = min(TURNS, found.nodes // (2 * SIZE))
    if not turns:
        return
    with plane_in_memory() as (plane, folder), bare_streams(folder) as (_, crowd, authority):
        nodes = plane.create_nodes(found.nodes, "floor")
        certify(authority, nodes)
        crowd.come(nodes)
        time.sleep(SETTLE)
        until_rest(plane)
        pairs = asyncio.run(_turns(plane, crowd, nodes, turns))
    found.figures |= {
        "floor_1000_s": round(median(full for full, _ in pairs), 2),
        "floor_limit_1000_s": round(median(alone for _, alone in pairs), 2),
        "floor_beyond_1000": round(median(full / alone for full, alone in pairs), 2),
    }


async def _turns(
    plane: ControlPlane, crowd: Crowd, nodes: list[str], turns: int
) -> list[tuple[float, float]]:
    """Seconds of a burst with messages and watches, and without; they take turns to begin."""
    cluster = lifted_client(plane)
    seen = Watcher(plane, watcher.NODES, watcher.marked)
    free = list(nodes)
    await cluster.start()
    try:
        expected = await expected_nodes(cluster)

        async def burst(*, full: bool) -> float:
            await asyncio.to_thread(until_rest, plane)
            some = [free.pop() for _ in range(SIZE)]
            begun = time.monotonic()
            if full:
                await asyncio.to_thread(crowd.fall_ill, some)
            return await quarantine_all(cluster, [expected[node] for node in some], seen) - begun

        pairs = []
        for turn in range(turns):
            took = {}
            for full in (True, False) if turn % 2 else (False, True):
                async with _followed(cluster) if full else contextlib.nullcontext():
                    took[full] = await burst(full=full)
            pairs.append((took[True], took[False]))
        return pairs
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def _followed(cluster: KubeCluster) -> AsyncIterator[None]:
    """With the watches of an aggregator, after its lists."""
    listed = asyncio.Event()

    async def follow() -> None:
        async for _ in cluster.events():
            listed.set()

    following = asyncio.create_task(follow())
    try:
        await asyncio.wait_for(listed.wait(), PATIENCE)
        yield
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
