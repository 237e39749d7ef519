"""The gateway's end of one relay: the frames that wait, and the agents that wait to begin."""

from collections.abc import Iterable
from typing import Protocol

from aggregator.relay.frame_queue import FrameQueue
from aggregator.relay.protocol import RELAY_BYTES, message_frames
from sickbay.v1 import relay_pb2 as pb


class RelayedCall(Protocol):
    """One agent's call at the gateway."""

    number: int
    relay: "GatewayLink | None"

    @property
    def is_urgent(self) -> bool:
        """Its agent has evidence that no controller has, or may have such evidence."""

    def opening(self) -> pb.AgentOpened:
        """Its credentials and its Hello."""

    def begin_anew(self) -> None:
        """Have the agent send a whole snapshot, if it has been welcomed before."""


class GatewayLink:
    """Of one stream to the controller. ``number`` of a call is its stream in the frames."""

    def __init__(self) -> None:
        self.queue: FrameQueue[pb.AgentFrame] = FrameQueue()
        self._received: set[int] = set()
        #: The urgent ones come first: the others' evidence is still in force.
        self._first: dict[RelayedCall, None] = {}
        self._others: dict[RelayedCall, None] = {}

    @property
    def waiting(self) -> int:
        return len(self._first) + len(self._others)

    def wait_for(self, calls: Iterable[RelayedCall]) -> None:
        """These calls begin as soon as the controller permits it."""
        for call in calls:
            if call.is_urgent:
                self._others.pop(call, None)
                self._first[call] = None
            elif call not in self._first:
                self._others[call] = None
        self.queue.wake()

    def permit(self, count: int) -> None:
        """``count`` of those that wait may begin. While much waits to be sent, they keep
        waiting.
        """
        for _ in range(min(count, self.waiting)):
            if self.queue.bytes > RELAY_BYTES // 2:
                return
            those = self._first or self._others
            call = next(iter(those))
            del those[call]
            if call.relay is not self:
                self.open(call)
            call.begin_anew()

    def open(self, call: RelayedCall) -> None:
        """The call's stream begins at the controller."""
        call.relay = self
        self.queue.put(pb.AgentFrame(stream=call.number, opened=call.opening()))

    def forward(self, call: RelayedCall, message: bytes) -> bool:
        """Returns whether there was room for the message."""
        if not self.queue.has_room(call.number, len(message)):
            return False
        for frame in message_frames(call.number, message):
            self.queue.put(frame)
        return True

    def close(self, call: RelayedCall) -> None:
        """The call is over."""
        self._first.pop(call, None)
        self._others.pop(call, None)
        self._received.discard(call.number)
        if call.relay is self:
            self.queue.put(pb.AgentFrame(stream=call.number, closed=pb.AgentClosed()))

    def on_agreed_heartbeat(self, call: RelayedCall) -> None:
        self._received.add(call.number)

    def take_received(self) -> list[int]:
        """The streams whose heartbeats have ended here since the last call."""
        received, self._received = self._received, set()
        return sorted(received)
