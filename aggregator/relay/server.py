"""The controller's end of the gateways' relays: a service on the agents' listener.

Each call of an agent that a gateway opens is a `Stream` of this process, with the agent's own
credentials verified here once more: a gateway's token alone can represent no node.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc
from attrs import define, field
from google.protobuf.message import DecodeError

from aggregator.ingest.agent_streams import AgentStreams
from aggregator.ingest.close_reason import CloseReason, StreamClosed, refused
from aggregator.ingest.identity import AUTHORIZATION, Caller, IdentityError
from aggregator.ingest.stream import Stream
from aggregator.relay.auth import ReplicaAuthenticator
from aggregator.relay.frame_queue import FrameQueue
from aggregator.relay.protocol import (
    ANSWERED_WITHIN,
    BATCH_BYTES,
    BATCH_EVERY,
    GATEWAY_SILENT_FOR,
    POLL_EVERY,
    PROTOCOL,
    RELAY_BYTES,
    SILENT_FOR,
    Liveness,
)
from aggregator.relay.relayed_context import RelayedContext, RelayOverflow
from aggregator.relay.resync_pacer import ResyncPacer
from aggregator.runtime.rate_limited_log import RateLimitedLog
from aggregator.runtime.tasks import run_until_first_exit
from sickbay.v1 import relay_pb2 as pb
from sickbay.v1 import relay_pb2_grpc

log = logging.getLogger(__name__)

#: Streams of agents on one relay: more nodes than a cluster has.
MOST_STREAMS = 100_000
#: The streams of a relay that has ended may take this long to end (seconds).
_ENDED_WITHIN = 5.0
#: Frames that are taken before other tasks have a turn.
_AT_ONCE = 50

_Context = grpc.aio.ServicerContext[pb.GatewayBatch, pb.ControllerBatch]
_Code = grpc.StatusCode


class _Refused(StreamClosed):
    """The relay ends with this code; the text is for the log at the other end."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(CloseReason.CLOSED, code, text)


@dataclass(frozen=True, slots=True)
class ControllerRole:
    """The parts that a controller has, and a gateway has not. ``holds``: whether this replica
    still holds the Lease, as far as it knows. ``probe_key``: the secret by which it assigns probes.
    """

    streams: AgentStreams
    pacer: ResyncPacer
    holds: Callable[[], bool]
    probe_key: bytes = b""


@define(eq=False, repr=False, slots=False)
class RelayService(relay_pb2_grpc.RelayServicer):
    """Serves gateways from `begin` on; before that it refuses them.

    ``now`` is in seconds, and only limits the rate of log lines.
    """

    _replica_auth: ReplicaAuthenticator
    _name: str = field(kw_only=True)
    _version: str = field(kw_only=True)
    _now: Callable[[], float] = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._sparingly = RateLimitedLog()
        self._role: ControllerRole | None = None
        self._links: set[_Link] = set()

    def register(self, server: grpc.aio.Server) -> None:
        relay_pb2_grpc.add_RelayServicer_to_server(self, server)

    def begin(self, role: ControllerRole) -> None:
        """Be the controller from now on."""
        self._role = role

    def close(self, reason: str) -> None:
        """Serve no gateway any more. Their agents' calls stay with them."""
        self._role = None
        for link in self._links:
            link.end(reason)

    @property
    def gateways(self) -> Mapping[str, str]:
        """The version of each gateway that has a relay, by its name."""
        return {link.hello.name: link.hello.version for link in self._links}

    async def Forward(self, _: object, context: _Context) -> None:  # type: ignore[override]  # noqa: N802  # the read and write calls of grpc.aio
        """One gateway's relay, until it ends."""
        try:
            await self._serve(context)
        except StreamClosed as ended:
            fields = self._sparingly(ended.code.name, self._now())
            if fields is not None:
                about = {"peer": context.peer(), "code": ended.code.name, "reason": str(ended)}
                log.info("a relay ends", extra={"event": "relay.refused", **about, **fields})
            # The error that `abort` raises would keep the call in memory until a collection.
            context.set_code(ended.code)
            context.set_details(str(ended))

    async def _serve(self, context: _Context) -> None:
        pairs = context.invocation_metadata() or ()
        metadata = {str(key): value for key, value in pairs if isinstance(value, str)}
        try:
            until = await self._replica_auth.authenticate(context.peer(), metadata)
        except IdentityError as error:
            raise refused(error) from None
        hello = await self._gateway_hello(context)
        role = self._role
        if role is None or not role.holds():
            raise _Refused(_Code.FAILED_PRECONDITION, "this replica is not the controller")
        await context.write(
            pb.ControllerBatch(
                hello=pb.ControllerHello(
                    protocol=PROTOCOL,
                    name=self._name,
                    version=self._version,
                    probe_key=role.probe_key,
                )
            )
        )
        log.info(
            "a gateway forwards its agents' messages",
            extra={"event": "relay.attached", "gateway": hello.name, "peer": context.peer()},
        )
        for older in self._links:
            if older.hello.name == hello.name and older.silent_for >= SILENT_FOR:
                older.end("the gateway has connected anew")
        link = _Link(hello, context, role, self._replica_auth, until)
        self._links.add(link)
        role.pacer.join(link)
        try:
            await link.serve()
        finally:
            role.pacer.leave(link)
            self._links.discard(link)
            await link.settle()
            log.info(
                "a gateway's relay has ended",
                extra={"event": "relay.detached", "gateway": hello.name},
            )

    async def _gateway_hello(self, context: _Context) -> pb.GatewayHello:
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                first = await _read(context)
        except TimeoutError:
            raise _Refused(_Code.DEADLINE_EXCEEDED, "no hello of the gateway") from None
        if first is None or not first.HasField("hello"):
            raise _Refused(_Code.INVALID_ARGUMENT, "the first batch must be the gateway's hello")
        theirs = first.hello
        if theirs.protocol != PROTOCOL:
            text = (
                f"the gateway, version {theirs.version}, speaks relay protocol {theirs.protocol}, "
                f"and this controller {PROTOCOL}: finish the rollout"
            )
            raise _Refused(_Code.FAILED_PRECONDITION, text)
        if theirs.version != self._version:
            log.warning(
                "a gateway has another version than the controller",
                extra={
                    "event": "relay.gateway_version",
                    "gateway": theirs.version,
                    "here": self._version,
                },
            )
        return theirs


@define(eq=False, repr=False, slots=False)
class _Link:
    """One relay at the controller. Implements `ControllerLink` and `WaitingAgents`."""

    hello: pb.GatewayHello
    _context: _Context
    _role: ControllerRole
    _replica_auth: ReplicaAuthenticator
    _until: float

    def __attrs_post_init__(self) -> None:
        self._queue: FrameQueue[pb.ReplyFrame] = FrameQueue()
        self._contexts: dict[int, RelayedContext] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._permitted = 0
        self._unread = 0
        self._read_some = asyncio.Event()
        self._read_some.set()
        self._ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._liveness = Liveness()
        self.waiting = 0

    @property
    def silent_for(self) -> float:
        """Seconds without a batch of the gateway."""
        return self._liveness.silent_for

    async def serve(self) -> None:
        await run_until_first_exit(
            receive=self._receive(),
            send=self._send(),
            liveness=self._watch(),
            end=self._until_ended(),
        )

    def end(self, reason: str) -> None:
        if not self._ending.done():
            self._ending.set_result(reason)

    async def settle(self) -> None:
        """The relay is over: so are the streams, as if each agent's connection had broken."""
        for context in list(self._contexts.values()):
            context.close()
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=_ENDED_WITHIN)
            for task in late:
                task.cancel()

    def permit(self, count: int) -> None:
        self.waiting = max(0, self.waiting - count)
        self._permitted += count
        self._queue.wake()

    # -- ControllerLink ---------------------------------------------------------

    async def send(self, stream: int, message: bytes) -> None:
        await self._queue.room()
        self._queue.put(pb.ReplyFrame(stream=stream, message=message))

    def agree(self, stream: int, digest: int) -> None:
        self._queue.put(pb.ReplyFrame(stream=stream, agreed=digest))

    def digest(self, node: str) -> int | None:
        return self._role.streams.intake.digest(node)

    def waits(self, size: int) -> None:
        self._unread += size
        if self._unread > RELAY_BYTES:
            self._read_some.clear()
        else:
            self._read_some.set()

    # -- the stream -------------------------------------------------------------

    async def _until_ended(self) -> None:
        raise _Refused(_Code.UNAVAILABLE, await asyncio.shield(self._ending))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_EVERY)
            self._liveness.poll()
            if not self._role.holds():
                raise _Refused(_Code.UNAVAILABLE, "this replica is not the controller any more")
            if not self._read_some.is_set():
                self._liveness.on_message()  # we are the one that does not read
            elif self.silent_for >= GATEWAY_SILENT_FOR:
                text = f"the gateway has sent no message for {GATEWAY_SILENT_FOR:g} s"
                raise _Refused(_Code.DEADLINE_EXCEEDED, text)
            excused = self._role.streams.table.renewals_may_fail
            if self._replica_auth.has_expired(self._until) and not excused:
                raise _Refused(_Code.UNAUTHENTICATED, "the token has expired")

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + BATCH_EVERY
        while True:
            await self._queue.wait(due - loop.time())
            batch = pb.ControllerBatch(
                frames=self._queue.take(BATCH_BYTES), permitted=self._permitted
            )
            self._permitted = 0
            due = loop.time() + BATCH_EVERY
            try:
                await self._context.write(batch)
            except (grpc.aio.BaseError, asyncio.InvalidStateError):
                return  # the gateway has gone

    async def _receive(self) -> None:
        while True:
            await self._read_some.wait()
            batch = await _read(self._context)
            if batch is None:
                return
            self._liveness.on_message()
            if batch.token:
                await self._renew(batch.token)
            for count, frame in enumerate(batch.frames, 1):
                self._take(frame)
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                    self._liveness.on_message()  # the next batch is not read before this one's end
            for number in batch.heartbeats:
                context = self._contexts.get(number)
                if context is not None and context.stream is not None:
                    context.stream.on_agreed_heartbeat()
            if batch.waiting or not batch.frames:
                self.waiting = batch.waiting
                self._role.pacer.wake()

    async def _renew(self, token: str) -> None:
        try:
            self._until = await self._replica_auth.renew(token)
        except IdentityError as error:
            if not error.passing:  # else the present token counts until its end
                raise refused(error) from None

    def _take(self, frame: pb.AgentFrame) -> None:
        kind, number = frame.WhichOneof("body"), frame.stream
        if kind == "opened":
            self._open(number, frame.opened)
            return
        context = self._contexts.get(number)
        if context is None:
            return  # it has ended here meanwhile
        try:
            match kind:
                case "closed":
                    context.close()
                case "message":
                    context.feed(frame.message)
                case "part":
                    context.feed(frame.part, whole=False)
        except RelayOverflow as error:
            self._end_stream(number, _Code.RESOURCE_EXHAUSTED, str(error))
            context.close()

    def _open(self, number: int, opened: pb.AgentOpened) -> None:
        if number in self._contexts:
            raise _Refused(_Code.INVALID_ARGUMENT, f"stream {number} is opened a second time")
        if len(self._contexts) >= MOST_STREAMS:
            self._end_stream(number, _Code.RESOURCE_EXHAUSTED, "too many streams on one relay")
            return
        context = self._contexts[number] = RelayedContext(self, number, opened.peer)
        context.feed(opened.hello)
        caller = _caller(opened)
        context.stream = self._role.streams.stream(context, lambda: caller, relayed=True)
        context.stream.welcomed = opened.welcomed
        task = asyncio.create_task(self._serve_stream(number, context, context.stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_stream(self, number: int, context: RelayedContext, stream: Stream) -> None:
        try:
            ending = await stream.serve()
        finally:
            context.discard()
            del self._contexts[number]
        if ending.code is not _Code.OK:
            self._end_stream(number, ending.code, str(ending))

    def _end_stream(self, number: int, code: grpc.StatusCode, text: str) -> None:
        if self._ending.done():
            return  # the agent stays at its gateway, which goes to the next controller
        ended = pb.StreamEnded(code=code.value[0], message=text)
        self._queue.put(pb.ReplyFrame(stream=number, ended=ended))


def _caller(opened: pb.AgentOpened) -> Caller:
    metadata = {AUTHORIZATION: f"Bearer {opened.token}"} if opened.token else {}
    certificate = {"x509_pem_cert": [opened.certificate]} if opened.certificate else {}
    return Caller(opened.peer, metadata, certificate)


async def _read(context: _Context) -> pb.GatewayBatch | None:
    try:
        batch = await context.read()
    except DecodeError:
        raise _Refused(_Code.INVALID_ARGUMENT, "no sickbay.v1.GatewayBatch") from None
    return batch if isinstance(batch, pb.GatewayBatch) else None
