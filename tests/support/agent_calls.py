"""Agents' calls without a server below them: each is read and written by the test."""

import asyncio
from dataclasses import dataclass, field

from sickbay.v1 import sickbay_pb2 as pb


@dataclass
class Call:
    """A call's context (`aggregator.ingest.stream.Context`), from an address of the test's choice.

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
