"""Decides what is next for the repair of a node in quarantine, and has the engine carry it out."""

import asyncio
import contextlib

from attrs import define, field

from aggregator.cluster.operations import kind_in, pending_of, with_attempts
from aggregator.cluster.port import (
    BUSY,
    ClusterError,
    Quarantine,
    RepairAttempt,
    RepairState,
)
from aggregator.events import EventKind
from aggregator.policy.repairs import NEEDS_PERSON, REPAIRS, TEST
from aggregator.quarantine.decide.operation_step import Do
from aggregator.quarantine.decide.plans.release import RELEASE_WAITS
from aggregator.quarantine.decide.repair import (
    RepairMode,
    busy_attempt,
    is_busy,
    lacks_newest,
    operation_id,
)
from aggregator.quarantine.repair.case import AttemptOutcome
from aggregator.quarantine.repair.engine import with_end
from aggregator.quarantine.repair.quarantine_case import QuarantineCase, RepairContext
from aggregator.quarantine.repair.status_writer import end_soon
from aggregator.quarantine.state.node import NodeState
from aggregator.runtime.recent import Recent

#: Seconds between two polls of a node whose repair waits for something.
POLL_EVERY = 15.0
#: The order of an attempt that a release has left as unknown may still act.
_MAY_ACT = (*BUSY, RepairState.UNKNOWN)


@define(eq=False, repr=False, slots=False)
class RepairRunner:
    """Repairs nodes; with ``settings.off`` it begins nothing and reads nothing."""

    _of: RepairContext
    #: The operations whose orders a person's release has withdrawn, by node.
    _withdrawn: Recent[str, str] = field(init=False, factory=Recent)
    #: Repairs that would be done, or were not, and were reported once: by node, the quarantine's
    #: uid and the repair.
    _reported: Recent[str, tuple[str, str]] = field(init=False, factory=Recent)

    # -- read by the reconcilers -----------------------------------------------------------

    def is_due(self, node_state: NodeState) -> bool:
        """Whether it is time to poll the node's repair."""
        is_time = self._of.acts.clocks.now() >= node_state.quarantine_view.repair_poll
        return is_time and self.waits(node_state)

    def waits(self, node_state: NodeState) -> bool:
        """Whether time alone may change the result of `is_due`."""
        quarantine = node_state.quarantine
        if quarantine is None:
            return False
        return is_busy(quarantine.status.repair) or self._of.may_begin(quarantine)

    # -- the step -------------------------------------------------------------------------

    async def run(self, node_state: NodeState) -> None:
        """Do what is next for the node's repair, once."""
        node_state.quarantine_view.repair_poll = self._of.acts.clocks.now() + POLL_EVERY
        quarantine = node_state.quarantine
        if quarantine is None:
            return
        if await self._of.tests.write_evidence(node_state, quarantine):
            node_state.quarantine_view.repair_poll = self._of.acts.clocks.now()
            return  # decide again, on what is written
        case = QuarantineCase(self._of, node_state, quarantine)
        step = self._of.next_step(node_state, quarantine)
        if not is_busy(quarantine.status.repair):
            begins = step.do is Do.ORDER
            coming = operation_id(quarantine.uid, quarantine.status.repair, step.repair)
            await self._end_leftover(case, quarantine, coming if begins else "")
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
                await self._of.engine.carry_out(case, step)

    async def _end_leftover(
        self, case: QuarantineCase, quarantine: Quarantine, coming: str = ""
    ) -> None:
        """End a reservation that a process has left which died in between, or a release by the end
        of its attempt. No failure holds a release up: then it counts until its time is over.

        An attempt that this process has not seen may still act. ``coming``: the operation that
        begins.
        """
        attempts = quarantine.status.repair.attempts
        self._of.engine.report_end(case, attempts[-1] if attempts else None)
        known = self._of.record_writer.record.repairs.get(quarantine.node)
        if known is None or not known.operation.startswith(quarantine.uid):
            return
        if known.operation == coming:
            return
        with contextlib.suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(RELEASE_WAITS):
                there = await self._of.acts.cluster.operations.of(quarantine.node)
                fresh = with_attempts(quarantine, there)
                attempts = fresh.status.repair.attempts
                acts = [one.operation for one in attempts if one.state in _MAY_ACT]
                may_act = known.operation in acts
                if not (may_act or await self._of.is_order_gone(fresh, known.operation)):
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

    async def lost_order(self, node_state: NodeState, quarantine: Quarantine) -> str | None:
        """The repair whose order may still come although its operation is gone: removed past its
        finalizer, or not in a restored etcd. Empty: there is none. None: it is decided anew.
        """
        status = quarantine.status.repair
        known = {one.operation for one in status.attempts}
        past = self._of.record_writer.record.past_repairs.get(quarantine.node, ())
        reserved = [one.operation for one in past] if lacks_newest(status) else []
        names = [*self._of.engine.sent(), *reserved]
        kinds = [kind_in(name, quarantine.uid) for name in names if name not in known]
        lost = next((kind for kind in kinds if kind in REPAIRS and kind not in NEEDS_PERSON), "")
        if not (lost and lacks_newest(status)):
            return lost
        there = await self._of.acts.cluster.operations.of(quarantine.node)
        fresh = with_attempts(quarantine, there)
        if not lacks_newest(fresh.status.repair):
            node_state.wrote(fresh)
        elif any(one.held for one in pending_of(quarantine, there)):
            # A process died before it began: once that is removed, it would look lost.
            await self._of.status.forget_beginning(node_state, fresh)
        else:
            return lost
        return None

    async def withdraw(self, node_state: NodeState, gone: Quarantine | None = None) -> None:
        """The node is released: people's requests end, and an order that may act is cancelled,
        once. ``gone``: the Quarantine, where a person has taken it away.
        """
        quarantine = gone or node_state.quarantine
        if quarantine is None:
            return
        await self._of.status.end_requests(quarantine)
        case = QuarantineCase(self._of, node_state, quarantine)
        attempt = busy_attempt(quarantine.status.repair)
        if attempt is not None and self._withdrawn.get(node_state.node) != attempt.operation:
            await self._cancel(node_state, case, attempt)
        await self._end_leftover(case, quarantine)

    async def _cancel(
        self, node_state: NodeState, case: QuarantineCase, attempt: RepairAttempt
    ) -> None:
        self._withdrawn[node_state.node] = attempt.operation
        outcome = await case.withdraw(attempt)
        if self._of.engine.is_unsent(attempt):
            outcome = AttemptOutcome(RepairState.CANCELLED, "its order was not sent")
        if attempt.ends_as is not None:  # it was over, and its end waited for a removal
            outcome = AttemptOutcome(attempt.ends_as, attempt.message)
        ended = with_end(attempt, outcome, self._of.acts.clocks.wall())
        self._of.engine.announce(case, ended, outcome.text)
        writing = self._of.engine.write(attempt, ended)
        await end_soon(writing, attempt.name, node_state.node)
