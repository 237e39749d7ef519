"""Hears evidence and the cluster's news, judges, and sees each node's steps through.

One task at most works on a node; nodes go beside each other. A task asks the pure `next_step`, does
it, looks again, and ends when there is nothing to do. Everything here can be lost: snapshots,
Quarantine objects and the record bring it back.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable
from dataclasses import dataclass

from aggregator.health.model import Delta, Hello, Snapshot
from aggregator.health.node import NodeHealth
from aggregator.policy.incident import Incident
from aggregator.policy.rules import Policy
from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.case import MARKED, Case
from aggregator.quarantine.cluster import (
    Action,
    Cluster,
    ClusterError,
    Conflict,
    News,
    NodeMeta,
    NodeUncordoned,
    NotFound,
    Phase,
    QuarantineGone,
    QuarantineSeen,
    RecordSeen,
    Refused,
    ViewLost,
    ViewRestored,
)
from aggregator.quarantine.decide.admission import Limits, Size, quorum
from aggregator.quarantine.decide.drainplan import DrainRules
from aggregator.quarantine.decide.marks import LABEL, read_overruled
from aggregator.quarantine.decide.steps import Do, Situation, Step, next_step
from aggregator.quarantine.drain import Drain
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.ledger import Kind, Ledger, Transition
from aggregator.quarantine.registrar import Registrar

log = logging.getLogger("sickbay.quarantine")

#: Held proposals, silence and the fleet's size are looked at again so often (seconds).
ROUNDS = 5.0
#: The list of nodes is read anew so often (seconds).
REFRESH = 180.0
_BACKOFF_FIRST = 0.2
_BACKOFF_MOST = 15.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the controller is told. Times in seconds."""

    mode: Action
    limits: Limits
    drain: DrainRules
    drain_deadline: float
    evictions_at_once: int
    silent_after: float
    silent_drain_after: float


class Controller:
    """The aggregator's middle. Its `attached`, `heard`, ... are ingest's `Intake`."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        policy: Policy,
        settings: Settings,
        fleet: Fleet,
        ledger: Ledger,
        clocks: Clocks,
        rng: random.Random,
    ) -> None:
        self._cluster = cluster
        self._policy = policy
        self._settings = settings
        self._fleet = fleet
        self._ledger = ledger
        self._clocks = clocks
        self._rng = rng
        self._cases: dict[str, Case] = {}
        self._lines: dict[str, object] = {}
        self._silent: set[str] = set()
        self._metas: dict[str, NodeMeta] = {}
        self._pools: dict[str, int] = {}
        self._started_at = clocks.now()
        self._view = False
        self._registrar = Registrar(
            cluster,
            limits=settings.limits,
            policy_hash=policy.hash,
            size=self._size,
            wall=clocks.wall,
        )
        self._acts = Acts(
            cluster=cluster,
            registrar=self._registrar,
            ledger=ledger,
            clocks=clocks,
            policy=policy,
            pool_of=self._pool_of,
        )
        self._drain = Drain(
            cluster=cluster,
            acts=self._acts,
            clocks=clocks,
            rules=settings.drain,
            at_once=asyncio.Semaphore(settings.evictions_at_once),
            deadline=settings.drain_deadline,
            rng=rng,
        )
        fleet.mode = settings.mode.value
        fleet.limits = _limits_for_people(settings)
        fleet.view_lost = "not connected yet"

    @property
    def record_problem(self) -> str:
        """Why the admission record can't be used; empty when it can."""
        return self._registrar.problem

    # -- running -----------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled: the cluster's news, and the rounds."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(), name="news")
                group.create_task(self._go_round(), name="rounds")
        finally:
            for case in self._cases.values():
                for task in (case.task, case.trail):
                    if task is not None:
                        task.cancel()
                if case.timer is not None:
                    case.timer.cancel()

    async def _follow(self) -> None:
        async for news in self._cluster.news():
            await self._hear_news(news)

    async def _go_round(self) -> None:
        refreshed = float("-inf")
        while True:
            now = self._clocks.now()
            if self._view and now - refreshed >= REFRESH:
                await self._refresh_nodes()
                refreshed = now
            self._tell_fleet()
            for case in list(self._cases.values()):
                self._note_silence(case, now)
                if case.patient.hold is not None or self._in_suspense(case):
                    self._kick(case)
            await asyncio.sleep(ROUNDS)

    def _in_suspense(self, case: Case) -> bool:
        quarantine = case.patient.quarantine
        return quarantine is not None and quarantine.status.phase in (
            Phase.ADMITTED,
            Phase.CORDONED,
            Phase.DRAINING,
            Phase.RELEASING,
        )

    async def _refresh_nodes(self) -> None:
        try:
            nodes = await self._cluster.list_nodes()
        except ClusterError as error:
            log.warning("the nodes can't be listed", extra={"error": str(error)})
            return
        self._metas = {meta.name: meta for meta in nodes}
        self._pools = {}
        for meta in nodes:
            pool = meta.labels.get(self._settings.limits.pool_label, "")
            self._pools[pool] = self._pools.get(pool, 0) + 1
            case = self._case(meta.name)
            case.patient.meta = meta
            quarantine = case.patient.quarantine
            if quarantine is None:
                case.take_overruled(read_overruled(meta.annotations))
                if LABEL in meta.labels and not self._in_record(case):
                    case.orphan = case.orphan or "swept"
                    self._kick(case)
            elif quarantine.status.node_uid not in ("", meta.uid):
                case.suspect = True
                self._kick(case)

    # -- evidence (ingest's Intake) --------------------------------------------------

    def attached(self, hello: Hello, line: object) -> None:
        """An authenticated stream said Hello; its snapshot follows."""
        case = self._case(hello.node)
        patient = case.patient
        if patient.health is None:
            patient.health = NodeHealth(hello)
        else:
            patient.health.greet(hello)
        silent = not patient.attached and patient.last_heard is not None
        patient.attached = True
        self._lines[hello.node] = line
        if silent and hello.node in self._silent:
            self._silent.discard(hello.node)
            self._acts.note(case, Kind.AGENT_BACK, "its agent is back")

    def heard(self, node: str, evidence: Snapshot | Delta, at: float) -> Awaitable[None] | None:
        """Fold and judge, now. A positive sign is acknowledged when it is durable."""
        case = self._case(node)
        health = case.patient.health
        assert health is not None, "ingest says Hello first"
        case.patient.last_heard = at
        if isinstance(evidence, Snapshot):
            health.snapshot(evidence)
            signs = bool(evidence.cleared)
        else:
            health.delta(evidence)
            signs = bool(evidence.cleared or evidence.gone)
        for lost in evidence.lost:
            self._acts.note(
                case, Kind.EVIDENCE_LOST, f"evidence lost ({lost.source}): {lost.message}"
            )
        self._judge(case)
        if not signs or (case.patient.quarantine is None and not self._in_record(case)):
            return None
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        case.waiters.append(durable)
        self._kick(case)
        return durable

    def digest(self, node: str) -> int | None:
        case = self._cases.get(node)
        health = case.patient.health if case is not None else None
        return health.digest() if health is not None else None

    def beat(self, node: str, at: float) -> None:
        self._case(node).patient.last_heard = at

    def answered(self, node: str, command_id: str, *, ok: bool, message: str) -> None:
        log.info(
            "answer to a command",
            extra={"node": node, "command": command_id, "ok": ok, "text": message},
        )

    def detached(self, node: str, line: object, reason: str) -> None:
        if self._lines.get(node) is not line:
            return
        del self._lines[node]
        case = self._case(node)
        case.patient.attached = False
        case.patient.last_heard = self._clocks.now()
        for waiter in case.waiters:
            waiter.cancel()
        case.waiters.clear()
        log.info("agent detached", extra={"node": node, "reason": reason})

    def conflict(self, node: str, detail: str) -> None:
        case = self._case(node)
        if detail and detail != case.patient.conflict:
            self._acts.note(case, Kind.AGENT_CONFLICT, f"two agents claim it: {detail}")
        case.patient.conflict = detail
        self._kick(case)

    # -- judging ---------------------------------------------------------------------

    def _judge(self, case: Case) -> None:
        before = case.patient.incidents
        now = self._clocks.now()
        closed, again = case.rejudge(self._policy, self._settings.mode, now)
        self._tell_incidents(case, before, closed)
        self._tell_would(case)
        if case.timer is not None:
            case.timer.cancel()
            case.timer = None
        if again is not None:
            loop = asyncio.get_running_loop()
            case.timer = loop.call_later(max(0.0, again - now) + 0.001, self._judge, case)
        if self._busy(case):
            self._kick(case)

    def _busy(self, case: Case) -> bool:
        return (
            case.wanted is not None
            or case.patient.quarantine is not None
            or case.patient.hold is not None
            or case.forgive
            or self._in_record(case)
        )

    def _tell_incidents(
        self, case: Case, before: dict[str, Incident], closed: list[Incident]
    ) -> None:
        for ident, incident in case.patient.incidents.items():
            known = before.get(ident)
            if known is None:
                self._note_incident(case, Kind.INCIDENT_OPENED, incident, incident.summary)
            elif known.summary != incident.summary or known.action != incident.action:
                self._note_incident(case, Kind.INCIDENT_CHANGED, incident, incident.summary)
        for incident in closed:
            text = f"{incident.summary}: well again"
            self._note_incident(case, Kind.INCIDENT_CLOSED, incident, text)

    def _note_incident(self, case: Case, kind: Kind, incident: Incident, text: str) -> None:
        self._ledger.note(
            Transition(
                at=self._clocks.wall(),
                kind=kind,
                node=case.node,
                summary=f"{case.node}: {text}",
                incident=incident.id,
                details={
                    "kind": incident.kind,
                    "action": incident.action,
                    "evidence": "; ".join(
                        f"{item.code} {item.component} ({item.rule})".replace("  ", " ")
                        for item in incident.evidence[:8]
                    ),
                },
            )
        )

    def _tell_would(self, case: Case) -> None:
        wanted = case.wanted
        would = ""
        if wanted is not None and wanted.spec.action is not wanted.uncapped:
            would = f"{wanted.uncapped}: {wanted.spec.reason}"
        if would and would != case.patient.would:
            text = f"mode {self._settings.mode} keeps us from this: {would}"
            self._acts.note(case, Kind.WOULD_ACT, text)
        case.patient.would = would
        if wanted is None or wanted.spec.action is Action.OBSERVE:
            case.patient.hold = None

    # -- the cluster's news --------------------------------------------------------------

    async def _hear_news(self, news: News) -> None:
        match news:
            case QuarantineSeen(seen):
                subject = self._case(seen.node)
                subject.take_quarantine(seen, self._policy, self._clocks.now())
                self._judge(subject)
                self._kick(subject)
            case QuarantineGone(node, uid, with_definition):
                self._quarantine_gone(self._case(node), uid, with_definition=with_definition)
            case NodeUncordoned(node):
                subject = self._case(node)
                quarantine = subject.patient.quarantine
                if quarantine is not None and quarantine.status.phase in MARKED:
                    subject.suspect = True
                    self._kick(subject)
            case RecordSeen(record):
                self._record_seen(record.stop)
                self._registrar.seen(record)
                self._tell_fleet()
            case ViewLost(reason):
                self._view = False
                self._fleet.view_lost = reason
                log.warning("the cluster's news stopped", extra={"reason": reason})
            case ViewRestored(unschedulable):
                await self._view_restored(unschedulable)

    def _record_seen(self, stop: str) -> None:
        if stop != self._fleet.stop:
            kind = Kind.STOPPED if stop else Kind.RESUMED
            text = f"the stop switch is set: {stop}" if stop else "the stop switch is off again"
            self._ledger.note(Transition(self._clocks.wall(), kind, "", text))
        self._fleet.stop = stop
        for case in self._cases.values():
            if self._busy(case):
                self._kick(case)

    def _quarantine_gone(self, case: Case, uid: str, *, with_definition: bool) -> None:
        known = case.patient.quarantine
        if known is None or known.uid != uid:
            return
        case.patient.quarantine = None
        case.definition_going = with_definition
        if not with_definition and uid != case.ended:
            case.orphan = uid
        self._kick(case)

    async def _view_restored(self, unschedulable: frozenset[str]) -> None:
        try:
            self._registrar.seen(await self._cluster.read_record())
        except ClusterError as error:
            log.warning("the record can't be read", extra={"error": str(error)})
        self._record_seen(self._registrar.stop)
        await self._refresh_nodes()
        self._view = True
        self._fleet.view_lost = ""
        for case in self._cases.values():
            case.definition_going = False
            quarantine = case.patient.quarantine
            if (
                quarantine is not None
                and quarantine.status.phase in MARKED
                and case.node not in unschedulable
            ):
                case.suspect = True
            self._judge(case)
            if self._busy(case) or case.orphan:
                self._kick(case)

    # -- one node's steps --------------------------------------------------------------

    def _kick(self, case: Case) -> None:
        """See to the node now, or once more when its task is at work already."""
        case.again.set()
        if self._view and (case.task is None or case.task.done()):
            case.task = asyncio.create_task(self._attend(case), name=f"attend {case.node}")

    async def _attend(self, case: Case) -> None:
        failures = 0
        while self._view and case.again.is_set():
            case.again.clear()
            try:
                done = await self._one_step(case)
            except Conflict:
                failures = await self._after_failure(
                    case, failures, "changed in between", reread=True
                )
            except NotFound as error:
                failures = await self._after_failure(case, failures, str(error), reread=True)
            except Refused as error:
                log.warning("refused", extra={"node": case.node, "error": str(error)})
                failures = await self._after_failure(case, failures + 5, str(error))
            except ClusterError as error:
                failures = await self._after_failure(
                    case, failures, str(error), at_least=error.retry_after
                )
            else:
                failures = 0
                case.patient.last_error = ""
                if done:
                    self._settle_waiters(case)
                else:
                    case.again.set()

    async def _after_failure(
        self,
        case: Case,
        failures: int,
        error: str,
        *,
        reread: bool = False,
        at_least: float | None = None,
    ) -> int:
        """Wait with full jitter, then look at what is there now."""
        if not reread or failures > 2:
            case.patient.last_error = error
        most = min(_BACKOFF_MOST, _BACKOFF_FIRST * 2**failures)
        pause = self._rng.uniform(0, most) if not reread or failures else 0.0
        await asyncio.sleep(max(pause, at_least or 0.0))
        if reread:
            try:
                await self._acts.reread(case)
            except ClusterError as again:
                case.patient.last_error = str(again)
        case.again.set()
        return failures + 1

    async def _one_step(self, case: Case) -> bool:
        """Decide and do. True when there was nothing (more) to do now."""
        if case.suspect:
            await self._acts.look_at_node(case)
        quarantine = case.patient.quarantine
        if quarantine is not None and quarantine.deleting:
            case.definition_going = await self._cluster.definition_is_going()
        if quarantine is None and case.orphan:
            await self._acts.sweep(case)
            return False
        if case.forgive and (quarantine is None or quarantine.status.phase is not Phase.RELEASING):
            await self._acts.forgive(case)
        return await self._do(case, next_step(self._situation(case)))

    async def _do(self, case: Case, step: Step) -> bool:
        quarantine, wanted = case.patient.quarantine, case.wanted
        match step.do:
            case Do.NOTHING:
                return True
            case Do.PROPOSE if wanted is not None:
                admitted = await self._acts.propose(case, wanted)
                if admitted:
                    self._judge(case)
                return not admitted
            case Do.CREATE if wanted is not None:
                await self._acts.create(case, wanted)
            case Do.FORGET:
                await self._acts.forget(case, step.because)
            case Do.UNDO:
                await self._acts.undo(case)
                self._judge(case)
            case Do.CORDON:
                await self._acts.cordon(case)
                return case.node_gone
            case _ if quarantine is not None:
                await self._do_with(case, step)
        return False

    async def _do_with(self, case: Case, step: Step) -> None:
        """The steps that need the quarantine to be there."""
        quarantine, wanted = case.patient.quarantine, case.wanted
        assert quarantine is not None
        match step.do:
            case Do.ENTER:
                await self._acts.enter(case, quarantine)
            case Do.REFUSE:
                await self._acts.refuse(case, quarantine)
            case Do.UPDATE if wanted is not None:
                await self._acts.update(case, quarantine, wanted)
            case Do.DRAIN:
                self._settle_waiters(case)
                await self._drain.run(case, lambda: self._still_draining(case))
            case Do.RELEASE:
                await self._acts.release(case, quarantine, step)
            case Do.LET_GO:
                await self._acts.let_go(case, quarantine)

    def _still_draining(self, case: Case) -> bool:
        return self._view and not case.suspect and next_step(self._situation(case)).do is Do.DRAIN

    def _situation(self, case: Case) -> Situation:
        waited = self._clocks.now() - self._started_at >= self._settings.silent_drain_after
        return case.situation(
            mode=self._settings.mode,
            in_record=self._in_record(case),
            stopped=bool(self._fleet.stop),
            patient_enough=waited,
        )

    @staticmethod
    def _settle_waiters(case: Case) -> None:
        for waiter in case.waiters:
            if not waiter.done():
                waiter.set_result(None)
        case.waiters.clear()

    # -- the fleet ---------------------------------------------------------------------

    def _case(self, node: str) -> Case:
        found = self._cases.get(node)
        if found is None:
            found = self._cases[node] = Case(self._fleet.patient(node))
        return found

    def _in_record(self, case: Case) -> bool:
        case.patient.in_record = case.node in self._registrar.record.entries
        return case.patient.in_record

    def _pool_of(self, node: str) -> str:
        meta = self._metas.get(node)
        return meta.labels.get(self._settings.limits.pool_label, "") if meta is not None else ""

    def _size(self) -> Size:
        reported = sum(
            1
            for case in self._cases.values()
            if case.patient.health is not None and case.patient.health.has_snapshot
        )
        return Size(max(len(self._metas), reported), reported, self._pools)

    def _note_silence(self, case: Case, now: float) -> None:
        patient = case.patient
        if patient.attached or patient.last_heard is None or case.node in self._silent:
            return
        if now - patient.last_heard >= self._settings.silent_after:
            self._silent.add(case.node)
            self._acts.note(case, Kind.AGENT_SILENT, "its agent is silent; what was failing stands")

    def _tell_fleet(self) -> None:
        self._fleet.record_entries = len(self._registrar.record.entries)
        waiting = quorum(self._settings.limits, self._size())
        self._fleet.waiting_for_quorum = waiting.reason if waiting is not None else ""


def _limits_for_people(settings: Settings) -> dict[str, str]:
    limits = settings.limits
    shown = {
        "concurrent": str(limits.concurrent),
        "concurrent_percent": f"{limits.concurrent_percent:g}%",
        "evictions_at_once": str(settings.evictions_at_once),
        "quorum_percent": f"{limits.quorum_percent:g}%",
    }
    if limits.pool_label:
        shown |= {"pool_label": limits.pool_label, "pool_percent": f"{limits.pool_percent:g}%"}
    return shown
