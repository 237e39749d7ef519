"""Puts the aggregator together and runs it until it is told to stop.

Data flows one way: ingest, health, policy, quarantine, cluster. Page, alerts and history receive
events through the `EventBus`.
"""

import asyncio
import logging
import random
import signal
import socket
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

from sqlalchemy.engine import make_url

from aggregator.alerts.fleet_context import FleetContext
from aggregator.alerts.notifier import Notifier
from aggregator.alerts.store import FileStore, OutboxStore, SharedStore
from aggregator.clock import Clocks, watch
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.local.cluster import LocalCluster
from aggregator.cluster.namespace_owners import NamespaceOwners
from aggregator.cluster.port import ClusterError, ClusterTooOld
from aggregator.composition.access import build_access, build_actions, replica_token
from aggregator.composition.certificates import ServingCertificates, prepare_certificates
from aggregator.composition.repair import build_repair, report_missing_rights
from aggregator.config.data_dirs import create_data_dirs
from aggregator.config.settings import Config
from aggregator.event_limit import BY_AGENTS, EventLimit, size_of
from aggregator.events import EventSink, Transition
from aggregator.history.evidence_recorder import EvidenceRecorder
from aggregator.history.history import History
from aggregator.history.lemon_detector import LemonDetector
from aggregator.hooks.factory import hook_rules
from aggregator.ingest.jwks import JwksCache
from aggregator.ingest.server import IngestServer, build, open_keys
from aggregator.policy.defaults import lint_file, read_policy
from aggregator.policy.rules import Policy
from aggregator.quarantine.controller import NO_NEWS_YET, Controller
from aggregator.quarantine.correlation.drift import DriftWatch
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.settings import Settings
from aggregator.quarantine.state.fleet import FleetState
from aggregator.repairers.agent_orders import AgentOrders
from aggregator.replicas.runtime import ReplicaRuntime
from aggregator.runtime import gc_tuning
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.tasks import run_until_first_exit
from aggregator.version import VERSION
from aggregator.web.event_broker import EventBroker
from aggregator.web.server import Web
from aggregator.web.stats_interface import Stats
from aggregator.web.tls import Certificate

log = logging.getLogger("sickbay.app")

_CONNECT_BACKOFF = Backoff(first=0.5, most=5.0)
_UNUSABLE = "the cluster can't be used"
#: Sinks receive events after a quiet pause of this length (seconds), at the latest after
#: _TOLD_WITHIN.
_TOLD_AFTER = 0.05
_TOLD_WITHIN = 2.0
#: In a storm so many at a time, a few milliseconds' work, and then a pause (seconds).
_TOLD_AT_ONCE = 16
_TOLD_EVERY = 0.005
#: Bytes of waiting events; beyond them events caused by agents are dropped, and sickbay's own kept.
_MOST_UNTOLD = 64 * 1024 * 1024


class EventBus:
    """One event sink made of several: the log, history, alerts, the page.

    They receive events a moment later, in order: the code that acts on a fault goes first, because
    each millisecond counts there. Under load they receive them after `_TOLD_WITHIN`. `flush`
    delivers the rest.
    """

    def __init__(self, ledgers: Sequence[EventSink], *, most_bytes: int = _MOST_UNTOLD) -> None:
        self._ledgers = ledgers
        self._limit = EventLimit()
        self._most_bytes = most_bytes
        #: Each with the moment at which it came, by the loop's clock.
        self._untold: deque[tuple[float, Transition]] = deque()
        self._bytes = 0
        #: Transitions that were not delivered: there was no room, and agents had caused them.
        self.lost = 0

    def record_event(self, transition: Transition) -> None:
        loop = asyncio.get_running_loop()
        for one in self._limit.admit(transition, loop.time()):
            size = size_of(one)
            if self._bytes + size > self._most_bytes and one.kind in BY_AGENTS:
                self._lose()
                continue
            if not self._untold:
                loop.call_later(_TOLD_AFTER, self._tell_some)
            self._bytes += size
            self._untold.append((loop.time(), one))

    def flush(self) -> None:
        while self._untold:
            self._tell_next()

    def _lose(self) -> None:
        if not self.lost:
            log.error(
                "too many transitions wait to be told; transitions that agents cause are left out",
                extra={"event": "transitions.dropped"},
            )
        self.lost += 1

    def _tell_next(self) -> None:
        _, transition = self._untold.popleft()
        self._bytes -= size_of(transition)
        self.notify_sinks(transition)

    def _tell_some(self) -> None:
        """Deliver the events that are due, and look again while any are left."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        quiet = bool(self._untold) and now - self._untold[-1][0] >= _TOLD_AFTER
        try:
            for _ in range(_TOLD_AT_ONCE):
                if not self._untold or not (quiet or now - self._untold[0][0] >= _TOLD_WITHIN):
                    break
                self._tell_next()
        finally:
            if self._untold:
                due = self._untold[0][0] + _TOLD_WITHIN
                calm = self._untold[-1][0] + _TOLD_AFTER
                loop.call_later(max(_TOLD_EVERY, min(due, calm) - now), self._tell_some)

    def notify_sinks(self, transition: Transition) -> None:
        log.info(
            transition.summary,
            extra={
                "event": transition.kind.value,
                "node": transition.node,
                "kind": transition.kind.value,
                "incident": transition.incident,
            },
        )
        for sink in self._ledgers:
            sink.record_event(transition)


def _settings(config: Config, repair: RepairSettings) -> Settings:
    return Settings(
        mode=config.mode,
        pools=config.pools,
        limits=config.limits,
        common=config.limits,
        drain=config.drain,
        silence=config.agents,
        hooks=hook_rules(config.drain, wall=time.time),
        uncordon=config.release,
        marks=config.marks,
        conditions=config.conditions,
        events=config.events,
        repair=repair,
    )


def _cluster(config: Config) -> KubeCluster | LocalCluster:
    where = config.cluster
    if where.kind == "kubernetes":
        return KubeCluster(
            kubeconfig=str(where.kubeconfig or ""),
            namespace=where.namespace,
            qps=where.requests_per_second,
            burst=where.burst,
            shards=config.shards.on,
            certificates=config.makes_certificates,
            agents=config.identity.service_account if config.identity.kind == "token" else "",
            access=config.access.on,
            actions=config.access.actions,
        )
    return LocalCluster(
        where.local.database,
        commands=where.local.commands,
        command_timeout=where.local.command_timeout,
        wall=time.time,
    )


def _history(config: Config, clocks: Clocks, rng: random.Random, replica: str) -> History:
    where = config.history
    return History(
        where.database,
        keep=where.keep,
        most_rows=where.most_rows,
        clocks=clocks,
        rng=rng,
        credentials=where,
        replica=replica,
    )


def _alerts(
    config: Config,
    fleet: FleetState,
    owners: NamespaceOwners,
    clocks: Clocks,
    rng: random.Random,
    replica: str,
) -> Notifier:
    return Notifier(
        _outbox_store(config, replica),
        config.alert_settings,
        clocks=clocks,
        rng=rng,
        context=FleetContext(fleet, config.limits.pool_label, config.limits.domain_labels),
        owners=owners.owner_of,
        # A process that has restarted does not go on with the claims of the one before.
        replica=f"{replica} {rng.getrandbits(32):08x}",
    )


def _outbox_store(config: Config, replica: str) -> OutboxStore:
    where = config.history
    if where.is_file or not config.alerts.shared:
        return FileStore(config.alerts.outbox)
    # The import takes half a second, which the user of a file need not spend.
    from aggregator.history.postgres import Postgres

    engine = Postgres(make_url(where.database), where, f"sickbay {replica} alerts".strip())
    return SharedStore(engine, own_file=config.alerts.outbox)


async def _connect(
    cluster: KubeCluster | LocalCluster, fleet: FleetState, rng: random.Random
) -> None:
    """Try until the cluster lets us in, and report each of its answers meanwhile.

    Raises ClusterTooOld.
    """
    failures = 0
    while True:
        try:
            await cluster.start()
        except ClusterTooOld:
            raise
        except ClusterError as error:
            _report_not_ready(fleet, _UNUSABLE, str(error))
            failures += 1
            await asyncio.sleep(max(_CONNECT_BACKOFF.pause(failures, rng), error.retry_after or 0))
        else:
            return


async def _wait_until_sole(replica_runtime: ReplicaRuntime, fleet: FleetState) -> None:
    """Without configured peers: wait until no other replica is at work, and report that."""
    await replica_runtime.wait_until_sole(
        waits=lambda why: _report_not_ready(fleet, "it does not begin yet", why, in_company=True),
        away=lambda why: _report_not_ready(fleet, _UNUSABLE, why),
    )
    if fleet.in_company:
        fleet.in_company, fleet.view_lost = False, NO_NEWS_YET


def _report_not_ready(
    fleet: FleetState, what: str, error: str, *, in_company: bool = False
) -> None:
    """Reported once, however often the same problem is found."""
    if fleet.view_lost != error:
        log.warning(what, extra={"error": error})
    fleet.view_lost, fleet.in_company = error, in_company


def _read_policy(config: Config) -> Policy:
    """The policy, with its odd rules in the log. Raises ConfigError."""
    policy = read_policy(config.policy.file)
    for problem in lint_file(config.policy.file, policy) if config.policy.file is not None else ():
        where = f"{config.policy.file}:{problem.line}"
        log.warning(
            "a rule is odd", extra={"event": "policy.rule_odd", "at": where, "reason": problem.text}
        )
    return policy


async def run(config: Config) -> None:
    """Run until SIGTERM or SIGINT.

    Raises the error that keeps it from starting: `AccessSetupError`, `ConfigError` (the policy),
    `ReplicaIdentityError`, `DataDirError`, `ListenError`, `TlsError`, `TrustError`,
    `WebListenError`, `ClusterTooOld`.
    """
    policy = _read_policy(config)
    create_data_dirs(config)
    rng = random.Random()  # noqa: S311 - jitter, no secret
    fleet = FleetState(how=config.cluster.how, documentation_url=config.documentation_url)
    clocks = Clocks(time.monotonic, time.time)
    cluster = _cluster(config)
    certificates = prepare_certificates(
        config, cluster, hostname=socket.gethostname(), clocks=clocks, rng=rng
    )
    config = certificates.config
    replica_runtime = ReplicaRuntime(config, cluster, policy_hash=policy.hash, version=VERSION)
    feed, orders = EventBroker(epoch=rng.getrandbits(32)), AgentOrders()
    repair = build_repair(config, cluster, orders)
    history = _history(config, clocks, rng, replica_runtime.name)
    owners = NamespaceOwners(config.alerts.owner_label)
    alerts = _alerts(config, fleet, owners, clocks, rng, replica_runtime.name)
    event_sink = EventBus([feed, history, alerts])
    controller = Controller(
        cluster=cluster,
        policy=policy,
        settings=_settings(config, repair),
        fleet=fleet,
        event_sink=event_sink,
        clocks=clocks,
        rng=rng,
        evidence_recording=EvidenceRecorder(history.record),
        shards=replica_runtime.shards,
    )
    orders.note_ends(controller.on_order_end)
    keys = _keys(config, cluster)
    ingest = build(
        config,
        controller,
        name=replica_runtime.name,
        keys=keys,
        is_current=controller.is_current,
        cluster_away=lambda: bool(fleet.view_lost),
        among_others=lambda: replica_runtime.shards.membership_view.among_others,
        orders=orders,
        now=time.monotonic,
        wall=time.time,
    )
    replica_runtime.serve(
        controller.coordinator, ingest, keys, cluster_away=lambda: bool(fleet.view_lost), rng=rng
    )
    web = Web(
        fleet=fleet,
        history=history,
        feed=feed,
        stats=Stats(
            ingest=ingest.stats,
            api=cluster.counters if isinstance(cluster, KubeCluster) else None,
            outbox=alerts.depth,
            alert_trouble=lambda: alerts.problem,
            alerts=alerts.overview,
            history=history,
            certificates=ingest.certificate_expiries,
        ),
        clocks=clocks,
        version=VERSION,
        ready=lambda: _not_ready(fleet, controller, certificates, ingest),
        shards=replica_runtime.shards,
        ca_file=config.shards.ca_file,
        history_shared=not config.history.is_file,
        hosts=config.listen.hosts,
        access=build_access(config, cluster, keys, now=clocks.now, wall=clocks.wall),
        replica_token=replica_token(config),
        actions=build_actions(
            config,
            cluster,
            event_sink.record_event,
            known=fleet.node_summaries.__contains__,
            wall=clocks.wall,
        ),
        preview=controller.mode_preview.holds,
    )

    lemons = LemonDetector(
        history=history,
        fleet=fleet,
        event_sink=event_sink,
        clocks=clocks,
        bounds=config.lemons,
        record_evidence=controller.record_own_evidence,
        # Each file of history is its own replica's alone to read.
        leads=lambda: config.history.is_file or replica_runtime.shards.leads(),
    )

    async def work() -> None:
        await _connect(cluster, fleet, rng)
        await _wait_until_sole(replica_runtime, fleet)
        log.info(
            "connected to the cluster",
            extra={"event": "cluster.connected", "cluster": cluster.kind},
        )
        await run_until_first_exit(
            controller=controller.run(),
            replica_runtime=replica_runtime.run(),
            agent_pods=_follow_agent_pods(config, cluster, ingest),
            namespaces=_follow_namespaces(config, cluster, owners),
            repair_rights=_report_repair_rights(repair),
        )

    async with AsyncExitStack() as ending:
        ending.push_async_callback(cluster.close)
        _spawn(watch(clocks.doubt, fleet.doubt_clock), "clock", ending)
        history.start()
        ending.push_async_callback(history.close)
        alerts.start()
        ending.push_async_callback(alerts.close)
        ending.callback(event_sink.flush)
        _spawn(certificates.run(), "certificates", ending)
        await certificates.first()
        await _serve_page(config, web, ending)
        await ingest.start()
        ending.push_async_callback(ingest.stop)
        log.info(
            "aggregator started",
            extra={
                "event": "aggregator.started",
                "version": VERSION,
                "mode": config.mode.value,
                "policy": policy.hash,
            },
        )
        _spawn(
            _search_for_ever(lemons, DriftWatch(fleet, clocks, controller.record_own_evidence)),
            "searches",
            ending,
        )
        _spawn(gc_tuning.collect_when_idle(), "garbage", ending)
        working = _spawn(work(), "controller", ending)
        await asyncio.wait({working, _stop_signal()}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        await replica_runtime.drain_and_leave(lambda: ingest.stats.attached)
    log.info("aggregator stopped", extra={"event": "aggregator.stopped"})


async def _search_for_ever(lemons: LemonDetector, drift: DriftWatch) -> None:
    await asyncio.gather(lemons.run(), drift.run())


def _keys(config: Config, cluster: KubeCluster | LocalCluster) -> JwksCache | None:
    """The verifier of the tokens of agents, and of other replicas, or None where there are no
    tokens.
    """
    wanted = config.identity.kind == "token" or config.shards.on
    if not wanted or not isinstance(cluster, KubeCluster):
        return None
    return open_keys(config, cluster.signing_keys, now=time.monotonic)


async def _follow_agent_pods(
    config: Config, cluster: KubeCluster | LocalCluster, ingest: IngestServer
) -> None:
    """For ever: tokens of deleted pods are refused, where agents have tokens of pods."""
    if config.identity.kind == "token" and isinstance(cluster, KubeCluster):
        await cluster.follow_agent_pods(ingest.deleted_pods)
    await asyncio.Event().wait()


async def _follow_namespaces(
    config: Config, cluster: KubeCluster | LocalCluster, owners: NamespaceOwners
) -> None:
    """For ever: who owns a namespace's pods, where a route of alerts asks for it."""
    if config.alerts.settings.wants_owners and isinstance(cluster, KubeCluster):
        await cluster.follow_namespaces(owners)
    await asyncio.Event().wait()


async def _report_repair_rights(repair: RepairSettings) -> None:
    """For ever, as its end would end the process. Beside the others: a management cluster that is
    out of reach must not delay quarantines.
    """
    await report_missing_rights(repair)
    await asyncio.Event().wait()


async def _serve_page(config: Config, web: Web, ending: AsyncExitStack) -> None:
    certificate = None
    if config.listen.tls is not None:
        tls = config.listen.tls
        certificate = Certificate(
            tls.cert_file,
            tls.key_file,
            wall=time.time,
            client_authorities=config.access.client_authorities,
        )
        _spawn(certificate.follow(), "page certificate", ending)
    address = await web.start(
        config.listen.web, certificate.context if certificate is not None else None
    )
    ending.push_async_callback(web.close)
    log.info(
        "the page is served",
        extra={"event": "page.served", "address": address, "tls": certificate is not None},
    )


def _spawn(
    work: Coroutine[Any, Any, None], name: str, ending: AsyncExitStack
) -> "asyncio.Task[None]":
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        await asyncio.wait({task})

    ending.push_async_callback(end)
    return task


def _not_ready(
    fleet: FleetState,
    controller: Controller,
    certificates: ServingCertificates,
    ingest: IngestServer,
) -> list[str]:
    """Why this process can't do its work now, in words."""
    trouble = certificates.trouble or ingest.certificate_trouble()
    alone = f"agents and other replicas turn away: {trouble}" if trouble else ""
    return [reason for reason in (fleet.view_lost, controller.record_problem, alone) if reason]


def _stop_signal() -> asyncio.Task[bool]:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    # The agent reads its file again on this signal; here it must not end the process.
    loop.add_signal_handler(
        signal.SIGHUP, lambda: log.warning("SIGHUP: configuration and policy are read at a start")
    )
    return asyncio.create_task(told.wait(), name="stop")
