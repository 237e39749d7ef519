"""The controller's own parts: evidence, decisions, acts, history, alerts and the page's content.

It is made when this replica takes the Lease, and closed before another process of this replica may
take it again.
"""

import logging
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from sqlalchemy.engine import make_url

from aggregator.alerts.fleet_context import FleetContext, FleetEnds
from aggregator.alerts.next_step import FleetAdvice
from aggregator.alerts.notifier import Notifier
from aggregator.alerts.store import FileStore, OutboxStore, SharedStore
from aggregator.alerts.tables import SHARED_OUTBOX
from aggregator.clock import Clocks, watch
from aggregator.cluster.capabilities import OpenedCluster
from aggregator.cluster.namespace_owners import NamespaceOwners
from aggregator.composition.access import build_access
from aggregator.composition.core import build_controller
from aggregator.composition.event_bus import EventBus
from aggregator.composition.page_actions import build_actions
from aggregator.composition.pod_waits import eviction_requests, pod_waits
from aggregator.composition.repair import build_repair, report_missing_rights
from aggregator.composition.replica import Replica
from aggregator.config.settings import Config
from aggregator.events import EventSink, Transition
from aggregator.history.evidence_recorder import EvidenceRecorder
from aggregator.history.history import History
from aggregator.history.lemon_detector import LemonDetector
from aggregator.hooks.factory import hook_rules
from aggregator.ingest.agent_streams import AgentStreams
from aggregator.ingest.from_config import make_authenticator
from aggregator.ingest.jwks import JwksCache
from aggregator.ingest.probe_key import load_probe_key, probe_key_file
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.stream import StreamConfig
from aggregator.jobs.gpu_reader import PodGpuReader
from aggregator.jobs.identity import Markers
from aggregator.jobs.recorder import JobRecorder
from aggregator.policy.rules import Policy
from aggregator.quarantine.correlation import drift
from aggregator.quarantine.drain.pod_waits import PodWaits
from aggregator.quarantine.repair import operation_requests
from aggregator.quarantine.repair.operation_retention import EVERY, OperationRetention
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.settings import Settings
from aggregator.quarantine.state.fleet import FleetState
from aggregator.relay.abandoned import AbandonedWatch
from aggregator.relay.resync_pacer import ResyncPacer
from aggregator.relay.server import ControllerRole
from aggregator.repairers.agent_orders import AgentOrders
from aggregator.runtime.tasks import keep_up, once, repeat, run_until_first_exit
from aggregator.version import VERSION
from aggregator.web.event_broker import EventBroker
from aggregator.web.server import Web
from aggregator.web.stats_interface import Stats

log = logging.getLogger("sickbay.app")


class ControllerParts:
    """Made within a running loop. ``not_ready`` has the replica's own problems, for /readyz."""

    def __init__(
        self,
        config: Config,
        cluster: OpenedCluster,
        policy: Policy,
        keys: JwksCache | None,
        replica: Replica,
        *,
        fleet: FleetState,
        clocks: Clocks,
        rng: random.Random,
        not_ready: Callable[[], list[str]],
    ) -> None:
        """Raises `AccessSetupError`."""
        self._config = config
        self._cluster = cluster
        self._replica = replica
        self._fleet = fleet
        self._clocks = clocks
        name = replica.me.name
        probe_key = load_probe_key(probe_key_file(config))
        feed, orders = EventBroker(epoch=rng.getrandbits(32)), AgentOrders()
        pod_gpus = PodGpuReader(orders.gpu_use, clocks)
        self._requests = eviction_requests(cluster, fleet, clocks, replica.may_act)
        waits = pod_waits(config, policy, cluster, fleet, clocks, pod_gpus, self._requests)
        self._repair = build_repair(config, cluster, orders)
        where = config.history
        self._history = History(
            where.database,
            keep=where.keep,
            most_rows=where.most_rows,
            clocks=clocks,
            rng=rng,
            credentials=where,
            replica=name,
        )
        self._owners = NamespaceOwners(config.alerts.owner_label)
        context = FleetContext(fleet, config.limits.pool_label, config.limits.domain_labels)
        self._alerts = Notifier(
            _outbox_store(config, name),
            config.alert_settings,
            clocks=clocks,
            rng=rng,
            context=context,
            owners=self._owners.owner_of,
            advise=FleetAdvice(fleet),
            is_over=FleetEnds(
                fleet=fleet,
                lists_all=cluster.lists_all,
                record_problem=lambda: self._controller.record_problem,
            ),
            # A process that has restarted does not continue with the claims of the one before.
            replica=f"{name} {rng.getrandbits(32):08x}",
        )
        self._jobs: JobRecorder | None = None
        if cluster.capabilities.runs_jobs:  # a local cluster has a command for its drains
            self._jobs = JobRecorder(
                cluster,
                self._emit,
                clocks=clocks,
                rng=rng,
                rules=config.jobs,
                markers=Markers(
                    jobs=config.jobs.job_keys,
                    gangs=config.drain.gang_keys,
                    teams=config.jobs.team_keys,
                ),
                pool_of=lambda node: context(node).pool,
                pod_gpus=pod_gpus,
                own_namespace=config.cluster.namespace,
            )
        sinks: list[EventSink] = [feed, self._history, self._alerts]
        if self._jobs is not None:
            sinks.append(self._jobs)
        self._event_sink = EventBus(sinks, for_people=fleet.name_gpus)
        self._controller = controller = build_controller(
            cluster=cluster,
            policy=policy,
            settings=_settings(config, self._repair, waits),
            fleet=fleet,
            event_sink=self._event_sink,
            clocks=clocks,
            rng=rng,
            evidence_recording=EvidenceRecorder(self._history.record),
            may_act=replica.may_act,
        )
        orders.note_ends(controller.on_order_end)
        orders.permissions.decide_by(controller.repair_permissions.refusal)
        self.streams = AgentStreams(
            authenticator=make_authenticator(
                config, keys, replica.deleted_pods, clocks.wall, controller.is_current
            ),
            intake=controller,
            rules=StreamConfig(
                name=name,
                version=VERSION,
                heartbeat=config.agents.heartbeat,
                silent_after=config.agents.silent_after,
                now=clocks.now,
                wall=clocks.wall,
                cluster_away=lambda: bool(fleet.view_lost),
                among_others=replica.address_among_others,
                orders=orders,
            ),
            stats=IngestStats(),
            probe_key=probe_key,
            deleted_pods=replica.deleted_pods,
        )
        self._pacer = ResyncPacer(
            lambda: self.streams.stats.messages["snapshot"], listed=lambda: not fleet.view_lost
        )
        self._role = ControllerRole(self.streams, self._pacer, replica.holds, probe_key)

        def ready() -> list[str]:
            lost, problem = replica.lease_lost(), controller.record_problem
            return [one for one in (fleet.view_lost, lost, problem, *not_ready()) if one]

        self.web = Web(
            fleet=fleet,
            history=self._history,
            feed=feed,
            stats=Stats(
                ingest=self.streams.stats,
                api=cluster.capabilities.counters,
                outbox=self._alerts.depth,
                alert_trouble=lambda: self._alerts.problem,
                alerts=self._alerts.overview,
                history=self._history,
                certificates=replica.listener.certificate_expiries,
                connected=lambda: replica.gateway.connected,
                relays=lambda: len(replica.service.gateways) if replica.service is not None else 0,
                jobs=self._jobs.counts if self._jobs is not None else None,
            ),
            clocks=clocks,
            version=VERSION,
            ready=ready,
            replicas=replica.all_replicas,
            lease_lost=replica.lease_lost,
            hosts=config.listen.hosts,
            access=build_access(config, cluster, replica.others, now=clocks.now, wall=clocks.wall),
            actions=build_actions(
                config,
                cluster,
                self._event_sink.record_event,
                known=fleet.node_summaries.__contains__,
                wall=clocks.wall,
            ),
            preview=controller.mode_preview,
        )
        self._lemons = LemonDetector(
            history=self._history,
            fleet=fleet,
            event_sink=self._event_sink,
            clocks=clocks,
            bounds=config.lemons,
            record_evidence=controller.own_evidence.record,
        )
        self._drift = drift.DriftWatch(fleet, clocks, controller.own_evidence)
        self._retention = OperationRetention(
            cluster=cluster,
            fleet=fleet,
            clocks=clocks,
            window=self._repair.rules.window,
            may_act=replica.may_act,
        )

        self._person_operations = operation_requests.OperationRequests(
            cluster, fleet, clocks, replica.may_act
        )

    def start(self, ending: AsyncExitStack) -> None:
        """``ending`` closes it again."""
        self._history.start()
        ending.push_async_callback(self._history.close)
        self._alerts.start()
        ending.push_async_callback(self._alerts.close)
        ending.callback(self._event_sink.flush)
        self._replica.gateway.serve_locally(self.streams, self._pacer)
        ending.callback(self.streams.close)
        if self._replica.service is not None:
            self._replica.service.begin(self._role)
            ending.callback(self._replica.service.close, "the controller stops")

    def _emit(self, transition: Transition) -> None:
        self._event_sink.record_event(transition)

    async def serve(self) -> None:
        """Serve agents, and read what needs no cluster, for ever."""
        loops = {
            "clock": watch(self._clocks.doubt, self._fleet.doubt_clock),
            "lemons": keep_up("the search for lemons", self._lemons.run),
            "drift": keep_up(
                "the search for drift", partial(repeat, drift.EVERY, self._drift.compare)
            ),
            "streams": self.streams.run(),
            "resyncs": self._pacer.run(),
        }
        if self._replica.service is not None:
            abandoned = AbandonedWatch(
                self._replica.gateway,
                self._replica.service,
                may_act=self._replica.may_act,
                now=time.monotonic,
            )
            loops["abandoned"] = abandoned.run()
        await run_until_first_exit(**loops)

    async def act(self) -> None:
        """Evaluate and act, for ever, once the cluster can be used."""
        can, config = self._cluster.capabilities, self._config
        loops = {
            "controller": self._controller.run(),
            # With the others: a management cluster out of reach must not delay quarantines.
            "repair_rights": once(report_missing_rights(self._repair)),
            "operations": repeat(EVERY, self._retention.go_round),
            "requests": repeat(operation_requests.EVERY, self._person_operations.go_round),
        }
        if self._jobs is not None:
            loops["jobs"] = keep_up("the record of jobs", self._jobs.run)
        if self._requests is not None:
            loops["eviction_requests"] = self._requests.run()
        if config.identity.kind == "token" and can.follow_agent_pods is not None:
            # Tokens of deleted pods are refused, where agents have tokens of pods.
            loops["agent_pods"] = can.follow_agent_pods(self._replica.deleted_pods)
        if config.alerts.settings.wants_owners and can.follow_namespaces is not None:
            # The owners of a namespace's pods, where a route of alerts needs them.
            loops["namespaces"] = can.follow_namespaces(self._owners)
        if can.follow_pod_ends is not None:
            # Evictions by others, to which NVLink faults of their fabric are attributed.
            loops["pod_ends"] = can.follow_pod_ends(self._controller.evictions)
        await run_until_first_exit(**loops)


def _settings(config: Config, repair: RepairSettings, waits: PodWaits) -> Settings:
    return Settings(
        mode=config.mode,
        pools=config.pools,
        limits=config.limits,
        common=config.limits,
        drain=config.drain,
        silence=config.agents,
        hooks=hook_rules(config.drain, wall=time.time),
        waits=waits,
        uncordon=config.release,
        marks=config.marks,
        maintenance=config.maintenance,
        conditions=config.conditions,
        events=config.events,
        reconcilers=config.reconcilers,
        repair=replace(repair, node_owner_kinds=config.drain.node_owner_kinds),
    )


def _outbox_store(config: Config, replica: str) -> OutboxStore:
    where = config.history
    if where.is_file or not config.alerts.shared:
        return FileStore(config.alerts.outbox)
    # The import takes half a second, which the user of a file need not spend.
    from aggregator.history.postgres import Postgres

    name = f"sickbay {replica} alerts".strip()
    engine = Postgres(make_url(where.database), where, name, SHARED_OUTBOX)
    return SharedStore(engine, own_file=config.alerts.outbox)
