"""Makes this replica one of several: its Lease, its stream to the leader, its orderly leave."""

import asyncio
import logging
import random
import secrets
import socket
import time
from collections.abc import Callable

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.config.settings import Config
from aggregator.ingest.jwks import JwksCache
from aggregator.ingest.server import IngestServer
from aggregator.quarantine.coordination.coordinator import Coordinator
from aggregator.replicas.identity import local_member
from aggregator.replicas.membership.lease_manager import LeaseManager
from aggregator.replicas.membership.lease_store import LeaseForbidden, LeaseStore
from aggregator.replicas.membership.lease_timing import TIMES
from aggregator.replicas.membership.sole_replica_guard import wait_until_sole_replica
from aggregator.replicas.membership.view import Ownership, SingleReplica
from aggregator.replicas.rpc.client import LeaderClient
from aggregator.replicas.rpc.factory import service, speaker
from aggregator.runtime.tasks import run_until_first_exit

log = logging.getLogger("sickbay.app")

#: Seconds that a stopping replica gives its agents to move to their new owners. With the Lease's
#: last write before it that fits into the 30 s that a pod has.
LEAVE_WITHIN = 15.0
_LOOK = 0.1


class ReplicaRuntime:
    """``shards`` answers other packages' ownership queries. Without the section ``shards`` this
    replica is alone.
    """

    def __init__(self, config: Config, cluster: object, *, policy_hash: str, version: str) -> None:
        """Raises `ReplicaIdentityError`."""
        me = local_member(
            config,
            hostname=socket.gethostname(),
            epoch=secrets.token_hex(8),
            policy_hash=policy_hash,
            version=version,
        )
        self._config = config
        self._lease_manager: LeaseManager | None = None
        self._speaker: LeaderClient | None = None
        self._board: LeaseStore | None = None
        self.shards: Ownership = SingleReplica()
        self.name = me.name if me is not None else socket.gethostname()
        if isinstance(cluster, KubeCluster):
            self._board = cluster.leases(deadline=TIMES.deadline)
            if me is not None:
                self.shards = self._lease_manager = LeaseManager(
                    me, self._board, clock=_boottime, wall=time.time
                )

    def serve(
        self,
        coordinator: Coordinator,
        ingest: IngestServer,
        keys: JwksCache | None,
        *,
        cluster_away: Callable[[], bool],
        rng: random.Random,
    ) -> None:
        """Serve the other replicas on the agents' listener, and connect to the leader. Before
        either starts.

        ``keys`` verify the others' tokens.
        """
        if self._lease_manager is None or keys is None:
            return
        config, tls = self._config, self._config.listen.tls
        coordination = service(
            coordinator,
            keys,
            service_account=config.shards.service_account,
            issuer=config.identity.issuer,
            plaintext=tls is None,
            cluster_away=cluster_away,
            wall=time.time,
        )
        ingest.add_service(coordination.register)
        shown = tls is not None and config.identity.kind == "certificate"
        self._speaker = speaker(
            coordinator,
            self.shards,
            token_file=config.shards.token_file,
            ca_file=config.shards.ca_file,
            pair=(tls.cert_file, tls.key_file) if tls is not None and shown else None,
            now=time.monotonic,
            rng=rng,
        )

    async def wait_until_sole(
        self, *, waits: Callable[[str], None], away: Callable[[str], None]
    ) -> None:
        """Without configured others: return once none is at work (`wait_until_sole_replica`)."""
        if self._lease_manager is not None or self._board is None:
            return
        try:
            await wait_until_sole_replica(self._board, waits=waits, away=away)
        except LeaseForbidden as error:
            log.info("it isn't known whether others are at work", extra={"why": str(error)})

    async def run(self) -> None:
        """For ever."""
        if self._lease_manager is None or self._speaker is None:
            await asyncio.Event().wait()
            return
        await run_until_first_exit(
            lease_manager=self._lease_manager.run(), speaker=self._speaker.run()
        )

    async def drain_and_leave(self, attached: Callable[[], int]) -> None:
        """In order: this replica stops acting, the others are told, the agents are redirected.

        ``attached`` returns how many agents are still here. All else goes on meanwhile.
        """
        if self._lease_manager is None:
            return
        others = len(self.shards.membership_view.members.keys() - {self.shards.membership_view.me})
        await self._lease_manager.leave()
        until = time.monotonic() + (LEAVE_WITHIN if others else 0.0)
        while attached() and time.monotonic() < until:  # noqa: ASYNC110 - streams end elsewhere
            await asyncio.sleep(_LOOK)
        log.info("replica left the others", extra={"others": others, "agents_left": attached()})


def _boottime() -> float:
    """Monotonic, and going on while the machine sleeps, as others' clocks do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
