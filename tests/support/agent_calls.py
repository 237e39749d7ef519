"""Agents' calls without a server below them: each is read and written by the test."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aggregator.ingest.ack_pacing import AckPacer
from aggregator.ingest.agent_exchange import Context
from aggregator.ingest.identity import Caller, TrustingAuthenticator
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.stream import Stream, StreamConfig
from aggregator.ingest.stream_table import StreamTable
from sickbay.v1 import sickbay_pb2 as pb


@dataclass
class Call:
    """A call's context (`agent_exchange.Context`), from an address of the test's choice.

    The agent's messages are put into ``incoming``; the messages to the agent are in ``sent``.
    """

    address: str
    incoming: asyncio.Queue[object] = field(default_factory=asyncio.Queue)
    sent: list[pb.AggregatorMessage] = field(default_factory=list)

    async def read(self) -> object:
        return await self.incoming.get()

    async def write(self, message: pb.AggregatorMessage) -> None:
        self.sent.append(message)

    def peer(self) -> str:
        return f"ipv4:{self.address}:4711"

    def peers(self) -> list[list[str]]:
        """The addresses to probe that each Welcome named, in the order of the Welcomes."""
        kinds = [m.welcome for m in self.sent if m.WhichOneof("body") == "welcome"]
        return [list(welcome.peers) for welcome in kinds]


class BelievedStreams:
    """A table of streams without a server below it: it believes the name in each Hello."""

    def __init__(self, intake: Any, now: Callable[[], float], **table: Any) -> None:
        among_others = table.pop("among_others", lambda: "")
        self.stats = IngestStats()
        self._rules = StreamConfig(
            name="aggregator-0",
            version="0.1.0",
            heartbeat=10.0,
            silent_after=1e9,
            now=now,
            wall=now,
            cluster_away=lambda: False,
            among_others=among_others,
        )
        self.table = StreamTable(intake, self.stats, self._rules, **table)
        self.tasks: list[asyncio.Task[object]] = []
        self._intake, self._ack_pacer = intake, AckPacer()

    def serve(self, call: Context) -> Stream:
        """The stream of this call, which is served from now on."""
        stream = Stream(
            context=call,
            # It believes this machine; peers come from the address of the call itself.
            caller=_this_machine,
            rules=self._rules,
            authenticator=TrustingAuthenticator(),
            intake=self._intake,
            calls=self.table,
            stats=self.stats,
            ack_pacer=self._ack_pacer,
        )
        self.tasks.append(asyncio.create_task(stream.serve()))
        return stream

    async def close(self) -> None:
        self.table.close_all("the test is over")
        await asyncio.gather(*self.tasks, return_exceptions=True)


def _this_machine() -> Caller:
    return Caller("ipv4:127.0.0.1:1", {}, {})
