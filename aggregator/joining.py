"""What makes this replica one of several: its seat, its stream to whoever leads, its leave."""

import asyncio
import logging
import random
import secrets
import socket
import time
from collections.abc import Callable

from aggregator.confer.build import service, speaker
from aggregator.confer.client import Speaker
from aggregator.config.settings import Config
from aggregator.ingest.keys import KeyStore
from aggregator.ingest.server import IngestServer
from aggregator.kube.cluster import KubeCluster
from aggregator.quarantine.conferring import Conferring
from aggregator.seat import seat
from aggregator.shards.board import Forbidden, LeaseBoard
from aggregator.shards.company import until_alone
from aggregator.shards.council import Alone, Shards
from aggregator.shards.tenure import Tenure
from aggregator.shards.timing import TIMES
from aggregator.together import together

log = logging.getLogger("sickbay.app")

#: Seconds that a replica which stops gives its agents to go where they belong now. With the Lease's
#: last write before it that fits into the 30 s that a pod has.
LEAVE_WITHIN = 15.0
_LOOK = 0.1


class Joining:
    """``shards`` is what the rest asks. Without the section ``shards`` this replica is alone."""

    def __init__(self, config: Config, cluster: object, *, policy_hash: str, version: str) -> None:
        """Raises `SeatError`."""
        me = seat(
            config,
            hostname=socket.gethostname(),
            epoch=secrets.token_hex(8),
            policy_hash=policy_hash,
            version=version,
        )
        self._config = config
        self._tenure: Tenure | None = None
        self._speaker: Speaker | None = None
        self._board: LeaseBoard | None = None
        self.shards: Shards = Alone()
        self.name = me.name if me is not None else socket.gethostname()
        if isinstance(cluster, KubeCluster):
            self._board = cluster.leases(deadline=TIMES.deadline)
            if me is not None:
                self.shards = self._tenure = Tenure(
                    me, self._board, clock=_boottime, wall=time.time
                )

    def serve(
        self,
        conferring: Conferring,
        ingest: IngestServer,
        keys: KeyStore | None,
        *,
        cluster_away: Callable[[], bool],
        rng: random.Random,
    ) -> None:
        """Be spoken to on the agents' listener, and speak to whoever leads. Before either starts.

        ``keys`` verify the others' tokens.
        """
        if self._tenure is None or keys is None:
            return
        config, tls = self._config, self._config.listen.tls
        council = service(
            conferring,
            keys,
            service_account=config.shards.service_account,
            issuer=config.identity.issuer,
            plaintext=tls is None,
            cluster_away=cluster_away,
            wall=time.time,
        )
        ingest.also(council.register)
        shown = tls is not None and config.identity.kind == "certificate"
        self._speaker = speaker(
            conferring,
            self.shards,
            token_file=config.shards.token_file,
            ca_file=config.shards.ca_file,
            pair=(tls.cert_file, tls.key_file) if tls is not None and shown else None,
            now=time.monotonic,
            rng=rng,
        )

    async def until_alone(
        self, *, waits: Callable[[str], None], away: Callable[[str], None]
    ) -> None:
        """Where no others are known of: return once none is at work (`company.until_alone`)."""
        if self._tenure is not None or self._board is None:
            return
        try:
            await until_alone(self._board, waits=waits, away=away)
        except Forbidden as error:
            log.info("it isn't known whether others are at work", extra={"why": str(error)})

    async def run(self) -> None:
        """For ever."""
        if self._tenure is None or self._speaker is None:
            await asyncio.Event().wait()
            return
        await together(tenure=self._tenure.run(), speaker=self._speaker.run())

    async def leave(self, attached: Callable[[], int]) -> None:
        """In order: nothing is done from here on, the others are told, the agents are sent on.

        ``attached`` tells how many agents are still here. All else goes on meanwhile.
        """
        if self._tenure is None:
            return
        others = len(self.shards.council.members.keys() - {self.shards.council.me})
        await self._tenure.leave()
        until = time.monotonic() + (LEAVE_WITHIN if others else 0.0)
        while attached() and time.monotonic() < until:  # noqa: ASYNC110 - streams end elsewhere
            await asyncio.sleep(_LOOK)
        log.info("left", extra={"others": others, "agents_left": attached()})


def _boottime() -> float:
    """Monotonic, and going on while the machine sleeps: others' clocks do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
