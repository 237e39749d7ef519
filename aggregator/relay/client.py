"""A gateway's end of the relay: connects to the controller, and again when the Lease names another.

Reconnects with full jitter. While the controller's replica is seen to renew the Lease and can't be
reached, other gateways may reach it: this one closes its port and ends its agents' calls. No other
replica needs that port meanwhile, since relays lead to the controller alone.
"""

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Callable
from typing import NoReturn, Protocol

import grpc
from attrs import define, field
from google.protobuf.message import DecodeError

from aggregator.ingest.listener import AgentListener
from aggregator.leader.lease import Candidate
from aggregator.relay.credentials import RelayConfigError, ReplicaCredentials
from aggregator.relay.gateway import Gateway
from aggregator.relay.gateway_link import GatewayLink
from aggregator.relay.protocol import (
    ANSWERED_WITHIN,
    AT_WORK_WITHIN,
    BATCH_BYTES,
    BATCH_EVERY,
    POLL_EVERY,
    PROTOCOL,
    SILENT_FOR,
    Liveness,
)
from aggregator.relay.unserved import BUSY_AFTER, BUSY_FOR, UNSERVED_FOR, UnservedGateway
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.tasks import run_until_first_exit
from sickbay.v1 import relay_pb2 as pb
from sickbay.v1 import relay_pb2_grpc
from sickbay.v1 import sickbay_pb2 as contract

log = logging.getLogger(__name__)

#: Seconds. The longest pause is short, because without a relay no evidence is received.
_BACKOFF = Backoff(first=0.4, most=2.0)
#: The token's file is checked this often; the kubelet renews it after 80 % of its life.
TOKEN_EVERY = 30.0
#: grpc.aio's own text where the other side ends a stream while we write into it.
_CUT_SHORT = "Internal error from Core"
_DIGITS = re.compile(r"\d+")
_CODES = {code.value[0]: code for code in grpc.StatusCode}

_Call = grpc.aio.StreamStreamCall[pb.GatewayBatch, pb.ControllerBatch]


class FollowedLease(Protocol):
    """`LeaseHolder`, as far as a gateway needs it."""

    def other(self) -> Candidate | None: ...

    def renewed_within(self, seconds: float) -> bool: ...

    def on_change(self, call: Callable[[], None]) -> None: ...


class _RelayEnded(Exception):
    """The stream is over; the text gives the reason."""


@define(eq=False, repr=False, slots=False)
class RelayClient:
    """Keeps the relay up. ``name`` and ``version`` are of this replica, ``now`` is monotonic.

    ``keep_probe_key`` stores the controller's secret for assigning probes; it may block.
    """

    _gateway: Gateway
    _port: AgentListener
    _lease: FollowedLease
    _credentials: ReplicaCredentials
    _name: str = field(kw_only=True)
    _version: str = field(kw_only=True)
    _now: Callable[[], float] = field(kw_only=True)
    _rng: random.Random = field(kw_only=True)
    _keep_probe_key: Callable[[bytes], None] = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._hello = pb.GatewayHello(protocol=PROTOCOL, name=self._name, version=self._version)
        self._changed = asyncio.Event()
        #: The controller has taken our connection, and has not answered for some time.
        self._busy = False
        #: There is a relay, and for some time no message came by it.
        self._silent = False
        #: Why there is no relay; empty: there is one, or there is no controller.
        self.trouble = ""
        self._lease.on_change(self._changed.set)

    async def run(self) -> None:
        """Until this replica is the controller itself: the caller cancels it then."""
        await run_until_first_exit(relay=self._keep_up(), unserved=self._watch_unserved())

    async def _keep_up(self) -> None:
        failures = 0
        while True:
            self._changed.clear()
            controller = self._lease.other()
            if controller is None or not controller.address:
                self.trouble = ""
                await self._changed.wait()
                failures = 0
                continue
            failures = 1 if await self._relay_to(controller) else failures + 1
            if self._lease.other() == controller:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BACKOFF.pause(failures, self._rng)):
                        await self._changed.wait()

    async def _relay_to(self, controller: Candidate) -> bool:
        """One stream, to its end. Returns whether there was one."""
        began = False
        try:
            token = await asyncio.to_thread(self._credentials.token)
            async with self._credentials.channel(controller.address) as channel:
                metadata = grpc.aio.Metadata(("authorization", f"Bearer {token}"))
                call = relay_pb2_grpc.RelayStub(channel).Forward(metadata=metadata)
                first = await self._greet(channel, call)
                _require_protocol(first.hello)
                self.trouble, began = "", True
                self._report_begin(controller, first.hello)
                await asyncio.to_thread(self._keep_probe_key, first.hello.probe_key)
                link = GatewayLink()
                self._gateway.relay_begins(link)
                try:
                    await self._converse(link, call, token)
                finally:
                    self._gateway.relay_ends()
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            # A write met the end of the stream: grpc does not report how it ended, the next attempt
            # will. The earlier error is still true.
            if error.details() != _CUT_SHORT or not self.trouble:
                self._complain(controller, f"{error.code().name}: {error.details()}")
        except TimeoutError:
            within = BUSY_FOR if self._busy else ANSWERED_WITHIN
            self._complain(controller, f"no answer within {within:g} s")
        except (RelayConfigError, _RelayEnded, OSError) as error:
            self._complain(controller, str(error))
        finally:
            self._busy = False
        return began

    async def _greet(self, channel: grpc.aio.Channel, call: _Call) -> pb.ControllerBatch:
        """The controller's first batch. Raises TimeoutError."""
        async with asyncio.timeout(ANSWERED_WITHIN) as waiting:
            busy = asyncio.create_task(self._await_busy(channel, waiting), name="busy")
            try:
                await _write(call, pb.GatewayBatch(hello=self._hello))
                return await _read(call)
            finally:
                busy.cancel()

    async def _await_busy(self, channel: grpc.aio.Channel, waiting: asyncio.Timeout) -> None:
        """Give a process that has taken the connection more time: a kernel alone can't do that."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await channel.channel_ready()
        if not waiting.expired():
            waiting.reschedule(began + BUSY_FOR)
            await asyncio.sleep(BUSY_AFTER)
            self._busy = True

    def _report_begin(self, controller: Candidate, hello: pb.ControllerHello) -> None:
        log.info(
            "agents' messages go to the controller",
            extra={"event": "relay.began", "controller": controller.name},
        )
        if hello.version != self._hello.version:
            log.warning(
                "the controller has another version than this gateway",
                extra={
                    "event": "relay.other_version",
                    "controller": hello.version,
                    "here": self._hello.version,
                },
            )

    def _complain(self, controller: Candidate, trouble: str) -> None:
        if _DIGITS.sub("", trouble) != _DIGITS.sub("", self.trouble):  # such as "expired 61 s ago"
            log.warning(
                "no relay to the controller",
                extra={"event": "relay.ended", "controller": controller.name, "error": trouble},
            )
        self.trouble = trouble

    # -- one stream -------------------------------------------------------------

    async def _converse(self, link: GatewayLink, call: _Call, token: str) -> None:
        """Until either side ends it, is silent, or the Lease names another."""
        liveness = Liveness()
        await run_until_first_exit(
            forward=self._send(link, call, token),
            replies=self._receive(link, call, liveness),
            liveness=self._watch(liveness),
            lease=self._until_changed(),
        )

    async def _watch(self, liveness: Liveness) -> None:
        """A connection that is cut ends by itself, since gRPC's own pings get no answer."""
        try:
            while True:
                await asyncio.sleep(POLL_EVERY)
                liveness.poll()
                silent_for = liveness.silent_for
                self._silent = silent_for >= SILENT_FOR
                busy = silent_for < BUSY_FOR and self._lease.renewed_within(AT_WORK_WITHIN)
                if self._silent and not busy:
                    text = f"the controller has sent no message for {silent_for:g} s"
                    raise _RelayEnded(text)
        finally:
            self._silent = False

    async def _until_changed(self) -> None:
        """Another change of the Lease than the one that led to this controller. It may have come
        while this relay began, and a former controller may not know of it.
        """
        await self._changed.wait()

    async def _send(self, link: GatewayLink, call: _Call, token: str) -> None:
        due, read_at = self._now() + BATCH_EVERY, self._now()
        announced = 0
        while True:
            await link.queue.wait(due - self._now())
            batch = pb.GatewayBatch(frames=link.queue.take(BATCH_BYTES))
            if link.waiting > announced:
                batch.waiting = link.waiting
            if self._now() >= due:
                due = self._now() + BATCH_EVERY
                batch.heartbeats.extend(link.take_received())
                batch.waiting = link.waiting
                if self._now() - read_at >= TOKEN_EVERY:
                    read_at = self._now()
                    renewed = await asyncio.to_thread(self._credentials.token)
                    if renewed != token:
                        batch.token = token = renewed
            announced = link.waiting
            await _write(call, batch)

    async def _receive(self, link: GatewayLink, call: _Call, liveness: Liveness) -> None:
        while True:
            batch = await _read(call)
            liveness.on_message()
            for frame in batch.frames:
                self._take(link, frame)
            if batch.permitted:
                link.permit(batch.permitted)

    def _take(self, link: GatewayLink, frame: pb.ReplyFrame) -> None:
        call = self._gateway.call(frame.stream)
        if call is None or call.relay is not link:
            return  # it has ended here meanwhile
        match frame.WhichOneof("body"):
            case "message":
                try:
                    call.on_reply(contract.AggregatorMessage.FromString(frame.message))
                except DecodeError:
                    raise _RelayEnded("no sickbay.v1.AggregatorMessage in a frame") from None
            case "agreed":
                call.on_agreed(frame.agreed)
            case "ended":
                code = _CODES.get(frame.ended.code, grpc.StatusCode.UNAVAILABLE)
                call.on_ended(code, frame.ended.message)

    # -- without a relay --------------------------------------------------------

    async def _watch_unserved(self) -> None:
        """A gateway that can't reach a controller that is at work leaves its agents to others."""
        unserved = UnservedGateway(self._now())
        while True:
            await asyncio.sleep(POLL_EVERY)
            leaves = unserved.leaves_agents(
                self._now(),
                relayed=self._gateway.relayed and not self._silent,
                busy=self._busy or self._silent,
                controller=self._lease.other(),
                renewed_within=self._lease.renewed_within,
            )
            if leaves is False and self._gateway.problem:
                self._gateway.problem = ""
                await self._port.open_port()
            elif leaves and not self._gateway.problem:
                unknown = "no answer yet" if self._lease.other() else "the Lease can't be read"
                self._gateway.problem = (
                    f"this gateway has not reached the controller for {UNSERVED_FOR:g} s: "
                    f"{self.trouble or unknown}"
                )
                log.error(
                    "this gateway serves no agent",
                    extra={"event": "relay.unserved", "reason": self._gateway.problem},
                )
                # Else an agent that leaves comes back as likely as it finds another replica.
                self._port.close_port()
                await self._gateway.end_calls(
                    self._gateway.problem, still=lambda: self._silent or not self._gateway.relayed
                )


def _require_protocol(hello: pb.ControllerHello) -> None:
    if hello.protocol != PROTOCOL:
        raise _RelayEnded(
            f"the controller, version {hello.version}, speaks relay protocol {hello.protocol}, and "
            f"this gateway {PROTOCOL}: finish the rollout"
        )


async def _write(call: _Call, batch: pb.GatewayBatch) -> None:
    try:
        await call.write(batch)
    except asyncio.InvalidStateError:
        await _ended(call)  # grpc.aio's error for a stream that has just ended


async def _read(call: _Call) -> pb.ControllerBatch:
    batch = await call.read()
    if not isinstance(batch, pb.ControllerBatch):
        await _ended(call)
    return batch


async def _ended(call: _Call) -> NoReturn:
    """The stream is over: raises its status."""
    raise _RelayEnded(f"{(await call.code()).name}: {await call.details()}")
