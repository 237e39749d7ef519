"""The agents' service of a replica: a gateway, or the streams of this process if it is the
controller.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from operator import attrgetter
from typing import TypeAlias

import grpc
from google.protobuf.message import DecodeError

from aggregator.ingest.ack_pacing import AckPacer
from aggregator.ingest.agent_exchange import REFUSED_WITHIN
from aggregator.ingest.agent_streams import PAUSE, SLICE, AgentStreams
from aggregator.ingest.awaited_hellos import AwaitedHellos
from aggregator.ingest.close_reason import CloseReason, StreamClosed
from aggregator.ingest.from_config import caller_of
from aggregator.ingest.identity import Authenticator
from aggregator.ingest.rate_limit import budgets
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.stream import Stream
from aggregator.relay.agent_call import AgentCall, GatewayRules
from aggregator.relay.gateway_link import GatewayLink
from aggregator.relay.resync_pacer import ResyncPacer
from aggregator.runtime.rate_limited_log import RateLimitedLog
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc

log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[pb.AgentMessage, pb.AggregatorMessage]"


class Gateway(sickbay_pb2_grpc.AgentGatewayServicer):
    """``authenticator`` proves the agents' identities. Used by `AgentCall` and `RelayClient`."""

    def __init__(
        self, *, authenticator: Authenticator, rules: GatewayRules, stats: IngestStats
    ) -> None:
        self._authenticator = authenticator
        self._rules = rules
        self.stats = stats
        self._calls: dict[int, AgentCall] = {}
        self._by_node: dict[str, AgentCall] = {}
        self._numbers = 0
        self.budgets = budgets()
        self._link: GatewayLink | None = None
        self.awaited = AwaitedHellos()
        self.ack_pacer = AckPacer()
        self.sparingly = RateLimitedLog()
        #: The streams of this process, once it is the controller.
        self.streams: AgentStreams | None = None
        #: Messages with evidence that were not forwarded. Snapshots were requested from their
        #: agents.
        self.dropped = 0
        #: Agents that are connected to this replica, relayed or not.
        self.connected = 0
        #: Why no agent is served here; empty: they are.
        self.problem = ""

    def register(self, server: grpc.aio.Server) -> None:
        sickbay_pb2_grpc.add_AgentGatewayServicer_to_server(self, server)

    async def Connect(  # type: ignore[override]  # noqa: N802  # the read and write calls of grpc.aio
        self,
        _: object,
        context: _Context,
    ) -> None:
        self.connected += 1
        try:
            # In this call: one of its own would be 250 bytes for each agent.
            if self.problem:
                ending = await self._refuse(context)
            elif self.streams is not None:
                ending = await self.streams.stream(context, lambda: caller_of(context)).serve()
            else:
                ended = await self._call(context).serve()
                ending = await ended.serve() if isinstance(ended, Stream) else ended
        finally:
            self.connected -= 1
        if ending.code is not grpc.StatusCode.OK:
            # Not `abort`: the call would keep its error, whose frames keep the call.
            context.set_code(ending.code)
            context.set_details(str(ending))

    async def _refuse(self, context: _Context) -> StreamClosed:
        # Its Hello is under way, and grpc.aio shows INTERNAL where that write fails.
        with contextlib.suppress(TimeoutError, DecodeError):
            async with asyncio.timeout(REFUSED_WITHIN):
                await context.read()
        return StreamClosed(CloseReason.CLOSED, grpc.StatusCode.UNAVAILABLE, self.problem)

    def _call(self, context: _Context) -> AgentCall:
        self.stats.opened += 1
        self._numbers += 1
        return AgentCall(
            number=self._numbers,
            context=context,
            caller=lambda: caller_of(context),
            calls=self,
            authenticator=self._authenticator,
            rules=self._rules,
            stats=self.stats,
        )

    # -- the calls --------------------------------------------------------------

    def attach(self, call: AgentCall) -> None:
        """The call has sent Hello: it is its node's now, and an older one is closed."""
        older = self._by_node.get(call.node)
        self._by_node[call.node] = self._calls[call.number] = call
        self.stats.attached = len(self._calls)
        if self._link is not None:
            self._link.open(call)
        if older is not None:  # after the new one's opening: the controller sees both, in order
            self.stats.superseded += 1
            older.supersede(call.peer)

    def detach(self, call: AgentCall) -> bool:
        """The call is over, or continues elsewhere. Returns whether it was attached."""
        if self._calls.pop(call.number, None) is None:
            return False
        if self._by_node.get(call.node) is call:
            del self._by_node[call.node]
        self.stats.attached = len(self._calls)
        if self._link is not None:
            self._link.close(call)
        return True

    def call(self, number: int) -> AgentCall | None:
        return self._calls.get(number)

    # -- the controller ---------------------------------------------------------

    def relay_begins(self, link: GatewayLink) -> None:
        self._link = link
        link.wait_for(self._calls.values())

    def relay_ends(self) -> None:
        self._link = None
        for call in self._calls.values():
            call.on_relay_lost()

    @property
    def relayed(self) -> bool:
        """Whether there is a relay."""
        return self._link is not None

    def serve_locally(self, streams: AgentStreams, pacer: ResyncPacer) -> None:
        """Be the controller from now on. The calls continue as its streams, a few at a time."""
        self.streams = streams
        self.problem = ""
        pacer.join(_MovingCalls(self._calls, streams))

    # -- without one ------------------------------------------------------------

    async def end_calls(self, reason: str, *, still: Callable[[], bool] = lambda: True) -> None:
        """End all calls, so that their agents go elsewhere, some at a time, while ``still``."""
        for count, call in enumerate(list(self._calls.values()), 1):
            call.close(reason)
            if count % SLICE == 0:
                await asyncio.sleep(PAUSE)
                if not still():
                    return

    def close(self) -> None:
        """End all calls at once."""
        reason = "the aggregator stops; come back with backoff"
        for call in [*self._calls.values(), *self.awaited]:
            call.close(reason)


class _MovingCalls:
    """The calls of a gateway that became the controller, in the order in which they move."""

    def __init__(self, calls: dict[int, AgentCall], streams: AgentStreams) -> None:
        self._calls = calls
        self._streams = streams
        #: The urgent ones are the last of the list: they are the first to move.
        self._numbers = [one.number for one in sorted(calls.values(), key=attrgetter("is_urgent"))]

    @property
    def waiting(self) -> int:
        return len(self._numbers)

    def permit(self, count: int) -> None:
        for _ in range(min(count, len(self._numbers))):
            call = self._calls.get(self._numbers.pop())
            if call is not None:
                call.move_to(self._streams)
