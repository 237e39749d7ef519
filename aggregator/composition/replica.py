"""The parts that every replica has: the agents' listener, the Lease, both ends of the relay."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from aggregator.cluster.capabilities import OpenedCluster
from aggregator.config.settings import Config
from aggregator.ingest.deleted_pods import DeletedPods
from aggregator.ingest.from_config import certificate_files, make_authenticator
from aggregator.ingest.jwks import JwksCache
from aggregator.ingest.listener import AgentListener
from aggregator.ingest.probe_key import keep_probe_key, probe_key_file
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.tokens import TokenAuthenticator
from aggregator.leader.election import TIMES
from aggregator.leader.holder import LeaseHolder
from aggregator.leader.lease import Candidate
from aggregator.leader.standby import Standby
from aggregator.relay.agent_call import GatewayRules
from aggregator.relay.auth import AUDIENCE, ReplicaAuthenticator
from aggregator.relay.client import RelayClient
from aggregator.relay.credentials import ReplicaCredentials
from aggregator.relay.gateway import Gateway
from aggregator.relay.server import RelayService
from aggregator.relay.shared_token import SharedToken
from aggregator.runtime.tasks import run_until_first_exit
from aggregator.version import VERSION
from aggregator.web import models

#: Seconds that a replica which stops gives its agents to move. With the Lease's last write before
#: it that fits into the 30 s that a pod has.
LEAVE_WITHIN = 15.0


class Replica:
    """``lease`` is None outside Kubernetes, where there is one replica, which is the controller.

    ``service`` and ``client`` are None where the configuration has no other replicas.
    """

    def __init__(
        self,
        config: Config,
        cluster: OpenedCluster,
        keys: JwksCache | None,
        me: Candidate,
        *,
        rng: random.Random,
        starts: bool,
    ) -> None:
        """``keys`` verify the tokens of agents and replicas. ``starts``: see `LeaseHolder`. Raises
        `TlsError`.
        """
        self.me = me
        self.stats = IngestStats()
        self.deleted_pods = DeletedPods(now=time.monotonic)
        self.lease: LeaseHolder | None = None
        self._read_ahead = cluster.capabilities.read_ahead
        lease = cluster.capabilities.lease
        if lease is not None:
            store = lease(TIMES.deadline)
            self.lease = LeaseHolder(me, store, clock=_boottime, starts=starts)
        self.listener = AgentListener(
            config.listen.grpc,
            tls=certificate_files(config, self.stats, now=time.monotonic, wall=time.time),
            require_client_certificate=config.identity.kind == "certificate",
            shared_connections=config.identity.kind == "insecure-trust-hello",
        )
        self.gateway = Gateway(
            authenticator=make_authenticator(config, keys, self.deleted_pods, time.time),
            rules=GatewayRules(
                name=me.name,
                version=VERSION,
                heartbeat=config.agents.heartbeat,
                now=time.monotonic,
                address=self.address_among_others,
            ),
            stats=self.stats,
        )
        self.listener.add_service(self.gateway.register)
        self.service: RelayService | None = None
        self.client: RelayClient | None = None
        #: Verifies the other replicas, or None where there are none.
        self.others: ReplicaAuthenticator | None = None
        if self.lease is not None and config.replicas.on:
            self.others = replica_authenticator(config, keys)
            replicas, tls = config.replicas, config.listen.tls
            self.service = RelayService(
                self.others, name=me.name, version=VERSION, now=time.monotonic
            )
            self.listener.add_service(self.service.register)
            shown = tls is not None and config.identity.kind == "certificate"
            self.client = RelayClient(
                self.gateway,
                self.listener,
                self.lease,
                ReplicaCredentials(
                    token_file=replicas.token_file,
                    ca_file=replicas.ca_file,
                    pair=(tls.cert_file, tls.key_file) if tls is not None and shown else None,
                ),
                name=me.name,
                version=VERSION,
                now=time.monotonic,
                rng=rng,
                keep_probe_key=partial(keep_probe_key, probe_key_file(config)),
            )

    def address_among_others(self) -> str:
        """Where agents reach this replica, if there are others to which they could go."""
        gateways = self.service.gateways if self.service is not None else {}
        return self.me.address if self.gateway.relayed or gateways else ""

    @property
    def has_others(self) -> bool:
        """Whether there may be another replica, to which agents could go."""
        named = self.lease.other() if self.lease is not None else None  # also while it has died
        return named is not None or bool(self.address_among_others())

    def may_act(self) -> bool:
        """Whether this replica is the controller at this moment."""
        return self.lease is None or self.lease.may_act()

    def holds(self) -> bool:
        """Whether the Lease is ours as far as we know, renewed in time or not."""
        return self.lease is None or self.lease.holds

    def lease_lost(self) -> str:
        """Why the controller may not act; empty: it may."""
        if self.may_act():
            return ""
        problem = self.lease.problem if self.lease is not None else ""
        return f"its Lease was not renewed in time: {problem or 'no answer yet'}"

    def all_replicas(self) -> list[models.Replica]:
        """The controller, which this one is, and its gateways; empty where it is alone."""
        gateways = self.service.gateways if self.service is not None else {}
        if not gateways:
            return []
        me = models.Replica(name=self.me.name, controller=True, version=self.me.version)
        return [
            me,
            *(
                models.Replica(name=name, controller=False, version=gateways[name])
                for name in sorted(gateways)
            ),
        ]

    async def be_gateway(self, *, load: Callable[[], Awaitable[object]]) -> None:
        """Until this replica holds the Lease. ``load`` imports what a controller needs."""
        assert self.lease is not None
        works: dict[str, Coroutine[Any, Any, None]] = {"acquired": self.lease.acquired()}
        if self.client is not None:
            works["relay"] = self.client.run()
        if self._read_ahead is not None:
            works["standby"] = Standby(self.lease, self._read_ahead, load).run()
        await run_until_first_exit(**works)

    async def leave(self, within: float) -> None:
        """Have all agents go elsewhere, some at a time, for ``within`` seconds at most."""
        # Else an agent that leaves comes back as likely as it finds another replica.
        self.listener.close_port()
        reason = "this replica stops; come back with backoff"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.gateway.end_calls(reason)
                if self.gateway.streams is not None:
                    await self.gateway.streams.end_paced(reason)

    @property
    def not_ready(self) -> str:
        """Why agents are not served here, in words; empty: they are."""
        if self.gateway.problem or self.client is None:
            return self.gateway.problem
        return self.client.trouble


def replica_authenticator(config: Config, keys: JwksCache | None) -> ReplicaAuthenticator:
    """Verifies other replicas' tokens, by the API server's ``keys`` where there is one."""
    plaintext = config.listen.tls is None
    if keys is None:
        own = ReplicaCredentials(token_file=config.replicas.token_file, ca_file=None)
        return ReplicaAuthenticator(SharedToken(own.token), wall=time.time, plaintext=plaintext)
    tokens = TokenAuthenticator(
        keys,
        audience=AUDIENCE,
        service_account=config.replicas.service_account,
        issuer=config.identity.issuer,
        now=time.time,
        key="replicas.service_account",
    )
    return ReplicaAuthenticator(tokens, wall=time.time, plaintext=plaintext)


def _boottime() -> float:
    """Monotonic, and going on while the machine sleeps, as others' clocks do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
