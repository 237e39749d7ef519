"""The agent's answers on its own node."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodeagent.clock import Clock
from nodeagent.commands import CommandRefused, Commands
from nodeagent.config.reload import ConfigState
from nodeagent.kernel_feed import KernelFeed, Tally
from nodeagent.local import command_routes, explain, ready_routes, render
from nodeagent.local.server import LocalResponse, Routes, json_answer
from nodeagent.model import CheckInfo
from nodeagent.recorder import EvidenceRecorder
from nodeagent.scheduler import Scheduler
from nodeagent.sources.process_state import StuckTask, stuck
from nodeagent.version import VERSION
from sickbay.json_text import read_json

#: Seconds between two readings of the tasks in the kernel.
_STUCK_FOR = 0.25


class LocalRoutes:
    """The routes of the local server. ``uplink`` gives the stream's state as JSON."""

    def __init__(
        self,
        *,
        node: str,
        recorder: EvidenceRecorder,
        commands: Commands,
        scheduler: Scheduler,
        feed: KernelFeed,
        infos: Callable[[], Sequence[CheckInfo]],
        uplink: Callable[[], Mapping[str, Any]],
        config: ConfigState,
        clock: Clock,
    ) -> None:
        self._node = node
        self._recorder = recorder
        self._commands = commands
        self._scheduler = scheduler
        self._feed = feed
        self._infos = infos
        self._uplink = uplink
        self._config = config
        self._clock = clock
        self._started_at = clock.boottime()
        self.readiness = ready_routes.reader(node, recorder, commands, clock)

    def routes(self) -> Routes:
        """For the unix socket: only root may open it."""
        return (
            self.public_routes()
            | command_routes.routes(self._commands)
            | ready_routes.routes(self.readiness)
            | {
                ("GET", "/v1/explain"): self._explain,
                ("GET", "/v1/results"): self._results,
                ("POST", "/v1/run-checks"): self._run_checks,
            }
        )

    def public_routes(self) -> Routes:
        """For a port, where any client may send requests: no evidence by name, and no order is
        accepted.
        """
        return {
            ("GET", "/healthz"): self._healthz,
            ("GET", "/metrics"): self._metrics,
        }

    async def _healthz(self, _: bytes) -> LocalResponse:
        """Whether the event loop turns: no driver, disk or aggregator is involved."""
        return json_answer({"status": "ok"})

    async def _results(self, _: bytes) -> LocalResponse:
        now = self._clock.boottime()
        latch = self._recorder.latch
        return json_answer(render.as_json(latch, self._infos(), self._about(now), now))

    async def _explain(self, _: bytes) -> LocalResponse:
        """All from memory, and /proc of our own processes: no hung task delays the answer."""
        waiting = explain.waiting(await self._stuck())
        checks = explain.as_json(
            latch=self._recorder.latch,
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

    async def _stuck(self) -> list[StuckTask]:
        """Tasks that are in the kernel in two readings: every write waits there for a moment."""
        first = stuck()
        if not first:
            return []
        await asyncio.sleep(_STUCK_FOR)
        again = set(stuck())
        return [each for each in first if each in again]

    async def _metrics(self, _: bytes) -> LocalResponse:
        now = self._clock.boottime()
        checks = self._scheduler.checks.values()
        text = render.metrics(self._recorder.latch, checks, self._about(now), now)
        return LocalResponse(text, content_type="text/plain; version=0.0.4")

    async def _run_checks(self, body: bytes) -> LocalResponse:
        try:
            names = read_json(body or b"{}")["checks"] if body else []
            ", ".join(names)  # a list of texts, or TypeError
        except (ValueError, KeyError, TypeError):
            return json_answer({"error": 'expected {"checks": ["NAME", ...]} or no body'}, 400)
        try:
            return json_answer({"result": await self._commands.run_checks(names)})
        except CommandRefused as error:
            return json_answer({"error": str(error)}, 400)

    def _about(self, now: float) -> render.About:
        return render.About(
            node=self._node,
            version=VERSION,
            uptime=now - self._started_at,
            uplink=self._uplink(),
            state_problem=self._recorder.problem,
            kernel_records=self._feed.records,
            kernel_seconds=self._feed.seconds,
            log_checks={name: self._feed.tallies.get(name, Tally()) for name in self._feed.checks},
            quiesced_for=self._commands.quiesced_for(),
            config=self._config,
        )
