"""Keeps one stream to the aggregator alive: connects, and waits between attempts."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc

from nodeagent.clock import Clock
from nodeagent.commands import Host
from nodeagent.dataclass import dataclass
from nodeagent.uplink.dialer import Dialer, DialError, explained
from nodeagent.uplink.reconnect import ReconnectPolicy
from nodeagent.uplink.stream import Ended, Stream
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc as rpc

log = logging.getLogger(__name__)

#: Seconds in which a live aggregator takes a connection.
HANDSHAKE_WITHIN = 5.0


@dataclass(slots=True)
class UplinkState:
    """The uplink's state for people. ``since`` is boottime seconds."""

    address: str
    connected: bool = False
    since: float = 0.0
    aggregator: str = ""
    error: str = ""
    attempts: int = 0


class Uplink:
    """The agent's side of ``AgentGateway.Connect``.

    ``hello`` builds the first message of each stream.

    ``on_change`` is called when a stream has come or gone, or could not be opened; ``on_beat`` at
    each heartbeat.
    """

    def __init__(
        self,
        *,
        address: str,
        dialer: Dialer,
        host: Host,
        hello: Callable[[], pb.AgentMessage],
        clock: Clock,
        random: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
        on_beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = UplinkState(address, since=clock.boottime())
        self._reconnect = ReconnectPolicy(random)
        self._dialer = dialer
        self._host = host
        self._hello = hello
        self._clock = clock
        self._random = random
        self._on_change = on_change
        self._on_beat = on_beat
        self._stream: Stream | None = None
        self._stopping = asyncio.Event()
        self._renewing = False

    @property
    def streaming(self) -> bool:
        """Whether an aggregator has accepted us and takes changes."""
        return self.state.connected

    def as_json(self) -> dict[str, Any]:
        """The state for people."""
        return {
            "state": "streaming" if self.state.connected else "connecting",
            "address": self.state.address,
            "aggregator": self.state.aggregator,
            "error": self.state.error,
            "for_seconds": round(self._clock.boottime() - self.state.since, 3),
            "attempts": self.state.attempts,
        }

    def wake(self) -> None:
        """The latch has changed; without a stream the next snapshot carries it."""
        if self._stream is not None:
            self._stream.wake()

    def stop(self) -> None:
        """End ``run`` in order: send the pending changes, then half-close the stream."""
        self._stopping.set()
        if self._stream is not None:
            self._stream.stop()

    def renew(self) -> None:
        """Greet anew, because our Hello has changed. Pending changes are sent before."""
        if self._stream is not None:
            self._renewing = True
            self._stream.stop()

    async def run(self) -> None:
        """Stay connected until ``stop``."""
        while not self._stopping.is_set():
            self.state.attempts += 1
            started = self._now()
            ended = await self.run_session()
            await self._rest(self._reconnect.after(ended, self._now() - started))

    async def run_session(self) -> Ended:
        try:
            channel = self._dialer.open(self.state.address)
            metadata = self._dialer.metadata()
        except DialError as error:
            self._failed(str(error))
            return Ended(str(error), welcomed=False)
        async with channel:
            self._stream = Stream(
                rpc.AgentGatewayStub(channel).Connect(metadata=metadata),
                host=self._host,
                clock=self._clock,
                random=self._random,
                token=self._dialer.token,
                on_welcome=self._welcomed,
                lives=self._lives,
                connected=lambda: channel.get_state() is grpc.ChannelConnectivity.READY,
                patience=self._reconnect.patience,
                on_beat=self._on_beat,
            )
            if self._stopping.is_set():
                self._stream.stop()
            try:
                ended = await self._stream.run_stream(self._hello())
            finally:
                self._stream = None
        renewing, self._renewing = self._renewing, False
        if renewing:
            self._changed(connected=False)
        else:
            self._failed(explained(ended.reason))
        return ended

    async def _lives(self, address: str) -> bool:
        """Whether a process is there, which a handshake shows: a kernel alone can't do it."""
        try:
            channel = self._dialer.open(address, named_by_aggregator=True)
        except DialError:
            return False
        async with channel:
            try:
                async with asyncio.timeout(HANDSHAKE_WITHIN):
                    await channel.channel_ready()
            except TimeoutError:
                # Our own event loop may have been blocked, while gRPC's threads did the handshake.
                return channel.get_state() is grpc.ChannelConnectivity.READY
        return True

    def _welcomed(self, aggregator: str) -> None:
        log.info(
            "stream to the aggregator opened",
            extra={
                "event": "uplink.opened",
                "aggregator": aggregator,
                "address": self.state.address,
            },
        )
        self.state.error = ""
        self.state.aggregator = aggregator
        self._changed(connected=True)

    def _failed(self, reason: str) -> None:
        if self._stopping.is_set():
            reason = ""
        elif reason != self.state.error:  # the same trouble is logged once, not at each attempt
            log.warning(
                "no stream to the aggregator: %s",
                reason,
                extra={"event": "uplink.failed", "address": self.state.address},
            )
        self.state.error = reason
        self._changed(connected=False)

    def _changed(self, *, connected: bool) -> None:
        if self.state.connected is not connected:
            self.state.connected = connected
            self.state.since = self._clock.boottime()
        self._on_change()

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
