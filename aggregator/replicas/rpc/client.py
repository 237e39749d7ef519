"""A replica's end of its stream: connects to the leader, and again when the leader changes.

Reconnects with full jitter. The loss of a leader is short, because the next one is known within
seconds, and connected to at once.
"""

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import grpc

from aggregator.configfile.values import is_loopback
from aggregator.quarantine.coordination.coordinator import Coordinator
from aggregator.quarantine.coordination.follower import LeaderSession, LeaderSessionClosed
from aggregator.quarantine.coordination.leader import NotLeader
from aggregator.replicas.membership.view import Member, Ownership
from aggregator.replicas.rpc.answer_codec import decode_answer
from aggregator.replicas.rpc.report_codec import encode_report
from aggregator.replicas.rpc.validation import InvalidReport
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.tasks import run_until_first_exit
from sickbay.v1 import shards_pb2 as pb
from sickbay.v1 import shards_pb2_grpc

log = logging.getLogger("sickbay.coordination")

_DIGITS = re.compile(r"\d+")

#: grpc.aio's own text where the other side ends a stream while we write into it.
_CUT_SHORT = "Internal error from Core"

#: Seconds. The longest pause is short, because without a stream no action is admitted here.
_BACKOFF = Backoff(first=0.4, most=2.0)
#: The leader must have accepted us within this time, or we connect again.
ANSWERED_WITHIN = 5.0
#: The token's file is checked so often; the kubelet renews it after 80 % of its life.
TOKEN_EVERY = 30.0
MAX_TOKEN = 16_384

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection of our own, that ends with its channel
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]


class ReplicaRpcConfigError(Exception):
    """A credential is missing; the text names it, and the key of the configuration."""


class ReplicaCredentials:
    """The stream's encryption and proof of identity, read again for each stream.

    ``ca_file`` verifies the other replicas' certificates; without it the stream is plaintext, on
    loopback alone. ``pair`` (certificate, key) is presented to a listener that requires a
    certificate of its clients.
    """

    def __init__(
        self, *, token_file: Path, ca_file: Path | None, pair: tuple[Path, Path] | None = None
    ) -> None:
        self._token_file = token_file
        self._ca_file = ca_file
        self._pair = pair

    def token(self) -> str:
        text = _read(self._token_file, "shards.token_file").decode("ascii", "replace").strip()
        if not text or len(text) > MAX_TOKEN:
            raise ReplicaRpcConfigError(f"shards.token_file: {self._token_file} holds no token")
        return text

    def channel(self, address: str) -> grpc.aio.Channel:
        if self._ca_file is None:
            if not is_loopback(address):
                raise ReplicaRpcConfigError(
                    f"{address} is not on this machine, and there is no shards.ca_file: replicas "
                    "coordinate without TLS on one machine only"
                )
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        certificate = key = None
        if self._pair is not None:
            certificate = _read(self._pair[0], "listen.tls.cert_file")
            key = _read(self._pair[1], "listen.tls.key_file")
        credentials = grpc.ssl_channel_credentials(
            _read(self._ca_file, "shards.ca_file"), key, certificate
        )
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


class LeaderClient:
    """Keeps the stream up. ``now`` is monotonic seconds."""

    def __init__(
        self,
        coordinator: Coordinator,
        shards: Ownership,
        credentials: ReplicaCredentials,
        *,
        now: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._coordinator = coordinator
        self._shards = shards
        self._credentials = credentials
        self._now = now
        self._rng = rng
        self._changed = asyncio.Event()
        #: Why there is no stream to the leader; empty: there is one, or we lead.
        self.trouble = ""
        shards.on_change(self._changed.set)

    async def run(self) -> None:
        """For ever."""
        failures, before = 0, ""
        while True:
            self._changed.clear()
            leader, me = self._coordinator.leader, self._me()
            if leader is None or me is None or not leader.address:
                self.trouble = ""
                await self._changed.wait()
                continue
            if leader.epoch != before:
                failures, before = 0, leader.epoch
            if await self._speak_to(leader, me):
                failures = 0
            failures += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BACKOFF.pause(failures, self._rng)):
                    await self._changed.wait()

    def _me(self) -> Member | None:
        membership_view = self._shards.membership_view
        return membership_view.members.get(membership_view.me)

    async def _speak_to(self, leader: Member, me: Member) -> bool:
        """One stream, to its end. Returns whether there was one."""
        spoke = False
        try:
            token = await asyncio.to_thread(self._credentials.token)
            async with self._credentials.channel(leader.address) as channel:
                metadata = grpc.aio.Metadata(("authorization", f"Bearer {token}"))
                call = shards_pb2_grpc.CoordinationStub(channel).Report(metadata=metadata)
                introduction = pb.Introduction(name=me.name, epoch=me.epoch)
                async with asyncio.timeout(ANSWERED_WITHIN):
                    await self._write(call, pb.ShardMessage(introduction=introduction))
                    first = await call.read()
                if not isinstance(first, pb.LeaderMessage):
                    await self._ended(call)
                leader_session = self._coordinator.report_to_leader(leader)
                self.trouble, spoke = "", True
                log.info("stream to the leader opened", extra={"leader": leader.name})
                try:
                    leader_session.receive(decode_answer(first))
                    await self._converse(leader_session, call, token)
                finally:
                    leader_session.close(f"the stream to {leader.name} is lost")
        except grpc.aio.AioRpcError as error:
            # A write met the end of the stream: grpc does not tell how it ended, the next attempt
            # will. The earlier error is still true.
            reason_unknown = error.details() == _CUT_SHORT and bool(self.trouble)
            if not reason_unknown:
                self._complain(leader, f"{error.code().name}: {error.details()}")
        except TimeoutError:
            self._complain(leader, f"no answer within {ANSWERED_WITHIN:g} s")
        except (
            ReplicaRpcConfigError,
            InvalidReport,
            LeaderSessionClosed,
            NotLeader,
            OSError,
        ) as error:
            self._complain(leader, str(error))
        return spoke

    def _complain(self, leader: Member, trouble: str) -> None:
        if _DIGITS.sub("", trouble) != _DIGITS.sub("", self.trouble):  # "expired 61 s ago", say
            log.warning("no stream to the leader", extra={"leader": leader.name, "error": trouble})
            self._coordinator.unreached(leader, trouble)
        self.trouble = trouble

    async def _converse(self, leader_session: LeaderSession, call: "_Call", token: str) -> None:
        """Exchange messages until either side ends the stream."""
        try:
            await run_until_first_exit(
                say_to_the_leader=self.send_messages(leader_session, call, token),
                hear_the_leader=self.receive_messages(leader_session, call),
            )
        finally:
            call.cancel()

    async def send_messages(self, leader_session: LeaderSession, call: "_Call", token: str) -> None:
        looked = self._now()
        while True:
            said = await leader_session.next()
            if self._now() - looked >= TOKEN_EVERY:
                looked = self._now()
                renewed = await asyncio.to_thread(self._credentials.token)
                if renewed != token:
                    token = renewed
                    credentials = pb.ShardCredentials(token=token)
                    await self._write(call, pb.ShardMessage(credentials=credentials))
            await self._write(call, encode_report(said))

    async def receive_messages(self, leader_session: LeaderSession, call: "_Call") -> None:
        while True:
            message = await call.read()
            if not isinstance(message, pb.LeaderMessage):
                await self._ended(call)
            leader_session.receive(decode_answer(message))

    async def _write(self, call: "_Call", message: pb.ShardMessage) -> None:
        try:
            await call.write(message)
        except asyncio.InvalidStateError:
            await self._ended(call)  # grpc.aio's error for a stream that has just ended

    @staticmethod
    async def _ended(call: "_Call") -> NoReturn:
        """The stream is over: raises its status."""
        raise LeaderSessionClosed(f"{(await call.code()).name}: {await call.details()}")


_Call = grpc.aio.StreamStreamCall[pb.ShardMessage, pb.LeaderMessage]


def _read(file: Path, key: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ReplicaRpcConfigError(f"{key}: {file} can't be read: {error.strerror}") from None
