"""The frames that wait for one direction of a relay: bounded, in order."""

import asyncio
import contextlib
from collections import deque
from typing import Generic, Protocol, TypeVar

from aggregator.relay.protocol import AGENT_BYTES, FRAME_BYTES, RELAY_BYTES


class Frame(Protocol):
    """A message of relay.proto about one stream."""

    @property
    def stream(self) -> int: ...

    def ByteSize(self) -> int: ...  # noqa: N802 - protobuf's name


F = TypeVar("F", bound=Frame)

#: Seconds between two batches, in the long run: a message of its own for each frame costs more than
#: its content.
BATCH_SPACING = 0.01
#: Batches that may go without it: only where many come does a fault wait for others.
AT_ONCE = 10


class FrameQueue(Generic[F]):
    """``most_bytes`` wait in all, ``most_of_one`` for one stream."""

    def __init__(self, *, most_bytes: int = RELAY_BYTES, most_of_one: int = AGENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._most_of_one = most_of_one
        self._frames: deque[tuple[F, int]] = deque()
        self._of_stream: dict[int, int] = {}
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._next_at = float("-inf")
        self.bytes = 0

    def has_room(self, stream: int, size: int) -> bool:
        """Whether ``size`` bytes more may wait for the stream."""
        of_stream = self._of_stream.get(stream, 0)
        return self.bytes + size <= self._most_bytes and of_stream + size <= self._most_of_one

    def put(self, frame: F) -> None:
        """Also beyond the bounds: callers check `has_room` first."""
        size = frame.ByteSize() + FRAME_BYTES
        self.bytes += size
        self._of_stream[frame.stream] = self._of_stream.get(frame.stream, 0) + size
        self._frames.append((frame, size))
        self._filled.set()
        if self.bytes > self._most_bytes:
            self._emptied.clear()

    def wake(self) -> None:
        """End the present `wait`: there is something else to send."""
        self._filled.set()

    async def wait(self, seconds: float) -> None:
        """Until a frame waits, at most this long, and the pace of batches permits another."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._filled.wait()
        loop = asyncio.get_running_loop()
        if (early := self._next_at - loop.time()) > 0:
            await asyncio.sleep(early)
        earliest = loop.time() - (AT_ONCE - 1) * BATCH_SPACING
        self._next_at = max(self._next_at, earliest) + BATCH_SPACING

    async def room(self) -> None:
        """Until less than the most waits."""
        await self._emptied.wait()

    def take(self, most: int) -> list[F]:
        """The next frames, about ``most`` bytes of them, and one at least if any waits."""
        taken: list[F] = []
        left = most
        while self._frames and left > 0:
            frame, size = self._frames.popleft()
            self.bytes -= size
            left -= size
            remaining = self._of_stream[frame.stream] - size
            if remaining:
                self._of_stream[frame.stream] = remaining
            else:
                del self._of_stream[frame.stream]
            taken.append(frame)
        if not self._frames:
            self._filled.clear()
        if self.bytes <= self._most_bytes:
            self._emptied.set()
        return taken
