"""``drain.notice``, ``scope: gpu`` and ``limits.per_workload`` together, through random failures.

Workloads answer, lie or end; reports contradict the kubelet; people stop, resume and release; the
controller dies at any request. Each eviction is checked as it arrives. Virtual time.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Evicted,
    EvictionResult,
    Guard,
    NoticeState,
    Phase,
    Pod,
    Quarantine,
)
from aggregator.jobs.gpu_reader import PodGpuReader
from aggregator.jobs.gpu_report import GpuReport, PodGpu
from aggregator.jobs.identity import SHIPPED
from aggregator.jobs.notice import READY, REQUESTED, never_because, workloads_of
from aggregator.jobs.settings import NoticeRules, NoticeWebhook
from aggregator.quarantine.decide.drain_plan import DrainRules
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult
from aggregator.quarantine.drain.pod_waits import InTurn
from aggregator.rfc3339 import read_time
from aggregator.workloads.gpu_scope import GpuScope
from aggregator.workloads.limit import WorkloadLimit
from aggregator.workloads.notices import EvictionNotices, WebhookRoute
from tests.support import virtual_time
from tests.support.drains import GANG
from tests.support.gpu_reports import PodReports
from tests.support.invariants import Watch
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.notices import Webhook
from tests.support.replica import SETTINGS, Replica, fault, shipped_policy, snapshot
from tests.support.virtual_replica import Running

NODES = ("n1", "n2", "n3")
BAD = "GPU-1"
WITHIN, SCOPE_FOR, WINDOW = 600.0, 7200.0, 1800.0
RULES = DrainRules(gpu_scope_for=SCOPE_FOR, deadline=7 * 86400.0)
#: One code that asks for its GPU alone, next to that which leaves no work to save, and another of
#: the node.
RULE = """
rules:
  - {name: one-gpu, kind: gpu, faults: ["xid:109"], action: drain, scope: gpu, why: a test's}
"""
POLICY = shipped_policy(RULE)
OF_GPU, OF_NODE, CORRUPT = "xid:109", "xid:119", "xid:48"
SCOPES = {rule.name: rule.scope for rule in POLICY.rules}
HONEST = GpuReport(unknown="no agent")


@dataclass
class Site:
    """The world, what its people and workloads have done, and the controllers one after another."""

    rng: random.Random
    world: World = field(default_factory=World)
    reports: PodReports = field(default_factory=lambda: PodReports(HONEST))
    webhook: Webhook = field(default_factory=lambda: Webhook(HookAnswer(HookResult.LATER)))
    faults: dict[str, dict[str, Any]] = field(default_factory=lambda: {one: {} for one in NODES})
    answered: set[str] = field(default_factory=set)
    stopped_at: float | None = None
    contradicted: bool = False
    wrong: list[str] = field(default_factory=list)
    #: By node, when a pod of the gang was last evicted there.
    lost_by_gang: dict[str, float] = field(default_factory=dict)
    #: By uid, the deadline of each notice by its id.
    notified: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in NODES:
            self.world.add_node(node)
            for name, gpu, labels in (
                ("rank", "GPU-2", GANG),
                ("user", BAD, {}),
                ("other", "GPU-3", {}),
                ("plain", "", {}),
            ):
                ids = (gpu,) if gpu else ()
                self.world.add_pod(
                    node, f"{name}-{node}", labels=labels, gpus=len(ids), gpu_ids=ids
                )

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        clock = Running()
        clocks = Clocks(clock, clock)
        self.cluster = Watched(self)
        takes = NoticeWebhook(match="jobs", url="https://x.example/", secret_file="/s")  # type: ignore[arg-type]
        waits = InTurn(
            (
                GpuScope(
                    RULES, lambda rule: SCOPES.get(rule, ""), PodGpuReader(self.reports, clocks)
                ),
                WorkloadLimit(
                    2, WINDOW, SHIPPED, lambda: list(self.world.quarantines.values()), clocks
                ),
                EvictionNotices(
                    self.cluster,
                    rules=NoticeRules(within=WITHIN),
                    webhooks=[WebhookRoute(takes, self.webhook)],
                    keys=(),
                    clocks=clocks,
                ),
            )
        )
        settings = replace(SETTINGS, drain=RULES, waits=waits)
        self.replica = await Replica(
            self.world, clock=clock, settings=settings, cluster=self.cluster, policy=POLICY
        ).ready()
        for node in NODES:
            self.report(node)

    def report(self, node: str) -> None:
        self.replica.agent(node, snapshot(*self.faults[node].values()))

    def pods(self) -> list[Pod]:
        return [one for one in self.world.pods.values() if not one.deleting]

    def change(self, pod: Pod, **changes: Any) -> None:
        key = f"{pod.node}/{pod.name}"
        self.world.pods[key] = replace(pod, **changes, version=self.world.tick())

    async def act(self) -> None:
        name = self.rng.choice([one for one in dir(self) if one.startswith("do_")])
        result = getattr(self, name)()
        if result is not None:
            await result

    def do_fault(self) -> None:
        code = self.rng.choice([OF_GPU, OF_GPU, OF_NODE, CORRUPT])
        self._fault(code, self.rng.choice(NODES))

    def _fault(self, code: str, node: str) -> None:
        seq = len(self.faults[node]) + 1
        self.faults[node][code] = fault(code, BAD, source_seq=seq)
        self.report(node)

    def do_answer(self) -> None:
        """Of its own notice, or of another's: by a pod that runs."""
        notices = [n for q in self.world.quarantines.values() for n in q.status.notices]
        if not notices or not self.pods():
            return
        notice, pod = self.rng.choice(notices), self.rng.choice(self.pods())
        [key] = workloads_of([pod], ())
        if notice.workload == key:
            self.answered.add(notice.ident)
        self.change(pod, annotations={**pod.annotations, READY: notice.ident})

    def do_lie(self) -> None:
        """A week's time, and an answer to a notice that there never was."""
        if self.pods():
            pod = self.rng.choice(self.pods())
            week = '{"id": "0123456789abcdef", "deadline": "2100-01-01T00:00:00Z"}'
            lies = {READY: "fedcba9876543210", "sickbay.dev/checkpoint-interval": week}
            self.change(pod, annotations={**pod.annotations, **lies})

    def do_end_a_pod(self) -> None:
        if self.pods():
            self.change(self.rng.choice(self.pods()), phase="Succeeded")

    def do_contradict(self) -> None:
        pod = self.rng.choice(self.pods()) if self.pods() else None
        if pod is not None and pod.gpus:
            seen = PodGpu(pod.namespace, pod.name, pod.uid, "GPU-7", container="c")
            self.reports.report = GpuReport((seen,))
            self.contradicted = True

    def do_stop(self) -> None:
        self.world.person_stops("drill")
        self.stopped_at = self.now

    def do_resume(self) -> None:
        self.world.person_stops("")
        self.stopped_at = None

    def do_webhook(self) -> None:
        self.webhook.answer = self.rng.choice(
            [None, HookAnswer(HookResult.LATER), HookAnswer(HookResult.FAILED, "HTTP 500")]
        )

    async def do_fail_over(self) -> None:
        await self.replica.stop()
        await self.start()

    async def do_crash(self) -> None:
        self.cluster.crash_in(self.rng.randrange(1, 12), after=self.rng.random() < 0.5)
        await asyncio.sleep(60)
        await self.do_fail_over()

    def is_over(self) -> bool:
        """Nothing more can be evicted: each node is empty or without a quarantine."""
        there = self.world.quarantines
        drained = all(one.status.phase is Phase.DRAINED for one in there.values())
        return drained and not any(pod.node in there for pod in self.world.pods.values())

    def note(self, pod: Pod, notice: Mapping[str, str]) -> None:
        """A notice that a pod gets: none while it has another one that is open."""
        known = self.notified.setdefault(pod.uid, {})
        for ident, deadline in known.items():
            is_open = self.now < deadline - 1 and ident not in self.answered
            if ident == notice["id"] or is_open:
                self.wrong.append(f"{pod.key} was notified again at {self.now}: {known}")
        known[notice["id"]] = read_time(notice["deadline"])

    def check(self, pod: Pod) -> None:
        """The eviction of a pod, as it arrives."""
        quarantine = self.world.quarantines.get(pod.node)
        if quarantine is None:
            self.wrong.append(f"{pod.key} without a quarantine")
            return
        if self.stopped_at is not None and self.now > self.stopped_at + 1:
            self.wrong.append(f"{pod.key} in a stop")
        codes = {item.code for item in quarantine.spec.evidence if not item.cleared}
        if not never_because(codes, ()):
            self._check_notice(pod, quarantine)
        self._check_scope(pod, quarantine, codes)
        if pod.labels == GANG:
            self.lost_by_gang[pod.node] = self.now
            lost = [one for one, at in self.lost_by_gang.items() if at > self.now - WINDOW + 1]
            if len(lost) > 2:
                self.wrong.append(f"the gang lost {lost} within {WINDOW} s")

    def _check_notice(self, pod: Pod, quarantine: Quarantine) -> None:
        [key] = workloads_of([pod], ())
        found = {one.workload: one for one in quarantine.status.notices}.get(key)
        if found is None or found.state is NoticeState.SENT:
            self.wrong.append(f"{pod.key} without the end of a notice: {found}")
        elif found.state is NoticeState.READY and found.ident not in self.answered:
            self.wrong.append(f"{pod.key} by an answer that nobody gave: {found}")
        elif found.state is NoticeState.OVER and self.now < found.deadline_at:
            self.wrong.append(f"{pod.key} before its deadline: {found}")
        elif found.deadline_at > found.sent_at + WITHIN + 0.01:
            self.wrong.append(f"{pod.key} has more time than drain.notice.within")

    def _check_scope(self, pod: Pod, quarantine: Quarantine, codes: set[str]) -> None:
        began = quarantine.status.drain_started_at or 0.0
        spared = BAD not in pod.gpu_ids and codes <= {OF_GPU, CORRUPT}
        with_gpus = any(
            one.gpus and BAD not in one.gpu_ids and one.phase == "Running"
            for one in self.pods()
            if one.node == pod.node
        )
        if spared and with_gpus and not self.contradicted and self.now < began + SCOPE_FOR:
            self.wrong.append(f"{pod.key} does not use the faulty GPU: {codes}")


class Watched(MemoryCluster):
    def __init__(self, site: Site) -> None:
        super().__init__(site.world)
        self._site = site

    async def annotate_pod(self, pod: Pod, annotations: Mapping[str, str], *, guard: Guard) -> None:
        await super().annotate_pod(pod, annotations, guard=guard)
        self._site.note(pod, json.loads(annotations[REQUESTED]))

    async def evict(self, pod: Pod, **how: Any) -> EvictionResult:
        before = len(self.world.evicted)
        there = any(one.uid == pod.uid for one in self._site.pods())
        result = await super().evict(pod, **how)
        if result.outcome is Evicted.ACCEPTED and there and len(self.world.evicted) > before:
            self._site.check(pod)
        return result


@pytest.mark.parametrize("seed", [*range(5), 117])
@virtual_time.in_virtual_time
async def test_no_pod_goes_early_none_is_notified_twice_and_each_drain_ends(seed: int) -> None:
    site = Site(random.Random(seed))
    watch = Watch(site.world, asyncio.get_running_loop().time)
    await site.start()
    site._fault(site.rng.choice([OF_GPU, OF_NODE]), "n1")
    for _ in range(25):
        await asyncio.sleep(site.rng.choice([1, 5, 30, 120, 400]))
        await site.act()
        if site.rng.random() < 0.5:
            site.world.kubelets_finish()
    site.do_resume()
    site.reports.report = HONEST
    await site.do_fail_over()
    for _ in range(60):
        if site.is_over():
            break
        await asyncio.sleep((SCOPE_FOR + WITHIN + 4 * WINDOW) / 60)
        site.world.kubelets_finish()
    assert site.wrong + watch.wrong == []
    phases = {name: one.status.phase for name, one in site.world.quarantines.items()}
    assert set(phases.values()) == {Phase.DRAINED}, phases
    calls = Counter(one["id"] for one in site.webhook.calls)
    assert max(calls.values(), default=0) <= 1, calls
