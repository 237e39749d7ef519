"""The leader's end of the replicas' streams: a service beside the agents', on the same listener."""

import asyncio
import logging
from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError

from aggregator.ingest.identity import IdentityError
from aggregator.ingest.stats import RateLimitedLog
from aggregator.quarantine.coordination.coordinator import Coordinator
from aggregator.quarantine.coordination.leader import (
    FollowerSession,
    NotLeader,
    ProtocolViolation,
    SessionClosed,
)
from aggregator.relay.auth import ReplicaAuthenticator
from aggregator.replicas.rpc.answer_codec import encode_answer
from aggregator.replicas.rpc.report_codec import decode_report
from aggregator.replicas.rpc.validation import InvalidReport
from aggregator.runtime.tasks import run_until_first_exit
from sickbay.v1 import shards_pb2 as pb
from sickbay.v1 import shards_pb2_grpc

log = logging.getLogger("sickbay.coordination")

#: A replica must introduce itself within so many seconds of opening a stream.
INTRODUCED_WITHIN = 10.0

_Context = grpc.aio.ServicerContext[pb.ShardMessage, pb.LeaderMessage]
_Code = grpc.StatusCode


class _Refused(Exception):
    """The stream ends with this code; the text is for the log at the other end."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class CoordinationService(shards_pb2_grpc.CoordinationServicer):
    """``cluster_away``: the API server can't be reached, so no replica's token can be renewed now;
    an open stream then stays open. ``now`` is in seconds, and only limits the rate of log lines.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        replica_auth: ReplicaAuthenticator,
        *,
        cluster_away: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        self._now = now
        self._sparingly = RateLimitedLog()
        self._coordinator = coordinator
        self._replica_auth = replica_auth
        self._cluster_away = cluster_away

    def register(self, server: grpc.aio.Server) -> None:
        """Serve it on that server, too."""
        shards_pb2_grpc.add_CoordinationServicer_to_server(self, server)

    async def Report(self, _: object, context: _Context) -> None:  # type: ignore[override]  # noqa: N802  # the read and write calls of grpc.aio
        """One replica's stream, until it ends."""
        try:
            await self._serve(context)
        except _Refused as refused:
            log_fields = self._sparingly(refused.code.name, self._now())
            if log_fields is not None:
                told = {"peer": context.peer(), "code": refused.code.name, "reason": str(refused)}
                log.info("a replica's stream ends", extra={**told, **log_fields})
            # The error that `abort` raises would keep the call in memory until a collection.
            context.set_code(refused.code)
            context.set_details(str(refused))

    async def _serve(self, context: _Context) -> None:
        pairs = context.invocation_metadata() or ()
        metadata = {str(key): value for key, value in pairs if isinstance(value, str)}
        try:
            until = await self._replica_auth.authenticate(context.peer(), metadata)
        except IdentityError as error:
            raise _of(error) from None
        introduction = await self._introduction(context)
        try:
            session = self._coordinator.open_session(introduction.name, introduction.epoch)
        except NotLeader as error:
            raise _Refused(_Code.FAILED_PRECONDITION, str(error)) from None
        log.info(
            "a replica reports to this leader",
            extra={"replica": session.name, "peer": context.peer()},
        )
        try:
            await _Stream(session, context, self._replica_auth, self._cluster_away, until).serve()
        finally:
            session.close("its stream ended")

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
    """Handles messages as they come, and sends answers when they are due; the end of either ends
    both.
    """

    def __init__(
        self,
        session: FollowerSession,
        context: _Context,
        replica_auth: ReplicaAuthenticator,
        cluster_away: Callable[[], bool],
        until: float,
    ) -> None:
        self._follower_session = session
        self._context = context
        self._replica_auth = replica_auth
        self._cluster_away = cluster_away
        self._until = until

    async def serve(self) -> None:
        name = self._follower_session.name
        await run_until_first_exit(
            **{f"hear {name}": self.receive_messages(), f"answer {name}": self._answer()}
        )

    async def receive_messages(self) -> None:
        """Until the replica closes its side."""
        while True:
            message = await _read(self._context)
            if not isinstance(message, pb.ShardMessage):
                return
            try:
                if message.WhichOneof("body") == "credentials":
                    self._until = await self._replica_auth.renew(message.credentials.token)
                else:
                    self._follower_session.receive(decode_report(message))
            except IdentityError as error:
                raise _of(error) from None
            except (InvalidReport, ProtocolViolation) as error:
                raise _Refused(_Code.INVALID_ARGUMENT, str(error)) from None
            except SessionClosed as error:
                raise _Refused(_Code.UNAVAILABLE, str(error)) from None

    async def _answer(self) -> None:
        """An answer is due each second at least."""
        while True:
            try:
                answer = await self._follower_session.next()
            except SessionClosed as error:
                raise _Refused(_Code.UNAVAILABLE, str(error)) from None
            if self._replica_auth.has_expired(self._until) and not self._cluster_away():
                raise _Refused(_Code.UNAUTHENTICATED, "the token has expired")
            try:
                await self._context.write(encode_answer(answer))
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
