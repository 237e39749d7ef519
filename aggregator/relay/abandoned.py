"""A controller that can't renew its Lease, and that all gateways have left, may have a successor.

It can't know while the API server is away for it. Its own agents' evidence would be lost on it, so
they go to another replica, and come back if there is none.
"""

import asyncio
import logging
from collections.abc import Callable

from attrs import define, field

from aggregator.relay.gateway import Gateway
from aggregator.relay.protocol import POLL_EVERY
from aggregator.relay.server import RelayService
from aggregator.relay.unserved import UNSERVED_FOR

log = logging.getLogger(__name__)


@define(eq=False, repr=False, slots=False)
class AbandonedWatch:
    """``may_act``: whether the Lease was renewed in time. ``now`` is in monotonic seconds."""

    _gateway: Gateway
    _service: RelayService
    _may_act: Callable[[], bool] = field(kw_only=True)
    _now: Callable[[], float] = field(kw_only=True)

    async def run(self) -> None:
        """For ever, on a controller."""
        had_gateways, since = False, self._now()
        while True:
            await asyncio.sleep(POLL_EVERY)
            relayed = bool(self._service.gateways)
            had_gateways = had_gateways or relayed
            if self._may_act() or relayed or not had_gateways:
                since, self._gateway.problem = self._now(), ""
            elif self._now() - since >= UNSERVED_FOR and not self._gateway.problem:
                await self._end_streams()

    async def _end_streams(self) -> None:
        self._gateway.problem = reason = (
            "this replica's Lease is not renewed, and all gateways have left it: another replica "
            "may be the controller"
        )
        log.error(
            "this replica serves no agent", extra={"event": "relay.abandoned", "reason": reason}
        )
        await self._gateway.end_calls(reason)
        if self._gateway.streams is not None:
            await self._gateway.streams.end_paced(reason)
