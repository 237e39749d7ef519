"""One agent's stream: Hello, Snapshot, then deltas and heartbeats, until it ends.

It is also the way back (`AgentConnection`). A message that can't be understood, or that claims
another node, ends this stream with a status that gives the reason, and affects no other.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from aggregator.health.model import Delta, Lost, Measurements, Snapshot
from aggregator.ingest import codec
from aggregator.ingest.ack_pacing import AckPacer
from aggregator.ingest.close_reason import CloseReason, StreamClosed, gone, malformed, refused
from aggregator.ingest.identity import (
    LEEWAY,
    Authenticator,
    CallCredentials,
    Caller,
    Identity,
    IdentityError,
    Refusal,
)
from aggregator.ingest.interfaces import EvidenceSink
from aggregator.ingest.rate_limit import PER_STREAM, NodeBudget
from aggregator.ingest.resync_backoff import ResyncBackoff
from aggregator.ingest.send_queue import Acks, SendQueue
from aggregator.ingest.stats import IngestStats, RateLimitedLog
from aggregator.repairers.agent_orders import AgentOrder, AgentOrders
from sickbay.v1 import sickbay_pb2 as pb

log = logging.getLogger(__name__)
Code = grpc.StatusCode

#: Seconds. A silent connection is ended some day. A slow agent must not be, when 10,000 came at
#: once and either side is busy with others: all the work done for it would be done again.
HELLO_WITHIN = 60.0
SNAPSHOT_WITHIN = 120.0
REFUSED_WITHIN = 1.0
#: The promise to agents where there are other replicas. An agent that gets no answer tries for 5 s
#: whether the replica is there: with a heartbeat of 10 s it has left 17 to 27 s after its replica
#: was stopped.
ANSWER_WITHIN = 12.0
#: Bytes of a message that takes some milliseconds to read.
LARGE = 65_536
#: The source of evidence that was lost because it was not taken here.
US = "aggregator"
# One object, not one for each stream.
_NOW = float("-inf")


class Context(Protocol):
    """The part of `grpc.aio.ServicerContext` that a stream needs."""

    def read(self) -> Awaitable[object]:
        """An AgentMessage, or `grpc.aio.EOF`."""
        ...

    def write(self, message: pb.AggregatorMessage) -> Awaitable[None]: ...
    def peer(self) -> str: ...


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The settings of every stream of this aggregator. Durations are seconds.

    ``now`` is monotonic, ``wall`` since the epoch. ``cluster_away`` says whether the API server
    can't be reached, so that no agent can renew its token. ``among_others``: this replica's own
    address, if there are others to which an agent could go when this one falls silent; else empty.
    ``orders`` takes what agents tell of repairs that were ordered.
    """

    name: str
    version: str
    heartbeat: float
    silent_after: float
    now: Callable[[], float]
    wall: Callable[[], float]
    cluster_away: Callable[[], bool]
    among_others: Callable[[], str] = lambda: ""
    orders: AgentOrders = field(default_factory=AgentOrders)


class Streams(Protocol):
    """The streams of all nodes, as one stream knows them."""

    def attach(self, stream: "Stream") -> None: ...

    def detach(self, stream: "Stream") -> None: ...

    def await_hello(self, stream: "Stream", node: str) -> None:
        """The stream's credentials name ``node``, and its Hello has not come yet."""
        ...

    def forget_hello(self, stream: "Stream", node: str) -> None:
        """The stream is attached, or has ended."""
        ...

    def used(self, node: str) -> float:
        """How much of the node's token bucket its earlier streams have used."""
        ...

    def keep_used(self, node: str, used: float) -> None:
        """The node's stream has ended, and had used so much of its token bucket."""
        ...

    def peers(self, stream: "Stream") -> Sequence[str]:
        """The addresses that this stream's node is to probe."""
        ...


class Stream:
    """One call of Connect, from its opening to its end."""

    __slots__ = (
        "_ack_pacer",
        "_acks",
        "_allowance",
        "_answers",
        "_attached",
        "_authenticator",
        "_awaited",
        "_boottime",
        "_caller",
        "_context",
        "_ending",
        "_intake",
        "_named",
        "_outbox",
        "_partial",
        "_resyncs",
        "_rules",
        "_seq",
        "_series",
        "_sparingly",
        "_stats",
        "_stopping",
        "_streams",
        "_task",
        "due_at",
        "hello_written",
        "identity",
        "instance",
        "last_heard",
        "node",
        "overdue",
        "peer",
        "repair_verbs",
        "test_profiles",
        "welcomed",
    )

    def __init__(
        self,
        context: Context,
        *,
        caller: Callable[[], Caller],
        rules: StreamConfig,
        authenticator: Authenticator,
        intake: EvidenceSink,
        streams: Streams,
        stats: IngestStats,
        sparingly: RateLimitedLog,
        ack_pacer: AckPacer,
    ) -> None:
        self._context = context
        self._caller = caller
        self._rules = rules
        self._authenticator = authenticator
        self._intake = intake
        self._streams = streams
        self._stats = stats
        self._sparingly = sparingly
        self._ack_pacer = ack_pacer
        self._task: asyncio.Task[None] | None = None
        self._ending: StreamClosed | None = None
        self._attached = False
        self._stopping = False
        self._allowance = NodeBudget(rules.now())
        self._outbox = SendQueue(self)
        self._acks = Acks(self)
        self._seq = 0
        self._series = 0  # measured series that it has named; -1: a message of them was wrong
        #: Entries were dropped since the last whole snapshot, so the digests cannot agree.
        self._partial = False
        self._resyncs = ResyncBackoff()
        self._named: tuple[str, ...] | None = ()  # the peers that its agent knows
        self._awaited = ""  # the node that the credentials name, until the stream is attached
        self._boottime = 0.0  # the agent's CLOCK_BOOTTIME less our time, where it tells that
        self.repair_verbs: tuple[str, ...] = ()
        self.test_profiles: tuple[str, ...] = ()
        self._answers = ""  # promised, with this address to reach us
        self.node = ""
        self.instance = ""
        #: An earlier stream of the same call has welcomed the agent.
        self.welcomed = False
        #: When the agent wrote its Hello, by its CLOCK_BOOTTIME in milliseconds.
        self.hello_written = 0
        self.peer = context.peer()
        self.identity = Identity("")
        self.last_heard = rules.now()
        #: When time may next change the stream's state, except for its credentials' end
        #: (monotonic).
        self.due_at = _NOW
        #: Its credentials have expired, and it stays because no agent can renew its own.
        self.overdue = False

    # -- the exchange -----------------------------------------------------------

    async def serve(self) -> StreamClosed:
        """Serve until the stream ends, and return how. Cancelled from outside (the connection
        broke) it raises that.

        A stream is in this call all its life. So it keeps no message, and waits for the next in no
        call of its own, which would be 240 bytes for each.
        """
        self._task = asyncio.current_task()
        allowance = self._allowance
        message: pb.AgentMessage | None
        try:
            await self._greet(allowance)
            message = await self._first(
                allowance, "snapshot", SNAPSHOT_WITHIN, CloseReason.NO_SNAPSHOT
            )
            while message is not None:
                self.last_heard = self._rules.now()
                await self._dispatch(message)
                message = None
                message = _known(await self._context.read())
                if message is not None:
                    await self._throttle(allowance, message)
            ending = gone()
        except StreamClosed as reached:
            # A new one, because a raised one holds the frames that it came through, and they hold
            # it.
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
        except Exception:
            # The outermost edge of one stream: after any error here the others go on.
            log.exception(
                "a stream failed",
                extra={"event": "stream.failed", "node": self.node, "peer": self.peer},
            )
            ending = StreamClosed(
                CloseReason.INTERNAL, Code.INTERNAL, "the aggregator failed; see its log"
            )
        return await self._leave(ending)

    async def _leave(self, ending: StreamClosed) -> StreamClosed:
        """The end of the stream: its log line, and the tasks in progress."""
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

    async def _greet(self, allowance: NodeBudget) -> None:
        try:
            credentials = await self._authenticate()
            del self._caller  # asked once; it would be 250 bytes for each stream
            self._await_hello(next(iter(credentials.nodes), ""))
            message = await self._first(allowance, "hello", HELLO_WITHIN, CloseReason.NO_HELLO)
            node = codec.node_of(message.hello)
            self.identity = credentials.claimed(node)
        except codec.InvalidMessage as error:
            raise malformed("hello", error) from None
        except IdentityError as error:
            raise refused(error) from None
        dropped = codec.Dropped()
        try:
            claimed = codec.hello(message.hello, dropped)
            self._note_boottime(message.hello.boottime_ms)
        except codec.InvalidMessage as error:
            ending = malformed("hello", error)
            self._intake.on_refusal(node, str(ending))
            raise ending from None
        hello = replace(claimed, node_uid=self.identity.node_uid)
        self.node, self.instance = hello.node, hello.instance
        self.repair_verbs = codec.repair_verbs(message.hello)
        self.test_profiles = codec.test_profiles(message.hello)
        self.last_heard = self._rules.now()
        self.hello_written = message.hello.boottime_ms
        self._await_hello("")
        self._streams.attach(self)
        self._attached = True
        self._allowance.inherit(self._streams.used(self.node) + PER_STREAM)
        self._intake.on_connect(hello, self)
        if self.welcomed:  # its peers are named later: until all are here they change
            self._named, self._answers = None, self._rules.among_others()
        else:
            self._welcome(self._streams.peers(self))
        self._say_dropped(0, dropped)

    async def _authenticate(self) -> CallCredentials:
        """Before the Hello: a caller without credentials costs no message and no wait.

        A caller with credentials that are refused is an agent more often than not. Its Hello is
        under way, and grpc.aio shows INTERNAL in place of our reason where that write fails.
        """
        try:
            return await self._authenticator.authenticate(self._caller())
        except IdentityError as error:
            if error.refusal is not Refusal.NO_CREDENTIALS:
                with contextlib.suppress(TimeoutError, DecodeError):
                    async with asyncio.timeout(REFUSED_WITHIN):
                        await self._context.read()
            raise

    def _await_hello(self, node: str) -> None:
        """Count this stream among those of ``node`` that wait; empty: it no longer waits."""
        if self._awaited:
            self._streams.forget_hello(self, self._awaited)
        self._awaited = node
        if node:
            self._streams.await_hello(self, node)

    def _welcome(self, peers: Sequence[str]) -> None:
        self._named = tuple(peers)
        self._intake.assigned(self.node, self._named)
        # A promise stays: it is not sent again each time that another replica restarts.
        self._answers = self._answers or self._rules.among_others()
        self._outbox.put(
            codec.welcome(
                name=self._rules.name,
                version=self._rules.version,
                heartbeat=self._rules.heartbeat,
                peers=self._named,
                answer_within=ANSWER_WITHIN if self._answers else 0.0,
                address=self._answers,
            )
        )

    def name_peers(self) -> None:
        """Tell the agent which addresses to probe, if they have changed since the last message.

        Also that its heartbeats are answered, once there are other replicas.
        """
        peers = tuple(self._streams.peers(self))
        known = peers == self._named and (self._answers or not self._rules.among_others())
        if self._attached and self._ending is None and not known:
            self._welcome(peers)

    async def _first(
        self, allowance: NodeBudget, kind: str, within: float, why: CloseReason
    ) -> pb.AgentMessage:
        """The message that the contract requires now."""
        try:
            async with asyncio.timeout(within):
                message = await self._read(allowance)
        except TimeoutError:
            text = f"no {kind.capitalize()} within {within:g} s"
            raise StreamClosed(why, Code.DEADLINE_EXCEEDED, text) from None
        if message is None:
            raise StreamClosed(
                why, Code.FAILED_PRECONDITION, f"closed before its {kind.capitalize()}"
            )
        got = message.WhichOneof("body")
        if got != kind:
            text = f"{got or 'an empty message'} came where {kind.capitalize()} must come"
            raise StreamClosed(CloseReason.MALFORMED, Code.INVALID_ARGUMENT, text)
        return message

    async def _read(self, allowance: NodeBudget) -> pb.AgentMessage | None:
        """The next message, or None when the agent has closed its side."""
        message = _known(await self._context.read())
        if message is not None:
            await self._throttle(allowance, message)
        return message

    async def _throttle(self, allowance: NodeBudget, message: pb.AgentMessage) -> None:
        """Delay an agent that sends too much."""
        wait = allowance.spend(message.ByteSize(), self._rules.now())
        if wait > 0:
            self._stats.throttled += 1
            log_fields = self._sparingly(f"held back: {self.node}", self._rules.now())
            if log_fields is not None:
                extra = {"node": self.node, "peer": self.peer, **log_fields}
                log.warning(
                    "an agent sends more than it may; it is read slowly",
                    extra={"event": "stream.throttled", **extra},
                )
            await asyncio.sleep(wait)

    async def _dispatch(self, message: pb.AgentMessage) -> None:
        kind = message.WhichOneof("body")
        self._stats.messages[kind or "empty"] += 1
        try:
            match kind:
                case "delta" | "snapshot":
                    await self._evidence(message.snapshot if kind == "snapshot" else message.delta)
                case "heartbeat":
                    self._beat(message.heartbeat)
                case "measurements":
                    self._measure(message.measurements)
                case "credentials":
                    await self._renew(message.credentials.token)
                case "repair_result":
                    result = codec.repair_result(message.repair_result)
                    if result is not None:
                        self._rules.orders.on_result(self.node, result)
                case "permission_request":
                    request = codec.permission_request(message.permission_request)
                    self._rules.orders.permissions.on_request(self.node, request)
                case "gpu_use":
                    number, use = codec.gpu_use(message.gpu_use)
                    self._rules.orders.gpu_use.on_answer(self.node, number, use)
                case "hello":
                    self._second_hello(message.hello)
                case _:
                    # A newer agent's message of a kind that we don't know yet, which we must not
                    # refuse.
                    pass
        except codec.InvalidMessage as error:
            raise malformed(kind or "", error) from None

    async def _evidence(self, message: pb.Snapshot | pb.Delta) -> None:
        if message.seq < self._seq:
            raise codec.InvalidMessage("seq", f"{message.seq} after {self._seq}")
        evidence, dropped = await self._understood(message)
        started = self._rules.now()
        if dropped.entries:
            self._say_dropped(message.seq, dropped)
            text = f"{dropped.entries} entries were not taken: {dropped.reason}"
            evidence = replace(evidence, lost=(*evidence.lost, Lost(US, dropped.entries, text)))
        self._partial = bool(dropped.entries) or (
            self._partial and not isinstance(message, pb.Snapshot)
        )
        if self._acks.full:
            text = "too much of it waits to be made durable; say it again in one snapshot"
            raise StreamClosed(CloseReason.UNSAFE, Code.UNAVAILABLE, text)
        self._seq = message.seq
        if isinstance(message, pb.Snapshot):
            self._resyncs.answered()
            self._series = min(self._series, 0)  # with each snapshot the series begin anew
        self._acks.add(message.seq, self._intake.on_evidence(self.node, evidence, self.last_heard))
        # The node is evaluated after this: its agent's next message is charged for that.
        earlier = self._intake.evaluation_cost(self.node)
        self._allowance.charge(self._rules.now() - started + earlier)

    async def _understood(
        self, message: pb.Snapshot | pb.Delta
    ) -> tuple[Snapshot | Delta, codec.Dropped]:
        """The message as evidence. A large one yields to other tasks on the event loop."""
        dropped, at = codec.Dropped(), self.last_heard
        large = message.ByteSize() >= LARGE
        steps = (
            codec.snapshot_in_steps(message, at=at, dropped=dropped)
            if isinstance(message, pb.Snapshot)
            else codec.delta_in_steps(message, at=at, dropped=dropped)
        )
        while True:
            started = self._rules.now()
            try:
                next(steps)
            except StopIteration as done:
                return done.value, dropped
            finally:
                self._allowance.charge(self._rules.now() - started)
            if large:
                await asyncio.sleep(0)

    def _say_dropped(self, seq: int, dropped: codec.Dropped) -> None:
        """Tell the agent and our log, once in a while, because an old agent goes on sending the
        entry.
        """
        if not dropped.entries:
            return
        self._stats.dropped += dropped.entries
        log_fields = self._sparingly(f"dropped: {self.node}", self._rules.now())
        if log_fields is not None:
            self._outbox.put(codec.entries_dropped(seq, dropped))
            extra = {"node": self.node, "entries": dropped.entries, "reason": dropped.reason}
            log.warning(
                "entries of an agent's message are outside the contract's bounds; "
                "they were dropped, all others count",
                extra={"event": "stream.entries_dropped", **extra, **log_fields},
            )

    def _note_boottime(self, milliseconds: int) -> None:
        """The agent tells its clock: a message that was held up makes deadlines earlier only."""
        if milliseconds:
            self._boottime = codec.boottime("boottime_ms", milliseconds) - self._rules.now()

    def _beat(self, heartbeat: pb.Heartbeat) -> None:
        self._note_boottime(heartbeat.boottime_ms)
        self._intake.on_heartbeat(self.node, self.last_heard)
        if self._intake.digest(self.node) == heartbeat.digest:
            self._resyncs.agreed()
        elif not self._partial:  # a dropped entry would be dropped from the next snapshot, too
            self.resync("the digest of your state differs from ours")
        if self._answers:
            self._outbox.answer()

    def on_agreed_heartbeat(self) -> None:
        """A heartbeat whose digest we have agreed to came to the gateway that forwards it."""
        self._stats.messages["heartbeat"] += 1
        self.last_heard = self._rules.now()
        if self._attached and self._ending is None:
            self._intake.on_heartbeat(self.node, self.last_heard)

    def _measure(self, message: pb.Measurements) -> None:
        """Measurements are no evidence: one that is wrong ends them, and not the stream."""
        if self._series < 0:
            return
        started = self._rules.now()
        try:
            told = codec.measurements(message, self._series)
            self._series += len(told.series)
        except codec.InvalidMessage as error:
            told = Measurements(self._series, (), (), tuple(range(self._series)))
            self._series = -1
            log_fields = self._sparingly(f"measurements: {self.node}", self._rules.now())
            if log_fields is not None:
                extra = {"node": self.node, "reason": str(error), **log_fields}
                log.warning("measurements of this stream are not taken any more", extra=extra)
        self._intake.on_measurements(self.node, told, self.last_heard)
        self._allowance.charge(self._rules.now() - started)

    async def _renew(self, token: str) -> None:
        try:
            self.identity = await self._authenticator.renew(self.identity, token)
        except IdentityError as error:
            if error.passing:
                return  # a renewed token may be good, and the present one is until it expires
            raise refused(error) from None
        self.overdue = False
        self._stats.renewed += 1

    def _second_hello(self, hello: pb.Hello) -> None:
        if hello.node != self.node:
            text = f"the stream of node {self.node!r} claims node {hello.node!r}"
            raise StreamClosed(Refusal.ANOTHER_NODE, Code.PERMISSION_DENIED, text)
        raise StreamClosed(
            CloseReason.MALFORMED, Code.INVALID_ARGUMENT, "a second Hello in one stream"
        )

    # -- the way back -----------------------------------------------------------

    def resync(self, reason: str) -> None:
        """Ask for a snapshot, now or as soon as the next request is allowed."""
        self._resyncs.ask(reason)
        self.due_at = _NOW
        self._resync_if_due(self._rules.now())

    def _resync_if_due(self, now: float) -> None:
        reason = self._resyncs.due(now)
        if reason:
            self._outbox.put(codec.resync(reason))
            self._stats.resyncs += 1

    def order_repair(self, order: AgentOrder) -> None:
        deadline = self._boottime + self._rules.now() + order.within
        self._outbox.put(codec.repair_order(order, deadline))

    def cancel_repair(self, operation: str, reason: str) -> None:
        self._outbox.put(codec.cancel_repair(operation, reason))

    def repair_result_taken(self, operation: str) -> None:
        self._outbox.put(codec.repair_result_taken(operation))

    def answer_permission(self, operation: str, refusal: str) -> None:
        self._outbox.put(codec.permission(operation, refusal))

    def request_gpu_use(self, request: str, *, pods: bool) -> None:
        self._outbox.put(codec.gpu_use_request(request, pods=pods))

    def close(self, reason: str) -> None:
        self._stop(StreamClosed(CloseReason.CLOSED, Code.UNAVAILABLE, reason))

    def crowd_out(self, text: str) -> None:
        """Too many of its node wait for their Hello, and it has waited longest."""
        self._stop(StreamClosed(CloseReason.TOO_MANY, Code.RESOURCE_EXHAUSTED, text))

    def revoke(self, reason: str) -> None:
        """The cluster says that its credentials count no more."""
        self._stop(StreamClosed(Refusal.POD_DELETED, Code.UNAUTHENTICATED, reason))

    def supersede(self, by: str) -> None:
        """A newer stream of the node reports for it now."""
        text = f"a newer stream of node {self.node!r} has taken over, from {by}"
        self._stop(StreamClosed(CloseReason.SUPERSEDED, Code.ABORTED, text))

    # -- its end ----------------------------------------------------------------

    def tick(self, now: float, wall: float, *, renewals_may_fail: bool) -> None:
        """Apply the changes that time brings: silence, expiry.

        Before `due_at`, with credentials that are valid, there are none.
        """
        self._resync_if_due(now)
        if not self._resyncs.wanted:
            self.due_at = self.last_heard + self._rules.silent_after
        if now - self.last_heard > self._rules.silent_after:
            text = f"no message for {self._rules.silent_after:g} s"
            self._stop(StreamClosed(CloseReason.SILENT, Code.DEADLINE_EXCEEDED, text))
        elif self.identity.expires is not None and wall >= self.identity.expires + LEEWAY:
            self.overdue = renewals_may_fail
            if not renewals_may_fail:
                text = "the credentials expired and were not renewed within the stream"
                self._stop(StreamClosed(Refusal.EXPIRED, Code.UNAUTHENTICATED, text))

    # -- calls from its queue and its acknowledgements ---------------------------

    def write(self, message: pb.AggregatorMessage) -> Awaitable[None]:
        return self._context.write(message)

    def overflowed(self) -> None:
        text = "the agent does not read what it is sent"
        self._stop(StreamClosed(CloseReason.SLOW_READER, Code.RESOURCE_EXHAUSTED, text))

    def safe(self, seq: int) -> None:
        self._stats.acks += 1
        self._outbox.defer_ack(seq)
        self._ack_pacer.schedule_ack(self._outbox)

    def unsafe(self, error: BaseException) -> None:
        log.error(
            "evidence could not be made safe; its agent will send all of it again",
            extra={
                "event": "stream.evidence_unsafe",
                "node": self.node,
                "error": f"{type(error).__name__}: {error}",
            },
        )
        text = "the evidence could not be made durable; send it again"
        self._stop(StreamClosed(CloseReason.UNSAFE, Code.UNAVAILABLE, text))

    def _stop(self, ending: StreamClosed) -> None:
        """End it from outside its own task. The sink is told so at once, and called no more
        for it.
        """
        if self._ending is None and self._task is not None:
            self._end(ending)
            self._stopping = True
            self._task.cancel()

    def _end(self, ending: StreamClosed) -> None:
        if self._ending is not None:
            return
        self._ending = ending
        self._outbox.close()
        self._acks.close()
        self._await_hello("")
        if self._attached:
            self._stats.ended[ending.why] += 1
            self._streams.keep_used(self.node, self._allowance.used(self._rules.now()))
            self._streams.detach(self)
            self._rules.orders.on_detach(self.node)
            self._intake.on_disconnect(self.node, self, str(ending))
        else:
            self._stats.refused[ending.why] += 1
        self.log_close(ending)

    def log_close(self, ending: StreamClosed) -> None:
        ordinary = ending.why in {CloseReason.LEFT, CloseReason.CLOSED}
        log_fields = {} if ordinary else self._sparingly(ending.why, self._rules.now())
        if log_fields is not None:
            log.log(
                logging.DEBUG if ordinary else logging.WARNING,
                "stream ended" if self._attached else "stream refused",
                extra={
                    "event": "stream.ended" if self._attached else "stream.refused",
                    "node": self.node,
                    "peer": self.peer,
                    "why": ending.why,
                    "detail": str(ending),
                    **log_fields,
                },
            )


def _known(read: object) -> pb.AgentMessage | None:
    """The message that was read, or None if it is `grpc.aio.EOF`."""
    return read if isinstance(read, pb.AgentMessage) else None
