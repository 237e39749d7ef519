"""Carries out the repairs of nodes in quarantine, one attempt of one node at a time.

Order: the reservation in the admission record, the attempt on the Quarantine (compare-and-set),
the order; then the proof, its end on the Quarantine, and the reservation out of the record. So a
process that dies between any two of them leaves behind at least as much as it has done, and no
order that the Quarantine does not know of.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Cluster,
    GuardRefused,
    NodeChange,
    Phase,
    Quarantine,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.events import EventKind
from aggregator.policy.repairs import (
    REBOOT,
    REPLACE,
    TEST,
    is_lemon,
    verdict_of,
)
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.cordon import NodeActions
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.drain_plan import DrainRules
from aggregator.quarantine.decide.repair import (
    BUSY,
    Do,
    NextRepair,
    RepairFacts,
    RepairMode,
    domains_of,
    followed_change,
    is_busy,
    malformed,
    next_repair,
    operation_id,
    request_for,
)
from aggregator.quarantine.decide.repair_plan import is_emptied, ladder_of
from aggregator.quarantine.repair.attempts import (
    MOST_TEXT,
    STATE_IN_WORDS,
    attempt_details,
    attempt_name,
    busy_attempt,
    is_proved_by_node,
)
from aggregator.quarantine.repair.before_release import TestsBeforeRelease, boot_of
from aggregator.quarantine.repair.operand_pause import OperandPause
from aggregator.quarantine.repair.orders import RepairOrders
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    RepairSettings,
)
from aggregator.quarantine.repair.reservations import RepairReservations
from aggregator.quarantine.repair.start_checks import RepairStartChecks, is_in_use
from aggregator.quarantine.repair.status_writer import RepairStatusWriter
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.node_pools import NodePools
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.quarantine.state.race import while_it_stands

log = logging.getLogger("sickbay.quarantine")

#: A node whose repair waits for something is looked at so often (seconds), and one whose order
#: was not sent so often.
LOOK_EVERY = 15.0
LOOK_SOON = 3.0
#: An order that its process could not send within so long of writing it is not sent (seconds): the
#: process was paused, and another one may have gone on.
_SEND_WITHIN = 20.0
#: An attempt that has ended waits so long beyond its deadline (seconds) for the removal of what its
#: order left in the cluster. Then its end is written without that.
_CLEANS_UP = 300.0
#: So long a release waits for the same (seconds): it must not be held up.
_WITHDRAWS = 5.0
#: Failure domains that an attempt keeps: as many as the definition of quarantines takes.
_MOST_DOMAINS = 32


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
        pools: NodePools,
        settings: RepairSettings,
        drain: DrainRules,
        pool_label: str,
    ) -> None:
        self._cluster = cluster
        self._acts = acts
        self._record_writer = record_writer
        self._clocks = clocks
        self._policy = policy
        self._pools = pools
        self._settings = settings
        #: Orders that this process began and has certainly not sent: since when it owned the node,
        #: by operation. Another replica may have sent it since, where the node was lost to one.
        self._unsent: dict[str, float] = {}
        #: The attempts whose orders a person's release has withdrawn, by node.
        self._withdrawn: dict[str, str] = {}
        #: What mode observe has reported, by node: the quarantine's uid, and the repair.
        self._observed: dict[str, tuple[str, str]] = {}
        self._tests = TestsBeforeRelease(settings, clocks)
        self._orders = RepairOrders(settings.collected, clocks)
        self._status = RepairStatusWriter(acts, clocks, settings.rules.mode)
        self._checks = RepairStartChecks(
            cluster=cluster,
            switch=record_writer.switch,
            clocks=clocks,
            drain=drain,
            test_namespace=settings.test_namespace,
        )
        self._reservations = RepairReservations(record_writer, settings, clocks, pool_label)
        self._operands = OperandPause(cluster, acts, clocks)
        #: What the repairer has told beside the text, by operation, for the event of its end.
        self._details: dict[str, Mapping[str, str]] = {}

    # -- asked by the planner -------------------------------------------------------------

    def is_busy(self, node_state: NodeState) -> bool:
        """Whether an attempt may still act on the node, which must not be released by itself."""
        quarantine = node_state.node_summary.quarantine
        return quarantine is not None and is_busy(quarantine.status.repair)

    def replaces(self, node_state: NodeState) -> bool:
        """Whether a repair is under way that replaces the Node."""
        quarantine = node_state.node_summary.quarantine
        repair = quarantine.status.repair if quarantine is not None else None
        attempts = repair.attempts if repair is not None else ()
        return any(one.repair == REPLACE and one.state in BUSY for one in attempts)

    def is_due(self, node_state: NodeState) -> bool:
        """Whether it is time to look at the node's repair."""
        quarantine = node_state.node_summary.quarantine
        if quarantine is None or (self._settings.off and quarantine.status.repair is None):
            return False
        if self._clocks.now() < node_state.quarantine_view.repair_look:
            return False
        return is_busy(quarantine.status.repair) or self._may_begin(quarantine)

    def waits(self, node_state: NodeState) -> bool:
        """Whether time alone may change what `is_due` says."""
        quarantine = node_state.node_summary.quarantine
        if quarantine is None or (self._settings.off and quarantine.status.repair is None):
            return False
        return is_busy(quarantine.status.repair) or self._may_begin(quarantine)

    def _may_begin(self, quarantine: Quarantine) -> bool:
        return not (self._settings.off or quarantine.deleting) and is_emptied(quarantine)

    def holds_release(self, node_state: NodeState) -> bool:
        """Whether the node has to pass a test before it is released by recovery."""
        return self._tests.hold(node_state)

    def note_release(self, node_state: NodeState) -> None:
        """The node is about to be released by recovery: say so where the rules want a test."""
        quarantine, text = node_state.node_summary.quarantine, self._tests.untested(node_state)
        if quarantine is None or not text:
            return
        if self._observed.get(node_state.node) != (quarantine.uid, TEST):
            self._observed[node_state.node] = (quarantine.uid, TEST)
            self._emit_suppressed(node_state, TEST, text)

    # -- the step -------------------------------------------------------------------------

    async def run(self, node_state: NodeState) -> None:
        """Do what is next for the node's repair, once."""
        node_state.own_quarantine_view().delay_repair(self._clocks.now() + LOOK_EVERY)
        quarantine = node_state.node_summary.quarantine
        if quarantine is None:
            return

        def write(repair: RepairStatus) -> Awaitable[Quarantine]:
            return self._status.write(node_state, quarantine, repair)

        if await self._tests.write_evidence(node_state, quarantine, write):
            node_state.own_quarantine_view().delay_repair(self._clocks.now())
            return  # decide again, on what is written
        step = self._next(node_state, quarantine)
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
                if step.request:
                    await self._remember(node_state, step.request)
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
            step.do is Do.RESEND or self._is_unsent(node_state, attempt)
        )

    def _is_unsent(self, node_state: NodeState, attempt: RepairAttempt) -> bool:
        """Whether nobody can have sent the order."""
        since = self._unsent.get(attempt.operation)
        ours = since is not None and since == node_state.work.ours_since
        return ours and attempt.state is RepairState.ORDERING

    def _next(self, node_state: NodeState, quarantine: Quarantine) -> NextRepair:
        now, rules = self._clocks.earliest(), self._settings.rules
        record = self._record_writer.record
        past = record.past_repairs.get(node_state.node, ())
        facts = RepairFacts(
            ladder=self._ladder(quarantine),
            available={
                kind: one.repairer.sends_twice for kind, one in self._settings.repairers.items()
            },
            past=tuple(one for one in past if abs(now - one.at) < rules.window),
            verdict=verdict_of(node_state.agent.health),
            lemon=is_lemon(node_state.agent.health),
            stands=_stands(node_state, quarantine),
            began=quarantine.status.admitted_at or quarantine.created_at,
            request=request_for(node_state.cluster.repair_request, quarantine.uid),
            returns=self._tests.is_what_holds(node_state),
            whole=ladder_of(quarantine.spec, self._policy, cleared=True),
            boot_id=boot_of(node_state),
        )
        return next_repair(quarantine.status.repair, facts, rules, now)

    def _ladder(self, quarantine: Quarantine) -> tuple[str, ...]:
        return ladder_of(quarantine.spec, self._policy)

    def _observe(self, node_state: NodeState, quarantine: Quarantine, step: NextRepair) -> None:
        if self._observed.get(node_state.node) == (quarantine.uid, step.repair):
            return
        self._observed[node_state.node] = (quarantine.uid, step.repair)
        text = f"{step.repair} would be ordered (repair.mode is observe)"
        self._emit_suppressed(node_state, step.repair, text)

    def _emit_suppressed(self, node_state: NodeState, repair: str, text: str) -> None:
        self._acts.emit_event(node_state, EventKind.REPAIR_SUPPRESSED, text, {"repair": repair})

    # -- an attempt begins ----------------------------------------------------------------

    async def _begin(self, node_state: NodeState, step: NextRepair) -> None:
        """Reserve the attempt, make it durable, and send the order.

        The node, its pods and the Quarantine are read anew before: it must be marked, empty, and
        no other party's.
        """
        node = await self._cluster.read_node(node_state.node)
        fresh = await self._acts.reread(node_state)
        node_state.take_node(node)
        if fresh is None or node is None or not self._may_begin(fresh):
            return
        if self._next(node_state, fresh) != step:
            node_state.own_quarantine_view().delay_repair(self._clocks.now())  # decide again
            return
        why = await self._checks.against(node_state, node, fresh, step.repair)
        if why and is_in_use(fresh, step, why):
            self._tests.note_use(fresh, why)
            return
        if why:
            await self._status.hold(node_state, fresh, why, step)
            return
        entry = self._settings.repairers[step.repair]
        operation = operation_id(fresh.uid, fresh.status.repair, step.repair)
        domains = domains_of(node.labels, self._settings.domain_labels)
        held = await self._reservations.reserve(node_state, step, operation, domains)
        if held:
            await self._status.hold(node_state, fresh, held, step)
            return
        now = round(self._clocks.latest(), 3)
        attempt = RepairAttempt(
            operation=operation,
            repair=step.repair,
            state=RepairState.ORDERING,
            boot_id=node.boot_id or (boot_of(node_state) if step.repair == TEST else ""),
            node_uid=node.uid,
            domains=domains[:_MOST_DOMAINS],
            request=step.request,
            began_at=now,
            deadline_at=now + entry.timeout,
            message=step.because[:MOST_TEXT],
            profile=step.profile,
        )
        await self._acts.guard(node_state)()
        written = await self._status.begin(node_state, fresh, attempt)
        self._unsent[operation] = node_state.work.ours_since
        why = f": {step.because}" if step.because else ""
        self._acts.emit_event(
            node_state,
            EventKind.REPAIR_ORDERED,
            f"{attempt_name(attempt)} is ordered{why}",
            attempt_details(attempt),
        )
        await self._send(node_state, written, attempt, self._clocks.now())

    async def _send(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt, written: float
    ) -> None:
        """Send the order, unless its purpose is gone. ``written``: when it was made durable."""
        entry = self._settings.repairers.get(attempt.repair)
        if entry is None:
            return
        held = await self._reservations.keep(node_state, attempt)
        if held:
            await self._status.hold(node_state, quarantine, held)
            return
        if attempt.request:  # before the order: no later quarantine may follow it again
            await self._remember(node_state, attempt.request)
        if entry.pauses_operands:
            waits = await self._operands.stop(node_state, attempt)
            if waits:
                await self._status.hold(node_state, quarantine, f"{attempt.repair} waits: {waits}")
                node_state.own_quarantine_view().delay_repair(self._clocks.now() + LOOK_SOON)
                return
        await self._acts.guard(node_state)()
        if self._clocks.now() - written > _SEND_WITHIN:
            return  # the process was paused in between
        if not self._reservations.counts(node_state, attempt):
            raise GuardRefused("the admission record does not have the repair any more")
        order, uid = self._orders.order_of(quarantine, attempt), quarantine.uid

        def still() -> bool:
            known = node_state.node_summary.quarantine
            if known is None or known.uid != uid or known.deleting:
                return False
            self._tests.note_evidence(node_state, known)
            return known.status.phase is not Phase.RELEASING

        if not still():  # an order leaves with the repairer's first step
            return
        since = self._unsent.pop(attempt.operation, None)
        answer = await while_it_stands(node_state, entry.repairer.order(order), still)
        if answer is None:
            return
        if answer.state is AnswerState.NOT_SENT and since is not None:
            self._unsent[attempt.operation] = since
        await self._take_answer(node_state, attempt, answer, again=entry.repairer.sends_twice)

    async def _take_answer(
        self, node_state: NodeState, attempt: RepairAttempt, answer: RepairAnswer, *, again: bool
    ) -> None:
        """What the answer to an order makes of the attempt. ``again``: it may be sent twice."""
        self._keep_details(attempt, answer)
        match answer.state:
            case AnswerState.NOT_SENT:
                node_state.own_quarantine_view().delay_repair(self._clocks.now() + LOOK_SOON)
                if not again:
                    state = _end_of(attempt, RepairState.FAILED)
                    await self._end(node_state, attempt, state, answer.text)
            case AnswerState.FAILED:
                await self._end(node_state, attempt, RepairState.FAILED, answer.text)
            case AnswerState.INCONCLUSIVE:
                await self._end(node_state, attempt, RepairState.INCONCLUSIVE, answer.text)
            case AnswerState.DONE if not is_proved_by_node(attempt.repair):
                await self._end(node_state, attempt, RepairState.SUCCEEDED, answer.text)
            case AnswerState.TAKEN | AnswerState.DONE:
                taken = replace(attempt, state=RepairState.ORDERED, message=answer.text[:MOST_TEXT])
                await self._status.change(node_state, attempt, taken)
                node_state.own_quarantine_view().delay_repair(self._clocks.now() + LOOK_SOON)
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

    def _keep_details(self, attempt: RepairAttempt, answer: RepairAnswer) -> None:
        if answer.details:
            self._details[attempt.operation] = answer.details

    async def _remember(self, node_state: NodeState, request: str) -> None:
        """The Node remembers that a person's request was followed."""
        node = await self._cluster.read_node(node_state.node)
        change = followed_change(node.annotations, (request,)) if node is not None else {}
        if node is not None and change:
            node = await self._cluster.patch_node(node, NodeChange(annotations=change))
        node_state.take_node(node)

    async def _resend(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """The process that wrote the attempt may have died before it sent the order, or after."""
        attempt = busy_attempt(quarantine)
        if await self._is_proved(node_state, attempt):
            await self._end(node_state, attempt, RepairState.SUCCEEDED, _proof(attempt))
            return
        if await self._ends_elsewhere(node_state, attempt):
            return
        node = await self._cluster.read_node(node_state.node)
        fresh = await self._acts.reread(node_state)
        node_state.take_node(node)
        repair = fresh.status.repair if fresh is not None else None
        if fresh is None or node is None or repair is None or attempt not in repair.attempts:
            return  # the next look sees it
        why = await self._checks.against(node_state, node, fresh, attempt.repair)
        if why:  # it may have waited for long, and other work may have come
            await self._status.hold(node_state, fresh, why)
            return
        await self._send(node_state, fresh, attempt, self._clocks.now())

    # -- and ends -------------------------------------------------------------------------

    async def _prove(self, node_state: NodeState, quarantine: Quarantine) -> RepairAnswer | None:
        """End the attempt where its end is known. Returns the repairer's answer while it is not."""
        attempt = busy_attempt(quarantine)
        if attempt.ends_as is not None:
            await self._end(node_state, attempt, attempt.ends_as, attempt.message)
            return None
        if await self._is_proved(node_state, attempt):
            await self._end(node_state, attempt, RepairState.SUCCEEDED, _proof(attempt))
            return None
        answer = await self._read_outcome(quarantine, attempt)
        self._keep_details(attempt, answer)
        ended = _ENDS.get(answer.state)
        if ended is not None:
            await self._end(node_state, attempt, ended, answer.text)
            return None
        if answer.state is AnswerState.DONE and not is_proved_by_node(attempt.repair):
            await self._end(node_state, attempt, RepairState.SUCCEEDED, answer.text)
            return None
        return None if await self._ends_elsewhere(node_state, attempt) else answer

    async def _ends_elsewhere(self, node_state: NodeState, attempt: RepairAttempt) -> bool:
        """End a test whose node is another one now, or in another boot: it can have no verdict."""
        if attempt.repair != TEST:
            return False
        node = await self._cluster.read_node(node_state.node)
        node_state.take_node(node)
        if node is not None and node.uid == attempt.node_uid:
            boots = {node.boot_id, attempt.boot_id} - {""}
            if len(boots) < 2:
                return False
        text = "the node is another one, or in another boot"
        await self._end(node_state, attempt, RepairState.INCONCLUSIVE, text)
        return True

    async def _read_outcome(self, quarantine: Quarantine, attempt: RepairAttempt) -> RepairAnswer:
        """How far an order has come. One that may not have arrived is not asked about: a repairer
        that keeps ids would take the question for the order.
        """
        if attempt.state is not RepairState.ORDERED:
            return RepairAnswer(AnswerState.UNSURE)
        entry = self._settings.repairers.get(attempt.repair)
        if entry is None:  # the configuration has lost it since
            return RepairAnswer(AnswerState.TAKEN)
        return await entry.repairer.read_outcome(self._orders.order_of(quarantine, attempt))

    async def _is_proved(self, node_state: NodeState, attempt: RepairAttempt) -> bool:
        """Whether the Node itself shows that the attempt has succeeded."""
        if not is_proved_by_node(attempt.repair):
            return False
        node = await self._cluster.read_node(node_state.node)
        node_state.take_node(node)
        replaced = attempt.repair == REPLACE and (node is None or node.uid != attempt.node_uid)
        rebooted = (
            attempt.repair == REBOOT
            and node is not None
            and bool(node.boot_id and attempt.boot_id)
            and node.boot_id != attempt.boot_id
            and node.ready is True
        )
        return (replaced or rebooted) and await self._is_over(node_state, attempt)

    async def _is_over(self, node_state: NodeState, attempt: RepairAttempt) -> bool:
        """Whether the controller that carries it out has finished: it may still act on the node,
        and delete pods there, after the node has returned.
        """
        entry = self._settings.repairers.get(attempt.repair)
        quarantine = node_state.node_summary.quarantine
        if entry is None or entry.is_over is None or quarantine is None:
            return True
        return await entry.is_over(self._orders.order_of(quarantine, attempt))

    async def _give_up(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Its time is over. One last look: a proof that has come counts."""
        answer = await self._prove(node_state, quarantine)
        if answer is None:
            return
        attempt = busy_attempt(quarantine)
        if attempt.repair == TEST:
            await self._give_up_test(node_state, quarantine, attempt)
        elif self._is_unsent(node_state, attempt):
            await self._end(node_state, attempt, RepairState.FAILED, "the order was never sent")
        elif attempt.state is RepairState.ORDERED and answer.state is not AnswerState.UNSURE:
            text = "no proof of it came in its time"
            await self._end(node_state, attempt, RepairState.FAILED, text)
        else:
            text = "it is not known whether the order was carried out"
            await self._end(node_state, attempt, RepairState.UNKNOWN, text)

    async def _give_up_test(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt
    ) -> None:
        """It must not go on beside the next one, so that its repairer is asked to end it."""
        entry = self._settings.repairers.get(TEST)
        if entry is not None and not self._is_unsent(node_state, attempt):
            await entry.repairer.cancel(self._orders.order_of(quarantine, attempt))
            if await self._prove(node_state, quarantine) is None:
                return
        text = "it gave no verdict in its time"
        await self._end(node_state, attempt, RepairState.INCONCLUSIVE, text)

    async def _cancel(
        self, node_state: NodeState, quarantine: Quarantine, step: NextRepair
    ) -> None:
        attempt = busy_attempt(quarantine)
        if attempt.ends_as is not None:  # it is over
            await self._end(node_state, attempt, attempt.ends_as, attempt.message)
            return
        entry = self._settings.repairers.get(attempt.repair)
        order = self._orders.order_of(quarantine, attempt)
        # What was certainly not sent needs no repairer to take it back.
        unsent = self._is_unsent(node_state, attempt)
        if unsent or (entry is not None and await entry.repairer.cancel(order)):
            state = RepairState.CANCELLED
            await self._end(node_state, attempt, state, step.because, request=step.request)
        else:
            # The attempt goes on to its proof, is not sent again, and nothing follows it.
            text = f"{attempt.repair} can't be taken back any more; its end is waited for"
            going = replace(attempt, request=step.request, message=text)
            await self._status.change(
                node_state, attempt, going, exhausted="a person ended the repairs"
            )
        await self._remember(node_state, step.request)

    async def _end(
        self,
        node_state: NodeState,
        attempt: RepairAttempt,
        state: RepairState,
        text: str,
        *,
        request: str = "",
    ) -> None:
        """Remove what the order left, write the attempt's end; then its reservation goes.

        The removal comes first, as no process would remember it after a crash, and ``ends_as``
        before that, as no object tells the outcome any more. ``request``: that of the person who
        has ended it.
        """
        entry = self._settings.repairers.get(attempt.repair)
        leaves = entry is not None and (entry.clean_up is not None or entry.pauses_operands)
        if leaves and attempt.ends_as is None and state is not RepairState.CANCELLED:
            known = replace(attempt, ends_as=state, message=(text or attempt.message)[:MOST_TEXT])
            attempt = await self._status.change(node_state, attempt, known)
        left = await self._clean_up(node_state, attempt, state)
        if left is None:
            node_state.own_quarantine_view().delay_repair(self._clocks.now() + LOOK_SOON)
            return
        text = "; ".join(part for part in (text, left) if part)
        ended = replace(
            attempt,
            state=state,
            ends_as=None,
            request=request or attempt.request,
            ended_at=round(self._clocks.wall(), 3),
            message=(text or attempt.message)[:MOST_TEXT],
        )
        await self._status.change(node_state, attempt, ended)
        self._acts.stages.note_repair(ended)
        self._unsent.pop(attempt.operation, None)
        details = self._details.pop(attempt.operation, {})
        if entry is not None and entry.note_end is not None:
            entry.note_end(node_state.node, attempt.operation)
        reply = f": {text}" if text else ""
        self._acts.emit_event(
            node_state,
            EventKind.REPAIR_ENDED,
            f"{attempt_name(attempt)} {STATE_IN_WORDS[state]}{reply}",
            {**details, **attempt_details(attempt), "outcome": state.value},
        )
        node_state.own_quarantine_view().delay_repair(self._clocks.now())
        await self._reservations.end(node_state, attempt)

    async def _clean_up(
        self, node_state: NodeState, attempt: RepairAttempt, state: RepairState
    ) -> str | None:
        """What the order has left behind, in words; None: its removal is to be tried again."""
        entry = self._settings.repairers.get(attempt.repair)
        quarantine = node_state.node_summary.quarantine
        late = self._clocks.earliest() > attempt.deadline_at + _CLEANS_UP
        if entry is not None and entry.pauses_operands:
            stopped_for = await self._operands.resume(node_state, attempt)
            if stopped_for:  # the release starts them too
                return f"GPU operands are still stopped: {stopped_for}" if late else None
        if entry is None or entry.clean_up is None or quarantine is None:
            return ""
        if state is RepairState.CANCELLED:  # the cancellation has removed it
            return ""
        answer = await entry.clean_up(self._orders.order_of(quarantine, attempt))
        if answer.state is AnswerState.DONE:
            return ""
        if answer.state is AnswerState.NOT_SENT and not late:
            return None
        self._log_left(node_state, attempt, answer.text)
        return f"what it left in the cluster can't be removed: {answer.text}"

    async def withdraw(self, node_state: NodeState) -> None:
        """The node is released while a repair may act on it: remove what its order left.

        Once, and a failure holds up no release. What can't be removed so may still reach the node.
        """
        quarantine = node_state.node_summary.quarantine
        if quarantine is None or not is_busy(quarantine.status.repair):
            return
        if malformed(quarantine.status.repair or RepairStatus()):
            return
        attempt = busy_attempt(quarantine)
        entry = self._settings.repairers.get(attempt.repair)
        if entry is None or (entry.clean_up is None and entry.withdraw is None):
            return
        if self._withdrawn.get(node_state.node) == attempt.operation:
            return
        self._withdrawn[node_state.node] = attempt.operation
        if entry.withdraw is not None:
            entry.withdraw(self._orders.order_of(quarantine, attempt))
        if entry.clean_up is None:
            return
        answer = RepairAnswer(AnswerState.NOT_SENT, f"no answer within {_WITHDRAWS:g} s")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WITHDRAWS):
                answer = await entry.clean_up(self._orders.order_of(quarantine, attempt))
        if answer.state is not AnswerState.DONE:
            self._log_left(node_state, attempt, answer.text)

    def _log_left(self, node_state: NodeState, attempt: RepairAttempt, why: str) -> None:
        log.warning(
            "an object of a repair can't be removed",
            extra={
                "event": "repair.left_behind",
                "node": node_state.node,
                "operation": attempt.operation,
                "error": why,
            },
        )


#: Answers that end an attempt, whatever the Node shows.
_ENDS: Mapping[AnswerState, RepairState] = {
    AnswerState.FAILED: RepairState.FAILED,
    AnswerState.INCONCLUSIVE: RepairState.INCONCLUSIVE,
}


def _end_of(attempt: RepairAttempt, state: RepairState) -> RepairState:
    """A test that was not carried out has not failed: it says nothing about the node."""
    return RepairState.INCONCLUSIVE if attempt.repair == TEST else state


def _proof(attempt: RepairAttempt) -> str:
    return "another boot" if attempt.repair == REBOOT else "another machine, or none"


def _stands(node_state: NodeState, quarantine: Quarantine) -> bool:
    """Whether evidence of the quarantine is in force, and is not only waited for to stay away."""
    if quarantine.status.phase not in MARKED:
        return False
    if node_state.agent.is_fresh:
        return any(
            incident.action != "observe" and incident.in_force
            for incident in node_state.decision.incidents.values()
        )
    return any(not item.cleared for item in quarantine.spec.evidence)
