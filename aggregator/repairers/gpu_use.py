"""Whether a GPU of a node is in use, by its agent, before another party restarts the machine.

A BMC, a command or another controller sees no processes. The agent sees them, and those outside of
Kubernetes too. An agent that gives no answer holds nothing up: a machine that hangs needs its BMC.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from aggregator.cluster.port import Guard, GuardRefused
from aggregator.jobs.gpu_report import NO_REPORT, GpuReport
from aggregator.policy.repairs import TEST
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    Repairer,
    RepairOrder,
)

#: Seconds for the agent's answer: it reads the open files of each process.
_ANSWER_WITHIN = 5.0
_SENT = (AnswerState.TAKEN, AnswerState.DONE)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """``users``: the first few, in words. ``unknown``: why they can't be seen, or empty. ``pods``:
    which pod uses which GPU, where it was requested.
    """

    users: tuple[str, ...] = ()
    unknown: str = ""
    pods: GpuReport = NO_REPORT


class GpuUseLine(Protocol):
    """The stream of one node's agent."""

    def request_gpu_use(self, request: str, *, pods: bool) -> None: ...


class GpuUseRequests:
    """The requests to agents that wait for an answer."""

    def __init__(self, line_of: Callable[[str], GpuUseLine | None]) -> None:
        self._line_of = line_of
        self._numbers = itertools.count(1)
        self._waiting: dict[tuple[str, str], asyncio.Future[GpuUse]] = {}

    async def read(self, node: str) -> GpuUse:
        """The answer of the node's agent, which comes within seconds."""
        return await self._read(node, pods=False)

    async def read_pods(self, node: str) -> GpuReport:
        """The same with the pods of each GPU."""
        return (await self._read(node, pods=True)).pods

    async def _read(self, node: str, *, pods: bool) -> GpuUse:
        line = self._line_of(node)
        if line is None:
            return _no_answer("the node's agent is not connected")
        key = node, str(next(self._numbers))
        answer: asyncio.Future[GpuUse] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer
        line.request_gpu_use(key[1], pods=pods)
        try:
            async with asyncio.timeout(_ANSWER_WITHIN):
                return await answer
        except TimeoutError:
            return _no_answer(f"the node's agent has not answered within {_ANSWER_WITHIN:g} s")
        finally:
            del self._waiting[key]

    def on_answer(self, node: str, request: str, use: GpuUse) -> None:
        """One that was not requested, or comes late, changes nothing."""
        answer = self._waiting.get((node, request))
        if answer is not None and not answer.done():
            answer.set_result(use)


def _no_answer(why: str) -> GpuUse:
    return GpuUse(unknown=why, pods=GpuReport(unknown=why))


class UnlessGpuInUse:
    """A `Repairer` whose orders leave only while no GPU of the node is known to be in use."""

    def __init__(self, inner: Repairer, gpu_use: GpuUseRequests) -> None:
        self.sends_twice = inner.sends_twice
        self.inner = inner
        self._gpu_use = gpu_use

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        in_use = unknown = ""

        async def check() -> None:
            nonlocal in_use, unknown
            use = await self._gpu_use.read(order.node)
            if use.users:
                in_use = f"a GPU of the node is in use: {'; '.join(use.users)}"
                raise GuardRefused(in_use)
            unknown = use.unknown
            await guard()  # last, as the agent's answer took its time

        try:
            answer = await self.inner.order(order, Guard(check, guard.lost))
        except GuardRefused:
            if not in_use:
                raise
            # As where the agent tests.
            state = AnswerState.INCONCLUSIVE if order.repair == TEST else AnswerState.NOT_SENT
            return RepairAnswer(state, in_use)
        if not unknown or answer.state not in _SENT:
            return answer
        note = f"whether a GPU was in use is not known: {unknown}"
        text = "; ".join(part for part in (answer.text, note) if part)
        return RepairAnswer(answer.state, text, answer.details)

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        return await self.inner.read_outcome(order)

    async def cancel(self, order: RepairOrder) -> bool:
        return await self.inner.cancel(order)
