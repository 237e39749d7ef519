"""One agent's call at a gateway, from its opening to its end.

The gateway proves who calls, bounds and paces, and forwards the agent's messages as they are. It
keeps no state of the node but the Hello and the credentials, with which the next controller can
begin the agent's stream anew. While there is no relay, evidence is dropped unacknowledged: the
agent's next snapshot has all of it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import grpc
from attrs import Factory, define

from aggregator.ingest import codec
from aggregator.ingest.ack_pacing import AckPacer
from aggregator.ingest.agent_exchange import AgentExchange, Calls, Code, Context
from aggregator.ingest.agent_streams import AgentStreams
from aggregator.ingest.close_reason import CloseReason, StreamClosed, gone
from aggregator.ingest.identity import AUTHORIZATION, Caller, IdentityError
from aggregator.ingest.stream import ANSWER_WITHIN, Stream
from aggregator.relay.gateway_link import GatewayLink
from aggregator.runtime.text import truncate
from sickbay.v1 import relay_pb2
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1.limits import MAX_NAME

log = logging.getLogger(__name__)

#: Seconds. One heartbeat in this long is forwarded although the controller has agreed to its
#: digest: the controller may have forgotten the node since.
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


class CallTable(Calls, Protocol):
    """The calls of all agents, as one call knows them."""

    #: The streams of this process, once it is the controller.
    streams: AgentStreams | None
    ack_pacer: AckPacer
    #: Messages with evidence that were not forwarded.
    dropped: int

    def attach(self, call: "AgentCall") -> None:
        """The call has sent Hello."""

    def detach(self, call: "AgentCall") -> bool:
        """The call is over, or continues elsewhere. Returns whether it was attached."""


@define(eq=False, repr=False, kw_only=True, weakref_slot=False)
class AgentCall(AgentExchange):
    """``serve`` returns how it ended, or the stream of this process that continues it."""

    number: int
    _rules: GatewayRules
    _calls: CallTable
    _token: str = ""
    _token_due: bool = False  # renewed since the relay was given one
    _certificate: bytes = b""
    _hello: pb.AgentMessage = Factory(pb.AgentMessage)
    _welcomed: bool = False
    _answers: str = ""  # its heartbeats are answered, by promise, with this address to reach us
    #: The relay on which its stream is open.
    relay: GatewayLink | None = None
    _passes: bool = False  # a snapshot has gone by this relay, and all that came after it
    _agreed: int | None = None
    _forward_by: float = _LONG_AGO
    _requested: str = ""  # the operation whose permission was requested from the controller
    _moves_to: AgentStreams | None = None
    _unacknowledged: int = 0  # the latest evidence that was forwarded: its sequence number
    #: Evidence was lost on its way to a controller, and no snapshot was forwarded since.
    dropped: bool = False

    # -- the exchange -----------------------------------------------------------

    async def serve(self) -> StreamClosed | Stream:
        """Serve until the call ends. Cancelled from outside (the connection broke) it raises
        that.
        """
        self._task = asyncio.current_task()
        message: pb.AgentMessage | None
        try:
            await self._greet()
            if self._calls.streams is not None:
                return await self._move(self._calls.streams, ())
            while True:
                message = await self._read()
                if message is None:
                    ending = gone()
                    break
                if self._moves_to is not None and message.HasField("snapshot"):
                    return await self._move(self._moves_to, (message,))
                await self._take(message)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is reported
            ending = self._ended_by(error)
        return await self._leave(ending)

    async def _greet(self) -> None:
        caller, self._hello = await self._receive_hello()
        with contextlib.suppress(IdentityError):
            self._token = caller.bearer()
        self._certificate = b"".join(caller.certificate.get(_CERTIFICATE, ()))
        self._calls.attach(self)
        self._inherit_budget()

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
                if await self._renew(message.credentials.token):
                    self._token, self._token_due = message.credentials.token, True
            case "hello":
                text = "a second Hello in one stream"
                raise StreamClosed(CloseReason.MALFORMED, Code.INVALID_ARGUMENT, text)
        self._forward(kind, message)
        if kind == "snapshot" and self._passes and self._token_due:
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
                match kind:
                    case "snapshot":
                        self._unacknowledged = message.snapshot.seq
                    case "delta":
                        self._unacknowledged = message.delta.seq
                    case "credentials":
                        self._token_due = False
                    case "permission_request":
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
            self._calls.dropped += 1
        elif kind == "permission_request":
            self._refuse_permission(message.permission_request.operation_id)

    def _refuse_permission(self, operation: str) -> None:
        """No controller answers the agent's request to begin, so the agent need not wait for it."""
        if self.relay is None and self._moves_to is None:
            why = "there is no controller now"
        else:
            why = "the controller has no snapshot of this agent yet"
        self._outbox.put(codec.permission(truncate(operation, MAX_NAME), why))

    # -- the relay's calls ------------------------------------------------------

    @property
    def is_urgent(self) -> bool:
        """Evidence was lost on its way, or the agent came without a controller: the last one may
        have died with its evidence, and an agent that is not welcomed leaves in the end.
        """
        return self.dropped or not self._welcomed

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
                if message.ack.seq >= self._unacknowledged:
                    self._unacknowledged = 0
                self._outbox.defer_ack(message.ack.seq)
                self._calls.ack_pacer.schedule_ack(self._outbox)
                return
            case "permission":
                self._requested = ""
            case "welcome":
                self._welcomed = True
                self._answers = self._answers or self._rules.address()
                if self._answers:
                    message.welcome.answer_within_ms = int(ANSWER_WITHIN * 1000)
                    message.welcome.address = self._answers
        self._outbox.put(message)

    def on_agreed(self, digest: int) -> None:
        self._agreed = digest

    def on_ended(self, code: grpc.StatusCode, text: str) -> None:
        """The controller has ended the stream."""
        self.relay = None
        self.stop(StreamClosed(CloseReason.CONTROLLER, code, text))

    def on_relay_lost(self) -> None:
        self.relay, self._passes, self._agreed = None, False, None
        self.dropped = self.dropped or self._unacknowledged > 0
        self._unacknowledged = 0
        if self._requested:
            self._refuse_permission(self._requested)
            self._requested = ""

    def move_to(self, streams: AgentStreams) -> None:
        """Continue as a stream of this process, which is the controller now, with a snapshot."""
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
        self._calls.detach(self)
        self._outbox.close()
        await self._outbox.settled()
        headers = {AUTHORIZATION: f"Bearer {self._token}"} if self._token else {}
        certificate = {_CERTIFICATE: [self._certificate]} if self._certificate else {}
        caller = Caller(self.peer, headers, certificate)
        stream = streams.stream(_Replayed(self._context, (self._hello, *first)), lambda: caller)
        stream.welcomed, stream.answers = bool(first), self._answers
        return stream

    def _detach(self, ending: StreamClosed) -> bool:
        del ending
        return self._calls.detach(self)


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
