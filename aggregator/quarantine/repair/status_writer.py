"""Writes the operations of a node, and why none begins or follows into its Quarantine.

An older definition of quarantines drops fields that it does not know. So each write that a later
step depends on is compared with the server's answer.
"""

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import replace

from attrs import define

from aggregator.cluster.operations import cancelled
from aggregator.cluster.port import (
    ClusterError,
    Quarantine,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.events import EventKind
from aggregator.policy.repairs import TEST
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.operation_step import NextOperation
from aggregator.quarantine.decide.plans.release import RELEASE_WAITS
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.attempts import MOST_TEXT, attempt_details
from aggregator.quarantine.state.node import NodeState

log = logging.getLogger("sickbay.quarantine")

NO_FIELD = (
    "the definition of quarantines lacks fields of status.repair, so no repair is ordered: apply "
    "deploy/kubernetes/crd.yaml"
)


async def end_soon(writing: Awaitable[None], operation: str, node: str) -> None:
    """Write an end while its node is released. Neither a failure nor a server that is busy holds
    that up: a later round of `OperationRetention` writes it.
    """
    try:
        async with asyncio.timeout(RELEASE_WAITS):
            await writing
    except (ClusterError, TimeoutError) as error:
        log.info(
            "the end of an operation is written later",
            extra={
                "event": "repair.end_unwritten",
                "node": node,
                "operation": operation,
                "error": str(error) or f"no answer in {RELEASE_WAITS:g} s",
            },
        )


@define(eq=False, repr=False, slots=False)
class RepairStatusWriter:
    """Each method raises Conflict where another process has changed the Quarantine."""

    _acts: NodeActions
    _mode: RepairMode

    async def write(
        self, node_state: NodeState, quarantine: Quarantine, repair: RepairStatus
    ) -> Quarantine:
        status = replace(quarantine.status, repair=repair)
        return await self._acts.write_status(node_state, quarantine, status)

    async def note_beginning(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt
    ) -> Quarantine:
        """Write that an operation is about to begin, which exists by now: it fails where a release
        was written since the Quarantine was read. A release that reads later finds the operation.
        """
        before = quarantine.status.repair
        begun = replace(before, held="", began_at=attempt.began_at)
        written = await self.write(node_state, quarantine, begun)
        if written.status.repair.began_at != begun.began_at:
            # An older definition drops the field: then no write makes that of a release fail.
            raise ClusterError(NO_FIELD)
        return written

    async def forget_beginning(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """The operation that was about to begin last has not begun: nothing was ordered by it."""
        repair = replace(quarantine.status.repair, began_at=0.0)
        await self.write(node_state, quarantine, repair)

    async def note_progress(
        self, node_state: NodeState, attempt: RepairAttempt, *, exhausted: str = ""
    ) -> None:
        """The attempt has gone on. ``exhausted``: why none follows."""
        quarantine = await self._acts.reread(node_state)
        if quarantine is None:
            return
        # Not at its beginning, which may fail.
        repair = quarantine.status.repair
        changed = replace(repair, held="", test_waits_since=0.0)
        # A test is no evidence about why no repair begins.
        if attempt.repair != TEST and repair.exhausted_at < attempt.began_at:
            changed = replace(changed, exhausted="", exhausted_at=0.0)
        if exhausted:
            at = max(round(self._acts.clocks.wall(), 3), attempt.began_at)
            changed = replace(changed, exhausted=exhausted, exhausted_at=at)
        if changed != repair:
            await self.write(node_state, quarantine, changed)

    async def end_requests(self, quarantine: Quarantine) -> None:
        """Write the end of people's requests that have not begun, as their node is released."""
        ends = (
            end_soon(self._end_request(one.name), one.name, quarantine.node)
            for one in quarantine.status.repair.requests
        )
        await asyncio.gather(*ends)

    async def _end_request(self, name: str) -> None:
        there = await self._acts.cluster.operations.read(name)
        if there is not None and there.status.phase is RepairState.PENDING:
            over = cancelled(there.status, "its node is released", self._acts.clocks.wall())
            await self._acts.cluster.operations.write_status(there, over)

    def take_begun(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt
    ) -> Quarantine:
        """The Quarantine as this process knows it once the operation is an attempt."""
        known = quarantine.status.repair
        left = tuple(one for one in known.requests if one.name != attempt.request)
        repair = replace(known, attempts=(*known.attempts, attempt), requests=left)
        taken = replace(quarantine, status=replace(quarantine.status, repair=repair))
        node_state.wrote(taken)
        return taken

    async def exhaust(self, node_state: NodeState, quarantine: Quarantine, why: str) -> None:
        """Report that no further repair begins, so that a person has to act."""
        before = quarantine.status.repair
        # Not before what it is about, of whichever replica's clock: it would be reported again.
        since = max((max(one.began_at, one.ended_at) for one in before.attempts), default=0.0)
        at = round(max(self._acts.clocks.wall(), since, before.test_waits_since), 3)
        after = replace(before, exhausted=why[:MOST_TEXT], exhausted_at=at, held="")
        tried = ", ".join(f"{one.repair} {one.state.value}" for one in before.attempts) or "none"
        text = f"no further repair begins, a person has to go on: {why}; attempts: {tried}"
        details = {"attempts": tried, **_about(before)}
        with self._acts.reporting(node_state, EventKind.REPAIR_EXHAUSTED, text, details):
            written = await self.write(node_state, quarantine, after)
            if not written.status.repair.exhausted:
                raise ClusterError(NO_FIELD)  # else it would be reported anew at each poll

    async def hold(
        self,
        node_state: NodeState,
        quarantine: Quarantine,
        why: str,
        step: NextOperation | None = None,
    ) -> None:
        """Report why the next repair does not begin now; in mode observe no object is written.

        ``step``: the one that does not begin. A test before a release does not wait for ever.
        """
        before = quarantine.status.repair
        since = before.test_waits_since
        if step is not None and step.repair == TEST and not step.request:
            since = since or round(self._acts.clocks.latest(), 3)
        after = replace(before, held=why[:MOST_TEXT], test_waits_since=since)
        if after == before or self._mode is not RepairMode.REPAIR:
            return
        written = await self.write(node_state, quarantine, after)
        if since and not written.status.repair.test_waits_since:
            raise ClusterError(NO_FIELD)  # else it would wait for ever


def _about(status: RepairStatus) -> dict[str, str]:
    """The test that leaves the node to a person: there may be several in a quarantine."""
    last = status.attempts[-1] if status.attempts else None
    return attempt_details(last) if last is not None and last.repair == TEST else {}
