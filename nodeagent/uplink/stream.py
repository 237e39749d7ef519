"""One stream, from Hello to its end: the writer builds messages from the latch, the reader obeys.

Only replies to commands are queued. When the stream can take a message, the changes are put into
one; while it cannot, the latch holds them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from nodeagent.clock import Clock
from nodeagent.commands import CommandRefused, Host
from nodeagent.dataclass import dataclass
from nodeagent.uplink import codec
from nodeagent.uplink.dialer import DialError, TokenFile
from nodeagent.uplink.liveness import PeerLiveness
from nodeagent.uplink.measurements import EVERY, MeasurementEncoder
from sickbay.v1 import sickbay_pb2 as pb

log = logging.getLogger(__name__)

#: Before Welcome sets another.
HEARTBEAT = 15.0
#: Counts and messages are sent at most this often; new faults, statuses and signs at once.
LAZY = 1.0
#: In a long burst each waits twice as long as the one before, up to this long.
LAZIEST = 5.0
#: How long the other side may take to greet or to show that it lives, and to end an ended stream.
GREETING = 15.0
FAREWELL = 1.0
#: Commands under way at a time; more than these are refused.
COMMANDS = 8

#: Answers of an aggregator that refuses an agent for good, however often it comes.
_REFUSALS = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

_GATEWAY = pb.DESCRIPTOR.services_by_name["AgentGateway"]
_UNKNOWN = (
    "the aggregator does not know this agent's service: there is no "
    f"{_GATEWAY.full_name}/{_GATEWAY.methods[0].name} at its address; install agent and aggregator "
    "of the same version, or correct aggregator.address (UNIMPLEMENTED: {details})"
)

Call = grpc.aio.StreamStreamCall[pb.AgentMessage, pb.AggregatorMessage]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a stream ended.

    ``refused``: the other side refuses for good, and coming back soon won't change it. ``late``: we
    gave up, because it had not greeted us.
    """

    reason: str
    welcomed: bool
    refused: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class ConnectTimeouts:
    """Seconds from the beginning of an attempt.

    Within ``life`` the other side must have greeted us, or show that its process lives: our
    connection's handshake is done, which a kernel can't do for a process. Then it has
    ``greeting``, for others may be before us.
    """

    life: float = GREETING
    greeting: float = GREETING


class Stream:
    """One call of the stream. ``on_welcome`` is called when the other side has accepted us.

    ``on_beat`` is called at each heartbeat: the agent is awake for it, and other work may come
    along.

    ``patience``: how long that may take. ``connected`` returns whether our connection's handshake
    is done; ``lives`` tries whether a process accepts another one at an address.
    """

    def __init__(
        self,
        call: Call,
        *,
        host: Host,
        clock: Clock,
        random: Callable[[], float],
        token: TokenFile,
        on_welcome: Callable[[str], None],
        lives: Callable[[str], Awaitable[bool]],
        connected: Callable[[], bool],
        patience: ConnectTimeouts,
        on_beat: Callable[[], None] = lambda: None,
        lazy: float = LAZY,
    ) -> None:
        self.sent = 0
        self._call = call
        self._host = host
        self._clock = clock
        self._random = random
        self._token = token
        self._on_welcome = on_welcome
        self._connected = connected
        self._patience = patience
        self._on_beat = on_beat
        self._lazy = lazy
        self._lazy_wait = lazy
        self._wake = asyncio.Event()
        self._welcome = asyncio.Event()
        self._stopping = False
        self._resync = False
        self._refused = False
        self._late = False
        self._sign = PeerLiveness(lives)
        self._replies: deque[pb.AgentMessage] = deque()
        self._commands: set[asyncio.Task[None]] = set()
        self._interval = HEARTBEAT
        self._beat_at = 0.0
        self._lazy_at = 0.0
        self._measurements = MeasurementEncoder()
        self._measure_at = 0.0

    def wake(self) -> None:
        """The latch has changed."""
        self._wake.set()

    def stop(self) -> None:
        """Send the pending changes, then half-close."""
        self._stopping = True
        self._wake.set()

    async def run_stream(self, hello: pb.AgentMessage) -> Ended:
        """Live until either side ends it. Raises nothing for a stream that fails."""
        parts = [
            asyncio.create_task(self._until_over(part))
            for part in (self._write(hello), self._read(), self._expect_life())
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            reasons = [task.result() for task in done]
        finally:
            self._call.cancel()
            self._sign.on_peer_message()
            for task in parts:
                task.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            if self._host.orders is not None:
                self._host.orders.stream_ended()
        reason = next(filter(None, reasons), "")
        welcomed = self._welcome.is_set()
        return Ended(reason, welcomed, self._refused, self._late)

    async def _until_over(self, part: Awaitable[str]) -> str:
        """``part``'s reason for its end, or the call's."""
        try:
            return await part
        except grpc.aio.AioRpcError as error:
            return self._status(error.code(), error.details())
        except asyncio.InvalidStateError:
            # A write on an ended call raises these; the call itself knows why it ended.
            return self._status(await self._call.code(), await self._call.details())

    def _status(self, code: grpc.StatusCode, details: str | None) -> str:
        self._refused = code in _REFUSALS
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return _UNKNOWN.format(details=details)
        return f"{code.name}: {details}"

    # -- writing -------------------------------------------------------------------------------

    async def _write(self, hello: pb.AgentMessage) -> str:
        await self._send(hello)
        # An aggregator that refuses us gets no more messages. A write under way when the other side
        # ends the call would hide its reason: grpc.aio puts INTERNAL in its place.
        while not (self._welcome.is_set() or self._stopping):
            await self._wake.wait()
            self._wake.clear()
        if not self._welcome.is_set():
            return "stopped"
        await self._begin_anew()
        # 10,000 agents that came at once must not beat at once.
        self._beat_at = self._now() + self._interval * self._random()
        self._measure_at = self._now() + EVERY * self._random()
        while True:
            self._wake.clear()
            await self._send_what_is_due()
            if self._stopping:
                break
            await self._sleep()
        await self._call.done_writing()
        await asyncio.sleep(FAREWELL)  # for the reader, which sees the other side's end
        return "stopped"

    async def _send_what_is_due(self) -> None:
        latch = self._host.latch
        if self._resync:
            self._resync = False
            await self._begin_anew()
            # A new controller reads the snapshots of all agents now, and not their heartbeats too.
            self._beat_at = self._now() + self._interval
            self._measure_at = max(self._measure_at, self._now() + EVERY / 2)
        elif latch.urgent or (latch.pending and (self._stopping or self._now() >= self._lazy_at)):
            await self._send_delta()
        while self._replies:
            await self._send(self._replies.popleft())
        orders = self._host.orders
        if orders is not None and orders.has_due:
            for message in await orders.due():
                await self._send(message)
                orders.sent(message)
        if self._now() >= self._beat_at:
            self._beat_at = self._now() + self._interval
            await self._beat()
            # With a beat: the agent wakes up no more often, and one packet has both.
            if self._now() >= self._measure_at:
                self._measure_at = self._now() + EVERY - self._interval / 2
                await self._send_measurements()

    async def _begin_anew(self) -> None:
        """Report all, as to an aggregator that has received nothing: it may be another one now."""
        await self._send_snapshot()
        self._measurements = MeasurementEncoder()
        if self._host.orders is not None:
            self._host.orders.new_stream()

    async def _send_snapshot(self) -> None:
        now = self._clock.boottime()
        out = self._host.latch.snapshot(now)
        self._host.persist()
        await self._send(codec.snapshot(out, now, self._host.quiesced_for()))
        self._lazy_at = self._now() + self._lazy

    async def _send_delta(self) -> None:
        now = self._clock.boottime()
        urgent = self._host.latch.urgent
        out = self._host.latch.delta(now)
        if out is not None:
            message = codec.delta(out, now)
            self._host.persist()
            self._wait_longer(urgent=urgent)
            await self._send(message)

    def _wait_longer(self, *, urgent: bool) -> None:
        """Set when counts may be sent again; longer if they have changed all the while."""
        on_and_on = not urgent and self._now() - self._lazy_at < self._lazy_wait
        self._lazy_wait = min(2 * self._lazy_wait, LAZIEST) if on_and_on else self._lazy
        self._lazy_at = self._now() + self._lazy_wait

    async def _beat(self) -> None:
        self._on_beat()
        try:
            renewed = self._token.renewed()
        except DialError as error:
            log.warning(
                "the token for the aggregator was not renewed: %s",
                error,
                extra={"event": "uplink.token_not_renewed"},
            )
        else:
            if renewed:
                await self._send(codec.credentials(renewed))
        latch = self._host.latch
        self._sign.heartbeat_sent()
        now = 0.0 if self._host.orders is None else self._clock.boottime()
        await self._send(codec.heartbeat(latch.digest(), latch.last_seq, now))

    async def _send_measurements(self) -> None:
        message = self._measurements.message(self._host.measurements())
        if message is not None:
            await self._send(message)

    async def _send(self, message: pb.AgentMessage) -> None:
        must_be_taken = self._sign.sends()
        await self._call.write(message)
        if must_be_taken:
            self._sign.on_peer_message()
        self.sent += 1

    async def _sleep(self) -> None:
        due = self._beat_at
        if self._host.latch.pending:
            due = min(due, self._lazy_at)
        # One timer and no exception: a simulation does this for each of thousands of nodes.
        alarm = asyncio.get_running_loop().call_at(due, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # -- reading -------------------------------------------------------------------------------

    async def _expect_life(self) -> str:
        """A Welcome in time, and then answers, where they were promised."""
        life, greeting = self._patience.life, self._patience.greeting
        if not await self._welcomed_within(life):
            if not self._connected():
                self._late = True
                return f"no greeting in {life:g} s"
            if not await self._welcomed_within(greeting - life):
                self._late = True
                return f"no greeting in {greeting:g} s, though the address answers"
        return await self._sign.gone()

    async def _welcomed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._welcome.wait()
        except TimeoutError:
            return self._welcome.is_set()
        return True

    async def _read(self) -> str:
        while True:
            message = await self._call.read()
            if not isinstance(message, pb.AggregatorMessage):  # EOF
                return self._status(await self._call.code(), await self._call.details())
            self._sign.on_peer_message()
            self._obey(message)

    def _obey(self, message: pb.AggregatorMessage) -> None:
        match message.WhichOneof("body"):
            case "welcome":
                self._greeted(message.welcome)
            case "ack":
                if self._host.latch.acknowledge(message.ack.seq):
                    self._host.persist()
            case "resync":
                log.info(
                    "the aggregator requested a snapshot: %s",
                    message.resync.reason,
                    extra={"event": "uplink.resync"},
                )
                self._resync = True
                self._wake.set()
            case "entries_dropped":
                dropped = message.entries_dropped
                log.warning(
                    "the aggregator dropped entries that are outside the contract's bounds",
                    extra={
                        "event": "uplink.entries_dropped",
                        "entries": dropped.entries,
                        "reason": dropped.reason,
                    },
                )
            case "clear_faults" | "quiesce" | "run_checks":
                self._begin(message)
            case "gpu_use_request":
                self._begin_gpu_use(message.gpu_use_request)
            case "repair_order":
                self._take_order(message.repair_order)
            case "repair_result_taken" | "cancel_repair" | "permission":
                self._about_order(message)
            case unknown:
                log.warning("the aggregator sent a message of an unknown kind: %s", unknown)

    def _greeted(self, welcome: pb.Welcome) -> None:
        if welcome.heartbeat_interval_ms:
            interval = max(1.0, welcome.heartbeat_interval_ms / 1000)
            self._beat_at = min(self._beat_at, self._now() + interval * self._random())
            self._interval = interval
        self._sign.promised(welcome.answer_within_ms / 1000, welcome.address)
        self._host.name_peers(welcome.peers)
        self._wake.set()
        if not self._welcome.is_set():  # later ones name other peers and replicas
            self._welcome.set()
            self._on_welcome(welcome.aggregator)

    def _begin(self, message: pb.AggregatorMessage) -> None:
        if len(self._commands) >= COMMANDS:
            command = getattr(message, message.WhichOneof("body") or "")
            self._reply(command.command_id, ok=False, message="too many commands at once")
            return
        task = asyncio.create_task(self._carry_out(message))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def _carry_out(self, message: pb.AggregatorMessage) -> None:
        host = self._host
        try:
            if message.HasField("clear_faults"):
                clear = message.clear_faults
                command_id = clear.command_id
                log.info(
                    "the aggregator clears latched faults",
                    extra={
                        "event": "fault.cleared_by_aggregator",
                        "for": clear.reason,
                        "component": clear.component,
                    },
                )
                result = host.clear_faults(clear.component, clear.code)
            elif message.HasField("quiesce"):
                command_id = message.quiesce.command_id
                seconds = message.quiesce.for_ms / 1000
                result = await host.quiesce(seconds)
            else:
                command_id = message.run_checks.command_id
                result = await host.run_checks(list(message.run_checks.checks))
        except CommandRefused as refused:
            self._reply(command_id, ok=False, message=str(refused))
        else:
            self._reply(command_id, ok=True, message=result)

    def _begin_gpu_use(self, request: pb.GpuUseRequest) -> None:
        """Beyond the limit of requests at once the aggregator requests it again."""
        if len(self._replies) < COMMANDS and len(self._commands) < COMMANDS:
            task = asyncio.create_task(self._answer_gpu_use(request))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    async def _answer_gpu_use(self, request: pb.GpuUseRequest) -> None:
        use = await self._host.gpu_use(pods=request.pods)
        self._replies.append(codec.gpu_use(request.request_id, use))
        self._wake.set()

    def _take_order(self, order: pb.RepairOrder) -> None:
        if self._host.orders is not None:
            self._host.orders.order(order)
            return
        if len(self._replies) < COMMANDS:
            self._replies.append(codec.order_not_allowed(order, self._host.latch.boot_id))
            self._wake.set()

    def _about_order(self, message: pb.AggregatorMessage) -> None:
        orders = self._host.orders
        if orders is None:
            return
        if message.HasField("cancel_repair"):
            orders.cancel(message.cancel_repair.operation_id)
        elif message.HasField("permission"):
            orders.permission(message.permission)
        elif len(self._commands) < COMMANDS:  # beyond that the result is sent once more, no harm
            taken = orders.acknowledged(message.repair_result_taken.operation_id)
            task = asyncio.create_task(taken)
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    def _reply(self, command_id: str, *, ok: bool, message: str) -> None:
        self._replies.append(codec.result(command_id, ok=ok, message=message))
        self._wake.set()
