"""One call of an agent as a replica serves it: credentials, Hello, pace, and how it ends.

The gateway (`AgentCall`) and the controller (`Stream`) both serve calls in this way. They differ
in what they do with the messages.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import grpc
from attrs import Factory, define, field
from google.protobuf.message import DecodeError

from aggregator.ingest import codec
from aggregator.ingest.awaited_hellos import AwaitedHellos
from aggregator.ingest.close_reason import CloseReason, StreamClosed, gone, malformed, refused
from aggregator.ingest.identity import (
    Authenticator,
    CallCredentials,
    Caller,
    Identity,
    IdentityError,
    Refusal,
)
from aggregator.ingest.rate_limit import PER_STREAM, NodeBudget
from aggregator.ingest.send_queue import SendQueue
from aggregator.ingest.stats import IngestStats
from aggregator.runtime.byte_budget import Budgets
from aggregator.runtime.rate_limited_log import RateLimitedLog
from sickbay.v1 import sickbay_pb2 as pb

log = logging.getLogger(__name__)
Code = grpc.StatusCode

#: Seconds. A silent connection is ended some day. A slow agent must not be, when 10,000 came at
#: once and either side is busy with others: all the work done for it would be done again.
HELLO_WITHIN = 60.0
REFUSED_WITHIN = 1.0
_UNPROVEN = Identity("")


class Context(Protocol):
    """The part of `grpc.aio.ServicerContext` that a call needs."""

    def read(self) -> Awaitable[object]:
        """An AgentMessage, or `grpc.aio.EOF`."""

    def write(self, message: pb.AggregatorMessage) -> Awaitable[None]: ...
    def peer(self) -> str: ...


class CallRules(Protocol):
    """The same for all calls."""

    @property
    def now(self) -> Callable[[], float]:
        """Monotonic seconds."""


class Calls(Protocol):
    """The calls of all nodes, as one of them knows them."""

    awaited: AwaitedHellos
    sparingly: RateLimitedLog
    #: How much of their token buckets the ended calls of nodes have used.
    budgets: Budgets


@define(eq=False, repr=False, kw_only=True, weakref_slot=False)
class AgentExchange:
    """From its opening to its end. A subclass reads the messages after the Hello."""

    _context: Context
    _caller: Callable[[], Caller]
    _authenticator: Authenticator
    _calls: Calls
    _rules: CallRules
    _stats: IngestStats
    _task: asyncio.Task[None] | None = None
    _ending: StreamClosed | None = None
    _stopping: bool = False
    _allowance: NodeBudget = field(init=False)
    _outbox: SendQueue = field(init=False, default=Factory(SendQueue, takes_self=True))
    _awaited: str = ""  # the node that the credentials name, until the Hello
    identity: Identity = _UNPROVEN
    node: str = ""
    peer: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._allowance = NodeBudget(self._rules.now())
        self.peer = self._context.peer()

    # -- its beginning ----------------------------------------------------------

    async def _receive_hello(self) -> tuple[Caller, pb.AgentMessage]:
        """The caller, and its Hello for the node that its credentials prove."""
        caller = self._caller()
        del self._caller  # used once; it would be 250 bytes for each call
        try:
            credentials = await self._authenticate(caller)
            self._await_hello(next(iter(credentials.nodes), ""))
            message = await self._first("hello", HELLO_WITHIN, CloseReason.NO_HELLO)
            node = codec.node_of(message.hello)
            self.identity = credentials.claimed(node)
        except codec.InvalidMessage as error:
            raise malformed("hello", error) from None
        except IdentityError as error:
            raise refused(error) from None
        self._await_hello("")
        self.node = node
        return caller, message

    async def _authenticate(self, caller: Caller) -> CallCredentials:
        """Before the Hello: a caller without credentials costs no message and no wait.

        A caller with credentials that are refused is an agent more often than not. Its Hello is
        under way, and grpc.aio shows INTERNAL instead of our reason where that write fails.
        """
        try:
            return await self._authenticator.authenticate(caller)
        except IdentityError as error:
            if error.refusal is not Refusal.NO_CREDENTIALS:
                with contextlib.suppress(TimeoutError, DecodeError):
                    async with asyncio.timeout(REFUSED_WITHIN):
                        await self._context.read()
            raise

    def _await_hello(self, node: str) -> None:
        """Count this call among those of ``node`` that wait; empty: it no longer waits."""
        if self._awaited:
            self._calls.awaited.remove(self, self._awaited)
        self._awaited = node
        if node:
            self._calls.awaited.add(self, node)

    # -- its messages -----------------------------------------------------------

    async def _first(self, kind: str, within: float, why: CloseReason) -> pb.AgentMessage:
        """The message that the contract requires now."""
        try:
            async with asyncio.timeout(within):
                message = await self._read()
        except TimeoutError:
            text = f"no {kind.capitalize()} within {within:g} s"
            raise StreamClosed(why, Code.DEADLINE_EXCEEDED, text) from None
        if message is None:
            text = f"closed before its {kind.capitalize()}"
            raise StreamClosed(why, Code.FAILED_PRECONDITION, text)
        got = message.WhichOneof("body")
        if got != kind:
            text = f"{got or 'an empty message'} came where {kind.capitalize()} must come"
            raise StreamClosed(CloseReason.MALFORMED, Code.INVALID_ARGUMENT, text)
        return message

    async def _read(self) -> pb.AgentMessage | None:
        """The next message, or None when the agent has closed its side."""
        message = known_message(await self._context.read())
        if message is not None:
            await self._throttle(message)
        return message

    async def _throttle(self, message: pb.AgentMessage) -> None:
        """Delay an agent that sends too much."""
        wait = self._allowance.spend(message.ByteSize(), self._rules.now())
        if wait > 0:
            self._stats.throttled += 1
            fields = self._log_fields("held back")
            if fields is not None:
                log.warning(
                    "an agent sends more than it may; it is read slowly",
                    extra={"event": "stream.throttled", **fields},
                )
            await asyncio.sleep(wait)

    async def _renew(self, token: str) -> bool:
        """Returns whether the renewed token is in force. It may be good where it can't be verified
        now, and the present one is until it expires.
        """
        try:
            self.identity = await self._authenticator.renew(self.identity, token)
        except IdentityError as error:
            if error.passing:
                return False
            raise refused(error) from None
        self._stats.renewed += 1
        return True

    def _log_fields(self, what: str) -> Mapping[str, object] | None:
        """For a log line on this call; None: too many like it were written lately."""
        fields = self._calls.sparingly(f"{what}: {self.node}", self._rules.now())
        return None if fields is None else {"node": self.node, "peer": self.peer, **fields}

    # -- its end ----------------------------------------------------------------

    def _ended_by(self, error: BaseException) -> StreamClosed:
        """How ``error`` ends the call. Raises a cancellation from outside: the connection broke."""
        match error:
            case StreamClosed():
                # A new one, because a raised one holds the frames that it came through, and they
                # hold it.
                return StreamClosed(error.why, error.code, str(error))
            case DecodeError():
                text = "a message that is no sickbay.v1.AgentMessage"
                return StreamClosed(CloseReason.MALFORMED, Code.INVALID_ARGUMENT, text)
            case asyncio.CancelledError() if self._ending is None:
                self._end(gone())
                raise error
            case asyncio.CancelledError():
                self._stopping = False
                assert self._ending is not None
                return self._ending
        # The outermost edge of one call: after any error here the others continue.
        log.error(
            "a stream failed",
            extra={"event": "stream.failed", "node": self.node, "peer": self.peer},
            exc_info=error,
        )
        text = "the aggregator failed; see its log"
        return StreamClosed(CloseReason.INTERNAL, Code.INTERNAL, text)

    async def _leave(self, ending: StreamClosed) -> StreamClosed:
        """The end of the call: its log line, and the tasks in progress."""
        assert self._task is not None
        if self._stopping:
            # Stopped in the very step in which it ended by itself: take the cancellation that is
            # still to come, or it would hit the next await.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        while self._task.cancelling():
            self._task.uncancel()
        self._end(ending)
        await self._outbox.settled()
        return self._ending or ending

    def stop(self, ending: StreamClosed) -> None:
        """End it from outside its own task. `_detach` is called at once."""
        if self._ending is None and self._task is not None:
            self._end(ending)
            self._stopping = True
            self._task.cancel()

    def close(self, reason: str) -> None:
        self.stop(StreamClosed(CloseReason.CLOSED, Code.UNAVAILABLE, reason))

    def crowd_out(self, text: str) -> None:
        """Too many of its node wait for their Hello, and it has waited longest."""
        self.stop(StreamClosed(CloseReason.TOO_MANY, Code.RESOURCE_EXHAUSTED, text))

    def supersede(self, by: str) -> None:
        """A newer call of the node reports for it now."""
        text = f"a newer stream of node {self.node!r} has taken over, from {by}"
        self.stop(StreamClosed(CloseReason.SUPERSEDED, Code.ABORTED, text))

    def overflowed(self) -> None:
        text = "the agent does not read what it is sent"
        self.stop(StreamClosed(CloseReason.SLOW_READER, Code.RESOURCE_EXHAUSTED, text))

    def write(self, message: pb.AggregatorMessage) -> Awaitable[None]:
        return self._context.write(message)

    def _end(self, ending: StreamClosed) -> None:
        if self._ending is not None:
            return
        self._ending = ending
        self._outbox.close()
        self._await_hello("")
        attached = self._detach(ending)
        (self._stats.ended if attached else self._stats.refused)[ending.why] += 1
        if attached:
            now = self._rules.now()
            self._calls.budgets.set_used(self.node, self._allowance.used(now), now)
        self._log_end(ending, attached=attached)

    def _inherit_budget(self) -> None:
        """Begin with what the node's earlier calls have used. They have ended: it is attached."""
        used = self._calls.budgets.used(self.node, self._rules.now())
        self._allowance.inherit(used + PER_STREAM)

    def _detach(self, ending: StreamClosed) -> bool:
        """It reports for its node no more. Returns whether it did before."""
        raise NotImplementedError

    def _log_end(self, ending: StreamClosed, *, attached: bool) -> None:
        ordinary = ending.why in {CloseReason.LEFT, CloseReason.CLOSED}
        fields = {} if ordinary else self._calls.sparingly(ending.why, self._rules.now())
        if fields is not None:
            log.log(
                logging.DEBUG if ordinary else logging.WARNING,
                "stream ended" if attached else "stream refused",
                extra={
                    "event": "stream.ended" if attached else "stream.refused",
                    "node": self.node,
                    "peer": self.peer,
                    "why": ending.why,
                    "detail": str(ending),
                    **fields,
                },
            )


def known_message(read: object) -> pb.AgentMessage | None:
    """The message that was read, or None if it is `grpc.aio.EOF`."""
    return read if isinstance(read, pb.AgentMessage) else None
