"""Keeps one stream to the aggregator alive: connects, follows redirects, backs off with jitter."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nodeagent.clock import Clock
from nodeagent.commands import Host
from nodeagent.dial import Dialer, DialError
from nodeagent.stream import Ended, Stream
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc as rpc

log = logging.getLogger(__name__)

#: Seconds: the wait before attempt n is drawn from [0, min(CAP, BASE * 2**n)).
BASE = 0.1
CAP = 15.0
#: A stream that lived this long was well: the next failure starts from BASE again. Two agents that
#: claim one node close each other's streams sooner than that, and slow down.
WELL_AFTER = 10.0
#: Redirects in a row before we take it that we are sent in a circle.
HOPS = 4


@dataclass(slots=True)
class UplinkState:
    """What people see of the uplink. ``since`` is boottime seconds."""

    address: str
    connected: bool = False
    since: float = 0.0
    aggregator: str = ""
    error: str = ""
    attempts: int = 0


class Uplink:
    """The agent's side of ``Ward.Attend``. ``hello`` builds the first message of each stream."""

    def __init__(
        self,
        *,
        address: str,
        dialer: Dialer,
        host: Host,
        hello: Callable[[], pb.AgentMessage],
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self.state = UplinkState(address, since=clock.boottime())
        self._configured = address
        self._dialer = dialer
        self._host = host
        self._hello = hello
        self._clock = clock
        self._random = random
        self._stream: Stream | None = None
        self._stopping = asyncio.Event()
        self._renewing = False

    @property
    def streaming(self) -> bool:
        """Whether somebody has accepted us and takes what changes."""
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
        """The latch has changed; without a stream the next snapshot tells it."""
        if self._stream is not None:
            self._stream.wake()

    def stop(self) -> None:
        """End ``run`` in order: what is pending is sent, the stream half-closed."""
        self._stopping.set()
        if self._stream is not None:
            self._stream.stop()

    def renew(self) -> None:
        """Greet anew: what Hello says of us has changed. What is pending is sent before."""
        if self._stream is not None:
            self._renewing = True
            self._stream.stop()

    async def run(self) -> None:
        """Stay connected until ``stop``."""
        address, failures, hops = self._configured, 0, 0
        while not self._stopping.is_set():
            self.state.attempts += 1
            started = self._now()
            ended = await self._attend(address)
            well = ended.welcomed and self._now() - started >= WELL_AFTER
            failures, hops = (0, 0) if well else (failures, hops)
            if ended.redirect and hops < HOPS:
                address = ended.redirect
                hops += 1
                continue
            if ended.redirect:
                self._failed(f"sent in a circle; last to {ended.redirect}")
            address, hops = self._configured, 0
            await self._rest(self._random() * min(CAP, BASE * 2**failures))
            failures = min(failures + 1, 30)

    async def _attend(self, address: str) -> Ended:
        try:
            channel = self._dialer.open(address)
            metadata = self._dialer.metadata()
        except DialError as error:
            self._failed(str(error))
            return Ended(str(error), welcomed=False)
        self.state.address = address
        async with channel:
            self._stream = Stream(
                rpc.WardStub(channel).Attend(metadata=metadata),
                host=self._host,
                clock=self._clock,
                random=self._random,
                token=self._dialer.token,
                on_welcome=self._welcomed,
            )
            if self._stopping.is_set():
                self._stream.stop()
            try:
                ended = await self._stream.attend(self._hello())
            finally:
                self._stream = None
        renewing, self._renewing = self._renewing, False
        if ended.redirect:
            log.info("redirected", extra={"from": address, "to": ended.redirect})
            self._changed(connected=False)
        elif renewing:
            self._changed(connected=False)
        else:
            self._failed(ended.reason)
        return ended

    def _welcomed(self, aggregator: str) -> None:
        log.info("streaming", extra={"aggregator": aggregator, "address": self.state.address})
        self.state.error = ""
        self.state.aggregator = aggregator
        self._changed(connected=True)

    def _failed(self, reason: str) -> None:
        if self._stopping.is_set():
            reason = ""
        elif reason != self.state.error:  # the same trouble is said once, not at each attempt
            log.warning("no stream: %s", reason, extra={"address": self.state.address})
        self.state.error = reason
        self._changed(connected=False)

    def _changed(self, *, connected: bool) -> None:
        if self.state.connected is not connected:
            self.state.connected = connected
            self.state.since = self._clock.boottime()

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
