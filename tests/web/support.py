"""A fleet built by hand, a history in a list, and a real server on loopback."""

import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import aiohttp

from aggregator.access.identity import UserIdentity
from aggregator.alerts.overview import AlertOverview
from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.transport import RequestCounters
from aggregator.cluster.port import (
    Action,
    Blocker,
    EvidenceItem,
    HookState,
    HookStatus,
    NodeMeta,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.cluster.users import Access
from aggregator.events import EventKind, Transition
from aggregator.health.model import (
    CheckOff,
    ClearedBy,
    Component,
    Fault,
    Hello,
    Lost,
    Snapshot,
    Status,
)
from aggregator.health.node import NodeHealth
from aggregator.ingest.stats import IngestStats
from aggregator.jobs.recorder import JobCounts
from aggregator.policy.evaluate import Evidence, Incident, incident_id
from aggregator.policy.lemons import Lemon
from aggregator.quarantine.decide.common_cause import CommonCause
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.state.fleet import FleetState, NodeSummary
from aggregator.web import models
from aggregator.web.access_guard import PageAccess
from aggregator.web.action_endpoints import ActionSetup
from aggregator.web.change_notifier import ChangeNotifier
from aggregator.web.event_broker import EventBroker
from aggregator.web.node_detail import node_detail
from aggregator.web.server import Web
from aggregator.web.snapshot_cache import SnapshotCache
from aggregator.web.stats_interface import Stats
from tests.support.node_states import set_fields, summary_in
from tests.support.present import present
from tests.support.replica import shipped_policy

BOOT = "8b1c7f0e-6a0d-4a53-9a39-0f4f4a0c2f11"
GPU = "GPU-5d0a9c1e-7f43-4b6e-9a20-1f2e3d4c5b6a"
LOST = "NVML reports that GPU 3 at 0000:1b:00 is lost (error 15)"
#: 2026-03-14 03:14:07 UTC, when people are tired.
NIGHT = 1773458047.0


@dataclass
class Hands:
    """Clocks that stand still until a test moves them. ``now`` is far from ``wall`` on purpose."""

    now: float = 5000.0
    wall: float = NIGHT

    def clocks(self) -> Clocks:
        return Clocks(now=lambda: self.now, wall=lambda: self.wall)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


class Everyone:
    """Each identity may read; the last one is remembered."""

    last: UserIdentity | None = None

    async def allows(self, identity: UserIdentity, access: Access) -> bool:
        self.last = identity
        return access.verb in {"list", "get"}


def running_clocks(wall: float = NIGHT) -> Clocks:
    """Clocks that run, from a wall clock time on."""
    began = time.monotonic()
    return Clocks(now=time.monotonic, wall=lambda: wall + time.monotonic() - began)


@dataclass
class ListHistory:
    """The recorded events, newest first, and the fleet's counts. ``broken`` makes every read fail
    as a database does.
    """

    items: list[Transition] = field(default_factory=list)
    kept: list[tuple[float, Mapping[str, int]]] = field(default_factory=list)
    broken: str = ""
    problem: str = ""
    oldest: list[float] = field(default_factory=list)

    async def begins(self) -> list[float]:
        return self.oldest

    async def recent(
        self, node: str = "", since: float = 0.0, limit: int = 200, until: float = math.inf
    ) -> list[Transition]:
        if self.broken:
            raise OSError(self.broken)
        found = [one for one in self.items if node in {"", one.node} and since <= one.at <= until]
        return sorted(found, key=lambda one: one.at, reverse=True)[:limit]

    async def of_incident(self, incident: str, limit: int = 200) -> list[Transition]:
        found = await self.recent(limit=100_000)
        return [one for one in found if one.incident == incident][:limit]

    async def of_kinds(
        self, kinds: Iterable[EventKind], since: float, until: float
    ) -> list[Transition]:
        wanted = set(kinds)
        found = await self.recent(since=since, limit=100_000, until=until)
        return [one for one in found if one.kind in wanted]

    async def first_of_kinds(self, kinds: Iterable[EventKind], since: float) -> list[Transition]:
        found = await self.of_kinds(kinds, since, math.inf)
        return list({one.node: one for one in found}.values())

    def record_counts(self, counts: Mapping[str, int]) -> None:
        self.kept.append((math.inf, counts))

    async def counts(self, since: float) -> list[tuple[float, Mapping[str, int]]]:
        if self.broken:
            raise OSError(self.broken)
        return [one for one in self.kept if since <= one[0] < math.inf]


@dataclass
class HistoryCounts:
    problem: str = ""
    depth: int = 7
    written: int = 1200
    lost: int = 2
    evidence_lost: int = 3


# -- nodes ---------------------------------------------------------------------------------


def hello(node: str, **changes: Any) -> Hello:
    told = Hello(
        node=node,
        boot_id=BOOT,
        spool_epoch="e1",
        agent_version="0.1.0",
        contract_version=1,
        instance="i1",
        checks=(
            CheckOff("disk-space", 60.0, ""),
            CheckOff("gpu-ecc", 60.0, ""),
            CheckOff("net-targets", 30.0, "no targets are configured"),
        ),
        traits={"driver": "580.95.05", "gpu": "NVIDIA H100 80GB HBM3", "kernel": "6.8.0-45"},
    )
    return replace(told, **changes)


def component(now: float, check: str, name: str, status: Status, message: str = "") -> Component:
    reason = "" if status is Status.OK else "threshold"
    return Component(check, name, status, reason, message or "as it should be", now - 3600.0)


def fault(now: float, code: str = "xid:79", message: str = "", **changes: Any) -> Fault:
    made = Fault(
        code=code,
        check="gpu-xid",
        component=GPU,
        message=message or "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        boot_id=BOOT,
        source="kmsg",
        source_seq=4711,
        first_at=now - 240.0,
        last_at=now - 200.0,
        count=3,
        cleared_by=ClearedBy.REBOOT,
    )
    return replace(made, **changes)


def well(fleet: FleetState, node: str, now: float, *, uid: str = "") -> NodeSummary:
    """A node that is known to the cluster and whose agent says that all is well."""
    node_summary = summary_in(fleet, node)
    node_summary.cluster.meta = NodeMeta(node, uid or f"uid-{node}", {"sickbay.dev/pool": "h100"})
    node_summary.agent.health = NodeHealth(hello(node))
    parts = [component(now, "gpu-ecc", f"GPU-{i}", Status.OK) for i in range(8)]
    parts.append(component(now, "disk-space", "/var", Status.OK, "41 % used"))
    node_summary.agent.health.snapshot(Snapshot(tuple(parts), ()))
    node_summary.agent.attached = True
    node_summary.agent.last_seen = now - 2.0
    return node_summary


def incident_of(
    node_summary: NodeSummary,
    now: float,
    *,
    action: str = "drain",
    kind: str = "gpu",
    code: str = "xid:79",
    component: str = GPU,
    message: str = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
    summary: str = "xid:79 (GPU has fallen off the bus) on 1 GPU",
    cleared_by: ClearedBy | None = ClearedBy.REBOOT,
    ago: float = 240.0,
    recovering: float | None = None,
) -> Incident:
    over = "" if recovering is None else "reboot"
    evidence = Evidence(
        code, component, BOOT, "gpu-off-bus", action, message, cleared_by, now - ago, over
    )
    made = Incident(
        id=incident_id(node_summary.node, BOOT, kind),
        node=node_summary.node,
        boot_id=BOOT,
        kind=kind,
        action=action,
        summary=summary,
        since=now - ago,
        evidence=(evidence,),
        healthy_for=600.0,
        recovering_since=None if recovering is None else now - recovering,
    )
    node_summary.decision.incidents = {**node_summary.decision.incidents, made.id: made}
    return made


def quarantine_of(
    node_summary: NodeSummary,
    wall: float,
    *,
    phase: Phase = Phase.DRAINING,
    pods: int | None = 4,
    blockers: tuple[Blocker, ...] = (),
    reason: str = "xid:79 (GPU has fallen off the bus) on 1 GPU",
    requester: str = "sickbay",
    action: Action = Action.DRAIN,
    kind: str = "gpu",
    component: str = GPU,
) -> Quarantine:
    at = wall - 230.0
    later = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED, Phase.RELEASING)
    spec = QuarantineSpec(
        action=action,
        kind=kind,
        reason=reason,
        requester=requester,
        incident="a1b2c3d4",
        boot_id=BOOT,
        evidence=(
            EvidenceItem(
                "xid:79", component, BOOT, "reboot", "gpu-off-bus", "a1b2c3d4", "off the bus"
            ),
        )
        if requester == "sickbay"
        else (),
    )
    status = QuarantineStatus(
        phase=phase,
        node_uid=f"uid-{node_summary.node}",
        admitted_at=at,
        cordoned_at=at + 0.4 if phase in later else 0.0,
        drain_started_at=at + 0.6 if phase in later[1:] else 0.0,
        drained_at=at + 150 if phase in later[2:] else 0.0,
        deadline_at=at + 7 * 86400 if phase in later[1:] else 0.0,
        pre_evict=HookStatus(HookState.DONE, at + 0.6, at + 0.9, "told Slurm")
        if phase in later[1:]
        else None,
        pods_remaining=pods,
        blockers=blockers,
    )
    found = Quarantine(node_summary.node, f"q-{node_summary.node}", "7", spec, status, at)
    node_summary.quarantine_view.quarantine = found
    node_summary.work.in_record = True
    return found


#: The configuration of a site that reboots nodes; its rule names a second rung without a repairer.
REPAIRS = RepairPlan(
    RepairRules(RepairMode.REPAIR, concurrent=1),
    frozenset({"reboot", "ticket"}),
    shipped_policy("rules:\n  - {name: gpu-gone, repair: [reboot, replace, ticket]}\n"),
)


def repaired(node_summary: NodeSummary, *attempts: RepairAttempt, **changes: Any) -> None:
    """Drain the node in quarantine, with evidence of a rule that has a ladder, and repair it."""
    found = present(node_summary.quarantine)
    evidence = tuple(replace(item, rule="gpu-gone") for item in found.spec.evidence)
    status = replace(
        found.status, phase=Phase.DRAINED, repair=RepairStatus(attempts, **changes), blockers=()
    )
    node_summary.quarantine_view.quarantine = replace(
        found, spec=replace(found.spec, evidence=evidence), status=status
    )


def reboot_of(node: str, wall: float, state: RepairState, **changes: Any) -> RepairAttempt:
    return RepairAttempt(
        operation=f"q-{node}-1-reboot",
        repair="reboot",
        state=state,
        began_at=wall - 120,
        deadline_at=wall + 1680,
        **changes,
    )


def record_common_cause(fleet: FleetState, now: float) -> None:
    """A rack that fails, as its common cause; and the fleet cools down."""
    reason = "rack=<r1>: check nic-link on 9 of 18 nodes, and on 0 of 100 others"
    cause = CommonCause(
        id="rack=r1 check:nic-link",
        scope="place",
        what="check:nic-link",
        limit="limits.domain_percent",
        value="20%",
        reason=reason,
        nodes=9,
        total=18,
        sample=("node-1", "node-2"),
        since=now - 60.0,
    )
    fleet.causes = {cause.id: cause}
    fleet.cooling = f"until 03:29 UTC: {reason}"
    fleet.limits = {**fleet.limits, "new_per_window": "10", "window": "10m"}
    fleet.admitted_lately = 7


def small_fleet(hands: Hands) -> FleetState:
    """One node of each state, and the words that go with it."""
    now, wall = hands.now, hands.wall
    fleet = FleetState(
        mode="drain",
        record_entries=2,
        limits={
            "concurrent": "20",
            "concurrent_percent": "5%",
            "evictions_at_once": "50",
            "quorum_percent": "50%",
        },
    )
    for number in range(1, 9):
        well(fleet, f"node-{number}", now)
    fleet.lemons = (
        Lemon(
            "node-2",
            quarantines=5,
            codes=("xid:48", "xid:79"),
            days=4,
            returns=1,
            last=wall - 3 * 3600,
            strikes=("5 quarantines", "4 days with an incident"),
        ),
    )
    sick = summary_in(fleet, "node-2")
    assert sick.agent.health is not None
    sick.agent.health.snapshot(
        Snapshot(
            (
                component(now, "gpu-inventory", "", Status.FAILED, "7 of 8 GPUs answer"),
                component(now, "gpu-inventory", GPU, Status.FAILED, LOST),
                component(now, "disk-space", "/var", Status.OK, "41 % used"),
            ),
            (
                fault(now),
                fault(now, "xid:31", "MMU fault", historical=True, boot_id="older", source_seq=9),
                fault(now, "xid:63", "row remapping", missing=True, source_seq=12),
            ),
            lost=(Lost("kmsg", 12, "the ring was overwritten"),),
        )
    )
    incident_of(sick, now)
    blocker = Blocker("training/llm-worker-17", "disruption budget llm allows 0 more", wall - 120)
    quarantine_of(sick, wall, blockers=(blocker,))
    held = summary_in(fleet, "node-3")
    incident_of(held, now, ago=60.0)
    text = "20 nodes are in quarantine; the limit is 20"
    held.decision.hold = Held("limits.concurrent", "20", text, since=wall - 55.0)
    watched = summary_in(fleet, "node-4")
    incident_of(
        watched,
        now,
        action="observe",
        code="xid:31",
        message="NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, MMU fault",
        summary="xid:31 (GPU memory page fault) on 1 GPU, application-caused",
        cleared_by=ClearedBy.EXPIRY,
        ago=7200.0,
    )
    silent = summary_in(fleet, "node-5")
    silent.agent.attached, silent.agent.last_seen = False, now - 900.0
    unknown = summary_in(fleet, "node-6")
    unknown.agent.health, unknown.agent.attached, unknown.agent.last_seen = None, False, None
    by_hand = summary_in(fleet, "node-7")
    quarantine_of(
        by_hand,
        wall - 86400,
        phase=Phase.DRAINED,
        pods=0,
        reason="fan 3 is dead, RMA 12345",
        requester="hall-2",
        kind="manual",
    )
    return fleet


def rack_fleet(hands: Hands, sick: int = 41) -> FleetState:
    """A rack with the same fault on each node: a third of them drains, the others are held."""
    now, wall = hands.now, hands.wall
    fleet = FleetState(mode="drain", limits={"concurrent": "13", "concurrent_percent": "5%"})
    for number in range(1, sick + 20):
        node_summary = well(fleet, f"node-{number}", now)
        if number > sick:
            continue
        gpu = f"GPU-{number:08d}-7f43-4b6e-9a20-1f2e3d4c5b6a"
        summary = f"xid:48 (double-bit ECC error) on {gpu}"
        incident_of(
            node_summary,
            now,
            code="xid:48",
            component=gpu,
            message=f"NVRM: Xid (PCI:0000:{number:02x}:00): 48, DBE",
            summary=summary,
            ago=float(60 + number),
        )
        if number % 3 == 0:
            quarantine_of(
                node_summary, wall - number, pods=number % 9, reason=summary, component=gpu
            )
            fleet.record_entries += 1
        else:
            text = "13 nodes are in quarantine; the limit is 13"
            node_summary.decision.hold = Held("limits.concurrent", "13", text, since=wall - number)
    return fleet


def big_fleet(hands: Hands, count: int = 7500) -> FleetState:
    """Many nodes, a few per cent of them in trouble of every kind, some with long messages."""
    now, wall = hands.now, hands.wall
    fleet = FleetState(mode="drain", limits={"concurrent": "200", "concurrent_percent": "5%"})
    for number in range(count):
        node_summary = well(fleet, f"gpu-{number // 18:03d}-{number % 18:02d}", now)
        if number % 97 == 3:
            incident_of(node_summary, now, ago=float(number))
            phase = (Phase.DRAINING, Phase.DRAINED, Phase.CORDONED)[number % 3]
            quarantine_of(node_summary, wall - number, phase=phase, pods=number % 9)
            fleet.record_entries += 1
        elif number % 151 == 5:
            incident_of(node_summary, now, ago=float(number))
            node_summary.decision.hold = Held(
                "limits.concurrent", "200", "the limit is 200", since=wall - 60.0
            )
        elif number % 61 == 7:
            incident_of(node_summary, now, action="observe", kind="network", ago=float(number))
        elif number % 83 == 11 or 3000 < number < 3036:
            node_summary.agent.attached, node_summary.agent.last_seen = False, now - 600.0
        elif number % 211 == 17:
            set_fields(node_summary, health=None, attached=False, last_seen=None)
    return fleet


def counts_of(wall: float, points: int) -> list[tuple[float, Mapping[str, int]]]:
    """Of a fleet in which one node was in quarantine all the time."""
    counts = {"nodes": 8, "held": 0, "quarantined": 1, "drained": 1, "other": 1}
    return [(wall - 300 * ago, counts) for ago in range(points, 0, -1)]


def some_past(wall: float) -> list[Transition]:
    """A quarantine's course, and what else there was."""
    node = "node-2"
    told = [
        (
            231,
            EventKind.INCIDENT_OPENED,
            node,
            f"{node}: xid:79 (GPU has fallen off the bus) on 1 GPU",
        ),
        (230, EventKind.ADMITTED, node, f"{node}: drain admitted: xid:79 on 1 GPU"),
        (229, EventKind.CORDONED, node, f"{node}: tainted gpu and unschedulable"),
        (229, EventKind.DRAINING, node, f"{node}: evicting 6 pods"),
        (200, EventKind.MOVED, node, f"{node}: evicted training/llm-worker-3"),
        (198, EventKind.MOVED, node, f"{node}: evicted training/llm-worker-9"),
        (120, EventKind.BLOCKED, node, f"{node}: training/llm-worker-17 may not go: budget llm"),
        (55, EventKind.HELD, "node-3", "node-3: held by limits.concurrent: the limit is 20"),
        (900, EventKind.AGENT_SILENT, "node-5", "node-5: its agent is silent"),
        (90000, EventKind.RESUMED, "", "the stop switch is off again"),
    ]
    return [
        Transition(wall - ago, kind, name, text, details={"kind": "gpu"})
        for ago, kind, name, text in told
    ]


def pulse_alone(
    fleet: FleetState,
    clocks: Clocks,
    feed: EventBroker,
    troubles: Callable[[], Sequence[object]] = tuple,
) -> ChangeNotifier:
    """The pulse of a replica, without a server."""
    snapshots = SnapshotCache(fleet, clocks)
    detail = partial(node_detail, fleet, snapshots)
    return ChangeNotifier(snapshots.current_snapshot, detail, feed, troubles)


# -- the server --------------------------------------------------------------------------------


@dataclass
class Served:
    """A running `Web` and what stands behind it."""

    web: Web
    url: str
    fleet: FleetState
    feed: EventBroker
    history: ListHistory
    ingest: IngestStats
    api: RequestCounters
    troubles: list[str]
    #: Why alerts don't get out.
    untold: list[str]
    session: aiohttp.ClientSession

    async def text(self, path: str, status: int = 200, **headers: str) -> str:
        async with self.session.get(self.url + path, headers=headers) as response:
            text = await response.text()
            assert response.status == status, f"{path}: {response.status}: {text[:400]}"
            return text

    async def json(self, path: str, status: int = 200) -> Any:
        return json.loads(await self.text(path, status))


@asynccontextmanager
async def serving(
    fleet: FleetState,
    clocks: Clocks,
    *,
    history: ListHistory | None = None,
    feed: EventBroker | None = None,
    address: str = "127.0.0.1:0",
    ssl: Any = None,
    replicas: Sequence[models.Replica] = (),
    lease_lost: Callable[[], str] = str,
    version: str = "0.1.0",
    ingest: IngestStats | None = None,
    connections: int = 1_024,
    hosts: Sequence[str] = (),
    alerts: AlertOverview | None = None,
    access: PageAccess | None = None,
    actions: ActionSetup | None = None,
    preview: Any = None,
) -> AsyncIterator[Served]:
    feed = feed or EventBroker(epoch=1)
    history = history or ListHistory(some_past(clocks.wall()), counts_of(clocks.wall(), 288))
    ingest, api = ingest or IngestStats(), RequestCounters()
    troubles, untold = list[str](), list[str]()
    web = Web(
        fleet=fleet,
        history=history,
        feed=feed,
        stats=Stats(
            ingest=ingest,
            api=api,
            outbox=lambda: {"0": 3},
            alert_trouble=lambda: "; ".join(untold),
            alerts=lambda: alerts or AlertOverview(),
            history=HistoryCounts(),
            jobs=JobCounts(),
        ),
        clocks=clocks,
        version=version,
        ready=lambda: list(troubles),
        replicas=lambda: replicas,
        lease_lost=lease_lost,
        connections=connections,
        hosts=hosts,
        access=access,
        actions=actions,
        preview=preview,
    )
    bound = await web.start(address, ssl)
    try:
        async with aiohttp.ClientSession() as session:
            yield Served(
                web,
                f"{'https' if ssl else 'http'}://{bound}",
                fleet,
                feed,
                history,
                ingest,
                api,
                troubles,
                untold,
                session,
            )
    finally:
        await web.close()
