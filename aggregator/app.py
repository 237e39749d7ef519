"""Puts the aggregator together and runs it until a signal stops it.

Every replica is a gateway for agents. The holder of the Lease is the controller, where data flows
one way: ingest, health, policy, quarantine, cluster. Page, alerts and history receive events
through the `EventBus`.
"""

import asyncio
import importlib
import logging
import random
import secrets
import signal
import socket
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, cast

from aggregator.clock import Clocks
from aggregator.cluster.capabilities import OpenedCluster
from aggregator.cluster.kind import OpenOptions
from aggregator.cluster.port import ClusterError, ClusterTooOld
from aggregator.composition.access import build_access
from aggregator.composition.certificates import prepare_certificates
from aggregator.composition.identity import local_candidate
from aggregator.composition.replica import LEAVE_WITHIN, Replica
from aggregator.composition.tasks import spawn
from aggregator.config.data_dirs import create_data_dirs
from aggregator.config.settings import Config
from aggregator.config.shared_store import build_store
from aggregator.ingest.from_config import open_keys
from aggregator.ingest.jwks import JwksCache
from aggregator.policy.defaults import lint_file, read_policy
from aggregator.policy.rules import Policy
from aggregator.quarantine.state.fleet import FleetState
from aggregator.relay.credentials import RelayConfigError, ReplicaCredentials
from aggregator.runtime import gc_tuning
from aggregator.runtime.backoff import Backoff
from aggregator.tls.client_context import FollowedAuthorities
from aggregator.version import VERSION
from aggregator.web.gateway_page import GatewayPage, GatewayState
from aggregator.web.tls import Certificate

if TYPE_CHECKING:
    from aggregator.composition.controller_parts import ControllerParts
    from aggregator.web.server import Web

log = logging.getLogger("sickbay.app")

_CONNECT_BACKOFF = Backoff(first=0.5, most=5.0)
_UNUSABLE = "the cluster can't be used"


def _cluster(config: Config) -> OpenedCluster:
    options = OpenOptions(
        certificates=config.makes_certificates,
        agents=config.identity.service_account if config.identity.kind == "token" else "",
        access=config.access.on,
        actions=config.access.actions,
        evictions=config.reconcilers.drain,
        events=config.reconcilers.publish,
        operations=config.reconcilers.operations,
        store=build_store(config),
    )
    return config.cluster.traits.open(config.cluster.settings, options)


async def _connect(cluster: OpenedCluster, fleet: FleetState, rng: random.Random) -> None:
    """Try until the cluster accepts our credentials, and report each of its answers meanwhile.

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


def _report_not_ready(fleet: FleetState, what: str, error: str) -> None:
    """Reported once, however often the same problem is found."""
    if fleet.view_lost != error:
        log.warning(what, extra={"error": error})
    fleet.view_lost = error


def _read_policy(config: Config) -> Policy:
    """The policy, with its odd rules in the log. Raises ConfigError."""
    policy = read_policy(config.policy.file)
    for problem in lint_file(config.policy.file, policy) if config.policy.file is not None else ():
        where = f"{config.policy.file}:{problem.line}"
        log.warning(
            "a rule is odd", extra={"event": "policy.rule_odd", "at": where, "reason": problem.text}
        )
    return policy


async def run(config: Config, *, starts: bool = True) -> bool:
    """Run until SIGTERM or SIGINT, or until another replica has taken the Lease from this one.

    Returns whether to run again, as a gateway; ``starts`` is False then. Raises the error that
    keeps it from starting: `AccessSetupError`, `ConfigError` (the policy), `ReplicaIdentityError`,
    `CaFileError`, `DataDirError`, `ListenError`, `TlsError`, `WebListenError`, `ClusterTooOld`.
    """
    policy = _read_policy(config)
    create_data_dirs(config)
    async with AsyncExitStack() as ending:
        process = _Process(config, policy, starts=starts)
        superseded = await process.run(ending)
    log.info("aggregator stopped", extra={"event": "aggregator.stopped"})
    return superseded


class _Process:
    """One life of the replica: a gateway, and then the controller, if it gets the Lease."""

    def __init__(self, config: Config, policy: Policy, *, starts: bool) -> None:
        self._policy = policy
        self._rng = random.Random()  # noqa: S311 - jitter, no secret
        self._clocks = Clocks(time.monotonic, time.time)
        self._cluster = _cluster(config)
        hostname = socket.gethostname()
        self._certificates = prepare_certificates(
            config, self._cluster, hostname=hostname, clocks=self._clocks, rng=self._rng
        )
        self._config = config = self._certificates.config
        me = local_candidate(config, hostname=hostname, epoch=secrets.token_hex(8), version=VERSION)
        self._fleet = FleetState(
            how=config.cluster.how,
            words=self._cluster.words,
            documentation_url=config.documentation_url,
        )
        self._keys = _keys(config, self._cluster)
        self._replica = Replica(
            config,
            self._cluster,
            self._keys,
            me,
            rng=self._rng,
            starts=starts,
        )
        #: Page and API while this replica is a gateway.
        self._page: GatewayPage | None = None

    async def run(self, ending: AsyncExitStack) -> bool:
        """Returns whether another replica has taken the Lease."""
        replica = self._replica
        ending.push_async_callback(self._cluster.close)
        spawn(self._certificates.run(), "certificates", ending)
        await self._certificates.first()
        ending.push_async_callback(replica.listener.stop)
        ending.callback(replica.gateway.close)
        if replica.lease is None:
            parts = await self._be_controller(ending)
        else:
            await self._serve_gateway_page(ending)
            parts = None
        await replica.listener.start()
        log.info(
            "aggregator started",
            extra={
                "event": "aggregator.started",
                "version": VERSION,
                "mode": self._config.mode.value,
                "policy": self._policy.hash,
            },
        )
        spawn(gc_tuning.collect_when_idle(), "garbage", ending)
        working = spawn(self._work(parts, ending), "work", ending)
        await asyncio.wait({working, _stop_signal()}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        await self._leave()
        return False

    async def _work(self, parts: "ControllerParts | None", ending: AsyncExitStack) -> None:
        """Until another replica has taken the Lease from us."""
        lease = self._replica.lease
        # Also before the cluster can be used: a gateway that learns of no controller has to leave
        # its agents to others.
        work = self._replica.be_gateway(load=_controller_parts) if lease is not None else None
        gateway = spawn(work, "gateway", ending) if work is not None else None
        await _connect(self._cluster, self._fleet, self._rng)
        log.info(
            "connected to the cluster",
            extra={"event": "cluster.connected", "cluster": self._cluster.words.kind},
        )
        if lease is None or gateway is None:
            assert parts is not None
            await parts.run()
            return
        held = spawn(lease.run(), "lease", ending)
        await asyncio.wait({held, gateway}, return_when=asyncio.FIRST_COMPLETED)
        if held.done():
            held.result()
            return
        gateway.result()
        # A port that can't be opened, because of its certificate, keeps no controller from acting.
        spawn(self._replica.listener.open_port(), "port", ending)
        parts = await self._be_controller(ending)
        acting = spawn(parts.run(), "controller", ending)
        await asyncio.wait({held, acting}, return_when=asyncio.FIRST_COMPLETED)
        for task in (held, acting):
            if task.done():
                task.result()

    async def _be_controller(self, ending: AsyncExitStack) -> "ControllerParts":
        make = await _controller_parts()
        if self._page is not None:
            await self._page.close()
        parts = make(
            self._config,
            self._cluster,
            self._policy,
            self._keys,
            self._replica,
            fleet=self._fleet,
            clocks=self._clocks,
            rng=self._rng,
            not_ready=self._own_problems,
        )
        parts.start(ending)
        await self._serve_page(parts.web, ending)
        return parts

    def _own_problems(self) -> list[str]:
        trouble = self._certificates.trouble or self._replica.listener.certificate_trouble()
        turned = f"agents and other replicas turn away: {trouble}" if trouble else ""
        return [reason for reason in (self._replica.gateway.problem, turned) if reason]

    async def _leave(self) -> None:
        """In order: this replica acts no more, another takes the Lease, the agents go."""
        replica = self._replica
        if replica.lease is None or replica.client is None:
            if replica.lease is not None:
                await replica.lease.release()
            return
        others = replica.has_others
        await replica.lease.release()
        if replica.service is not None:
            replica.service.close("the controller stops")
        if others:
            await replica.leave(LEAVE_WITHIN)
        log.info(
            "replica left the others",
            extra={"others": others, "agents_left": replica.stats.attached},
        )

    # -- the page ---------------------------------------------------------------

    async def _serve_gateway_page(self, ending: AsyncExitStack) -> None:
        config, lease, replica = self._config, self._replica.lease, self._replica
        assert lease is not None
        credentials = ReplicaCredentials(
            token_file=config.replicas.token_file, ca_file=config.replicas.ca_file
        )
        self._page = page = GatewayPage(
            GatewayState(
                name=replica.me.name,
                version=VERSION,
                controller=lease.other,
                renewed_ago=lease.renewal_seen_ago,
                problems=lambda: [
                    reason
                    for reason in (
                        self._fleet.view_lost,
                        lease.problem,
                        replica.not_ready,
                        *self._own_problems(),
                    )
                    if reason
                ],
                relayed=lambda: replica.gateway.relayed,
                dropped=lambda: replica.gateway.dropped,
                connected=lambda: replica.gateway.connected,
                certificates=replica.listener.certificate_expiries,
                token=credentials.token,
                token_errors=(RelayConfigError,),
            ),
            authorities=FollowedAuthorities(config.replicas.ca_file),
            access=build_access(
                config, self._cluster, None, now=self._clocks.now, wall=self._clocks.wall
            ),
        )
        lease.on_change(page.end_superseded)
        certificate = self._certificate(ending)
        await self._page.start(
            config.listen.web, certificate.context if certificate is not None else None
        )
        ending.push_async_callback(self._page.close)

    async def _serve_page(self, web: "Web", ending: AsyncExitStack) -> None:
        certificate = self._certificate(ending)
        address = await web.start(
            self._config.listen.web, certificate.context if certificate is not None else None
        )
        ending.push_async_callback(web.close)
        log.info(
            "the page is served",
            extra={"event": "page.served", "address": address, "tls": certificate is not None},
        )

    def _certificate(self, ending: AsyncExitStack) -> Certificate | None:
        tls = self._config.listen.tls
        if tls is None:
            return None
        certificate = Certificate(
            tls.cert_file,
            tls.key_file,
            wall=time.time,
            client_authorities=self._config.access.client_authorities,
        )
        spawn(certificate.follow(), "page certificate", ending)
        return certificate


async def _controller_parts() -> "type[ControllerParts]":
    """Import what a controller alone needs: 270 modules, a quarter of all imports. Without them a
    gateway begins sooner, with 21 MiB less. In a thread, so that the Lease is renewed meanwhile.
    """
    name = "aggregator.composition.controller_parts"
    module = await asyncio.to_thread(importlib.import_module, name)
    return cast("type[ControllerParts]", module.ControllerParts)


def _keys(config: Config, cluster: OpenedCluster) -> JwksCache | None:
    """The verifier of the tokens of agents, and of other replicas, or None where there are no
    tokens.
    """
    wanted = config.identity.kind == "token" or config.replicas.on
    signing_keys = cluster.capabilities.signing_keys
    if not wanted or signing_keys is None:
        return None
    return open_keys(config, signing_keys, now=time.monotonic)


def _stop_signal() -> asyncio.Task[bool]:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    # The agent reads its file again on this signal; here it must not end the process.
    loop.add_signal_handler(
        signal.SIGHUP, lambda: log.warning("SIGHUP: configuration and policy are read at a start")
    )
    return asyncio.create_task(stopped.wait(), name="stop")
