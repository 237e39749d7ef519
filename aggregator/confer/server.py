"""The leader's end of the replicas' streams: a service beside the agents', on the same listener."""

import asyncio
import logging
from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError

from aggregator.confer.answers import put_answer
from aggregator.confer.badges import Badges
from aggregator.confer.checked import WireError
from aggregator.confer.said import read_said
from aggregator.ingest.identity import IdentityError
from aggregator.ingest.stats import Sparingly
from aggregator.quarantine.conferring import Conferring
from aggregator.quarantine.presiding import NotHere, Seat, SeatLost, Unruly
from aggregator.together import together
from sickbay.v1 import shards_pb2 as pb
from sickbay.v1 import shards_pb2_grpc

log = logging.getLogger("sickbay.confer")

#: Who has opened a stream says who it is within so many seconds.
INTRODUCED_WITHIN = 10.0

_Context = grpc.aio.ServicerContext[pb.ShardMessage, pb.LeaderMessage]
_Code = grpc.StatusCode


class _Refused(Exception):
    """The stream ends with this code; the text is for the log at the other end."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class CouncilService(shards_pb2_grpc.CouncilServicer):
    """``cluster_away``: the API server can't be reached, so nobody's token can be renewed now; a
    stream that is up then stays up. ``now`` is in seconds, and only says how often to say a thing.
    """

    def __init__(
        self,
        conferring: Conferring,
        badges: Badges,
        *,
        cluster_away: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        self._now = now
        self._sparingly = Sparingly()
        self._conferring = conferring
        self._badges = badges
        self._cluster_away = cluster_away

    def register(self, server: grpc.aio.Server) -> None:
        """Serve it there, too."""
        shards_pb2_grpc.add_CouncilServicer_to_server(self, server)

    async def Confer(self, _: object, context: _Context) -> None:  # type: ignore[override]  # noqa: N802  # the read and write calls of grpc.aio
        """One replica's stream, until it ends."""
        try:
            await self._serve(context)
        except _Refused as refused:
            unsaid = self._sparingly(refused.code.name, self._now())
            if unsaid is not None:
                told = {"peer": context.peer(), "code": refused.code.name, "reason": str(refused)}
                log.info("a replica's stream ends", extra={**told, **unsaid})
            await context.abort(refused.code, str(refused))

    async def _serve(self, context: _Context) -> None:
        pairs = context.invocation_metadata() or ()
        metadata = {str(key): value for key, value in pairs if isinstance(value, str)}
        try:
            until = await self._badges.show(context.peer(), metadata)
        except IdentityError as error:
            raise _of(error) from None
        introduction = await self._introduction(context)
        try:
            seat = self._conferring.seat(introduction.name, introduction.epoch)
        except NotHere as error:
            raise _Refused(_Code.FAILED_PRECONDITION, str(error)) from None
        log.info("a replica confers", extra={"replica": seat.name, "peer": context.peer()})
        try:
            await _Stream(seat, context, self._badges, self._cluster_away, until).serve()
        finally:
            seat.close("its stream ended")

    async def _introduction(self, context: _Context) -> pb.Introduction:
        try:
            async with asyncio.timeout(INTRODUCED_WITHIN):
                first = await _read(context)
        except TimeoutError:
            raise _Refused(_Code.DEADLINE_EXCEEDED, "no introduction") from None
        if not isinstance(first, pb.ShardMessage) or first.WhichOneof("body") != "introduction":
            raise _Refused(_Code.INVALID_ARGUMENT, "the first message must be an introduction")
        return first.introduction


class _Stream:
    """What comes is heard, what is due is said; either ends both."""

    def __init__(
        self,
        seat: Seat,
        context: _Context,
        badges: Badges,
        cluster_away: Callable[[], bool],
        until: float,
    ) -> None:
        self._seat = seat
        self._context = context
        self._badges = badges
        self._cluster_away = cluster_away
        self._until = until

    async def serve(self) -> None:
        name = self._seat.name
        await together(**{f"hear {name}": self._hear(), f"answer {name}": self._answer()})

    async def _hear(self) -> None:
        """Until the replica says that it is done."""
        while True:
            message = await _read(self._context)
            if not isinstance(message, pb.ShardMessage):
                return
            try:
                if message.WhichOneof("body") == "credentials":
                    self._until = await self._badges.renew(message.credentials.token)
                else:
                    self._seat.hear(read_said(message))
            except IdentityError as error:
                raise _of(error) from None
            except (WireError, Unruly) as error:
                raise _Refused(_Code.INVALID_ARGUMENT, str(error)) from None
            except SeatLost as error:
                raise _Refused(_Code.UNAVAILABLE, str(error)) from None

    async def _answer(self) -> None:
        """Something is due each second at least."""
        while True:
            try:
                answer = await self._seat.next()
            except SeatLost as error:
                raise _Refused(_Code.UNAVAILABLE, str(error)) from None
            if self._badges.has_expired(self._until) and not self._cluster_away():
                raise _Refused(_Code.UNAUTHENTICATED, "the token has expired")
            try:
                await self._context.write(put_answer(answer))
            except (grpc.aio.BaseError, asyncio.InvalidStateError):
                return  # the other end has gone while we answered


async def _read(context: _Context) -> object:
    try:
        return await context.read()
    except DecodeError:
        raise _Refused(_Code.INVALID_ARGUMENT, "no sickbay.v1.ShardMessage") from None


def _of(error: IdentityError) -> _Refused:
    if error.passing:
        return _Refused(_Code.UNAVAILABLE, str(error))
    return _Refused(_Code.PERMISSION_DENIED if error.proven else _Code.UNAUTHENTICATED, str(error))
