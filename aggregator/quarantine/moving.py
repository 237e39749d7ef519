"""What a change among the replicas means for each node: who is ours now, and who is no more.

What becomes ours is looked at anew, as after a start: the cluster's list, the node, its agent's
snapshot. What is no longer ours is let go of: nothing is begun for it from that moment, its agent
is sent to the replica that has it now, and what it said here is no evidence any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.attending import Attending
from aggregator.quarantine.case import Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.hearing import Hearing
from aggregator.shards.council import Shards
from aggregator.shards.timing import TIMES

log = logging.getLogger("sickbay.quarantine")

#: Agents sent home at once, or asked for a snapshot, and the pause after them (seconds): 500 a
#: second. Each costs the replica that gets it a TLS handshake, some milliseconds.
SLICE, PAUSE = 50, 0.1
#: A replica that leaves waits for so long (seconds), until its heirs have looked at the Leases: an
#: agent that comes sooner is sent back.
HEIRS_LOOK = TIMES.tick + 0.5


class Moving:
    """``list_nodes`` has the cluster's nodes listed anew."""

    def __init__(
        self,
        *,
        shards: Shards,
        census: Census,
        hearing: Hearing,
        attending: Attending,
        list_nodes: Callable[[], Awaitable[bool]],
        clocks: Clocks,
    ) -> None:
        self._shards = shards
        self._census = census
        self._hearing = hearing
        self._attending = attending
        self._list_nodes = list_nodes
        self._clocks = clocks
        self._term = 0
        self._had_company = False
        self._changed = asyncio.Event()
        shards.on_change(self._changed.set)

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._move()

    async def _move(self) -> None:
        """Once through all nodes. A change meanwhile begins it anew afterwards."""
        came, went, given = [], [], 0
        joined_anew = self._has_joined_anew()
        for count, case in enumerate(self._census.cases(), 1):
            if self._shards.owns(case.node):
                if joined_anew and case.ours is not False:  # None: it came after the last change
                    self._hearing.start_over(case)
                if joined_anew or case.ours is not True:
                    case.ours, case.ours_since = True, self._clocks.now()
                    came.append(case)
            elif case.ours is not False:
                given += case.ours is True  # None: it was never ours, but its agent may be here
                case.ours = False
                went.append(case)
            if count % SLICE == 0:
                await asyncio.sleep(0)
        if came or given:
            log.info("nodes moved", extra={"came": len(came), "went": given})
        self._take_over(came)
        for case in self._census.cases():
            self._attending.resume(case)
        if came and self._attending.view:
            await self._list_nodes()
        if joined_anew:
            await self._ask_again(came)
        await self._send_home(went)

    def _has_joined_anew(self) -> bool:
        """Whether our Lease lapsed since we last looked, beside others who may have seen that.

        They may have had our nodes, heard what ended, and given them back: what we knew before is
        not to be acted on. Who was always alone has missed nothing.
        """
        council = self._shards.council
        self._had_company = self._had_company or len(council.members) > 1
        before, self._term = self._term, council.term
        return before not in (0, council.term) and self._had_company

    def _take_over(self, came: list[Case]) -> None:
        for case in came:
            case.unread = True
            if self._attending.busy(case):
                case.suspect = True  # who had it may have left anything half done: a read tells
                self._attending.kick(case)

    async def _ask_again(self, came: list[Case]) -> None:
        """Whole snapshots, of every node that is ours: not all at once, or nothing else is done,
        not even our Lease renewed in time.
        """
        asked = 0
        for case in came:
            if case.patient.attached and not case.heard:
                self._hearing.ask_again(case)
                asked += 1
                if asked % SLICE == 0:
                    await asyncio.sleep(PAUSE)

    async def _send_home(self, went: list[Case]) -> None:
        sent, council = 0, self._shards.council
        if went and council.me not in council.members:
            await asyncio.sleep(HEIRS_LOOK)
        for case in went:
            if self._shards.owns(case.node):  # ours again, and another may have had it meanwhile
                self._hearing.start_over(case)
                self._hearing.ask_again(case)
            elif case.patient.attached:
                self._hearing.send_home(case, "the node belongs to another replica now")
            else:
                self._hearing.hand_over(case)
                continue
            sent += 1
            if sent % SLICE == 0:
                await asyncio.sleep(PAUSE)
