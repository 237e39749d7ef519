"""The operations of nodes in quarantine: repairs by a ladder or by hand, and tests."""

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from attrs import define, field

from aggregator.cluster.operations import begun_status, is_request_of, spec_of
from aggregator.cluster.port import (
    BUSY,
    Conflict,
    Guard,
    Node,
    Operation,
    OperationSpec,
    OperationStatus,
    Phase,
    Quarantine,
    RepairAttempt,
    RepairState,
)
from aggregator.events import EventKind
from aggregator.policy.repairs import (
    GPU_RESET,
    NEEDS_PERSON,
    REBOOT,
    REPLACE,
    TEST,
    is_lemon,
    verdict_of,
)
from aggregator.quarantine.actions.act_guard import FreshRead
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.operation_step import NextOperation
from aggregator.quarantine.decide.repair import (
    RepairFacts,
    RepairLimits,
    busy_attempt,
    domains_of,
    lacks_newest,
    malformed,
    next_repair,
    operation_id,
)
from aggregator.quarantine.decide.repair_permission import (
    CANCELLED,
    NO_ORDER,
    open_attempt,
    permission_refusal,
)
from aggregator.quarantine.decide.repair_plan import is_emptied, ladder_of
from aggregator.quarantine.decide.reservation import OperationLimits
from aggregator.quarantine.repair.attempts import (
    MOST_TEXT,
    PROVED_BY_NODE,
    attempt_details,
    attempt_name,
    end_in_words,
    held_text,
)
from aggregator.quarantine.repair.before_release import TestsBeforeRelease, boot_of, is_in_force
from aggregator.quarantine.repair.case import AttemptOutcome, OperationCase
from aggregator.quarantine.repair.engine import OperationEngine, log_left, with_end
from aggregator.quarantine.repair.operand_pause import OperandPause
from aggregator.quarantine.repair.orders import evidence_bundle
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from aggregator.quarantine.repair.start_checks import JUST_EMPTY, RepairStartChecks, is_in_use
from aggregator.quarantine.repair.status_writer import RepairStatusWriter
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.quarantine.state.race import while_in_force
from aggregator.runtime.recent import Recent

T = TypeVar("T")

#: Times of attempts are in whole parts of this long (seconds).
_LATER = 0.001
#: This long a release waits for what an order left to be removed (seconds): it must not be held up.
_WITHDRAWS = 5.0
#: The part of that time in which the order is cancelled.
_CANCELS = 3.0
_BY_A_PERSON = "a person ended the repairs"
_CANCELLED = AttemptOutcome(RepairState.CANCELLED, "the node is released")
_MAY_COME = AttemptOutcome(
    RepairState.UNKNOWN,
    "the node is released, and the order can't be taken back: it may still reach the node",
)


@define(eq=False, repr=False, slots=False, kw_only=True)
class RepairContext:
    """The parts that the operations of all nodes in quarantine share. ``pool_label`` names the node
    label by which the limit of a pool counts; empty: none.
    """

    acts: NodeActions
    settings: RepairSettings
    engine: OperationEngine
    checks: RepairStartChecks
    pool_label: str
    status: RepairStatusWriter = field(init=False)
    tests: TestsBeforeRelease = field(init=False)
    operands: OperandPause = field(init=False)
    #: By node, the repair whose operation the cluster refuses, with the quarantine's uid.
    refused: Recent[str, tuple[str, str]] = field(init=False, factory=Recent)

    def __attrs_post_init__(self) -> None:
        mode = self.settings.rules.mode
        self.status = RepairStatusWriter(self.acts, mode)
        self.tests = TestsBeforeRelease(self.settings, self.acts.clocks, self.status)
        self.operands = OperandPause(self.acts)
        self.record_writer = self.engine.record_writer

    def may_begin(self, quarantine: Quarantine) -> bool:
        """Whether an attempt may begin, as far as settings and the Quarantine show."""
        return not (self.settings.off or quarantine.deleting) and is_emptied(quarantine)

    async def is_order_gone(
        self, quarantine: Quarantine, operation: str, request: str = ""
    ) -> bool:
        """Whether an order may have been sent whose operation is gone: removed past its finalizer,
        or not in a restored etcd. ``request``: the person's request that is to become it.
        """
        if self.engine.may_be_sent(operation):
            return True
        if not lacks_newest(quarantine.status.repair):
            return False
        return await self.acts.cluster.operations.read(request or operation) is None

    def _time(self, quarantine: Quarantine) -> float:
        """The wall clock's time; while an attempt is under way, that of the clock that began it."""
        repair = quarantine.status.repair
        last = repair.attempts[-1] if repair.attempts else None
        if last is None or last.state not in BUSY:
            return self.acts.clocks.earliest()
        return self.record_writer.times.time_of(last.operation, last.began_at)

    def next_step(self, node_state: NodeState, quarantine: Quarantine) -> NextOperation:
        """By what this process knows of the node: no object is read."""
        now, rules = self._time(quarantine), self.settings.rules
        past = self.record_writer.record.past_repairs.get(node_state.node, ())
        facts = RepairFacts(
            ladder=ladder_of(quarantine.spec, self.acts.policy),
            available={
                kind: one.repairer.sends_twice for kind, one in self.settings.repairers.items()
            },
            past=tuple(one for one in past if abs(now - one.at) < rules.window),
            verdict=verdict_of(node_state.agent.health),
            lemon=is_lemon(node_state.agent.health),
            is_open=_is_open(node_state, quarantine),
            began=quarantine.status.admitted_at or quarantine.created_at,
            returns=self.tests.is_what_holds(node_state),
            whole=ladder_of(quarantine.spec, self.acts.policy, cleared=True),
            boot_id=boot_of(node_state),
        )
        return next_repair(quarantine.status.repair, facts, rules, now)

    async def refusal(
        self, node_state: NodeState, quarantine_uid: str, operation: str, repair: str
    ) -> str:
        """Why the order of a durable attempt must not act now; empty: it may. All that it rests on
        is read: the Quarantine, the Node with a person's requests, and the pods. Raises
        ClusterError.
        """
        quarantine, node = await asyncio.gather(
            self.acts.cluster.read_quarantine(node_state.node),
            self.acts.cluster.read_node(node_state.node),
        )
        if quarantine is not None and quarantine.uid != quarantine_uid:
            return NO_ORDER
        attempt = open_attempt(quarantine, operation)
        began = attempt.began_at if attempt is not None else 0.0
        now = self.record_writer.times.time_of(operation, began)
        why = permission_refusal(quarantine, node, operation, repair, now)
        if why or quarantine is None or node is None or attempt is None:
            return why
        by_hand = bool(attempt.request)
        why = await self.checks.against(
            node_state, node, quarantine, repair, by_hand=by_hand, anew=True
        )
        if why:
            return why
        # The last read: the others took their time, and a person may have cancelled meanwhile.
        there = await self.acts.cluster.operations.read(attempt.name)
        gone = there is None or there.deleting or not there.is_open
        return CANCELLED if gone else ""


@define(eq=False, repr=False, slots=False)
class QuarantineCase(OperationCase):
    _of: RepairContext
    _state: NodeState
    #: As it was last read for the step: a write at a later version could follow a release.
    _quarantine: Quarantine

    def __attrs_post_init__(self) -> None:
        self.node = self._state.node
        self._note_pool()

    def _note_pool(self) -> None:
        """By the labels as last read."""
        labels = self._state.cluster.labels or {}
        self.pool = labels.get(self._of.pool_label, "") if self._of.pool_label else ""

    @property
    def busy(self) -> RepairAttempt | None:
        quarantine = self._state.quarantine
        if quarantine is None or malformed(quarantine.status.repair):
            return None
        return busy_attempt(quarantine.status.repair)

    @property
    def held(self) -> str:
        return (self._state.quarantine or self._quarantine).status.repair.held

    # -- its data ---------------------------------------------------------------------------

    def order(self, attempt: RepairAttempt) -> RepairOrder:
        quarantine = self._quarantine
        evidence = quarantine.spec.evidence
        in_force = [item for item in evidence if not item.cleared]
        # After a test that failed the evidence that is over has to be repaired too.
        gpus = {item.component for item in in_force or evidence}
        now = self._of.record_writer.times.time_of(attempt.operation, attempt.began_at)
        needs_person = attempt.repair in NEEDS_PERSON
        collected = self._of.settings.collected(self.node, quarantine.uid) if needs_person else {}
        return RepairOrder(
            operation=attempt.operation,
            repair=attempt.repair,
            node=self.node,
            node_uid=attempt.node_uid,
            boot_id=attempt.boot_id,
            quarantine=quarantine.uid,
            reason=quarantine.spec.reason,
            lasts=max(1.0, attempt.deadline_at - now),
            gpus=tuple(sorted(name for name in gpus if name.startswith("GPU-"))),
            bundle=evidence_bundle(quarantine, collected) if needs_person else "",
            profile=attempt.profile,
        )

    def limits(self, attempt: RepairAttempt) -> tuple[str, OperationLimits]:
        # One that is under way was admitted within the bound of attempts.
        by_hand = bool(attempt.request) or self.busy is not None
        return attempt.repair, RepairLimits(self._of.settings.rules, by_hand=by_hand)

    def spec(self, attempt: RepairAttempt, because: str) -> OperationSpec:
        return spec_of(self._quarantine, attempt, because)

    def begun_status(self, attempt: RepairAttempt) -> OperationStatus:
        number = len(self._quarantine.status.repair.attempts) + 1
        return begun_status(self._quarantine, attempt, number)

    def is_request(self, there: Operation, attempt: RepairAttempt) -> bool:
        return is_request_of(there, self._quarantine, attempt)

    # -- reads, and the guards of its acts --------------------------------------------------

    async def make(self, step: NextOperation) -> RepairAttempt | None:
        """The node, its pods and the Quarantine are read anew before: it must be marked, empty, and
        no other party's.
        """
        node, fresh = await self._read_anew()
        if fresh is None or node is None or not self._of.may_begin(fresh):
            return None
        if self._of.next_step(self._state, fresh) != step:
            self.poll_in(float("-inf"))  # decide again
            return None
        operation = operation_id(fresh.uid, fresh.status.repair, step.repair)
        repeatable = self._of.settings.repairers[step.repair].repairer.sends_twice
        if not repeatable and await self._of.is_order_gone(fresh, operation, step.request):
            why = f"the operation {operation} is gone, and its order may have been carried out"
            # A test before the release is due all the same.
            if fresh.status.repair.exhausted != why:
                await self._of.status.exhaust(self._state, fresh, why)
            return None
        by_hand = bool(step.request)
        why = await self._of.checks.against(self._state, node, fresh, step.repair, by_hand=by_hand)
        if why and is_in_use(fresh, step, why):
            self._of.tests.note_use(fresh, why)
            return None
        if why:
            await self.hold(why, step)
            return None
        # Another replica may have written by a clock that is ahead: the attempt counts as later.
        known = fresh.status.repair
        after = max(known.evidence_at, known.exhausted_at, known.began_at) + _LATER
        now = round(max(self._of.acts.clocks.latest(), after), 3)
        return RepairAttempt(
            operation=operation,
            repair=step.repair,
            state=RepairState.ORDERING,
            boot_id=node.boot_id or boot_of(self._state),
            node_uid=node.uid,
            domains=domains_of(node.labels, self._of.settings.domain_labels),
            request=step.request,
            began_at=now,
            deadline_at=now + self._of.settings.repairers[step.repair].timeout,
            message=step.because[:MOST_TEXT],
            profile=step.profile,
        )

    async def _read_anew(self) -> tuple[Node | None, Quarantine | None]:
        node, fresh = await self._of.acts.read_anew(self._state)
        self._quarantine = fresh or self._quarantine
        self._note_pool()
        return node, fresh

    def beginning_guard(self, _attempt: RepairAttempt) -> Guard:
        return self._of.acts.guard(self._state)

    async def may_resend(self, attempt: RepairAttempt) -> bool:
        node, fresh = await self._read_anew()
        if fresh is None or node is None or attempt not in self._quarantine.status.repair.attempts:
            return False  # the next poll sees it
        by_hand = bool(attempt.request)
        why = await self._of.checks.against(
            self._state, node, fresh, attempt.repair, by_hand=by_hand
        )
        if why:
            await self.hold(why)
        return not why

    async def prepare(self, attempt: RepairAttempt) -> str:
        entry = self._of.settings.repairers[attempt.repair]
        return await self._of.operands.stop(self._state, attempt) if entry.pauses_operands else ""

    def order_guard(self, attempt: RepairAttempt, read_at: float) -> Guard:
        uid, operation, repair = self._quarantine.uid, attempt.operation, attempt.repair

        def against() -> str:
            if not self._of.engine.counts(self.node, attempt):
                return "the admission record does not have the repair any more"
            if not self._is_in_force(uid):
                return f"{repair} of {self.node} is not wanted any more"
            known = open_attempt(self._state.quarantine, operation)
            return NO_ORDER if known is None else CANCELLED if known.deleted else ""

        read = partial(self._of.refusal, self._state, uid, operation, repair)
        # The read of the pods may be that of the drain, from a moment before.
        fresh = FreshRead(read, clocks=self._of.acts.clocks, began=read_at - JUST_EMPTY)
        return self._of.acts.guard(self._state, against=against, fresh=fresh)

    async def while_wanted(self, call: Awaitable[T]) -> T:
        still = partial(self._is_in_force, self._quarantine.uid)
        answer = await while_in_force(self._state, call, still, self._of.acts)
        if answer is None:
            raise Conflict(f"the quarantine of {self.node} is over")
        return answer

    def _is_in_force(self, quarantine_uid: str) -> bool:
        """Whether the quarantine that the order is for is still in force."""
        known = self._state.quarantine
        if known is None or known.uid != quarantine_uid or known.deleting:
            return False
        self._of.tests.note_evidence(self._state, known)
        taken_back = self._of.checks.is_taken_back(self._state)
        return known.status.phase is not Phase.RELEASING and not taken_back

    async def proof(self, attempt: RepairAttempt) -> AttemptOutcome | None:
        if attempt.repair not in PROVED_BY_NODE:
            return None
        node = await self._read_node()
        replaced = attempt.repair == REPLACE and (node is None or node.uid != attempt.node_uid)
        rebooted = attempt.repair == REBOOT and _is_in_another_boot(self._state, node, attempt)
        if not (replaced or rebooted):
            return None
        # The controller that carries it out may still act on the node, and delete pods there, after
        # the node has returned.
        entry = self._of.settings.repairers.get(attempt.repair)
        is_over = entry.is_over if entry is not None else None
        if is_over is not None and not await self.while_wanted(is_over(self.order(attempt))):
            return None
        proof = "another machine, or none" if replaced else "another boot"
        return AttemptOutcome(RepairState.SUCCEEDED, proof)

    async def lost(self, attempt: RepairAttempt, _answer: RepairAnswer) -> AttemptOutcome | None:
        """A test whose node is another one now, or in another boot, has no verdict."""
        if attempt.repair != TEST:
            return None
        node = await self._read_node()
        if node is not None and node.uid == attempt.node_uid:
            boots = {node.boot_id, attempt.boot_id} - {""}
            if len(boots) < 2:
                return None
        text = "the node is another one, or in another boot"
        return AttemptOutcome(RepairState.INCONCLUSIVE, text)

    async def _read_node(self) -> Node | None:
        node = await self._of.acts.cluster.read_node(self.node)
        self._state.take_node(node)
        return node

    async def take_back(self, attempt: RepairAttempt) -> str:
        if await self.while_wanted(self._of.engine.calls.take_back(self.order(attempt))):
            return ""
        return f"{attempt.repair} can't be taken back any more; its end is waited for"

    # -- what follows -----------------------------------------------------------------------

    def poll_in(self, seconds: float) -> None:
        at = min(self._state.quarantine_view.repair_poll, self._of.acts.clocks.now() + seconds)
        self._state.quarantine_view.repair_poll = at

    async def hold(self, why: str, step: NextOperation | None = None) -> None:
        quarantine = self._state.quarantine or self._quarantine
        await self._of.status.hold(self._state, quarantine, why, step)

    async def refused(self, why: str, step: NextOperation) -> None:
        event = self._quarantine.uid, step.repair
        if self._of.refused.get(self.node) != event:  # once, until one has begun
            self._of.refused[self.node] = event
            details = {"limit": "repair.refused", "value": step.repair}
            text = f"{step.repair} does not begin, and is tried again: {why}"
            self._of.acts.emit_event(self._state, EventKind.HELD, text, details)
        await self.hold(why, step)

    async def hold_by(self, held: Held, attempt: RepairAttempt, step: NextOperation | None) -> None:
        await self.hold(held_text(attempt.repair, held), step)

    async def note_beginning(self, attempt: RepairAttempt) -> None:
        status = self._of.status
        self._quarantine = await status.note_beginning(self._state, self._quarantine, attempt)

    def begun(self, attempt: RepairAttempt, because: str) -> None:
        self._of.refused.pop(self.node, None)
        taken = self._of.status.take_begun(self._state, self._quarantine, attempt)
        self._quarantine = taken
        reply = f": {because}" if because else ""
        text = f"{attempt_name(attempt)} is ordered{reply}"
        details = attempt_details(attempt)
        self._of.acts.emit_event(self._state, EventKind.REPAIR_ORDERED, text, details)

    async def changed(self, before: RepairAttempt, _after: RepairAttempt) -> None:
        await self._of.status.note_progress(self._state, before)

    async def not_taken_back(self, attempt: RepairAttempt, _because: str, awaited: str) -> None:
        """The attempt continues to its proof, is not sent again, and nothing follows it."""
        await self._of.engine.change(self, attempt, replace(attempt, message=awaited))
        await self.nothing_follows(attempt)

    async def nothing_follows(self, attempt: RepairAttempt) -> None:
        await self._of.status.note_progress(self._state, attempt, exhausted=_BY_A_PERSON)

    async def left(self, attempt: RepairAttempt) -> str:
        if attempt.repair != GPU_RESET:  # the configuration may have paused them until a restart
            return ""
        stopped_for = await self._of.operands.resume(self._state, attempt)
        return f"GPU operands are still stopped: {stopped_for}" if stopped_for else ""

    async def end_of(
        self, attempt: RepairAttempt, outcome: AttemptOutcome, *, late: bool
    ) -> RepairAttempt | None:
        del late
        return with_end(attempt, outcome, self._of.acts.clocks.wall())

    def ended(self, ended: RepairAttempt, text: str, details: Mapping[str, str]) -> None:
        self._of.acts.stages.note_repair(ended)
        reply = f": {text}" if text else ""
        words = f"{attempt_name(ended)} {end_in_words(ended)}{reply}"
        more = {**details, **attempt_details(ended), "outcome": ended.state.value}
        self._of.acts.emit_event(self._state, EventKind.REPAIR_ENDED, words, more)

    # -- its node is released ---------------------------------------------------------------

    async def withdraw(self, attempt: RepairAttempt) -> AttemptOutcome:
        """The node is released while the attempt may act on it: cancel its order. A failure holds
        up no release. Returns what is known of the order then.
        """
        entry = self._of.settings.repairers.get(attempt.repair)
        if entry is None:
            return _MAY_COME
        order, late = self.order(attempt), f"no answer in {_WITHDRAWS:g} s"
        answer, cancelled = RepairAnswer(AnswerState.NOT_SENT, late), False
        if entry.withdraw is not None:
            entry.withdraw(order)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WITHDRAWS):
                if entry.withdraw is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_CANCELS):
                            cancelled = await self._of.engine.calls.cancel(order)
                if entry.clean_up is not None:
                    answer = await entry.clean_up(order)
        removed = entry.clean_up is None or answer.state is AnswerState.DONE
        if not removed:
            log_left(self.node, attempt.operation, answer.text)
        if entry.by_agent:
            return AttemptOutcome(
                RepairState.UNKNOWN,
                "the node is released; what its agent has begun goes on, and nothing else begins",
            )
        # A controller that has taken up a repair may go on without its object; a test does not.
        over = cancelled or (attempt.repair == TEST and entry.clean_up is not None)
        return _CANCELLED if over and removed else _MAY_COME


def _is_open(node_state: NodeState, quarantine: Quarantine) -> bool:
    """Whether evidence of the quarantine is in force, and is not only waited for to stay away."""
    if quarantine.status.phase not in MARKED:
        return False
    if node_state.agent.is_fresh:
        return is_in_force(node_state)
    return any(not item.cleared for item in quarantine.spec.evidence)


def _is_in_another_boot(node_state: NodeState, node: Node | None, attempt: RepairAttempt) -> bool:
    """Whether the node has returned in another boot than the attempt's.

    A cluster that knows no boots and no readiness has the word of the node's agent alone.
    """
    if node is None:
        return False
    by_agent = not node.boot_id and node.ready is None
    boot = boot_of(node_state) if by_agent else node.boot_id
    other = bool(boot and attempt.boot_id) and boot != attempt.boot_id
    return other and (by_agent or node.ready is True)
