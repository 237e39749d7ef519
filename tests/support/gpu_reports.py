"""Reports of an agent about the users of its node's GPUs."""

import asyncio

from aggregator.repairers.gpu_use import GpuUse, GpuUseRequests


class GpuReports:
    """The agent of node n1, which reports ``users`` while it is connected and answers."""

    def __init__(self, *users: str, unknown: str = "") -> None:
        self.use = GpuUse(users, unknown)
        self.connected = self.answers = True
        self.requests = GpuUseRequests(lambda _: self if self.connected else None)

    def request_gpu_use(self, request: str) -> None:
        self.requests.on_answer("n1", "0", GpuUse(("an earlier request's",)))
        if self.answers:
            loop = asyncio.get_running_loop()
            loop.call_later(1, self.requests.on_answer, "n1", request, self.use)
