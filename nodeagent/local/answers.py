"""What the agent answers on its own node."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodeagent.clock import Clock
from nodeagent.commands import CommandRefused, Commands
from nodeagent.config.reload import ConfigState
from nodeagent.keeper import Keeper
from nodeagent.kernel_feed import KernelFeed, Tally
from nodeagent.local import explain, orders, results
from nodeagent.local.server import Answer, Routes, json_answer
from nodeagent.model import CheckInfo
from nodeagent.scheduler import Scheduler
from nodeagent.sources.procstate import Stuck, stuck
from nodeagent.version import VERSION

#: Seconds between two looks at what is in the kernel.
_STUCK_FOR = 0.25


class Answers:
    """The routes of the local server. ``uplink`` gives the stream's state as JSON."""

    def __init__(
        self,
        *,
        node: str,
        keeper: Keeper,
        commands: Commands,
        scheduler: Scheduler,
        feed: KernelFeed,
        infos: Callable[[], Sequence[CheckInfo]],
        uplink: Callable[[], Mapping[str, Any]],
        config: ConfigState,
        clock: Clock,
    ) -> None:
        self._node = node
        self._keeper = keeper
        self._commands = commands
        self._scheduler = scheduler
        self._feed = feed
        self._infos = infos
        self._uplink = uplink
        self._config = config
        self._clock = clock
        self._started_at = clock.boottime()

    def routes(self) -> Routes:
        """For the unix socket: who may open it is root."""
        return (
            self.public_routes()
            | orders.routes(self._commands)
            | {
                ("GET", "/v1/explain"): self._explain,
                ("GET", "/v1/results"): self._results,
                ("POST", "/v1/run-checks"): self._run_checks,
            }
        )

    def public_routes(self) -> Routes:
        """For a port, where anybody may ask: no evidence by name, and no order is taken."""
        return {
            ("GET", "/healthz"): self._healthz,
            ("GET", "/metrics"): self._metrics,
        }

    async def _healthz(self, _: bytes) -> Answer:
        """The event loop turns: no driver, disk or aggregator is asked."""
        return json_answer({"status": "ok"})

    async def _results(self, _: bytes) -> Answer:
        now = self._clock.boottime()
        latch = self._keeper.latch
        return json_answer(results.as_json(latch, self._infos(), self._about(now), now))

    async def _explain(self, _: bytes) -> Answer:
        """All in memory, and /proc of our own processes: what hangs cannot hold this up."""
        waiting = explain.waiting(await self._stuck())
        checks = explain.as_json(
            latch=self._keeper.latch,
            infos=self._infos(),
            scheduled=self._scheduler.checks,
            log_checks=self._feed.checks,
            lines=self._feed.lines,
            now=self._clock.boottime(),
        )
        config = {"problem": self._config.problem, "restart_for": self._config.restart_for}
        return json_answer(
            {
                "stuck": waiting,
                "node": self._node,
                "uplink": self._uplink(),
                "config": config,
                "checks": checks,
            }
        )

    async def _stuck(self) -> list[Stuck]:
        """What is in the kernel at two looks: every write waits there for a moment."""
        first = stuck()
        if not first:
            return []
        await asyncio.sleep(_STUCK_FOR)
        again = set(stuck())
        return [each for each in first if each in again]

    async def _metrics(self, _: bytes) -> Answer:
        now = self._clock.boottime()
        checks = self._scheduler.checks.values()
        text = results.metrics(self._keeper.latch, checks, self._about(now), now)
        return Answer(text, content_type="text/plain; version=0.0.4")

    async def _run_checks(self, body: bytes) -> Answer:
        try:
            names = json.loads(body or b"{}")["checks"] if body else []
            ", ".join(names)  # a list of texts, or TypeError
        except (ValueError, KeyError, TypeError):
            return json_answer({"error": 'expected {"checks": ["NAME", ...]} or nothing'}, 400)
        try:
            return json_answer({"result": await self._commands.run_checks(names)})
        except CommandRefused as error:
            return json_answer({"error": str(error)}, 400)

    def _about(self, now: float) -> results.About:
        return results.About(
            node=self._node,
            version=VERSION,
            uptime=now - self._started_at,
            uplink=self._uplink(),
            state_problem=self._keeper.problem,
            kernel_records=self._feed.records,
            kernel_seconds=self._feed.seconds,
            log_checks={name: self._feed.tallies.get(name, Tally()) for name in self._feed.checks},
            quiesced_for=self._commands.quiesced_for(),
            config=self._config,
        )
