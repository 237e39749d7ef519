"""Carries out the repairs of nodes in quarantine, one attempt of one node at a time.

Order: the reservation in the admission record, the node's Operation (compare-and-set), the order;
then the proof, its end on the Operation, and the reservation out of the record. So a process that
dies between any two of them leaves behind at least as much as it has done, and no order without
its Operation.
"""

import logging
from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Cluster,
    Quarantine,
    RepairAttempt,
    RepairState,
)
from aggregator.policy.repairs import TEST
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.repair import Do, NextRepair, RepairMode, is_busy
from aggregator.quarantine.repair.at_release import RepairsAtRelease
from aggregator.quarantine.repair.attempt_end import AttemptEnds
from aggregator.quarantine.repair.attempt_maker import AttemptMaker
from aggregator.quarantine.repair.attempt_start import AttemptStarts
from aggregator.quarantine.repair.attempts import MOST_TEXT, POLL_SOON, busy_attempt
from aggregator.quarantine.repair.before_release import TestsBeforeRelease
from aggregator.quarantine.repair.leftovers import RepairLeftovers
from aggregator.quarantine.repair.operand_pause import OperandPause
from aggregator.quarantine.repair.order_checks import OrderChecks
from aggregator.quarantine.repair.order_preparation import OrderPreparation
from aggregator.quarantine.repair.order_sender import OrderSender
from aggregator.quarantine.repair.orders import RepairOrders
from aggregator.quarantine.repair.outcome import (
    AttemptOutcome,
    RepairOutcomes,
    known_outcome,
    outcome_of,
)
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairSettings
from aggregator.quarantine.repair.repairer_calls import RepairerCalls
from aggregator.quarantine.repair.reservations import RepairReservations
from aggregator.quarantine.repair.start_checks import RepairStartChecks
from aggregator.quarantine.repair.status_writer import RepairStatusWriter
from aggregator.quarantine.repair.step_choice import RepairStepChoice
from aggregator.quarantine.repair.suppressed import SuppressedRepairs
from aggregator.quarantine.repair.unsent_orders import UnsentOrders
from aggregator.quarantine.state.node import NodeState

log = logging.getLogger("sickbay.quarantine")

#: Seconds between two polls of a node whose repair waits for something.
POLL_EVERY = 15.0
_BY_A_PERSON = "a person ended the repairs"


class RepairRunner:
    """Repairs nodes; with ``settings.off`` it begins nothing and reads nothing."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        acts: NodeActions,
        record_writer: AdmissionRecordWriter,
        clocks: Clocks,
        policy: Policy,
        settings: RepairSettings,
        checks: RepairStartChecks,
        pool_label: str,
    ) -> None:
        self._clocks = clocks
        self._settings = settings
        self._suppressed = SuppressedRepairs(acts)
        self._status = RepairStatusWriter(cluster.operations, acts, clocks, settings.rules.mode)
        self._tests = TestsBeforeRelease(settings, clocks, self._status)
        self._choice = RepairStepChoice(
            settings=settings,
            record_writer=record_writer,
            clocks=clocks,
            policy=policy,
            tests=self._tests,
        )
        self._orders = RepairOrders(settings.collected, record_writer.times)
        self._calls = RepairerCalls(settings.repairers)
        self._reservations = RepairReservations(record_writer, settings, pool_label)
        self._starts = AttemptStarts(
            cluster=cluster,
            acts=acts,
            tests=self._tests,
            choice=self._choice,
            checks=checks,
            reservations=self._reservations,
            status=self._status,
            maker=AttemptMaker(clocks, settings),
        )
        operands = OperandPause(cluster, acts, clocks)
        self._unsent = UnsentOrders()
        self.order_checks = OrderChecks(cluster=cluster, checks=checks, times=record_writer.times)
        self._sender = OrderSender(
            acts=acts,
            clocks=clocks,
            orders=self._orders,
            calls=self._calls,
            tests=self._tests,
            checks=self.order_checks,
            preparation=OrderPreparation(
                clocks=clocks,
                repairers=settings.repairers,
                reservations=self._reservations,
                operands=operands,
                status=self._status,
            ),
            unsent=self._unsent,
        )
        self._outcomes = RepairOutcomes(cluster, settings.repairers, self._orders, self._calls)
        leftovers = RepairLeftovers(
            settings=settings, orders=self._orders, operands=operands, times=record_writer.times
        )
        self._ends = AttemptEnds(
            acts=acts,
            clocks=clocks,
            calls=self._calls,
            leftovers=leftovers,
            status=self._status,
            reservations=self._reservations,
        )
        self.at_release = RepairsAtRelease(
            tests=self._tests,
            status=self._status,
            leftovers=leftovers,
            ends=self._ends,
            unsent=self._unsent,
            suppressed=self._suppressed,
            clocks=clocks,
        )

    # -- read by the reconcilers -----------------------------------------------------------

    def is_due(self, node_state: NodeState) -> bool:
        """Whether it is time to poll the node's repair."""
        is_time = self._clocks.now() >= node_state.quarantine_view.repair_poll
        return is_time and self.waits(node_state)

    def waits(self, node_state: NodeState) -> bool:
        """Whether time alone may change the result of `is_due`."""
        quarantine = node_state.quarantine
        if quarantine is None or (self._settings.off and quarantine.status.repair is None):
            return False
        return is_busy(quarantine.status.repair) or self._choice.may_begin(quarantine)

    # -- the step -------------------------------------------------------------------------

    async def run(self, node_state: NodeState) -> None:
        """Do what is next for the node's repair, once."""
        node_state.own_quarantine_view().delay_repair(self._clocks.now() + POLL_EVERY)
        quarantine = node_state.quarantine
        if quarantine is None:
            return
        if await self._tests.write_evidence(node_state, quarantine):
            node_state.own_quarantine_view().delay_repair(self._clocks.now())
            return  # decide again, on what is written
        step = self._choice.next_step(node_state, quarantine)
        if is_busy(quarantine.status.repair):
            await self._reservations.restore_lost(node_state, quarantine)
        else:
            await self._reservations.forget_leftover(node_state, quarantine, step)
        await self._do(node_state, quarantine, step)

    async def _do(self, node_state: NodeState, quarantine: Quarantine, step: NextRepair) -> None:
        match step.do:
            case Do.ORDER if self._settings.rules.mode is RepairMode.OBSERVE:
                self._observe(node_state, quarantine, step)
            case Do.ORDER:
                await self._begin(node_state, step)
            case Do.EXHAUST if self._settings.rules.mode is RepairMode.REPAIR:
                await self._status.exhaust(node_state, quarantine, step.because)
            case Do.NOTHING if step.because:
                await self._status.hold(node_state, quarantine, step.because)
            case Do.RESEND | Do.PROVE if self._may_resend(node_state, quarantine, step):
                await self._resend(node_state, quarantine)
            case Do.PROVE | Do.RESEND:
                await self._prove(node_state, quarantine)
            case Do.END:
                await self._give_up(node_state, quarantine)
            case Do.CANCEL:
                await self._cancel(node_state, quarantine, step)
            case _:
                pass

    def _may_resend(self, node_state: NodeState, quarantine: Quarantine, step: NextRepair) -> bool:
        """Whether the order may be sent: once more, or for the first time."""
        if self._settings.rules.mode is not RepairMode.REPAIR:
            return False
        attempt = busy_attempt(quarantine)
        return attempt.ends_as is None and (
            step.do is Do.RESEND or self._unsent.has(node_state, attempt)
        )

    def _observe(self, node_state: NodeState, quarantine: Quarantine, step: NextRepair) -> None:
        text = f"{step.repair} would be ordered (repair.mode is observe)"
        self._suppressed.report(node_state, quarantine, step.repair, text)

    # -- an attempt begins ----------------------------------------------------------------

    async def _begin(self, node_state: NodeState, step: NextRepair) -> None:
        begun = await self._starts.begin(node_state, step)
        if begun is not None:
            quarantine, attempt = begun
            self._unsent.note_begun(node_state, attempt)
            await self._send(node_state, quarantine, attempt)

    async def _resend(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """The process that wrote the attempt may have died before it sent the order, or after."""
        attempt = busy_attempt(quarantine)
        outcome = await self._outcomes.proved(node_state, attempt)
        outcome = outcome or await self._outcomes.elsewhere(node_state, attempt)
        if outcome is not None:
            await self._ends.end(node_state, attempt, outcome)
            return
        fresh = await self._starts.check_again(node_state, attempt)
        if fresh is not None:
            await self._send(node_state, fresh, attempt)

    async def _send(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt
    ) -> None:
        """The attempt is durable, and was read or written just now: send its order."""
        answer = await self._sender.send(node_state, quarantine, attempt, self._clocks.now())
        if answer is not None:
            await self._take_answer(node_state, quarantine, attempt, answer)

    async def _take_answer(
        self,
        node_state: NodeState,
        quarantine: Quarantine,
        attempt: RepairAttempt,
        answer: RepairAnswer,
    ) -> None:
        """The effect of the answer to an order on the attempt."""
        outcome = outcome_of(attempt, answer)
        match answer.state:
            case _ if outcome is not None:
                await self._ends.end(node_state, attempt, outcome)
            case AnswerState.NOT_SENT:
                node_state.own_quarantine_view().delay_repair(self._clocks.now() + POLL_SOON)
                if not self._settings.repairers[attempt.repair].repairer.sends_twice:
                    outcome = AttemptOutcome(_not_carried_out(attempt), answer.text)
                    await self._ends.end(node_state, attempt, outcome)
                elif answer.text:
                    why = f"{attempt.repair} waits: {answer.text}"
                    await self._status.hold(node_state, quarantine, why)
            case AnswerState.TAKEN | AnswerState.DONE:
                taken = replace(attempt, state=RepairState.ORDERED, message=answer.text[:MOST_TEXT])
                await self._status.change(node_state, attempt, taken)
                if not self.is_due(node_state):  # (its end was reported meanwhile)
                    node_state.own_quarantine_view().delay_repair(self._clocks.now() + POLL_SOON)
            case AnswerState.UNSURE:
                log.warning(
                    "the outcome of a repair's order is not known",
                    extra={
                        "event": "repair.unsure",
                        "node": node_state.node,
                        "operation": attempt.operation,
                        "error": answer.text,
                    },
                )

    # -- and ends -------------------------------------------------------------------------

    async def _prove(self, node_state: NodeState, quarantine: Quarantine) -> RepairAnswer | None:
        """End the attempt where its end is known. Returns the repairer's answer while it is not."""
        attempt, answer = busy_attempt(quarantine), None
        outcome = known_outcome(attempt) or await self._outcomes.proved(node_state, attempt)
        if outcome is None:
            answer = await self._outcomes.answer(quarantine, attempt)
            outcome = outcome_of(attempt, answer)
            outcome = outcome or await self._outcomes.elsewhere(node_state, attempt)
        if outcome is None:
            return answer
        await self._ends.end(node_state, attempt, outcome)
        return None

    async def _give_up(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Its time is over. One last look: a proof that has come counts."""
        answer = await self._prove(node_state, quarantine)
        if answer is None:
            return
        attempt = busy_attempt(quarantine)
        if attempt.repair == TEST:
            await self._give_up_test(node_state, quarantine, attempt)
            return
        if self._unsent.has(node_state, attempt):
            held = quarantine.status.repair.held if quarantine.status.repair is not None else ""
            text = f"the order was never sent; {held}".rstrip("; ")
            outcome = AttemptOutcome(RepairState.FAILED, text)
        elif attempt.state is RepairState.ORDERED and answer.state is not AnswerState.UNSURE:
            outcome = AttemptOutcome(RepairState.FAILED, "no proof of it came in its time")
        else:
            text = "it is not known whether the order was carried out"
            outcome = AttemptOutcome(RepairState.UNKNOWN, text)
        await self._ends.end(node_state, attempt, outcome)

    async def _give_up_test(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt
    ) -> None:
        """It must not run next to the next one, so the runner requests its end from its
        repairer.
        """
        known = TEST in self._settings.repairers
        if known and not self._unsent.has(node_state, attempt):
            await self._calls.cancel(self._orders.order_of(quarantine, attempt))
            if await self._prove(node_state, quarantine) is None:
                return
        outcome = AttemptOutcome(RepairState.INCONCLUSIVE, "it gave no verdict in its time")
        await self._ends.end(node_state, attempt, outcome)

    async def _cancel(
        self, node_state: NodeState, quarantine: Quarantine, step: NextRepair
    ) -> None:
        attempt = busy_attempt(quarantine)
        outcome = known_outcome(attempt)
        if outcome is not None:  # it is over, and the person ends what would follow it
            if attempt.repair != TEST:
                await self._status.change(node_state, attempt, attempt, exhausted=_BY_A_PERSON)
            await self._ends.end(node_state, attempt, outcome)
            return
        order = self._orders.order_of(quarantine, attempt)
        # An order that was certainly not sent needs no repairer to take it back.
        unsent = self._unsent.has(node_state, attempt)
        if unsent or await self._calls.cancel(order):
            outcome = AttemptOutcome(RepairState.CANCELLED, step.because)
            await self._ends.end(node_state, attempt, outcome)
        else:
            # The attempt continues to its proof, is not sent again, and nothing follows it.
            text = f"{attempt.repair} can't be taken back any more; its end is waited for"
            going = replace(attempt, message=text)
            await self._status.change(node_state, attempt, going, exhausted=_BY_A_PERSON)


def _not_carried_out(attempt: RepairAttempt) -> RepairState:
    """A test that was not carried out has not failed: it is no evidence about the node."""
    return RepairState.INCONCLUSIVE if attempt.repair == TEST else RepairState.FAILED
