"""Carries out operations: repairs, tickets and tests, of nodes in quarantine and of others.

Order: the reservation in the admission record, the Operation (compare-and-set), the order; then the
proof, the removal of what the order left, the end of the Operation, and the reservation out of the
record. So a process that dies between any two of them leaves behind at least as much as it has
done, and no order without its Operation.
"""

import logging
from dataclasses import replace

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.operations import attempt_of, cancelled
from aggregator.cluster.port import (
    BUSY,
    ClusterError,
    Conflict,
    GuardRefused,
    GuardUnreadable,
    Operation,
    Operations,
    RepairAttempt,
    RepairState,
    Unreachable,
    is_refusal,
)
from aggregator.policy.repairs import NEEDS_PERSON, TEST
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.admission_record import RunningOperation
from aggregator.quarantine.decide.node_tests import NodeTest, node_test_of, status_of
from aggregator.quarantine.decide.operation_step import Do, NextOperation
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.decide.reservation import OperationLimits, running_of
from aggregator.quarantine.repair.attempts import MOST_TEXT, POLL_SOON
from aggregator.quarantine.repair.case import AttemptOutcome, OperationCase
from aggregator.quarantine.repair.operation_creation import DELETED, open_pending
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairSettings
from aggregator.quarantine.repair.repairer_calls import (
    REMOVE_WITHIN,
    SEND_WITHIN,
    RepairerCalls,
    end_state,
)
from aggregator.runtime.recent import Recent

log = logging.getLogger("sickbay.quarantine")

_UNSURE = RepairAnswer(AnswerState.UNSURE)
_NO_TWICE = "it is not known whether it was ordered, and its repairer takes no order twice"


@define(eq=False, repr=False, slots=False, kw_only=True)
class OperationEngine:
    """One operation of one node at a time; `OperationCase` has what differs."""

    _operations: Operations
    record_writer: AdmissionRecordWriter
    _clocks: Clocks
    _settings: RepairSettings

    def __attrs_post_init__(self) -> None:
        self.calls = RepairerCalls(self._settings.repairers)
        #: By operation that this process has begun, or sent, and whose end it has not seen: whether
        #: its order may have been sent.
        self._sent: Recent[str, bool] = Recent()
        #: By operation, the answers to orders whose effect is still to be written.
        self._answers: Recent[str, RepairAnswer] = Recent()

    async def carry_out(self, case: OperationCase, step: NextOperation) -> None:
        """Do what is next for the operation that is under way, or begin one."""
        attempt = case.busy
        if step.do is Do.ORDER:
            await self._begin(case, step)
        if attempt is None:
            return
        if not self.is_unsent(attempt):  # else it has to keep the limits as they are now
            await self._restore(case, attempt)
        known = self._answers.get(attempt.operation) if _is_unanswered(attempt) else None
        match step.do:
            case Do.RESEND | Do.PROVE | Do.END if known is not None:
                await self._take_answer(case, attempt, known)
            case Do.RESEND | Do.PROVE if self._is_to_be_sent(attempt, step):
                await self._resend(case, attempt)
            case Do.RESEND | Do.PROVE:
                await self._prove(case, attempt)
            case Do.END:
                await self._give_up(case, attempt)
            case Do.CANCEL:
                await self.cancel(case, attempt, step.because)
            case _:
                pass

    def is_unsent(self, attempt: RepairAttempt) -> bool:
        """Whether nobody can have sent the order."""
        return attempt.state is RepairState.ORDERING and self._sent.get(attempt.operation) is False

    def may_be_sent(self, operation: str) -> bool:
        """Whether this process may have sent the order, and has not seen its end."""
        return self._sent.get(operation, False)

    def sent(self) -> list[str]:
        """The operations whose order this process may have sent, and whose end it has not seen."""
        return [operation for operation, may_be in self._sent.items() if may_be]

    def counts(self, node: str, attempt: RepairAttempt) -> bool:
        """Whether the record counts the attempt; a ticket counts for no limit."""
        reserved = self.record_writer.has_operation(node, attempt.operation)
        return attempt.repair in NEEDS_PERSON or reserved

    # -- its reservation --------------------------------------------------------------------

    async def _restore(self, case: OperationCase, attempt: RepairAttempt) -> None:
        """Count an operation under way again that another version's replica has dropped."""
        if attempt.repair not in NEEDS_PERSON:
            lost = running_of(case.node, attempt, case.limits(attempt)[0], case.pool)
            await self.record_writer.restore_operation(lost)

    async def _reserve(
        self, case: OperationCase, attempt: RepairAttempt, step: NextOperation | None = None
    ) -> bool:
        """Whether the limits count the attempt now; else it is held. ``step``: by which it begins.
        One that has begun and was dropped from the record has to keep the limits too.
        """
        if self.counts(case.node, attempt):
            return True
        held = await self.record_writer.reserve(*self._proposal(case, attempt, step))
        if held is not None:
            await case.hold_by(held, attempt, step)
        return held is None

    def _proposal(
        self, case: OperationCase, attempt: RepairAttempt, step: NextOperation | None = None
    ) -> tuple[RunningOperation, OperationLimits]:
        kind, limits = case.limits(attempt)
        # The time of an operation counts from its beginning, and this one may not begin for hours.
        now = attempt.began_at if step is not None else self._time_of(attempt)
        proposed = running_of(case.node, attempt, kind, case.pool)
        return replace(proposed, at=min(now, attempt.deadline_at)), limits

    def _time_of(self, attempt: RepairAttempt) -> float:
        """The time by the clock that began it."""
        return self.record_writer.times.time_of(attempt.operation, attempt.began_at)

    # -- it begins --------------------------------------------------------------------------

    async def _begin(self, case: OperationCase, step: NextOperation) -> None:
        read_at = self._clocks.now()  # the reservation and the object take their time
        attempt = await case.make(step)
        if attempt is None or not await self._reserve(case, attempt, step):
            return
        try:
            await case.beginning_guard(attempt)()
            there = await self._open(case, attempt, step.because)
            await case.beginning_guard(attempt)()  # the object took its time
            await case.note_beginning(attempt)
            await self._operations.write_status(there, case.begun_status(attempt))
        except ClusterError as error:
            refused = is_refusal(error)
            over = refused or isinstance(error, GuardRefused)
            if over and not await self._has_begun(attempt):
                await self.record_writer.withdraw_operation(attempt.operation)  # others may begin
                if refused:
                    await case.refused(f"its operation is refused: {error}", step)
            raise
        self._sent[attempt.operation] = False
        case.begun(attempt, step.because)
        await self._send(case, attempt, read_at)

    async def _has_begun(self, attempt: RepairAttempt) -> bool:
        """Whether it has begun by another process, which may have ordered it."""
        there = await self._operations.read(attempt.name)
        return there is not None and there.status.phase is not RepairState.PENDING

    async def _open(self, case: OperationCase, attempt: RepairAttempt, because: str) -> Operation:
        """The operation, certainly not ordered: a person's request, or made here or by a process
        that has died.
        """
        there = await open_pending(
            self._operations,
            attempt.name,
            case.spec(attempt, because),
            is_request=bool(attempt.request),
            deleted=cancelled(case.begun_status(attempt), DELETED, attempt.began_at),
        )
        if not attempt.request:
            return there
        if not case.is_request(there, attempt):
            raise Conflict(f"operation {attempt.name} is another request by now")
        return await self._operations.adopt(there)

    # -- its order --------------------------------------------------------------------------

    def _is_to_be_sent(self, attempt: RepairAttempt, step: NextOperation) -> bool:
        """Whether its order is for this process to send: for the first time, or once more."""
        if not _is_unanswered(attempt):
            return False
        return self.is_unsent(attempt) or (step.do is Do.RESEND and self._sends_twice(attempt))

    def _sends_twice(self, attempt: RepairAttempt) -> bool:
        entry = self._settings.repairers.get(attempt.repair)
        return entry is not None and entry.repairer.sends_twice

    async def _resend(self, case: OperationCase, attempt: RepairAttempt) -> None:
        """The process that wrote the attempt may have died before it sent the order, or after."""
        if self._settings.rules.mode is not RepairMode.REPAIR:
            await case.hold(f"repair.mode is {self._settings.rules.mode.value}: no order is sent")
            await self._prove(case, attempt)
            return
        outcome = await case.proof(attempt) or await case.lost(attempt, _UNSURE)
        read_at = self._clocks.now()
        # It may have been restored beyond the limits, and not have been sent.
        counts = attempt.repair not in NEEDS_PERSON
        held = self.record_writer.hold_of(*self._proposal(case, attempt)) if counts else None
        if outcome is not None:
            await self._end(case, attempt, outcome)
        elif held is not None:
            await case.hold_by(held, attempt, None)
        elif await case.may_resend(attempt):
            await self._send(case, attempt, read_at)

    async def _send(self, case: OperationCase, attempt: RepairAttempt, read_at: float) -> None:
        """Send the order of a durable attempt, unless its purpose is gone. ``read_at``: when what
        it rests on was last read (monotonic).
        """
        entry = self._settings.repairers.get(attempt.repair)
        if entry is None or not await self._reserve(case, attempt):
            return
        waits = await case.prepare(attempt)
        if waits:
            await case.hold(_waits(attempt, waits))
            case.poll_in(POLL_SOON)
            return
        if self._clocks.now() - read_at > SEND_WITHIN:
            return  # the process was paused in between
        guard, unsent = case.order_guard(attempt, read_at), self.is_unsent(attempt)
        self._sent[attempt.operation] = True
        try:
            answer = await case.while_wanted(self.calls.order(case.order(attempt), guard))
        except (GuardRefused, GuardUnreadable):  # it was not sent, and is decided on anew
            self._sent[attempt.operation] = not unsent
            raise
        if answer.state is AnswerState.NOT_SENT:
            self._sent[attempt.operation] = not unsent
        await self._take_answer(case, attempt, answer)

    async def _take_answer(
        self, case: OperationCase, attempt: RepairAttempt, answer: RepairAnswer
    ) -> None:
        """The effect of the answer to an order on the attempt. Where its write fails, the next step
        makes it again: no later read has the answer.
        """
        outcome, self._answers[attempt.operation] = _outcome_of(attempt, answer), answer
        case.poll_in(POLL_SOON)
        match answer.state:
            case _ if outcome is not None:
                await self._end(case, attempt, outcome)
            case AnswerState.NOT_SENT if not self._sends_twice(attempt):
                # A test that was not carried out is no evidence about the node.
                test = attempt.repair == TEST
                state = RepairState.INCONCLUSIVE if test else RepairState.FAILED
                await self._end(case, attempt, AttemptOutcome(state, answer.text))
            case AnswerState.NOT_SENT if answer.text:
                await case.hold(_waits(attempt, answer.text))
            case AnswerState.TAKEN | AnswerState.DONE:
                taken = replace(attempt, state=RepairState.ORDERED, message=answer.text[:MOST_TEXT])
                await self.change(case, attempt, taken)
            case AnswerState.UNSURE:
                log.warning(
                    "the outcome of a repair's order is not known",
                    extra={
                        "event": "repair.unsure",
                        "node": case.node,
                        "operation": attempt.operation,
                        "error": answer.text,
                    },
                )
        self._answers.pop(attempt.operation, None)

    # -- it is proved, and ends -------------------------------------------------------------

    async def _prove(self, case: OperationCase, attempt: RepairAttempt) -> RepairAnswer | None:
        """End the attempt where its end is known. Returns the repairer's answer while it is not.

        One that may not have arrived is not queried: a repairer that keeps ids would take the
        query for the order.
        """
        answer, outcome = _UNSURE, _known_outcome(attempt)
        outcome = outcome or await case.proof(attempt)
        if outcome is None:
            if attempt.state is RepairState.ORDERED:
                answer = await case.while_wanted(self.calls.outcome(case.order(attempt)))
            elif attempt.repair == TEST and not self.is_unsent(attempt):
                outcome = await self._of_a_dead_process(case, attempt)
            outcome = outcome or _outcome_of(attempt, answer) or await case.lost(attempt, answer)
        if outcome is None:
            return answer
        await self._end(case, attempt, outcome)
        return None

    async def _of_a_dead_process(
        self, case: OperationCase, attempt: RepairAttempt
    ) -> AttemptOutcome | None:
        """The outcome of a test whose order another process has sent, or not, and that can't be
        sent again: it has no verdict, and is taken back.
        """
        if self._sends_twice(attempt) or attempt.repair not in self._settings.repairers:
            return None
        await case.while_wanted(self.calls.cancel(case.order(attempt)))
        return AttemptOutcome(RepairState.INCONCLUSIVE, _NO_TWICE)

    async def _give_up(self, case: OperationCase, attempt: RepairAttempt) -> None:
        """Its time is over. One last look: a proof that has come counts."""
        answer = await self._prove(case, attempt)
        if answer is None:
            return
        unsent = self.is_unsent(attempt)
        if attempt.repair == TEST:  # it must not run next to the next one
            if not unsent:
                await case.while_wanted(self.calls.cancel(case.order(attempt)))
                if await self._prove(case, attempt) is None:
                    return
            text = case.held or "it gave no verdict in its time"
            outcome = AttemptOutcome(RepairState.INCONCLUSIVE, text)
        elif unsent:
            text = f"the order was never sent; {case.held}".rstrip("; ")
            # A hold of ours, such as the stop switch, is no failure that calls for a stronger rung.
            refused = case.held.startswith(_waits(attempt))
            state = RepairState.FAILED if refused else RepairState.INCONCLUSIVE
            outcome = AttemptOutcome(state, text)
        elif attempt.state is RepairState.ORDERED and answer.state is not AnswerState.UNSURE:
            outcome = AttemptOutcome(RepairState.FAILED, "no proof of it came in its time")
        else:
            text = "it is not known whether the order was carried out"
            outcome = AttemptOutcome(RepairState.UNKNOWN, text)
        await self._end(case, attempt, outcome)

    async def cancel(self, case: OperationCase, attempt: RepairAttempt, because: str) -> None:
        """Take the order back, as far as that goes."""
        outcome = _known_outcome(attempt)
        if outcome is not None:  # it is over, and the person ends what would follow it
            if outcome.state is not RepairState.CANCELLED:
                await case.nothing_follows(attempt)
            await self._end(case, attempt, outcome)
            return
        # An order that was certainly not sent needs no repairer to take it back.
        try:
            awaited = "" if self.is_unsent(attempt) else await case.take_back(attempt)
        except (Unreachable, Conflict) as error:
            if await self._prove(case, attempt) is None:
                return
            if self._time_of(attempt) < attempt.deadline_at:
                raise  # it is tried again
            awaited = str(error)
        if awaited:
            await case.not_taken_back(attempt, because, awaited)
        else:
            await self._end(case, attempt, AttemptOutcome(case.cancelled_as(attempt), because))

    async def _end(
        self, case: OperationCase, attempt: RepairAttempt, outcome: AttemptOutcome
    ) -> None:
        """Remove what the order left, write the attempt's end; then its reservation goes.

        The removal comes first, as no process would remember it after a crash, and ``ends_as``
        before that, as no object has the outcome any more.
        """
        entry = self._settings.repairers.get(attempt.repair)
        clean_up = entry.clean_up if entry is not None else None
        leaves = entry is not None and (clean_up is not None or entry.pauses_operands)
        if leaves and attempt.ends_as is None:
            attempt = await self.change(case, attempt, ending(attempt, outcome))
        elif leaves:  # the answer to the write of its end may have been lost
            await self._unchanged(case.busy or attempt)
        late = self._time_of(attempt) > attempt.deadline_at + REMOVE_WITHIN
        left = await case.left(attempt)
        answer = None
        if clean_up is not None and not left:
            answer = await case.while_wanted(clean_up(case.order(attempt)))
        if answer is not None and answer.state is not AnswerState.DONE:
            left = answer.text
            if answer.state is AnswerState.FAILED or late:
                log_left(case.node, attempt.operation, left)
                left = f"what it left in the cluster can't be removed: {left}"
        given_up = late or (answer is not None and answer.state is AnswerState.FAILED)
        if left and not given_up:
            case.poll_in(POLL_SOON)
            await case.hold(left)
            return
        text = "; ".join(part for part in (outcome.text, left) if part)
        ended = await case.end_of(attempt, outcome._replace(text=text), late=late)
        if ended is None:
            return
        before = case.busy or attempt
        await self.write(before, ended)
        self.record_writer.quarantine_index.note_end(case.node, ended)
        self.announce(case, ended, text)  # no later step would, where the next write fails
        await case.changed(before, ended)
        case.poll_in(0.0)
        await self.record_writer.end_operation(attempt.operation)

    def report_end(self, case: OperationCase, last: RepairAttempt | None) -> None:
        """Announce an end that this process has written, where the write got no answer."""
        if last is not None and last.state not in BUSY and last.operation in self._sent:
            self.announce(case, last, last.message)

    def announce(self, case: OperationCase, ended: RepairAttempt, text: str) -> None:
        """An end that is durable: report it to the repairer and to people."""
        self._forget(ended)
        case.ended(ended, text, self.calls.note_end(ended.repair, case.node, ended.operation))

    async def change(
        self, case: OperationCase, before: RepairAttempt, after: RepairAttempt
    ) -> RepairAttempt:
        """Write the operation as it is now, and what follows for its node."""
        await self.write(before, after)
        await case.changed(before, after)
        return after

    async def write(self, before: RepairAttempt, after: RepairAttempt) -> None:
        """Write the operation, unless another process or a person has changed it."""
        there = await self._unchanged(before)
        await self._operations.write_status(there, status_of(after, there.status))
        if after.state not in BUSY:
            self._forget(after)

    def _forget(self, ended: RepairAttempt) -> None:
        self._sent.pop(ended.operation, None)
        self._answers.pop(ended.operation, None)

    async def _unchanged(self, attempt: RepairAttempt) -> Operation:
        """The operation as it is now. Raises Conflict where the attempt has changed."""
        there = await self._operations.read(attempt.name)
        read = node_test_of if isinstance(attempt, NodeTest) else attempt_of
        if there is None or read(there) != attempt:
            raise Conflict("the attempt was changed by another process")
        return there


def _waits(attempt: RepairAttempt, why: str = "") -> str:
    """The hold of an order that its repairer does not take, or that is not prepared. No hold of
    ours begins so.
    """
    return f"{attempt.repair} waits: {why}"


def _is_unanswered(attempt: RepairAttempt) -> bool:
    """Whether no answer to the order is in the attempt."""
    return attempt.ends_as is None and attempt.state is RepairState.ORDERING


def _known_outcome(attempt: RepairAttempt) -> AttemptOutcome | None:
    """The outcome of an attempt that is over, where its end only waits for what its order left."""
    return AttemptOutcome(attempt.ends_as, attempt.message) if attempt.ends_as is not None else None


def _outcome_of(attempt: RepairAttempt, answer: RepairAnswer) -> AttemptOutcome | None:
    """The outcome that the repairer's answer gives the attempt, or None while it gives none."""
    state = end_state(attempt.repair, answer)
    return AttemptOutcome(state, answer.text) if state is not None else None


def ending(attempt: RepairAttempt, outcome: AttemptOutcome) -> RepairAttempt:
    """The attempt whose outcome is known before its end can be written."""
    message = (outcome.text or attempt.message)[:MOST_TEXT]
    return replace(attempt, ends_as=outcome.state, message=message)


def with_end(attempt: RepairAttempt, outcome: AttemptOutcome, wall: float) -> RepairAttempt:
    """The attempt that ends now. ``wall``: wall clock seconds."""
    at, message = round(wall, 3), (outcome.text or attempt.message)[:MOST_TEXT]
    return replace(attempt, state=outcome.state, ends_as=None, ended_at=at, message=message)


def log_left(node: str, operation: str, why: str) -> None:
    """An order has left something in the cluster that stays."""
    log.warning(
        "an object of a repair can't be removed",
        extra={"event": "repair.left_behind", "node": node, "operation": operation, "error": why},
    )
