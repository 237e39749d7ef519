"""An aggregator in this process: the real listener, controller and page over a `World`.

Its clock is real time that a test can push ahead, so that ten minutes need not be waited for.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aggregator.clock import Clocks
from aggregator.quarantine.settings import SilenceRules
from tests.support.ingest import Clock, Site, site
from tests.support.memory_cluster import World
from tests.support.replica import SETTINGS, Replica, Turned
from tests.web.support import Served, serving


def boot_id() -> str:
    """The boot id of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass
class _Of(Turned):
    """A site's clock, for a controller."""

    clock: Clock | None = None

    def __call__(self) -> float:
        assert self.clock is not None
        return self.clock.now()


@dataclass
class InProcessAggregator:
    """All parts of it that a test wants to hold; ``address`` is where agents connect."""

    world: World
    site: Site
    replica: Replica
    page: Served
    address: str

    async def node(self, name: str) -> Any:
        """The API's answer about a node, or None while it knows of no node of that name."""
        async with self.page.session.get(f"{self.page.url}/api/v1/nodes/{name}") as answer:
            return None if answer.status == 404 else await answer.json()

    @property
    def clock(self) -> Clock:
        return self.site.clock


@asynccontextmanager
async def running_aggregator(
    *nodes: str,
    silent_after: float = 60.0,
    host: str = "localhost",
    world: World | None = None,
    **listener: Any,
) -> AsyncIterator[InProcessAggregator]:
    """It runs for the block; ``nodes`` are added to its cluster, booted as this machine is.

    ``listener`` are arguments of `tests.support.ingest.site`.
    """
    clock, world, booted = Clock(), world or World(), boot_id()
    for name in nodes:
        world.add_node(name, uid=f"uid-of-{name}", boot_id=booted)
    settings = replace(SETTINGS, silence=SilenceRules(silent_after))
    replica = Replica(world, clock=_Of(clock=clock), settings=settings)
    try:
        async with (
            site(
                clock=clock,
                intake=replica.controller,
                silent_after=silent_after,
                address=f"{host}:0",
                **listener,
            ) as running,
            serving(replica.fleet, Clocks(clock.now, clock.wall), ingest=running.stats) as page,
        ):
            yield InProcessAggregator(
                world, running, replica, page, f"{host}:{running.server.port}"
            )
    finally:
        await replica.stop()
