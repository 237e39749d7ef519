"""Begins an attempt: the node read anew, its reservation, and the attempt on the Quarantine."""

from aggregator.cluster.port import Cluster, Node, Quarantine, RepairAttempt
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.repair import NextRepair
from aggregator.quarantine.repair.attempt_maker import AttemptMaker
from aggregator.quarantine.repair.attempts import attempt_details, attempt_name
from aggregator.quarantine.repair.before_release import TestsBeforeRelease
from aggregator.quarantine.repair.reservations import RepairReservations
from aggregator.quarantine.repair.start_checks import RepairStartChecks, is_in_use
from aggregator.quarantine.repair.status_writer import RepairStatusWriter
from aggregator.quarantine.repair.step_choice import RepairStepChoice
from aggregator.quarantine.state.node import NodeState


class AttemptStarts:
    """Holds the step, with the reason on the Quarantine, where a reason is against it."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        acts: NodeActions,
        tests: TestsBeforeRelease,
        choice: RepairStepChoice,
        checks: RepairStartChecks,
        reservations: RepairReservations,
        status: RepairStatusWriter,
        maker: AttemptMaker,
    ) -> None:
        self._cluster = cluster
        self._acts = acts
        self._tests = tests
        self._choice = choice
        self._checks = checks
        self._reservations = reservations
        self._status = status
        self._maker = maker

    async def begin(
        self, node_state: NodeState, step: NextRepair
    ) -> tuple[Quarantine, RepairAttempt] | None:
        """Reserve the attempt and make it durable. Returns None where it does not begin.

        The node, its pods and the Quarantine are read anew before: it must be marked, empty, and
        no other party's.
        """
        node, fresh = await self._read_anew(node_state)
        if fresh is None or node is None or not self._choice.may_begin(fresh):
            return None
        if self._choice.next_step(node_state, fresh) != step:
            node_state.own_quarantine_view().delay_repair(float("-inf"))  # decide again
            return None
        by_hand = bool(step.request)
        why = await self._checks.against(node_state, node, fresh, step.repair, by_hand=by_hand)
        if why and is_in_use(fresh, step, why):
            self._tests.note_use(fresh, why)
            return None
        operation, domains = self._maker.operation(fresh, step), self._maker.domains(node)
        why = why or await self._reservations.reserve(node_state, step, operation, domains)
        if why:
            await self._status.hold(node_state, fresh, why, step)
            return None
        attempt = self._maker.make(node_state, node, fresh, step)
        await self._acts.guard(node_state)()
        written = await self._status.begin(node_state, fresh, attempt)
        because = f": {step.because}" if step.because else ""
        self._acts.emit_event(
            node_state,
            EventKind.REPAIR_ORDERED,
            f"{attempt_name(attempt)} is ordered{because}",
            attempt_details(attempt),
        )
        return written, attempt

    async def check_again(self, node_state: NodeState, attempt: RepairAttempt) -> Quarantine | None:
        """Check an attempt whose order may still be sent. Returns its Quarantine, or None where
        the order has to wait: other work may have come to the node.
        """
        node, fresh = await self._read_anew(node_state)
        repair = fresh.status.repair if fresh is not None else None
        if fresh is None or node is None or repair is None or attempt not in repair.attempts:
            return None  # the next poll sees it
        by_hand = bool(attempt.request)
        why = await self._checks.against(node_state, node, fresh, attempt.repair, by_hand=by_hand)
        if why:
            await self._status.hold(node_state, fresh, why)
            return None
        return fresh

    async def _read_anew(self, node_state: NodeState) -> tuple[Node | None, Quarantine | None]:
        node = await self._cluster.read_node(node_state.node)
        fresh = await self._acts.reread(node_state)
        node_state.take_node(node)
        return node, fresh
