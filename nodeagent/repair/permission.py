"""Requests permission to begin an act from the aggregator, immediately before the act.

An order states what was wanted when it was sent. The permission states that it still is: the
aggregator reads the cluster's state for it. Without a permission that is fresh nothing begins, so
no message has to arrive for an order to end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nodeagent.clock import Clock
from nodeagent.dataclass import dataclass
from nodeagent.repair.operation import Operation
from sickbay.v1.limits import PERMISSION_SECONDS

__all__ = ["BeginPermission", "NotPermitted", "PermissionReply"]

_T = TypeVar("_T")


class NotPermitted(Exception):
    """The act must not begin; the text is the reason, for people."""


@dataclass(frozen=True, slots=True)
class PermissionReply:
    """The aggregator's answer. ``reason``: why it is not granted, for people."""

    granted: bool
    reason: str = ""


class BeginPermission:
    """One request at a time, as one order at a time is under way.

    ``wake``: there is a request to send. The permission counts from the moment before the request
    is given to the stream, by the clock that also counts a suspension of the machine.
    """

    def __init__(self, clock: Clock, wake: Callable[[], object]) -> None:
        self._clock = clock
        self._wake = wake
        self._operation: Operation | None = None
        self._is_due = False
        self._sent: asyncio.Event = asyncio.Event()
        self._sent_at = float("-inf")
        self._reply: asyncio.Future[PermissionReply] | None = None

    async def request(self, operation: Operation) -> None:
        """Return once the aggregator has granted the operation. Raises NotPermitted."""
        self._operation, self._is_due, self._sent = operation, True, asyncio.Event()
        reply = self._reply = asyncio.get_running_loop().create_future()
        self._wake()
        try:
            await _within(self._sent.wait(), "no stream to the aggregator took the request")
            answer = await _within(reply, "the aggregator has not answered")
        finally:
            self._operation, self._is_due, self._reply = None, False, None
        if not answer.granted:
            raise NotPermitted(answer.reason or "the aggregator names no reason")
        self.check()

    def check(self) -> None:
        """Raises NotPermitted where the latest permission is too old to begin by."""
        age = self._clock.boottime() - self._sent_at
        if not 0 <= age < PERMISSION_SECONDS:
            raise NotPermitted(
                f"the permission was requested {age:.1f} s ago and counts {PERMISSION_SECONDS:g} s"
            )

    # -- the stream ----------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        return self._is_due

    def due(self) -> Sequence[Operation]:
        """The operation to request permission for, at most once; the caller sends it now."""
        if not self._is_due or self._operation is None:
            return ()
        self._is_due, self._sent_at = False, self._clock.boottime()
        self._sent.set()
        return (self._operation,)

    def take_reply(self, operation_id: str, reply: PermissionReply) -> None:
        """The aggregator's answer. One that was not requested, or comes late, changes nothing."""
        if (
            self._operation is not None
            and self._operation.operation_id == operation_id
            and self._sent.is_set()
        ):
            self._settle(reply)

    def stream_ended(self) -> None:
        """The answer to what was sent can't come any more."""
        if self._sent.is_set():
            self._settle(
                PermissionReply(granted=False, reason="the stream to the aggregator ended")
            )

    def _settle(self, reply: PermissionReply) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)


async def _within(what: Awaitable[_T], otherwise: str) -> _T:
    try:
        async with asyncio.timeout(PERMISSION_SECONDS):
            return await what
    except TimeoutError:
        raise NotPermitted(f"{otherwise} for {PERMISSION_SECONDS:g} s") from None
