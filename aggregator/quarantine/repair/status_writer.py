"""Writes `status.repair` of a Quarantine: attempts, and why none begins or no further one follows.

An older definition of quarantines drops fields that it does not know, so each write that a later
step depends on is compared with what the server says.
"""

from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError, Conflict, Quarantine, RepairAttempt, RepairStatus
from aggregator.events import EventKind
from aggregator.policy.repairs import TEST
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.repair import NextRepair, RepairMode
from aggregator.quarantine.repair.attempts import MOST_TEXT, attempt_details
from aggregator.quarantine.state.node import NodeState

NO_FIELD = (
    "the definition of quarantines lacks fields of status.repair, so no repair is ordered: apply "
    "deploy/kubernetes/crd.yaml"
)


class RepairStatusWriter:
    """Each method raises Conflict where another process has changed the Quarantine."""

    def __init__(self, acts: NodeActions, clocks: Clocks, mode: RepairMode) -> None:
        self._acts = acts
        self._clocks = clocks
        self._mode = mode

    async def write(
        self, node_state: NodeState, quarantine: Quarantine, repair: RepairStatus
    ) -> Quarantine:
        status = replace(quarantine.status, repair=repair)
        return await self._acts.write_status(node_state, quarantine, status)

    async def begin(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt
    ) -> Quarantine:
        """Add the attempt, whose order may be sent after that."""
        before = quarantine.status.repair or RepairStatus()
        begun = replace(before, attempts=(*before.attempts, attempt), held="", test_waits_since=0.0)
        if attempt.repair != TEST:  # a test says nothing about why no further repair begins
            begun = replace(begun, exhausted="", exhausted_at=0.0)
        written = await self.write(node_state, quarantine, begun)
        if written.status.repair is None or attempt.operation not in {
            one.operation for one in written.status.repair.attempts
        }:
            # An older definition drops the field: without its attempt an order would be repeated.
            raise ClusterError(NO_FIELD)
        return written

    async def change(
        self,
        node_state: NodeState,
        before: RepairAttempt,
        after: RepairAttempt,
        *,
        exhausted: str = "",
    ) -> RepairAttempt:
        """Write the attempt on the Quarantine as it is now, unless another process has changed it.

        The Quarantine may have changed otherwise while the repairer was asked. ``exhausted``: why
        no attempt follows.
        """
        quarantine = await self._acts.reread(node_state)
        repair = quarantine.status.repair if quarantine is not None else None
        if quarantine is None or repair is None or before not in repair.attempts:
            raise Conflict("the attempt was changed by another process")
        attempts = tuple(after if one == before else one for one in repair.attempts)
        changed = replace(repair, attempts=attempts, held="")
        if exhausted:
            at = max(round(self._clocks.wall(), 3), before.began_at)
            changed = replace(changed, exhausted=exhausted, exhausted_at=at)
        written = await self.write(node_state, quarantine, changed)
        found = written.status.repair.attempts if written.status.repair is not None else ()
        # An older definition drops a field: the attempt is what the server says.
        return next((one for one in found if one.operation == after.operation), after)

    async def exhaust(self, node_state: NodeState, quarantine: Quarantine, why: str) -> None:
        """Say that no further repair begins, so that a person has to go on."""
        before = quarantine.status.repair or RepairStatus()
        # Not before what it is about, of whichever replica's clock: it would be told again.
        since = max((one.ended_at for one in before.attempts), default=0.0)
        at = round(max(self._clocks.wall(), since, before.test_waits_since), 3)
        after = replace(before, exhausted=why[:MOST_TEXT], exhausted_at=at, held="")
        written = await self.write(node_state, quarantine, after)
        if written.status.repair is None or not written.status.repair.exhausted:
            raise ClusterError(NO_FIELD)  # else it would be told anew at each look
        tried = ", ".join(f"{one.repair} {one.state.value}" for one in before.attempts) or "none"
        self._acts.emit_event(
            node_state,
            EventKind.REPAIR_EXHAUSTED,
            f"no further repair begins, a person has to go on: {why}; attempts: {tried}",
            {"attempts": tried, **_about(before)},
        )

    async def hold(
        self,
        node_state: NodeState,
        quarantine: Quarantine,
        why: str,
        step: NextRepair | None = None,
    ) -> None:
        """Say why the next repair does not begin now; in mode observe no object is written.

        ``step``: what does not begin. A test before a release does not wait for ever.
        """
        before = quarantine.status.repair or RepairStatus()
        since = before.test_waits_since
        if step is not None and step.repair == TEST and not step.request:
            since = since or round(self._clocks.latest(), 3)
        after = replace(before, held=why[:MOST_TEXT], test_waits_since=since)
        if after == before or self._mode is not RepairMode.REPAIR:
            return
        written = await self.write(node_state, quarantine, after)
        if since and (written.status.repair is None or not written.status.repair.test_waits_since):
            raise ClusterError(NO_FIELD)  # else it would wait for ever


def _about(status: RepairStatus) -> dict[str, str]:
    """The test that leaves the node to a person: there may be several in a quarantine."""
    last = status.attempts[-1] if status.attempts else None
    return attempt_details(last) if last is not None and last.repair == TEST else {}
