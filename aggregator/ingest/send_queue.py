"""The messages to one stream: bounded, in order, acknowledgements coalesced."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

import grpc

from sickbay.v1 import sickbay_pb2 as pb

#: Messages that may wait for an agent that does not read. Acknowledgements do not count, because
#: only the latest of them waits.
LIMIT = 64
#: Evidence that may wait until it is safe. Beyond it a snapshot has the same in one message.
MAX_UNSAFE = 1_000
#: Seconds.
SETTLE_WITHIN = 2.0


class QueuedCall(Protocol):
    """The call, as its queue knows it.

    The queue holds the call itself, and none of its methods: each held method is 64 bytes, of
    10,000 calls.
    """

    def write(self, message: pb.AggregatorMessage) -> Awaitable[None]: ...

    def overflowed(self) -> None:
        """The agent reads too slowly."""


class AckedStream(Protocol):
    """The stream, as its acknowledgements know it."""

    def safe(self, seq: int) -> None:
        """All evidence up to this sequence number is safe."""

    def unsafe(self, error: BaseException) -> None:
        """The failure of one piece of evidence, after which no more is acknowledged."""


class SendQueue:
    """A queue with a writer that runs only while messages wait.

    An idle stream costs no task. A closed queue drops its reference to the stream, which is then
    freed at once: the two hold each other, and such a cycle waits for a garbage collection through
    all objects of thousands of agents.
    """

    __slots__ = ("_ack", "_call", "_waiting", "_writer")

    def __init__(self, call: QueuedCall) -> None:
        self._call: QueuedCall | None = call  # unset once closed
        # A tuple, and short: an empty deque is 760 bytes, a list 64, for each of 10,000 streams.
        self._waiting: tuple[pb.AggregatorMessage, ...] = ()
        self._ack: int | None = None
        self._writer: asyncio.Task[None] | None = None

    def put(self, message: pb.AggregatorMessage) -> None:
        if self._call is None:
            return
        if len(self._waiting) >= LIMIT:
            self._call.overflowed()
            return
        self._waiting = (*self._waiting, message)
        self._wake()

    def defer_ack(self, seq: int) -> None:
        """Acknowledge up to ``seq`` with the next message, or when it is flushed.

        It covers the acknowledgements that waited.
        """
        if self._call is not None:
            self._ack = seq

    def flush_ack(self) -> None:
        """Send the acknowledgement that waits, if it has not been sent by now."""
        if self._ack is not None:
            self._wake()

    def answer(self) -> None:
        """Send a message in any case: an acknowledgement of 0, if no message waits."""
        self.defer_ack(self._ack or 0)
        self.flush_ack()

    def close(self) -> None:
        """Begin no further write."""
        self._call = None
        self._waiting = ()
        self._ack = None

    async def settled(self) -> None:
        """Wait for the write in progress: grpc refuses to end a stream over its first one.

        Not for ever: a later write may never end, where the agent does not read.
        """
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=SETTLE_WITHIN)
        if self._writer is not None:
            self._writer.cancel()

    def _wake(self) -> None:
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._call is not None:
                if self._waiting:
                    message, *rest = self._waiting
                    self._waiting = tuple(rest)
                elif self._ack is not None:
                    message = pb.AggregatorMessage(ack=pb.Ack(seq=self._ack))
                    self._ack = None
                else:
                    return
                await self._call.write(message)
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            # The stream ended during the write; its reader knows the reason.
            self.close()
        finally:
            self._writer = None


class Acks:
    """Acknowledges in the order of the stream, each when it is safe.

    When closed, it drops its reference to the stream, as the queue does.
    """

    __slots__ = ("_pending", "_stream_handle")

    def __init__(self, stream_handle: AckedStream) -> None:
        self._stream_handle: AckedStream | None = stream_handle  # unset once closed
        self._pending: tuple[tuple[int, asyncio.Future[None] | None], ...] = ()

    @property
    def full(self) -> bool:
        return len(self._pending) >= MAX_UNSAFE

    def add(self, seq: int, done: Awaitable[None] | None) -> None:
        """``done`` None: safe now, once all before it is."""
        future = None if done is None else asyncio.ensure_future(done)
        self._pending = (*self._pending, (seq, future))
        if future is None or future.done():
            self._advance()
        else:
            future.add_done_callback(self._advance)

    def close(self) -> None:
        """Send no more acknowledgements. Writes in progress belong to the controller and
        continue.
        """
        self._pending = ()
        self._stream_handle = None

    def _advance(self, _: object = None) -> None:
        stream_handle = self._stream_handle
        if stream_handle is None:
            return
        done, failed = 0, None
        for _, future in self._pending:
            if future is not None:
                if not future.done():
                    break
                failed = (
                    asyncio.CancelledError("given up") if future.cancelled() else future.exception()
                )
                if failed is not None:
                    break
            done += 1
        reached = self._pending[done - 1][0] if done else None
        if failed is not None:
            self._pending = ()
            stream_handle.unsafe(failed)
        else:
            self._pending = self._pending[done:]
        if reached is not None:
            stream_handle.safe(reached)
