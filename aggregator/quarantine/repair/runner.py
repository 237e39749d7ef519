"""Decides what is next for the repair of a node in quarantine, and has the engine carry it out."""

import asyncio
import contextlib

from attrs import define, field

from aggregator.cluster.operations import with_attempts
from aggregator.cluster.port import (
    BUSY,
    ClusterError,
    Quarantine,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.events import EventKind
from aggregator.policy.repairs import TEST
from aggregator.quarantine.actions.release import RECORD_WITHIN
from aggregator.quarantine.decide.operation_step import Do, NextOperation
from aggregator.quarantine.decide.repair import RepairMode, is_busy, operation_id
from aggregator.quarantine.repair.case import AttemptOutcome
from aggregator.quarantine.repair.engine import with_end
from aggregator.quarantine.repair.quarantine_case import QuarantineCase, RepairContext
from aggregator.quarantine.state.node import NodeState

#: Seconds between two polls of a node whose repair waits for something.
POLL_EVERY = 15.0


@define(eq=False, repr=False, slots=False)
class RepairRunner:
    """Repairs nodes; with ``settings.off`` it begins nothing and reads nothing."""

    _of: RepairContext
    #: The operations whose orders a person's release has withdrawn, by node.
    _withdrawn: dict[str, str] = field(init=False, factory=dict)
    #: What repairs would do, or did not, and was reported once: by node, the quarantine's uid and
    #: the repair.
    _reported: dict[str, tuple[str, str]] = field(init=False, factory=dict)

    # -- read by the reconcilers -----------------------------------------------------------

    def is_due(self, node_state: NodeState) -> bool:
        """Whether it is time to poll the node's repair."""
        is_time = self._of.clocks.now() >= node_state.quarantine_view.repair_poll
        return is_time and self.waits(node_state)

    def waits(self, node_state: NodeState) -> bool:
        """Whether time alone may change the result of `is_due`."""
        quarantine = node_state.quarantine
        if quarantine is None or (self._of.settings.off and quarantine.status.repair is None):
            return False
        return is_busy(quarantine.status.repair) or self._of.may_begin(quarantine)

    # -- the step -------------------------------------------------------------------------

    async def run(self, node_state: NodeState) -> None:
        """Do what is next for the node's repair, once."""
        node_state.own_quarantine_view().delay_repair(self._of.clocks.now() + POLL_EVERY)
        quarantine = node_state.quarantine
        if quarantine is None:
            return
        if await self._of.tests.write_evidence(node_state, quarantine):
            node_state.own_quarantine_view().delay_repair(self._of.clocks.now())
            return  # decide again, on what is written
        step = self._of.next_step(node_state, quarantine)
        if not is_busy(quarantine.status.repair):
            await self._forget_leftover(quarantine, step)
        mode = self._of.settings.rules.mode
        match step.do:
            case Do.ORDER if mode is RepairMode.OBSERVE:
                text = f"{step.repair} would be ordered (repair.mode is observe)"
                self._report(node_state, quarantine, step.repair, text)
            case Do.EXHAUST if mode is RepairMode.REPAIR:
                await self._of.status.exhaust(node_state, quarantine, step.because)
            case Do.NOTHING if step.because:
                await self._of.status.hold(node_state, quarantine, step.because)
            case Do.NOTHING | Do.EXHAUST:
                pass
            case _:
                await self._of.engine.carry_out(self._case(node_state, quarantine), step)

    def _case(self, node_state: NodeState, quarantine: Quarantine) -> QuarantineCase:
        return QuarantineCase(self._of, node_state, quarantine)

    async def _forget_leftover(self, quarantine: Quarantine, step: NextOperation) -> None:
        """A process that died in between leaves a reservation behind."""
        known = self._of.record_writer.record.repairs.get(quarantine.node)
        if known is not None and known.operation.startswith(quarantine.uid):
            coming = operation_id(quarantine.uid, quarantine.status.repair, step.repair)
            begins = step.do is Do.ORDER and known.operation == coming
            if not (begins or self._of.engine.may_be_sent(known.operation)):
                await self._of.record_writer.end_operation(known.operation)

    async def _forget_unbegun(self, quarantine: Quarantine) -> None:
        """The same at a release, which no failure holds up: then it counts until its time is over.

        An attempt that this process has not seen may still act.
        """
        node = quarantine.node
        known = self._of.record_writer.record.repairs.get(node)
        if known is None or not known.operation.startswith(quarantine.uid):
            return
        with contextlib.suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(RECORD_WITHIN):
                there = await self._of.cluster.operations.of(node)
                fresh = with_attempts(quarantine, there).status.repair or RepairStatus()
                if all(one.operation != known.operation for one in fresh.attempts):
                    await self._of.record_writer.end_operation(known.operation)

    # -- what each release needs, whether any begins or not -------------------------------------

    def holds_release(self, node_state: NodeState) -> bool:
        """Whether the node has to pass a test before it is released by recovery."""
        return self._of.tests.hold(node_state)

    def note_release(self, node_state: NodeState) -> None:
        """The node is about to be released by recovery: report it where the rules require a
        test.
        """
        quarantine, text = node_state.quarantine, self._of.tests.untested(node_state)
        if quarantine is not None and text:
            self._report(node_state, quarantine, TEST, text)

    def _report(
        self, node_state: NodeState, quarantine: Quarantine, repair: str, text: str
    ) -> None:
        if self._reported.get(node_state.node) != (quarantine.uid, repair):
            self._reported[node_state.node] = quarantine.uid, repair
            kind, details = EventKind.REPAIR_SUPPRESSED, {"repair": repair}
            self._of.acts.emit_event(node_state, kind, text, details)

    async def withdraw(self, node_state: NodeState, gone: Quarantine | None = None) -> None:
        """The node is released: people's requests end, and an order that may act is cancelled,
        once. ``gone``: the Quarantine, where a person has taken it away.
        """
        quarantine = gone or node_state.quarantine
        if quarantine is None:
            return
        await self._of.status.end_requests(quarantine)
        case = self._case(node_state, quarantine)
        attempt = case.busy if gone is None else _open_of(gone)
        if attempt is None:
            await self._forget_unbegun(quarantine)
        if attempt is None or self._withdrawn.get(node_state.node) == attempt.operation:
            return
        if attempt.repair in self._of.settings.repairers:
            self._withdrawn[node_state.node] = attempt.operation
        outcome = await case.withdraw(attempt)
        if self._of.engine.is_unsent(attempt):
            outcome = AttemptOutcome(RepairState.CANCELLED, "its order was not sent")
        if attempt.ends_as is not None:  # it was over, and its end waited for a removal
            outcome = AttemptOutcome(attempt.ends_as, attempt.message)
        ended = with_end(attempt, outcome, self._of.clocks.wall())
        self._of.engine.announce(case, ended, outcome.text)
        await self._of.status.end_with_release(node_state, attempt, ended)


def _open_of(quarantine: Quarantine) -> RepairAttempt | None:
    """The attempt that may act."""
    repair = quarantine.status.repair or RepairStatus()
    return next((one for one in repair.attempts if one.state in BUSY), None)
