"""A controller with ``drain.notice`` over a `World`, and a site's webhook. Virtual time."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aggregator.clock import Clocks
from aggregator.cluster.port import Guard, GuardRefused
from aggregator.jobs.settings import NoticeRules, NoticeWebhook
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult
from aggregator.quarantine.drain.pod_waits import InTurn
from aggregator.workloads.eviction_requests import EvictionRequests
from aggregator.workloads.notices import EvictionNotices, WebhookRoute
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.replica import SETTINGS, Replica
from tests.support.virtual_replica import Running

WITHIN = 600.0


@dataclass
class Webhook:
    """A site's webhook: ``answer`` None never comes, another one ``after`` seconds."""

    answer: HookAnswer | None
    after: float = 0.0
    calls: list[Mapping[str, str]] = field(default_factory=list)

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        try:
            await guard()
        except GuardRefused:
            return HookAnswer(HookResult.LATER)
        self.calls.append(values)
        if self.answer is None:
            await asyncio.sleep(limit)
            return HookAnswer(HookResult.FAILED, "no answer within 30 s")
        await asyncio.sleep(self.after)
        return self.answer


def started(
    world: World,
    webhook: Webhook | None = None,
    rules: NoticeRules | None = None,
    requests: EvictionRequests | None = None,
    **how: Any,
) -> Replica:
    """A controller with ``drain.notice``: another life where the world had one before."""
    cluster = MemoryCluster(world, **how)
    clock = Running()
    takes = NoticeWebhook(match="jobs", url="https://site.example/", secret_file="/s")  # type: ignore[arg-type]
    notices = EvictionNotices(
        cluster,
        rules=rules or NoticeRules(within=WITHIN),
        webhooks=[WebhookRoute(takes, webhook)] if webhook is not None else [],
        keys=(),
        clocks=Clocks(clock, clock),
        requests=requests,
    )
    settings = replace(SETTINGS, waits=InTurn((notices,)))
    replica = Replica(world, clock=clock, settings=settings, cluster=cluster)
    if requests is not None:  # the process's own task
        rounds = asyncio.create_task(requests.run())
        replica.task.add_done_callback(lambda _: rounds.cancel())
    return replica
