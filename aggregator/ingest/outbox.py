"""What goes out on one stream: bounded, in order, acknowledgements coalesced."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

import grpc

from aggregator.ingest import wire
from sickbay.v1 import sickbay_pb2 as pb

#: Messages that may wait for an agent that does not read. Acknowledgements are not among them: of
#: those only the latest waits.
LIMIT = 64
#: Evidence that may wait until it is safe. Beyond it a snapshot says the same in one message.
MAX_UNSAFE = 1_000
#: Seconds.
SETTLE_WITHIN = 2.0


class Talk(Protocol):
    """The stream, as its outbox and its acknowledgements know it.

    They know it itself, and no methods of it: each that is held is 64 bytes, of 10,000 streams.
    """

    def write(self, message: pb.AggregatorMessage) -> Awaitable[None]: ...

    def overflowed(self) -> None:
        """The agent reads too slowly."""
        ...

    def safe(self, seq: int) -> None:
        """Everything up to this sequence number is."""
        ...

    def unsafe(self, error: BaseException) -> None:
        """What went wrong with one, after which nothing more is acknowledged."""
        ...


class Outbox:
    """A queue with a writer that runs only while there is something to write.

    An idle stream costs no task. Closed, it lets go of the stream, which is then freed at once: the
    two held each other, and what does waits for a search through all that thousands of agents hold.
    """

    __slots__ = ("_ack", "_talk", "_waiting", "_writer")

    def __init__(self, talk: Talk) -> None:
        self._talk: Talk | None = talk  # None: closed
        # A tuple, and short: an empty deque is 760 bytes, a list 64, for each of 10,000 streams.
        self._waiting: tuple[pb.AggregatorMessage, ...] = ()
        self._ack: int | None = None
        self._writer: asyncio.Task[None] | None = None

    def put(self, message: pb.AggregatorMessage) -> None:
        if self._talk is None:
            return
        if len(self._waiting) >= LIMIT:
            self._talk.overflowed()
            return
        self._waiting = (*self._waiting, message)
        self._wake()

    def owe(self, seq: int) -> None:
        """Acknowledge up to ``seq`` when next something goes out, or is to be paid.

        What waited to be acknowledged is covered by it.
        """
        if self._talk is not None:
            self._ack = seq

    def pay(self) -> None:
        """Send the acknowledgement that is owed, if it has not gone out by now."""
        if self._ack is not None:
            self._wake()

    def answer(self) -> None:
        """Something goes out, whatever it is: an acknowledgement of nothing, if none waits."""
        self.owe(self._ack or 0)
        self.pay()

    def close(self) -> None:
        """Nothing more is begun."""
        self._talk = None
        self._waiting = ()
        self._ack = None

    async def settled(self) -> None:
        """Wait for the write under way: grpc refuses to end a stream over its first one.

        Not for ever: a later one may never end, where the agent does not read.
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
            while self._talk is not None:
                if self._waiting:
                    message, *rest = self._waiting
                    self._waiting = tuple(rest)
                elif self._ack is not None:
                    message, self._ack = wire.ack(self._ack), None
                else:
                    return
                await self._talk.write(message)
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            # The stream ended under the write; its reader knows why.
            self.close()
        finally:
            self._writer = None


class Acks:
    """Acknowledges in the order of the stream, each when it is safe.

    Closed, it lets go of the stream, as the outbox does.
    """

    __slots__ = ("_pending", "_talk")

    def __init__(self, talk: Talk) -> None:
        self._talk: Talk | None = talk  # None: closed
        self._pending: tuple[tuple[int, asyncio.Future[None] | None], ...] = ()

    @property
    def full(self) -> bool:
        return len(self._pending) >= MAX_UNSAFE

    def add(self, seq: int, done: Awaitable[None] | None) -> None:
        """``done`` None: safe now, when all before it is."""
        future = None if done is None else asyncio.ensure_future(done)
        self._pending = (*self._pending, (seq, future))
        if future is None or future.done():
            self._advance()
        else:
            future.add_done_callback(self._advance)

    def close(self) -> None:
        """Acknowledge nothing more. What is under way belongs to the controller and goes on."""
        self._pending = ()
        self._talk = None

    def _advance(self, _: object = None) -> None:
        talk = self._talk
        if talk is None:
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
            talk.unsafe(failed)
        else:
            self._pending = self._pending[done:]
        if reached is not None:
            talk.safe(reached)
