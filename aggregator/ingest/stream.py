"""One agent's stream: Hello, Snapshot, then deltas and heartbeats, until it ends.

It is also the way back (`AgentConnection`). A message that can't be understood, or that claims
another node, ends this stream with a status that gives the reason, and affects no other.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Protocol

from attrs import Factory, define, field

from aggregator.health.model import Delta, Lost, Measurements, Snapshot
from aggregator.ingest import codec
from aggregator.ingest.ack_pacing import AckPacer
from aggregator.ingest.agent_exchange import AgentExchange, Calls, Code, known_message
from aggregator.ingest.close_reason import CloseReason, StreamClosed, gone, malformed
from aggregator.ingest.identity import LEEWAY, Refusal
from aggregator.ingest.interfaces import EvidenceSink
from aggregator.ingest.resync_backoff import ResyncBackoff
from aggregator.ingest.send_queue import Acks
from aggregator.repairers.agent_orders import AgentOrder, AgentOrders
from aggregator.runtime.text import counted
from sickbay.v1 import sickbay_pb2 as pb

log = logging.getLogger(__name__)

#: Seconds, as for the Hello.
SNAPSHOT_WITHIN = 120.0
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


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The settings of every stream of this aggregator. Durations are seconds.

    ``now`` is monotonic, ``wall`` since the epoch. ``cluster_away`` returns whether the API server
    can't be reached, so that no agent can renew its token. ``among_others``: this replica's own
    address, if there are others to which an agent could go when this one falls silent; else empty.
    ``orders`` takes what agents report of repairs that were ordered.
    """

    name: str
    version: str
    heartbeat: float
    silent_after: float
    now: Callable[[], float]
    wall: Callable[[], float]
    cluster_away: Callable[[], bool]
    among_others: Callable[[], str] = lambda: ""
    orders: AgentOrders = dataclass_field(default_factory=AgentOrders)


class Streams(Calls, Protocol):
    """The streams of all nodes, as one stream knows them."""

    def attach(self, stream: "Stream") -> None: ...

    def detach(self, stream: "Stream") -> None: ...

    def peers(self, stream: "Stream") -> Sequence[str]:
        """The addresses that this stream's node is to probe."""


@define(eq=False, repr=False, kw_only=True, weakref_slot=False)
class Stream(AgentExchange):
    """One call of Connect, from its opening to its end."""

    _rules: StreamConfig
    _calls: Streams
    _intake: EvidenceSink
    _ack_pacer: AckPacer
    _attached: bool = False
    _acks: Acks = field(init=False, default=Factory(Acks, takes_self=True))
    _seq: int = 0
    _series: int = 0  # measured series that it has named; -1: a message of them was wrong
    #: Entries were dropped since the last whole snapshot, so the digests cannot agree.
    _partial: bool = False
    _resyncs: ResyncBackoff = Factory(ResyncBackoff)
    _named: tuple[str, ...] | None = ()  # the peers that its agent knows
    _boottime: float = 0.0  # the agent's CLOCK_BOOTTIME less our time, where it reports that
    repair_verbs: tuple[str, ...] = ()
    test_profiles: tuple[str, ...] = ()
    #: Its heartbeats are answered, by promise, with this address to reach us.
    answers: str = ""
    instance: str = ""
    boot_id: str = ""
    #: An earlier stream of the same call has welcomed the agent.
    welcomed: bool = False
    #: When the agent wrote its Hello, by its CLOCK_BOOTTIME in milliseconds; 0: unknown.
    hello_written: int = 0
    last_seen: float = field(init=False)
    #: When time may next change the stream's state, except for its credentials' end (monotonic).
    due_at: float = _NOW
    #: Its credentials have expired, and it stays because no agent can renew its own.
    overdue: bool = False

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.last_seen = self._rules.now()

    # -- the exchange -----------------------------------------------------------

    async def serve(self) -> StreamClosed:
        """Serve until the stream ends, and return how. Cancelled from outside (the connection
        broke) it raises that.

        A stream is in this call all its life. So it keeps no message, and waits for the next in no
        call of its own, which would be 240 bytes for each.
        """
        self._task = asyncio.current_task()
        message: pb.AgentMessage | None
        try:
            await self._greet()
            message = await self._first("snapshot", SNAPSHOT_WITHIN, CloseReason.NO_SNAPSHOT)
            while message is not None:
                self.last_seen = self._rules.now()
                await self._dispatch(message)
                message = None
                message = known_message(await self._context.read())
                if message is not None:
                    await self._throttle(message)
            ending = gone()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - `_ended_by` reports
            ending = self._ended_by(error)
        return await self._leave(ending)

    async def _greet(self) -> None:
        _, message = await self._receive_hello()
        introduced = message.hello
        dropped = codec.Dropped()
        try:
            claimed = codec.hello(introduced, dropped)
            self._note_boottime(introduced.boottime_ms)
        except codec.InvalidMessage as error:
            ending = malformed("hello", error)
            self._intake.on_refusal(self.node, str(ending))
            raise ending from None
        hello = replace(claimed, node_uid=self.identity.node_uid)
        self.instance, self.boot_id = hello.instance, hello.boot_id
        self.repair_verbs = codec.repair_verbs(introduced)
        self.test_profiles = codec.test_profiles(introduced)
        self.last_seen = self._rules.now()
        self.hello_written = introduced.boottime_ms
        self._calls.attach(self)
        self._attached = True
        self._inherit_budget()
        self._intake.on_connect(hello, self)
        if self.welcomed:  # its peers are named later: until all are here they change
            self._named = None
        else:
            self._welcome(self._calls.peers(self))
        self._log_dropped(0, dropped)

    def _welcome(self, peers: Sequence[str]) -> None:
        self._named = tuple(peers)
        self._intake.assigned(self.node, self._named)
        # A promise stays: it is not sent again each time that another replica restarts.
        self.answers = self.answers or self._rules.among_others()
        self._outbox.put(
            codec.welcome(
                name=self._rules.name,
                version=self._rules.version,
                heartbeat=self._rules.heartbeat,
                peers=self._named,
                answer_within=ANSWER_WITHIN if self.answers else 0.0,
                address=self.answers,
            )
        )

    def name_peers(self) -> None:
        """Send the agent the addresses to probe, if they have changed since the last message.

        Also that its heartbeats are answered, once there are other replicas.
        """
        peers = tuple(self._calls.peers(self))
        known = peers == self._named and (self.answers or not self._rules.among_others())
        if self._attached and self._ending is None and not known:
            self._welcome(peers)

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
                    if await self._renew(message.credentials.token):
                        self.overdue = False
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
            self._log_dropped(message.seq, dropped)
            entries = counted(dropped.entries, "entry was", "entries were")
            text = f"{entries} not taken: {dropped.reason}"
            evidence = replace(evidence, lost=(*evidence.lost, Lost(US, dropped.entries, text)))
        self._partial = bool(dropped.entries) or (
            self._partial and not isinstance(message, pb.Snapshot)
        )
        if self._acks.full:
            text = "too much of it waits to be made durable; send it again in one snapshot"
            raise StreamClosed(CloseReason.UNSAFE, Code.UNAVAILABLE, text)
        self._seq = message.seq
        if isinstance(message, pb.Snapshot):
            self._resyncs.answered()
            self._series = min(self._series, 0)  # with each snapshot the series begin anew
        self._acks.add(message.seq, self._intake.on_evidence(self.node, evidence, self.last_seen))
        # The node is evaluated after this: its agent's next message is charged for that.
        earlier = self._intake.evaluation_cost(self.node)
        self._allowance.charge(self._rules.now() - started + earlier)

    async def _understood(
        self, message: pb.Snapshot | pb.Delta
    ) -> tuple[Snapshot | Delta, codec.Dropped]:
        """The message as evidence. A large one yields to other tasks on the event loop."""
        dropped, at = codec.Dropped(), self.last_seen
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

    def _log_dropped(self, seq: int, dropped: codec.Dropped) -> None:
        """Report it to the agent and in our log, once in a while, because an old agent keeps
        sending the entry.
        """
        if not dropped.entries:
            return
        self._stats.dropped += dropped.entries
        log_fields = self._calls.sparingly(f"dropped: {self.node}", self._rules.now())
        if log_fields is not None:
            self._outbox.put(codec.entries_dropped(seq, dropped))
            extra = {"node": self.node, "entries": dropped.entries, "reason": dropped.reason}
            log.warning(
                "entries of an agent's message are outside the contract's bounds; "
                "they were dropped, all others count",
                extra={"event": "stream.entries_dropped", **extra, **log_fields},
            )

    def _note_boottime(self, milliseconds: int) -> None:
        """The agent reports its clock: a message that was held up makes deadlines earlier only."""
        if milliseconds:
            self._boottime = codec.boottime("boottime_ms", milliseconds) - self._rules.now()

    def _beat(self, heartbeat: pb.Heartbeat) -> None:
        self._note_boottime(heartbeat.boottime_ms)
        self._intake.on_heartbeat(self.node, self.last_seen)
        if self._intake.digest(self.node) == heartbeat.digest:
            self._resyncs.agreed()
        elif not self._partial:  # a dropped entry would be dropped from the next snapshot, too
            self.resync("the digest of your state differs from ours")
        if self.answers:
            self._outbox.answer()

    def on_agreed_heartbeat(self) -> None:
        """A heartbeat whose digest we have agreed to came to the gateway that forwards it."""
        self._stats.messages["heartbeat"] += 1
        self.last_seen = self._rules.now()
        if self._attached and self._ending is None:
            self._intake.on_heartbeat(self.node, self.last_seen)

    def _measure(self, message: pb.Measurements) -> None:
        """Measurements are no evidence: one that is wrong ends them, and not the stream."""
        if self._series < 0:
            return
        started = self._rules.now()
        try:
            measured = codec.measurements(message, self._series)
            self._series += len(measured.series)
        except codec.InvalidMessage as error:
            measured = Measurements(self._series, (), (), tuple(range(self._series)))
            self._series = -1
            log_fields = self._calls.sparingly(f"measurements: {self.node}", self._rules.now())
            if log_fields is not None:
                extra = {"node": self.node, "reason": str(error), **log_fields}
                log.warning("measurements of this stream are not taken any more", extra=extra)
        self._intake.on_measurements(self.node, measured, self.last_seen)
        self._allowance.charge(self._rules.now() - started)

    def _second_hello(self, hello: pb.Hello) -> None:
        if hello.node != self.node:
            text = f"the stream of node {self.node!r} claims node {hello.node!r}"
            raise StreamClosed(Refusal.ANOTHER_NODE, Code.PERMISSION_DENIED, text)
        raise StreamClosed(
            CloseReason.MALFORMED, Code.INVALID_ARGUMENT, "a second Hello in one stream"
        )

    # -- the way back -----------------------------------------------------------

    def resync(self, reason: str) -> None:
        """Request a snapshot, now or as soon as the next request is allowed."""
        self._resyncs.request(reason)
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
        cancelled = pb.CancelRepair(operation_id=operation, message=reason)
        self._outbox.put(pb.AggregatorMessage(cancel_repair=cancelled))

    def repair_result_taken(self, operation: str) -> None:
        taken = pb.RepairResultTaken(operation_id=operation)
        self._outbox.put(pb.AggregatorMessage(repair_result_taken=taken))

    def answer_permission(self, operation: str, refusal: str) -> None:
        self._outbox.put(codec.permission(operation, refusal))

    def request_gpu_use(self, request: str, *, pods: bool) -> None:
        wanted = pb.GpuUseRequest(request_id=request, pods=pods)
        self._outbox.put(pb.AggregatorMessage(gpu_use_request=wanted))

    def revoke(self, reason: str) -> None:
        """The cluster reports that its credentials count no more."""
        self.stop(StreamClosed(Refusal.POD_DELETED, Code.UNAUTHENTICATED, reason))

    # -- its end ----------------------------------------------------------------

    def tick(self, now: float, wall: float, *, renewals_may_fail: bool) -> None:
        """Apply the changes that time brings: silence, expiry.

        Before `due_at`, with credentials that are valid, there are none.
        """
        self._resync_if_due(now)
        if not self._resyncs.wanted:
            self.due_at = self.last_seen + self._rules.silent_after
        if now - self.last_seen > self._rules.silent_after:
            text = f"no message for {self._rules.silent_after:g} s"
            self.stop(StreamClosed(CloseReason.SILENT, Code.DEADLINE_EXCEEDED, text))
        elif self.identity.expires is not None and wall >= self.identity.expires + LEEWAY:
            self.overdue = renewals_may_fail
            if not renewals_may_fail:
                text = "the credentials expired and were not renewed within the stream"
                self.stop(StreamClosed(Refusal.EXPIRED, Code.UNAUTHENTICATED, text))

    # -- calls from its acknowledgements, and its end -----------------------------

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
        self.stop(StreamClosed(CloseReason.UNSAFE, Code.UNAVAILABLE, text))

    def _detach(self, ending: StreamClosed) -> bool:
        self._acks.close()
        if self._attached:
            self._calls.detach(self)
            self._rules.orders.on_detach(self.node)
            self._intake.on_disconnect(self.node, self, str(ending))
        return self._attached
