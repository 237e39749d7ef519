"""The agents' streams that this process evaluates, wherever their connections end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from attrs import define

from aggregator.ingest.ack_pacing import AckPacer
from aggregator.ingest.agent_exchange import Context
from aggregator.ingest.deleted_pods import DeletedPods
from aggregator.ingest.identity import Authenticator, Caller
from aggregator.ingest.interfaces import EvidenceSink
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.stream import Stream, StreamConfig
from aggregator.ingest.stream_table import StreamTable

#: Seconds between checks of time-dependent state (silence, expiry).
TICK = 1.0
#: Streams that are ended at once, and the pause after them (seconds): 500 a second. Each costs
#: another replica a TLS handshake.
SLICE, PAUSE = 50, 0.1


@define(eq=False, repr=False, slots=False, kw_only=True)
class AgentStreams:
    """Makes the streams, and applies to them what time brings, while `run` runs.

    ``deleted_pods``: the streams of these pods end (default: none does). ``probe_key`` is the
    secret by which probes are assigned to nodes.
    """

    _authenticator: Authenticator
    intake: EvidenceSink
    _rules: StreamConfig
    stats: IngestStats
    _probe_key: bytes = b""
    _deleted_pods: DeletedPods | None = None

    def __attrs_post_init__(self) -> None:
        #: A gateway answers its agents' heartbeats itself: it is the process that they depend on.
        self._relayed = replace(self._rules, among_others=lambda: "")
        #: Fed by `KubeCluster.follow_agent_pods`.
        self.deleted_pods = self._deleted_pods or DeletedPods(now=self._rules.now)
        self.table = StreamTable(self.intake, self.stats, self._rules, probe_key=self._probe_key)
        self._rules.orders.connect(self.table)
        self._ack_pacer = AckPacer()

    def stream(
        self, context: Context, caller: Callable[[], Caller], *, relayed: bool = False
    ) -> Stream:
        """A new call of an agent: its caller serves it. ``relayed``: a gateway forwards it."""
        self.stats.opened += 1
        return Stream(
            context=context,
            caller=caller,
            rules=self._relayed if relayed else self._rules,
            authenticator=self._authenticator,
            intake=self.intake,
            calls=self.table,
            stats=self.stats,
            ack_pacer=self._ack_pacer,
        )

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(TICK)
            self.table.tick()
            self.table.end_deleted(self.deleted_pods)

    async def end_paced(self, reason: str) -> None:
        """End every stream, so that its agent goes elsewhere, some at a time."""
        for count, stream in enumerate(self.table.streams(), 1):
            stream.close(reason)
            if count % SLICE == 0:
                await asyncio.sleep(PAUSE)

    def close(self) -> None:
        """End every stream, so that its agent reconnects elsewhere at once."""
        self.table.close_all("the aggregator stops; come back with backoff")
