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
import ssl
import time
from collections.abc import Awaitable, Callable
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
from aggregator.config.data_dirs import create_data_dirs
from aggregator.config.settings import Config
from aggregator.config.shared_store import build_store
from aggregator.ingest.from_config import open_keys
from aggregator.ingest.jwks import JwksCache
from aggregator.leader.holder import LeaseHolder
from aggregator.policy.defaults import read_policy, read_with_warnings
from aggregator.policy.rules import Policy
from aggregator.quarantine.state.fleet import FleetState
from aggregator.relay.credentials import RelayConfigError, ReplicaCredentials
from aggregator.runtime import gc_tuning
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.tasks import once, run_until_first_exit
from aggregator.tls.client_context import FollowedAuthorities
from aggregator.version import VERSION
from aggregator.web.gateway_page import GatewayPage, GatewayState
from aggregator.web.tls import Certificate

if TYPE_CHECKING:
    from aggregator.composition.controller_parts import ControllerParts
    from aggregator.web.server import Web

log = logging.getLogger("sickbay.app")

_CONNECT_BACKOFF = Backoff(first=0.5, most=5.0)


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
            _report_unusable(fleet, str(error))
            failures += 1
            await asyncio.sleep(max(_CONNECT_BACKOFF.pause(failures, rng), error.retry_after or 0))
        else:
            return


def _report_unusable(fleet: FleetState, error: str) -> None:
    """Reported once, however often the same problem is found."""
    if fleet.view_lost != error:
        log.warning("the cluster can't be used", extra={"error": error})
    fleet.view_lost = error


def _read_policy(config: Config) -> Policy:
    """The policy, with its odd rules in the log. Raises ConfigError."""
    if config.policy.file is None:
        return read_policy()
    policy, odd = read_with_warnings(config.policy.file)
    for problem in odd:
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
        #: The page's; None: it is not encrypted.
        self._certificate: Certificate | None = None

    async def run(self, ending: AsyncExitStack) -> bool:
        """Returns whether another replica has taken the Lease."""
        ending.push_async_callback(self._cluster.close)
        ending.push_async_callback(self._replica.listener.stop)
        ending.callback(self._replica.gateway.close)
        works = run_until_first_exit(
            certificates=self._certificates.run(), replica=self._start(ending)
        )
        working = asyncio.create_task(works, name="work")
        try:
            await asyncio.wait({working, _stop_signal()}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            await self._leave()
            return False
        finally:
            working.cancel()
            await asyncio.wait({working})

    async def _start(self, ending: AsyncExitStack) -> None:
        """Listen, and do the work of this replica, until another has taken the Lease from us."""
        await self._certificates.first()
        self._certificate = self._read_certificate()
        lease, parts = self._replica.lease, None
        if lease is None:
            parts = await self._be_controller(ending)
        else:
            await self._serve_gateway_page(lease, ending)
        await self._replica.listener.start()
        log.info(
            "aggregator started",
            extra={
                "event": "aggregator.started",
                "version": VERSION,
                "mode": self._config.mode.value,
                "policy": self._policy.hash,
            },
        )
        works = {"garbage": gc_tuning.collect_when_idle()}
        if self._certificate is not None:
            works["page_certificate"] = self._certificate.follow()
        if parts is not None:
            works |= {"serve": parts.serve(), "act": self._connected(parts.act)}
        elif lease is not None:
            works |= {"lease": self._connected(lease.run), "role": self._follow_lease(ending)}
        await run_until_first_exit(**works)

    async def _connected(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it once the cluster can be used."""
        await _connect(self._cluster, self._fleet, self._rng)
        log.info(
            "connected to the cluster",
            extra={"event": "cluster.connected", "cluster": self._cluster.words.kind},
        )
        await work()

    async def _follow_lease(self, ending: AsyncExitStack) -> None:
        """A gateway, and the controller once the Lease is ours; for ever."""
        # Also before the cluster can be used: a gateway that learns of no controller has to leave
        # its agents to others.
        await self._replica.be_gateway(load=_controller_parts)
        # A port that can't be opened, because of its certificate, keeps no controller from acting.
        port = once(self._replica.listener.open_port())
        await run_until_first_exit(port=port, controller=self._control(ending))

    async def _control(self, ending: AsyncExitStack) -> None:
        parts = await self._be_controller(ending)
        await run_until_first_exit(serve=parts.serve(), act=parts.act())

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

    async def _serve_gateway_page(self, lease: LeaseHolder, ending: AsyncExitStack) -> None:
        config, replica = self._config, self._replica
        credentials = ReplicaCredentials(
            token_file=config.replicas.token_file, ca_file=config.replicas.ca_file
        )

        def problems() -> tuple[str, ...]:
            return self._fleet.view_lost, lease.problem, replica.not_ready

        self._page = page = GatewayPage(
            GatewayState(
                name=replica.me.name,
                version=VERSION,
                controller=lease.other,
                renewed_ago=lease.renewal_seen_ago,
                problems=lambda: [*filter(None, problems()), *self._own_problems()],
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
        await self._page.start(config.listen.web, self._tls_context())
        ending.push_async_callback(self._page.close)

    async def _serve_page(self, web: "Web", ending: AsyncExitStack) -> None:
        address = await web.start(self._config.listen.web, self._tls_context())
        ending.push_async_callback(web.close)
        log.info(
            "the page is served",
            extra={
                "event": "page.served",
                "address": address,
                "tls": self._certificate is not None,
            },
        )

    def _read_certificate(self) -> Certificate | None:
        tls = self._config.listen.tls
        if tls is None:
            return None
        return Certificate(
            tls.cert_file,
            tls.key_file,
            wall=time.time,
            client_authorities=self._config.access.client_authorities,
        )

    def _tls_context(self) -> ssl.SSLContext | None:
        return self._certificate.context if self._certificate is not None else None


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
