"""The reconciler of quarantines: the object, and the node's marks."""

from attrs import define

from aggregator.cluster.port import Quarantine, QuarantineStatus
from aggregator.quarantine.actions.cordon import CordonActions
from aggregator.quarantine.actions.holds import NodeHolds
from aggregator.quarantine.actions.mark_restorer import MarkRestorer
from aggregator.quarantine.actions.object_writes import ObjectWrites
from aggregator.quarantine.decide.admission import AdmissionStep
from aggregator.quarantine.decide.lost_marks import RestoreRules, restore_at
from aggregator.quarantine.decide.plans.marks import MarkStep, MarkView, plan_marks
from aggregator.quarantine.decide.plans.object import ObjectStep, ObjectView, plan_object
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.decide.uncordon import Uncordoned, recordon_due
from aggregator.quarantine.reconcile.plan_inputs import PlanInputs, is_recovered
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.quarantine.state.race import Still


@define(eq=False, repr=False, slots=False, kw_only=True)
class QuarantineReconciler:
    is_late = False

    _inputs: PlanInputs
    _objects: ObjectWrites
    _cordon: CordonActions
    _holds: NodeHolds
    _restorer: MarkRestorer

    def plan(self, node_state: NodeState, quarantine: Quarantine) -> NextStep | None:
        found = plan_object(self.object_view(node_state, quarantine))
        return found or plan_marks(self.mark_view(node_state, quarantine))

    def object_view(self, node_state: NodeState, quarantine: Quarantine) -> ObjectView:
        known, cluster, inputs = node_state.quarantine_view, node_state.cluster, self._inputs
        requests, wall, status = cluster.operator_requests, inputs.wall(), quarantine.status
        return ObjectView(
            quarantine=quarantine,
            in_record=inputs.in_record(node_state),
            wanted=inputs.wanted(node_state),
            recovered=is_recovered(node_state),
            conflict=bool(node_state.agent.conflict),
            forced=requests.forced(wall),
            unforced=node_state.is_unforced,
            exempt=requests.exempt(wall),
            release_held=bool(node_state.release_held),
            marks_unreported=status.phase in MARKED
            and not cluster.node_gone
            and known.missing != status.marks.missing,
            node_gone=cluster.node_gone,
            node_found=cluster.node_found,
            node_replaced=known.node_replaced,
            reborn=bool(known.reborn),
            absent_too_long=inputs.is_absent_too_long(quarantine),
        )

    def mark_view(self, node_state: NodeState, quarantine: Quarantine) -> MarkView:
        known, cluster, inputs = node_state.quarantine_view, node_state.cluster, self._inputs
        status, wall = quarantine.status, inputs.wall()
        recordon_at = recordon_due(status, wall)
        return MarkView(
            quarantine=quarantine,
            mode=inputs.mode(node_state, quarantine),
            forced=cluster.operator_requests.forced(wall),
            exempt=cluster.operator_requests.exempt(wall),
            maintained=bool(cluster.maintained),
            stopped=bool(inputs.fleet.stop),
            node_gone=cluster.node_gone,
            schedulable=known.uncordoned is not Uncordoned.NO,
            recordon=recordon_at <= wall,
            recordon_at=recordon_at,
            restore_due=status.phase in MARKED
            and bool(known.missing)
            and _is_restore_due(status, self._restorer.rules, wall),
        )

    async def carry_out(self, node_state: NodeState, step: NextStep, _still: Still) -> bool:
        quarantine = node_state.quarantine
        if step.do is AdmissionStep.FORCE:
            await self._objects.force(node_state)
        if quarantine is None:
            return False
        match step.do:
            case ObjectStep.UNREAD:
                self._holds.hold_unread(node_state, quarantine)
                return True
            case ObjectStep.UPDATE:
                wanted = self._inputs.wanted(node_state)
                if wanted is not None:
                    await self._objects.update(node_state, quarantine, wanted)
            case ObjectStep() as write:
                writes = {
                    ObjectStep.ENTER: self._objects.enter,
                    ObjectStep.VOID: self._objects.void,
                    ObjectStep.REFUSE: self._objects.refuse,
                    ObjectStep.ABSENCE: self._objects.show_absence,
                    ObjectStep.OVERRIDE: self._objects.show_override,
                    ObjectStep.UNHOLD: self._objects.unhold,
                    ObjectStep.RESTART: self._cordon.restart,
                    ObjectStep.REPORT_MARKS: self._restorer.report,
                }
                await writes[write](node_state, quarantine)
            case MarkStep.CORDON:
                await self._cordon.cordon(node_state)
                return node_state.cluster.node_gone
            case MarkStep.RECORDON:
                await self._cordon.recordon(node_state)
            case MarkStep.RESTORE:
                await self._restorer.restore(node_state)
            case MarkStep.REPORT_CORDON:
                await self._objects.show_cordon(node_state, quarantine, step.because)
        return False


def _is_restore_due(status: QuarantineStatus, rules: RestoreRules, wall: float) -> bool:
    """Whether the marks that the node lacks are to be set again now."""
    at = restore_at(status.marks, rules)
    return at is not None and at <= wall
