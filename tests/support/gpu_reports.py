"""Reports of an agent about the users of its node's GPUs."""

import asyncio
from collections.abc import Callable

from aggregator.clock import Clocks
from aggregator.jobs.gpu_reader import PodGpuReader
from aggregator.jobs.gpu_report import GpuReport
from aggregator.repairers.gpu_use import GpuUse, GpuUseRequests


class GpuReports:
    """The agent of node n1, which reports ``users`` while it is connected and answers."""

    def __init__(self, *users: str, unknown: str = "") -> None:
        self.use = GpuUse(users, unknown)
        self.connected = self.answers = True
        self.requests = GpuUseRequests(lambda _: self if self.connected else None)

    def request_gpu_use(self, request: str, *, pods: bool) -> None:
        assert not pods
        self.requests.on_answer("n1", "0", GpuUse(("an earlier request's",)))
        if self.answers:
            loop = asyncio.get_running_loop()
            loop.call_later(1, self.requests.on_answer, "n1", request, self.use)


class PodReports:
    """Implements `GpuReports`: the same report of each node, and how often it was requested."""

    def __init__(self, report: GpuReport) -> None:
        self.report = report
        self.requests = 0

    async def read_pods(self, node: str) -> GpuReport:
        del node
        self.requests += 1
        return self.report


def no_reports(now: Callable[[], float]) -> PodGpuReader:
    """Agents that report which pod uses which GPU nowhere."""
    return PodGpuReader(PodReports(GpuReport(unknown="no agent")), Clocks(now, now))
