"""Announces a quarantine or its end on the node, by a condition and an Event."""

import asyncio
import logging
import random

from aggregator.cluster.port import Cluster, ClusterError, Unreachable
from aggregator.quarantine.decide.plans.release import RELEASE_WAITS
from aggregator.quarantine.state.node import NodeState
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.quarantine")

#: An announcement trails; after this number of tries it is dropped, and the next one corrects it.
_TRIES = 6
_BACKOFF = Backoff(first=0.5, most=16.0, spread=0.3)


class Announcer:
    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng

    def announce(
        self, node_state: NodeState, node_uid: str, message: str, *, quarantined: bool = True
    ) -> None:
        """Announce its quarantine, in the background: no act waits for it. A newer announcement
        waits for the older.
        """
        earlier = node_state.quarantine_view.trail

        async def trail() -> None:
            if earlier is not None and not earlier.done():
                await asyncio.wait([earlier])
            await self._write(node_state, node_uid, message, quarantined=quarantined)

        task = asyncio.create_task(trail(), name=f"announce {node_state.node}")
        node_state.quarantine_view.start_trail(task)

    async def announce_release(self, node_state: NodeState, node_uid: str, message: str) -> None:
        """Announce its release, and wait for that, but not long: the rest is in the background."""
        self.announce(node_state, node_uid, message, quarantined=False)
        await self.settle(node_state, within=RELEASE_WAITS)

    async def settle(self, node_state: NodeState, within: float | None = None) -> None:
        """Wait until all is announced, or for ``within`` seconds."""
        trail = node_state.quarantine_view.trail
        if trail is not None and not trail.done():
            await asyncio.wait([trail], timeout=within)

    async def _write(
        self, node_state: NodeState, node_uid: str, message: str, *, quarantined: bool
    ) -> None:
        reason = "Quarantined" if quarantined else "Released"
        for attempt in range(1, _TRIES + 1):
            try:
                await self._cluster.announce(
                    node_state.node,
                    node_uid=node_uid,
                    quarantined=quarantined,
                    reason=reason,
                    message=message or reason,
                )
            except Unreachable as error:
                log.warning(
                    "node condition or Event not written yet",
                    extra={"node": node_state.node, "error": str(error)},
                )
                pause = _BACKOFF.pause(attempt, self._rng)
                await asyncio.sleep(error.retry_after or pause)
            except ClusterError as error:
                log.warning(
                    "node condition or Event not written",
                    extra={
                        "event": "step.announcement_dropped",
                        "node": node_state.node,
                        "error": str(error),
                    },
                )
                return
            else:
                return
