"""People's actions by the page, on the cluster that the configuration names."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define

from aggregator.cli.actions import ClusterActions
from aggregator.cli.kube_actions import KubeActions
from aggregator.cli.local_actions import local_actions
from aggregator.cluster.capabilities import OpenedCluster
from aggregator.cluster.local.place import FilePlace
from aggregator.config.settings import Config
from aggregator.config.shared_store import build_store
from aggregator.events import Transition
from aggregator.web.action_endpoints import ActionSetup


@define(eq=False, repr=False, frozen=True)
class _LoopCalls:
    """`ApiCalls` of a thread, carried out on the aggregator's loop and connections."""

    _carry_out: Callable[[Callable[[Any], Awaitable[Any]]], Awaitable[Any]]
    _loop: asyncio.AbstractEventLoop

    def call(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Raises ClusterError."""

        async def carried_out() -> Any:
            return await self._carry_out(work)

        return asyncio.run_coroutine_threadsafe(carried_out(), self._loop).result()


def build_actions(
    config: Config,
    cluster: OpenedCluster,
    record: Callable[[Transition], None],
    *,
    known: Callable[[str], bool],
    wall: Callable[[], float],
) -> ActionSetup | None:
    """Within a running loop. None where people can't act by the page. ``known``: whether an agent
    has reported for a node of this name.
    """
    if not config.access.actions:
        return None
    where, loop = config.cluster, asyncio.get_running_loop()

    carry_out = cluster.capabilities.carry_out

    @contextmanager
    def acting(dry_run: bool) -> Iterator[ClusterActions]:  # noqa: FBT001
        if carry_out is not None:
            calls = _LoopCalls(carry_out, loop)
            yield KubeActions(calls, where.namespace, how=where.how, dry_run=dry_run)
            return
        place = build_store(config) or FilePlace(where.settings.database)
        with local_actions(place, how=where.how, known=known, dry_run=dry_run) as actions:
            yield actions

    return ActionSetup(
        acting,
        record,
        wall,
        namespace=where.namespace,
        how=where.how,
    )
