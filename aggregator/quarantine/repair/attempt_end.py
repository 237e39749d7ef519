"""Ends an attempt: leftovers of its order, its end on the object, the event, the reservation."""

from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.port import RepairAttempt, RepairState
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.repair.attempts import (
    MOST_TEXT,
    POLL_SOON,
    attempt_details,
    attempt_name,
    end_in_words,
)
from aggregator.quarantine.repair.leftovers import RepairLeftovers
from aggregator.quarantine.repair.outcome import AttemptOutcome
from aggregator.quarantine.repair.repairer_calls import RepairerCalls
from aggregator.quarantine.repair.reservations import RepairReservations
from aggregator.quarantine.repair.status_writer import RepairStatusWriter
from aggregator.quarantine.state.node import NodeState


class AttemptEnds:
    """Each end is written once what its order left is removed."""

    def __init__(
        self,
        *,
        acts: NodeActions,
        clocks: Clocks,
        calls: RepairerCalls,
        leftovers: RepairLeftovers,
        status: RepairStatusWriter,
        reservations: RepairReservations,
    ) -> None:
        self._acts = acts
        self._clocks = clocks
        self._calls = calls
        self._leftovers = leftovers
        self._status = status
        self._reservations = reservations

    async def end(
        self,
        node_state: NodeState,
        attempt: RepairAttempt,
        outcome: AttemptOutcome,
    ) -> None:
        """Remove what the order left, write the attempt's end; then its reservation goes.

        The removal comes first, as no process would remember it after a crash, and ``ends_as``
        before that, as no object has the outcome any more.
        """
        state, text = outcome
        unknown = attempt.ends_as is None and state is not RepairState.CANCELLED
        if unknown and self._leftovers.may_exist(attempt):
            known = replace(attempt, ends_as=state, message=(text or attempt.message)[:MOST_TEXT])
            attempt = await self._status.change(node_state, attempt, known)
        left = await self._leftovers.remove(node_state, attempt, state)
        if left is None:
            node_state.own_quarantine_view().delay_repair(self._clocks.now() + POLL_SOON)
            return
        text = "; ".join(part for part in (text, left) if part)
        ended = replace(
            attempt,
            state=state,
            ends_as=None,
            ended_at=round(self._clocks.wall(), 3),
            message=(text or attempt.message)[:MOST_TEXT],
        )
        await self._status.change(node_state, attempt, ended)
        self.announce(node_state, ended, text)
        node_state.own_quarantine_view().delay_repair(self._clocks.now())
        await self._reservations.end(attempt)

    def announce(self, node_state: NodeState, ended: RepairAttempt, text: str) -> None:
        """Count an end that is durable, and report it to the repairer and to people."""
        self._acts.stages.note_repair(ended)
        details = self._calls.note_end(ended.repair, node_state.node, ended.operation)
        reply = f": {text}" if text else ""
        self._acts.emit_event(
            node_state,
            EventKind.REPAIR_ENDED,
            f"{attempt_name(ended)} {end_in_words(ended)}{reply}",
            {**details, **attempt_details(ended), "outcome": ended.state.value},
        )
