"""One agent's call at a gateway, from its opening to its end.

The gateway proves who calls, bounds and paces, and forwards the agent's messages as they are. It
keeps no state of the node but the Hello and the credentials, with which the next controller can
begin the agent's stream anew. While there is no relay, evidence is dropped unacknowledged: the
agent's next snapshot has all of it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from aggregator.ingest import codec
from aggregator.ingest.ack_pacing import AckPacer
from aggregator.ingest.agent_streams import AgentStreams
from aggregator.ingest.awaited_hellos import AwaitedHellos
from aggregator.ingest.close_reason import CloseReason, StreamClosed, gone, malformed, refused
from aggregator.ingest.identity import (
    AUTHORIZATION,
    Authenticator,
    CallCredentials,
    Caller,
    Identity,
    IdentityError,
    Refusal,
)
from aggregator.ingest.rate_limit import PER_STREAM, NodeBudget
from aggregator.ingest.send_queue import SendQueue
from aggregator.ingest.stats import IngestStats, RateLimitedLog
from aggregator.ingest.stream import ANSWER_WITHIN, HELLO_WITHIN, REFUSED_WITHIN, Context, Stream
from aggregator.relay.gateway_link import GatewayLink
from aggregator.runtime.text import truncate
from sickbay.v1 import relay_pb2
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1.limits import MAX_NAME

log = logging.getLogger(__name__)
Code = grpc.StatusCode

#: Seconds. One heartbeat in so long is forwarded although the controller has agreed to its digest:
#: the controller may have forgotten the node since.
FORWARD_EVERY = 60.0
_CERTIFICATE = "x509_pem_cert"
_LONG_AGO = float("-inf")


@dataclass(frozen=True, slots=True)
class GatewayRules:
    """The same for all calls. ``name`` and ``version`` are of this replica; ``heartbeat`` is in
    seconds; ``now`` is monotonic. ``address``: where agents reach this gateway; empty where there
    is no other replica.
    """

    name: str
    version: str
    heartbeat: float
    now: Callable[[], float]
    address: Callable[[], str]


class CallTable(Protocol):
    """The calls of all agents, as one call knows them."""

    #: The streams of this process, once it is the controller.
    streams: AgentStreams | None
    awaited: AwaitedHellos
    ack_pacer: AckPacer
    sparingly: RateLimitedLog
    #: Messages with evidence that were not forwarded.
    dropped: int

    def attach(self, call: "AgentCall") -> None:
        """The call has said Hello."""
        ...

    def detach(self, call: "AgentCall") -> bool:
        """The call is over, or goes on elsewhere. Returns whether it was attached."""
        ...

    def used(self, node: str) -> float:
        """How much of the node's token bucket its earlier calls have used."""
        ...

    def keep_used(self, node: str, used: float) -> None: ...


class AgentCall:
    """``serve`` returns how it ended, or the stream of this process that goes on in its place."""

    __slots__ = (
        "_agreed",
        "_allowance",
        "_answers",
        "_authenticator",
        "_awaited",
        "_caller",
        "_certificate",
        "_context",
        "_ending",
        "_forward_by",
        "_gateway",
        "_hello",
        "_identity",
        "_moves_to",
        "_outbox",
        "_passes",
        "_requested",
        "_rules",
        "_stats",
        "_stopping",
        "_task",
        "_token",
        "_token_due",
        "_welcomed",
        "dropped",
        "node",
        "number",
        "peer",
        "relay",
    )

    def __init__(
        self,
        number: int,
        context: Context,
        caller: Callable[[], Caller],
        gateway: CallTable,
        authenticator: Authenticator,
        rules: GatewayRules,
        stats: IngestStats,
    ) -> None:
        self.number = number
        self._context = context
        self._caller = caller
        self._gateway = gateway
        self._authenticator = authenticator
        self._rules = rules
        self._stats = stats
        self._task: asyncio.Task[None] | None = None
        self._ending: StreamClosed | None = None
        self._stopping = False
        self._allowance = NodeBudget(rules.now())
        self._outbox = SendQueue(self)
        self._identity = Identity("")
        self._token = ""
        self._token_due = False  # renewed since the relay was given one
        self._certificate = b""
        self._hello = pb.AgentMessage()
        self._awaited = ""  # the node that the credentials name, until the Hello
        self._welcomed = False
        self._answers = False  # its heartbeats are answered, by promise
        #: The relay on which its stream is open.
        self.relay: GatewayLink | None = None
        self._passes = False  # a snapshot has gone by this relay, and all that came after it
        self._agreed: int | None = None
        self._forward_by = _LONG_AGO
        self._requested = ""  # the operation whose permission was requested from the controller
        self._moves_to: AgentStreams | None = None
        #: Evidence was not forwarded, and no snapshot has been since.
        self.dropped = False
        self.node = ""
        self.peer = context.peer()

    # -- the exchange -----------------------------------------------------------

    async def serve(self) -> StreamClosed | Stream:
        """Serve until the call ends. Cancelled from outside (the connection broke) it raises
        that.
        """
        self._task = asyncio.current_task()
        message: pb.AgentMessage | None
        try:
            await self._greet()
            if self._gateway.streams is not None:
                return await self._move(self._gateway.streams, ())
            while True:
                message = await self._read()
                if message is None:
                    ending = gone()
                    break
                if self._moves_to is not None and message.HasField("snapshot"):
                    return await self._move(self._moves_to, (message,))
                await self._take(message)
        except StreamClosed as reached:
            # A new one, because a raised one holds the frames that it came through.
            ending = StreamClosed(reached.why, reached.code, str(reached))
        except DecodeError:
            text = "a message that is no sickbay.v1.AgentMessage"
            ending = StreamClosed(CloseReason.MALFORMED, Code.INVALID_ARGUMENT, text)
        except asyncio.CancelledError:
            if self._ending is None:
                self._end(gone())
                raise
            self._stopping = False
            ending = self._ending
        return await self._leave(ending)

    async def _leave(self, ending: StreamClosed) -> StreamClosed:
        assert self._task is not None
        if self._stopping:
            # Stopped in the very step in which it ended by itself: take the cancellation that is
            # still to come, or it would hit the next await.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        while self._task.cancelling():
            self._task.uncancel()
        self._end(ending)
        await self._outbox.settled()
        return self._ending or ending

    async def _greet(self) -> None:
        caller = self._caller()
        del self._caller  # asked once; it would be 250 bytes for each call
        try:
            credentials = await self._authenticate(caller)
            self._await_hello(next(iter(credentials.nodes), ""))
            self._hello = await self._first()
            self.node = codec.node_of(self._hello.hello)
            self._identity = credentials.claimed(self.node)
        except codec.InvalidMessage as error:
            raise malformed("hello", error) from None
        except IdentityError as error:
            raise refused(error) from None
        with contextlib.suppress(IdentityError):
            self._token = caller.bearer()
        self._certificate = b"".join(caller.certificate.get(_CERTIFICATE, ()))
        self._await_hello("")
        self._allowance.inherit(self._gateway.used(self.node) + PER_STREAM)
        self._gateway.attach(self)

    async def _authenticate(self, caller: Caller) -> CallCredentials:
        """Before the Hello, as `Stream` does: see there."""
        try:
            return await self._authenticator.authenticate(caller)
        except IdentityError as error:
            if error.refusal is not Refusal.NO_CREDENTIALS:
                with contextlib.suppress(TimeoutError, DecodeError):
                    async with asyncio.timeout(REFUSED_WITHIN):
                        await self._context.read()
            raise

    def _await_hello(self, node: str) -> None:
        if self._awaited:
            self._gateway.awaited.remove(self, self._awaited)
        self._awaited = node
        if node:
            self._gateway.awaited.add(self, node)

    async def _first(self) -> pb.AgentMessage:
        try:
            async with asyncio.timeout(HELLO_WITHIN):
                message = await self._read()
        except TimeoutError:
            text = f"no Hello within {HELLO_WITHIN:g} s"
            raise StreamClosed(CloseReason.NO_HELLO, Code.DEADLINE_EXCEEDED, text) from None
        if message is None:
            text = "closed before its Hello"
            raise StreamClosed(CloseReason.NO_HELLO, Code.FAILED_PRECONDITION, text)
        if not message.HasField("hello"):
            text = f"{message.WhichOneof('body') or 'an empty message'} came where Hello must come"
            raise StreamClosed(CloseReason.MALFORMED, Code.INVALID_ARGUMENT, text)
        return message

    async def _read(self) -> pb.AgentMessage | None:
        """The next message, or None when the agent has closed its side; later if it sends too
        much.
        """
        message = await self._context.read()
        if not isinstance(message, pb.AgentMessage):
            return None
        wait = self._allowance.spend(message.ByteSize(), self._rules.now())
        if wait > 0:
            self._stats.throttled += 1
            fields = self._log_fields("throttled")
            if fields is not None:
                log.warning(
                    "an agent sends more than it may; it is read slowly",
                    extra={"event": "relay.agent_throttled", **fields},
                )
            await asyncio.sleep(wait)
        return message

    async def _take(self, message: pb.AgentMessage) -> None:
        kind = message.WhichOneof("body") or "empty"
        self._stats.messages[kind] += 1
        match kind:
            case "heartbeat":
                if self._answers:
                    self._outbox.answer()
                if self._ends_here(message.heartbeat.digest):
                    return
            case "snapshot" | "delta":
                self._agreed = None
                if kind == "snapshot" and self.relay is not None:
                    self._passes, self.dropped = True, False
            case "credentials":
                await self._renew(message.credentials.token)
                self._token_due = not self._passes
            case "hello":
                text = "a second Hello in one stream"
                raise StreamClosed(CloseReason.MALFORMED, Code.INVALID_ARGUMENT, text)
        self._forward(kind, message)
        if kind == "snapshot" and self._passes and self._token_due:
            self._token_due = False
            renewed = pb.AgentMessage(credentials=pb.Credentials(token=self._token))
            self._forward("credentials", renewed)

    def _ends_here(self, digest: int) -> bool:
        """Whether the controller needs only know that a heartbeat came."""
        now = self._rules.now()
        if self.relay is None:
            return True
        if self._passes and (self._agreed != digest or now >= self._forward_by):
            self._forward_by = now + FORWARD_EVERY
            return False
        self.relay.on_agreed_heartbeat(self)
        return True

    def _forward(self, kind: str, message: pb.AgentMessage) -> None:
        if self._passes and self.relay is not None:
            if self.relay.forward(self, message.SerializeToString()):
                if kind == "permission_request":
                    self._requested = message.permission_request.operation_id
                return
            self._passes = False
            fields = self._log_fields("full")
            if fields is not None:
                log.warning(
                    "the relay is full; an agent's evidence waits",
                    extra={"event": "relay.full", **fields},
                )
            self.dropped = True
            self.relay.wait_for((self,))
        if kind in ("snapshot", "delta"):
            self.dropped = True
            self._gateway.dropped += 1
        elif kind == "permission_request":
            self._refuse_permission(message.permission_request.operation_id)

    def _refuse_permission(self, operation: str) -> None:
        """No controller answers the agent's request to begin, so the agent need not wait for it."""
        if self.relay is None and self._moves_to is None:
            why = "there is no controller now"
        else:
            why = "the controller has no snapshot of this agent yet"
        self._outbox.put(codec.permission(truncate(operation, MAX_NAME), why))

    async def _renew(self, token: str) -> None:
        try:
            self._identity = await self._authenticator.renew(self._identity, token)
        except IdentityError as error:
            if error.passing:
                return
            raise refused(error) from None
        self._token = token
        self._stats.renewed += 1

    # -- the relay's calls ------------------------------------------------------

    def opening(self) -> relay_pb2.AgentOpened:
        """Its stream begins on a relay: all that the controller needs for that."""
        self._passes, self._agreed, self._token_due = False, None, False
        return relay_pb2.AgentOpened(
            peer=self.peer,
            token=self._token,
            certificate=self._certificate,
            hello=self._hello.SerializeToString(),
            welcomed=self._welcomed,
        )

    def begin_anew(self) -> None:
        if self._welcomed:
            self._outbox.put(codec.resync("another controller needs all evidence"))

    def on_reply(self, message: pb.AggregatorMessage) -> None:
        """The controller's message to the agent."""
        match message.WhichOneof("body"):
            case "ack":
                self._outbox.defer_ack(message.ack.seq)
                self._gateway.ack_pacer.schedule_ack(self._outbox)
                return
            case "permission":
                self._requested = ""
            case "welcome":
                self._welcomed = True
                address = self._rules.address()
                self._answers = self._answers or bool(address)
                if self._answers:
                    message.welcome.answer_within_ms = int(ANSWER_WITHIN * 1000)
                    message.welcome.address = address
        self._outbox.put(message)

    def on_agreed(self, digest: int) -> None:
        self._agreed = digest

    def on_ended(self, code: grpc.StatusCode, text: str) -> None:
        """The controller has ended the stream."""
        self.relay = None
        self.stop(StreamClosed(CloseReason.CONTROLLER, code, text))

    def on_relay_lost(self) -> None:
        self.relay, self._passes, self._agreed = None, False, None
        if self._requested:
            self._refuse_permission(self._requested)
            self._requested = ""

    def move_to(self, streams: AgentStreams) -> None:
        """Go on as a stream of this process, which is the controller now, with a snapshot."""
        self._moves_to = streams
        if self._welcomed:
            self.begin_anew()
        else:
            rules = self._rules
            self._outbox.put(
                codec.welcome(
                    name=rules.name, version=rules.version, heartbeat=rules.heartbeat, peers=()
                )
            )

    async def _move(self, streams: AgentStreams, first: tuple[pb.AgentMessage, ...]) -> Stream:
        self._gateway.detach(self)
        self._outbox.close()
        await self._outbox.settled()
        headers = {AUTHORIZATION: f"Bearer {self._token}"} if self._token else {}
        certificate = {_CERTIFICATE: [self._certificate]} if self._certificate else {}
        caller = Caller(self.peer, headers, certificate)
        stream = streams.stream(_Replayed(self._context, (self._hello, *first)), lambda: caller)
        stream.welcomed = bool(first)
        return stream

    # -- its end ----------------------------------------------------------------

    def stop(self, ending: StreamClosed) -> None:
        """End it from outside its own task."""
        if self._ending is None and self._task is not None:
            self._end(ending)
            self._stopping = True
            self._task.cancel()

    def close(self, reason: str) -> None:
        self.stop(StreamClosed(CloseReason.CLOSED, Code.UNAVAILABLE, reason))

    def crowd_out(self, text: str) -> None:
        """Too many of its node wait for their Hello, and it has waited longest."""
        self.stop(StreamClosed(CloseReason.TOO_MANY, Code.RESOURCE_EXHAUSTED, text))

    def supersede(self, by: str) -> None:
        text = f"a newer stream of node {self.node!r} has taken over, from {by}"
        self.stop(StreamClosed(CloseReason.SUPERSEDED, Code.ABORTED, text))

    def _end(self, ending: StreamClosed) -> None:
        if self._ending is not None:
            return
        self._ending = ending
        self._outbox.close()
        self._await_hello("")
        if self._gateway.detach(self):
            self._stats.ended[ending.why] += 1
            self._gateway.keep_used(self.node, self._allowance.used(self._rules.now()))
        else:
            self._stats.refused[ending.why] += 1
            if ending.why is not CloseReason.LEFT:
                fields = self._log_fields("refused")
                if fields is not None:
                    log.warning(
                        "stream refused",
                        extra={"event": "relay.agent_refused", "detail": str(ending), **fields},
                    )

    def _log_fields(self, what: str) -> Mapping[str, object] | None:
        """For a log line on this call; None: too many like it were written lately."""
        fields = self._gateway.sparingly(f"{what}: {self.node}", self._rules.now())
        return None if fields is None else {"node": self.node, "peer": self.peer, **fields}

    # -- calls from its queue ---------------------------------------------------

    def write(self, message: pb.AggregatorMessage) -> Awaitable[None]:
        return self._context.write(message)

    def overflowed(self) -> None:
        text = "the agent does not read what it is sent"
        self.stop(StreamClosed(CloseReason.SLOW_READER, Code.RESOURCE_EXHAUSTED, text))

    def safe(self, seq: int) -> None:
        """Never called: the controller acknowledges."""

    def unsafe(self, error: BaseException) -> None:
        """Never called: the controller acknowledges."""


class _Replayed:
    """A call's context that yields again what the gateway has read of it."""

    __slots__ = ("_context", "_first")

    def __init__(self, context: Context, first: tuple[pb.AgentMessage, ...]) -> None:
        self._context = context
        self._first = first

    async def read(self) -> object:
        if self._first:
            message, *rest = self._first
            self._first = tuple(rest)
            return message
        return await self._context.read()

    def write(self, message: pb.AggregatorMessage) -> Awaitable[None]:
        return self._context.write(message)

    def peer(self) -> str:
        return self._context.peer()
