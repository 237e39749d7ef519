"""A stream's context at the controller, fed by a relay instead of a connection."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

import grpc
from attrs import define
from google.protobuf.message import DecodeError

from aggregator.ingest.stream import Stream
from aggregator.relay.protocol import AGENT_BYTES, AGENT_MESSAGES
from sickbay.v1 import sickbay_pb2 as pb


class ControllerLink(Protocol):
    """The controller's end of the relay that the context belongs to."""

    async def send(self, stream: int, message: bytes) -> None:
        """A message to the agent."""

    def agree(self, stream: int, digest: int) -> None:
        """The node's digest equals this one of a heartbeat."""

    def digest(self, node: str) -> int | None: ...
    def waits(self, size: int) -> None:
        """``size`` bytes more (less, if negative) wait for a stream to read them."""


class RelayOverflow(Exception):
    """More of an agent's messages wait than may, or one that is too long."""


@define(eq=False, repr=False, weakref_slot=False)
class RelayedContext:
    """Of one agent's call at the gateway. `Stream` reads it like a connection."""

    _link: ControllerLink
    _number: int
    _peer: str
    # A tuple, and short: see `SendQueue`.
    _messages: tuple[bytes, ...] = ()
    _parts: bytes = b""
    _bytes: int = 0
    _reader: asyncio.Future[object] | None = None
    _digest: int | None = None  # of the heartbeat that is being handled
    _ended: bool = False
    #: The stream that reads this, once it is made.
    stream: Stream | None = None

    # -- as a context -----------------------------------------------------------

    def read(self) -> Awaitable[object]:
        """The next message; a request for it means that the one before has been handled."""
        if self._digest is not None and self.stream is not None:
            if self._link.digest(self.stream.node) == self._digest:
                self._link.agree(self._number, self._digest)
            self._digest = None
        reader: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self._messages:
            message, *rest = self._messages
            self._messages = tuple(rest)
            self._release(len(message))
            self._deliver(reader, message)
        elif self._ended:
            reader.set_result(grpc.aio.EOF)
        else:
            self._reader = reader
        return reader

    def write(self, message: pb.AggregatorMessage) -> Awaitable[None]:
        return self._link.send(self._number, message.SerializeToString())

    def peer(self) -> str:
        return self._peer

    # -- the relay's calls ------------------------------------------------------

    def feed(self, message: bytes, *, whole: bool = True) -> None:
        """The agent's next message, or a part of it. Raises `RelayOverflow`."""
        if self._ended:
            return
        if self._parts or not whole:
            self._parts += message
            if len(self._parts) > AGENT_BYTES:
                raise RelayOverflow("a message that is longer than any may be")
            if not whole:
                return
            message, self._parts = self._parts, b""
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            self._deliver(reader, message)
            return
        if len(self._messages) >= AGENT_MESSAGES or self._bytes + len(message) > AGENT_BYTES:
            raise RelayOverflow("more of its messages wait than may")
        self._messages = (*self._messages, message)
        self._bytes += len(message)
        self._link.waits(len(message))

    def close(self) -> None:
        """The agent's call is over, or the relay. What waits is read first, as of a connection."""
        self._ended = True
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(grpc.aio.EOF)

    def discard(self) -> None:
        """The stream has ended: nothing is read any more."""
        self._ended = True
        self._release(self._bytes)
        self._messages, self._parts, self.stream = (), b"", None

    def _release(self, size: int) -> None:
        self._bytes -= size
        self._link.waits(-size)

    def _deliver(self, reader: "asyncio.Future[object]", raw: bytes) -> None:
        try:
            message = pb.AgentMessage.FromString(raw)
        except DecodeError as error:
            reader.set_exception(error)
            return
        if message.HasField("heartbeat"):
            self._digest = message.heartbeat.digest
        reader.set_result(message)
