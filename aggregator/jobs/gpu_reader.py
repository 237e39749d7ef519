"""Reads from a node's agent which pod uses which GPU, and keeps the report for a while.

A report covers the pods that were on the node at its request: an allocation lasts as long as its
pod. So an agent that gives no answer for a moment widens no drain that is under way.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aggregator.clock import Clocks
from aggregator.cluster.port import Pod
from aggregator.jobs.gpu_report import GpuReport, GpusOfPod, gpus_by_pod
from aggregator.runtime.recent import Recent

#: Seconds: a report is requested again, also after a failure; and at most it counts for this long.
FRESH, RETRY, MOST_AGE = 600.0, 60.0, 3600.0
#: Seconds between two requests for pods that a report does not cover: new pods may be many.
APART = 2.0
#: Nodes whose reports are kept.
_MOST_NODES = 1000


class GpuReports(Protocol):
    """The agents' reports. No answer is a report whose ``unknown`` names the reason."""

    async def read_pods(self, node: str) -> GpuReport: ...


@dataclass(slots=True)
class _Known:
    """``pods``: the uids that the report covers; times are monotonic seconds."""

    report: GpuReport
    pods: frozenset[str]
    at: float
    tried_at: float


@dataclass(slots=True)
class PodGpuReader:
    """Shared by the drain and by the record of jobs."""

    reports: GpuReports
    clocks: Clocks
    _known: Recent[str, _Known] = field(default_factory=lambda: Recent(_MOST_NODES))

    async def read(self, node: str, pods: Sequence[Pod]) -> Mapping[str, GpusOfPod]:
        """By uid, the GPUs of these pods of the node. Never raises for an agent."""
        uids = frozenset(pod.uid for pod in pods)
        known = self._known.get(node)
        if known is None or self._is_due(known, uids):
            if known is not None:
                await asyncio.sleep(known.tried_at + APART - self.clocks.now())
            known = await self._request(node, uids, known)
        return gpus_by_pod(pods, known.report)

    def age(self, node: str) -> float:
        """Seconds since the report that counts; infinite without one."""
        known = self._known.get(node)
        return math.inf if known is None else self.clocks.now() - known.at

    def _is_due(self, known: _Known, uids: frozenset[str]) -> bool:
        now = self.clocks.now()
        if known.report.unknown or now - known.at >= FRESH:
            return now - known.tried_at >= RETRY
        return not uids <= known.pods

    async def _request(self, node: str, uids: frozenset[str], known: _Known | None) -> _Known:
        report = await self.reports.read_pods(node)
        now = self.clocks.now()
        is_failure = known is not None and report.unknown and not known.report.unknown
        if known is not None and is_failure and uids <= known.pods and now - known.at < MOST_AGE:
            known.tried_at = now
            return known
        if known is not None and now - known.at < FRESH and not report.unknown:
            uids |= known.pods  # a report is of the whole node
        made = _Known(report, uids, -math.inf if report.unknown else now, now)
        self._known[node] = made
        return made
