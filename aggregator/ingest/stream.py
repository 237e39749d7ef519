"""One agent's stream: Hello, Snapshot, then deltas and heartbeats, until it ends.

It is also the way back (`Line`). A message that can't be understood, or that claims another node,
ends this stream with a status that says why, and touches no other.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from aggregator.ingest import wire
from aggregator.ingest.allowance import Allowance
from aggregator.ingest.ending import Ending, Why, gone, malformed, refused
from aggregator.ingest.identity import (
    LEEWAY,
    Authenticator,
    Caller,
    Identity,
    IdentityError,
    Refusal,
)
from aggregator.ingest.intake import Intake
from aggregator.ingest.outbox import Acks, Outbox
from aggregator.ingest.resyncs import Resyncs
from aggregator.ingest.stats import IngestStats, Sparingly
from aggregator.ingest.storm import Storm
from sickbay.v1 import sickbay_pb2 as pb

log = logging.getLogger(__name__)
Code = grpc.StatusCode

#: Seconds. Who connects and says nothing is ended one day; who is slow, for 10,000 came at once and
#: either side is busy with others, must not be: all that was done for him would be done again.
HELLO_WITHIN = 60.0
SNAPSHOT_WITHIN = 120.0
REDIRECT_WITHIN = 10.0
#: What agents are promised where there are other replicas. One that gets no answer tries for 5 s
#: whether anybody is there: with a heartbeat of 10 s it has left 17 to 27 s after its replica was
#: stopped, and by then others own its node (docs/shards.md).
ANSWER_WITHIN = 12.0
# One object each, not one for each stream.
_NEVER, _NOW = float("inf"), float("-inf")


class Context(Protocol):
    """What a stream needs of `grpc.aio.ServicerContext`."""

    async def read(self) -> object:
        """An AgentMessage, or `grpc.aio.EOF`."""
        ...

    async def write(self, message: pb.AggregatorMessage) -> None: ...
    def peer(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """What every stream of this aggregator goes by. Durations are seconds.

    ``now`` is monotonic, ``wall`` since the epoch. ``cluster_away`` says whether the API server
    can't be reached, so that nobody's token can be renewed. ``among_others``: this replica's own
    address, if there are others to which an agent could go when this one falls silent; else empty.
    """

    name: str
    version: str
    heartbeat: float
    silent_after: float
    now: Callable[[], float]
    wall: Callable[[], float]
    cluster_away: Callable[[], bool]
    among_others: Callable[[], str] = lambda: ""


class Streams(Protocol):
    """The streams of all nodes, as one stream knows them."""

    def attach(self, stream: "Stream") -> None: ...

    def detach(self, stream: "Stream") -> None: ...

    def peers(self, stream: "Stream") -> Sequence[str]:
        """The addresses that this stream's node is to probe."""
        ...


class Stream:
    """One call of Attend, from its opening to its end."""

    __slots__ = (
        "_acks",
        "_answers",
        "_attached",
        "_authenticator",
        "_caller",
        "_context",
        "_ending",
        "_intake",
        "_leave_by",
        "_named",
        "_outbox",
        "_resyncs",
        "_rules",
        "_seq",
        "_sparingly",
        "_stats",
        "_stopping",
        "_storm",
        "_streams",
        "_task",
        "due_at",
        "identity",
        "instance",
        "last_heard",
        "node",
        "overdue",
        "peer",
    )

    def __init__(
        self,
        context: Context,
        *,
        caller: Callable[[str], Caller],
        rules: Rules,
        authenticator: Authenticator,
        intake: Intake,
        streams: Streams,
        stats: IngestStats,
        sparingly: Sparingly,
        storm: Storm,
    ) -> None:
        self._context = context
        self._caller = caller
        self._rules = rules
        self._authenticator = authenticator
        self._intake = intake
        self._streams = streams
        self._stats = stats
        self._sparingly = sparingly
        self._storm = storm
        self._task: asyncio.Task[None] | None = None
        self._ending: Ending | None = None
        self._attached = False
        self._stopping = False
        self._outbox = Outbox(self)
        self._acks = Acks(self)
        self._seq = 0
        self._resyncs = Resyncs()
        self._leave_by = _NEVER
        self._named: tuple[str, ...] = ()
        self._answers = ""  # promised, by whom is reached at this address
        self.node = ""
        self.instance = ""
        self.peer = context.peer()
        self.identity = Identity("")
        self.last_heard = rules.now()
        #: When time may next bring something, but for its credentials' end (monotonic).
        self.due_at = _NOW
        #: Its credentials have expired, and it stays because nobody's can be renewed.
        self.overdue = False

    # -- the talk ---------------------------------------------------------------

    async def serve(self) -> Ending:
        """Until it ends; how. Cancelled from outside (the connection broke) it raises that.

        A stream is here all its life. So it keeps no message, and waits for the next in no call of
        its own, which would be 240 bytes for each.
        """
        self._task = asyncio.current_task()
        allowance = Allowance(self._rules.now())
        message: pb.AgentMessage | None
        try:
            await self._greet(allowance)
            message = await self._first(allowance, "snapshot", SNAPSHOT_WITHIN, Why.NO_SNAPSHOT)
            while message is not None:
                self.last_heard = self._rules.now()
                await self._take(message)
                message = None
                message = _known(await self._context.read())
                if message is not None:
                    await self._pay(allowance, message)
            ending = gone()
        except Ending as reached:
            # Anew: one that was raised holds the frames that it came through, and they hold it.
            ending = Ending(reached.why, reached.code, str(reached))
        except DecodeError:
            text = "a message that is no sickbay.v1.AgentMessage"
            ending = Ending(Why.MALFORMED, Code.INVALID_ARGUMENT, text)
        except asyncio.CancelledError:
            if self._ending is None:
                self._end(gone())
                raise
            self._stopping = False
            ending = self._ending
        except Exception:
            # The outermost edge of one stream: whatever this is, the others go on.
            log.exception("a stream failed", extra={"node": self.node, "peer": self.peer})
            ending = Ending(Why.INTERNAL, Code.INTERNAL, "the aggregator failed; see its log")
        return await self._leave(ending)

    async def _leave(self, ending: Ending) -> Ending:
        """The end of the talk: what is said of it, and what was under way."""
        assert self._task is not None
        if self._stopping:
            # Stopped in the very step in which it ended by itself: take the cancellation that is
            # still to come, or it would hit whoever awaits next.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        while self._task.cancelling():
            self._task.uncancel()
        self._end(ending)
        await self._outbox.settled()
        return self._ending or ending

    async def _greet(self, allowance: Allowance) -> None:
        message = await self._first(allowance, "hello", HELLO_WITHIN, Why.NO_HELLO)
        try:
            claimed = wire.hello(message.hello)
            self.identity = await self._authenticator.identify(self._caller(claimed.node))
        except wire.WireError as error:
            raise malformed("hello", error) from None
        except IdentityError as error:
            raise refused(error) from None
        del self._caller  # asked once; it would be 250 bytes for each stream
        hello = replace(claimed, node_uid=self.identity.node_uid)
        self.node, self.instance = hello.node, hello.instance
        self.last_heard = self._rules.now()
        home = self._intake.home(self.node)
        if home:
            await self._send_home(home, allowance)
        self._attached = True
        self._streams.attach(self)
        self._intake.attached(hello, self)
        self._welcome(self._streams.peers(self))

    async def _send_home(self, home: str, allowance: Allowance) -> None:
        """The node is another replica's: say so, and nothing else, until its agent leaves."""
        self._outbox.put(wire.redirect(home, "the node belongs to that replica"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REDIRECT_WITHIN):
                while await self._read(allowance) is not None:
                    pass
        raise Ending(Why.REDIRECTED, Code.UNAVAILABLE, f"the node belongs to the replica at {home}")

    def _welcome(self, peers: Sequence[str]) -> None:
        self._named = tuple(peers)
        # Once promised always kept: it is not told anew each time that another replica restarts.
        self._answers = self._answers or self._rules.among_others()
        self._outbox.put(
            wire.welcome(
                name=self._rules.name,
                version=self._rules.version,
                heartbeat=self._rules.heartbeat,
                peers=self._named,
                answer_within=ANSWER_WITHIN if self._answers else 0.0,
                address=self._answers,
            )
        )

    def name_peers(self) -> None:
        """Tell the agent whom to probe, if that has changed since it was told.

        And that its heartbeats are answered, once there are other replicas.
        """
        peers = tuple(self._streams.peers(self))
        known = peers == self._named and (self._answers or not self._rules.among_others())
        if self._attached and self._ending is None and not known:
            self._welcome(peers)

    async def _first(
        self, allowance: Allowance, kind: str, within: float, why: Why
    ) -> pb.AgentMessage:
        """The message that the contract wants now."""
        try:
            async with asyncio.timeout(within):
                message = await self._read(allowance)
        except TimeoutError:
            text = f"no {kind.capitalize()} within {within:g} s"
            raise Ending(why, Code.DEADLINE_EXCEEDED, text) from None
        if message is None:
            raise Ending(why, Code.FAILED_PRECONDITION, f"closed before its {kind.capitalize()}")
        got = message.WhichOneof("body")
        if got != kind:
            text = f"{got or 'an empty message'} came where {kind.capitalize()} must come"
            raise Ending(Why.MALFORMED, Code.INVALID_ARGUMENT, text)
        return message

    async def _read(self, allowance: Allowance) -> pb.AgentMessage | None:
        """The next message; None when the agent has closed its side."""
        message = _known(await self._context.read())
        if message is not None:
            await self._pay(allowance, message)
        return message

    async def _pay(self, allowance: Allowance, message: pb.AgentMessage) -> None:
        """Let who says too much wait."""
        wait = allowance.spend(message.ByteSize(), self._rules.now())
        if wait > 0:
            self._stats.throttled += 1
            unsaid = self._sparingly(f"held back: {self.node}", self._rules.now())
            if unsaid is not None:
                extra = {"node": self.node, "peer": self.peer, **unsaid}
                log.warning("an agent sends more than it may; it is read slowly", extra=extra)
            await asyncio.sleep(wait)

    async def _take(self, message: pb.AgentMessage) -> None:
        kind = message.WhichOneof("body")
        self._stats.messages[kind or "empty"] += 1
        try:
            match kind:
                case "delta" | "snapshot":
                    self._evidence(message.snapshot if kind == "snapshot" else message.delta)
                case "heartbeat":
                    self._beat(message.heartbeat)
                case "credentials":
                    await self._renew(message.credentials.token)
                case "command_result":
                    command, ok, text = wire.answer(message.command_result)
                    self._intake.answered(self.node, command, ok=ok, message=text)
                case "hello":
                    self._second_hello(message.hello)
                case _:
                    # A newer agent's message of a kind that we don't know yet: not ours to refuse.
                    pass
        except wire.WireError as error:
            raise malformed(kind or "", error) from None

    def _evidence(self, message: pb.Snapshot | pb.Delta) -> None:
        if message.seq < self._seq:
            raise wire.WireError("seq", f"{message.seq} after {self._seq}")
        at = self.last_heard
        evidence = (
            wire.snapshot(message, at=at)
            if isinstance(message, pb.Snapshot)
            else wire.delta(message, at=at)
        )
        if self._acks.full:
            text = "too much of it waits to be made durable; say it again in one snapshot"
            raise Ending(Why.UNSAFE, Code.UNAVAILABLE, text)
        self._seq = message.seq
        if isinstance(message, pb.Snapshot):
            self._resyncs.answered()
        self._acks.add(message.seq, self._intake.heard(self.node, evidence, at))

    def _beat(self, heartbeat: pb.Heartbeat) -> None:
        self._intake.beat(self.node, self.last_heard)
        if self._intake.digest(self.node) == heartbeat.digest:
            self._resyncs.agreed()
        else:
            self.resync("the digest of your state differs from ours")
        if self._answers:
            self._outbox.answer()

    async def _renew(self, token: str) -> None:
        try:
            self.identity = await self._authenticator.renew(self.identity, token)
        except IdentityError as error:
            if error.passing:
                return  # the agent's renewed token may be good; what it has holds until it expires
            raise refused(error) from None
        self.overdue = False
        self._stats.renewed += 1

    def _second_hello(self, hello: pb.Hello) -> None:
        if hello.node != self.node:
            text = f"the stream of node {self.node!r} claims node {hello.node!r}"
            raise Ending(Refusal.ANOTHER_NODE, Code.PERMISSION_DENIED, text)
        raise Ending(Why.MALFORMED, Code.INVALID_ARGUMENT, "a second Hello in one stream")

    # -- the way back -----------------------------------------------------------

    def resync(self, reason: str) -> None:
        """Ask for a snapshot, now or as soon as one may be asked for again."""
        self._resyncs.ask(reason)
        self.due_at = _NOW
        self._resync_if_due(self._rules.now())

    def _resync_if_due(self, now: float) -> None:
        reason = self._resyncs.due(now)
        if reason:
            self._outbox.put(wire.resync(reason))
            self._stats.resyncs += 1

    def redirect(self, address: str, reason: str) -> None:
        self._outbox.put(wire.redirect(address, reason))
        self._leave_by = self._rules.now() + REDIRECT_WITHIN
        self.due_at = _NOW

    def clear_faults(self, component: str, code: str, reason: str) -> str:
        command = uuid.uuid4().hex
        self._outbox.put(wire.clear_faults(command, component, code, reason))
        return command

    def quiesce(self, seconds: float, reason: str) -> str:
        command = uuid.uuid4().hex
        self._outbox.put(wire.quiesce(command, seconds, reason))
        return command

    def run_checks(self, names: Sequence[str]) -> str:
        command = uuid.uuid4().hex
        self._outbox.put(wire.run_checks(command, names))
        return command

    def close(self, reason: str) -> None:
        self._stop(Ending(Why.CLOSED, Code.UNAVAILABLE, reason))

    def supersede(self, by: str) -> None:
        """A newer stream of the node speaks for it now."""
        text = f"a newer stream of node {self.node!r} has taken over, from {by}"
        self._stop(Ending(Why.SUPERSEDED, Code.ABORTED, text))

    # -- its end ----------------------------------------------------------------

    def tick(self, now: float, wall: float, *, renewals_may_fail: bool) -> None:
        """Look after what time brings: silence, expiry, a redirect that was not followed.

        Before `due_at`, with credentials that are valid, there is nothing.
        """
        self._resync_if_due(now)
        if not self._resyncs.wanted:
            self.due_at = min(self.last_heard + self._rules.silent_after, self._leave_by)
        if now > self._leave_by:
            self._stop(Ending(Why.REDIRECTED, Code.UNAVAILABLE, "redirected, and stayed"))
        elif now - self.last_heard > self._rules.silent_after:
            text = f"nothing heard for {self._rules.silent_after:g} s"
            self._stop(Ending(Why.SILENT, Code.DEADLINE_EXCEEDED, text))
        elif self.identity.expires is not None and wall >= self.identity.expires + LEEWAY:
            self.overdue = renewals_may_fail
            if not renewals_may_fail:
                text = "the credentials expired and were not renewed within the stream"
                self._stop(Ending(Refusal.EXPIRED, Code.UNAUTHENTICATED, text))

    # -- what its outbox and its acknowledgements ask of it ----------------------

    def write(self, message: pb.AggregatorMessage) -> Awaitable[None]:
        return self._context.write(message)

    def overflowed(self) -> None:
        text = "the agent does not read what it is sent"
        self._stop(Ending(Why.SLOW_READER, Code.RESOURCE_EXHAUSTED, text))

    def safe(self, seq: int) -> None:
        self._stats.acks += 1
        self._outbox.owe(seq)
        self._storm.let(self._outbox)

    def unsafe(self, error: BaseException) -> None:
        log.error(
            "evidence could not be made safe; its agent will send all of it again",
            extra={"node": self.node, "error": f"{type(error).__name__}: {error}"},
        )
        text = "the evidence could not be made durable; send it again"
        self._stop(Ending(Why.UNSAFE, Code.UNAVAILABLE, text))

    def _stop(self, ending: Ending) -> None:
        """End it from outside its own talk. The intake hears so at once, and nothing after it."""
        if self._ending is None and self._task is not None:
            self._end(ending)
            self._stopping = True
            self._task.cancel()

    def _end(self, ending: Ending) -> None:
        if self._ending is not None:
            return
        self._ending = ending
        self._outbox.close()
        self._acks.close()
        if self._attached:
            self._stats.ended[ending.why] += 1
            self._streams.detach(self)
            self._intake.detached(self.node, self, str(ending))
        else:
            self._stats.refused[ending.why] += 1
        self._say(ending)

    def _say(self, ending: Ending) -> None:
        sent_home = ending.why is Why.REDIRECTED and not self._attached
        ordinary = sent_home or ending.why in {Why.LEFT, Why.CLOSED}
        unsaid = {} if ordinary else self._sparingly(ending.why, self._rules.now())
        if unsaid is not None:
            log.log(
                logging.DEBUG if ordinary else logging.WARNING,
                "stream ended" if self._attached else "stream refused",
                extra={
                    "node": self.node,
                    "peer": self.peer,
                    "why": ending.why,
                    "detail": str(ending),
                    **unsaid,
                },
            )


def _known(read: object) -> pb.AgentMessage | None:
    """What was read, None where it is `grpc.aio.EOF`."""
    return read if isinstance(read, pb.AgentMessage) else None
