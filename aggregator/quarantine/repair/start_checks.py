"""The reasons against the beginning of a repair on a node in quarantine."""

from attrs import define

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Action, Node, Quarantine
from aggregator.policy.repairs import NEEDS_PERSON, TEST
from aggregator.quarantine.actions.holds import Proposals
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.admission import stopped
from aggregator.quarantine.decide.drain_plan import DrainMoment, DrainRules, plan_drain
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operation_step import NextOperation
from aggregator.quarantine.decide.operator_requests import read_operator_requests
from aggregator.quarantine.decide.own_pods import without_own
from aggregator.quarantine.decide.plans.release_reasons import is_withdrawn
from aggregator.quarantine.decide.repair import other_party
from aggregator.quarantine.decide.uncordon import UncordonRules
from aggregator.quarantine.repair.attempts import held_text
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.state.node import NodeState
from aggregator.runtime.text import some_of

#: The drain's last read of the node's pods is not repeated for this long (seconds). The API server
#: answers a second list of the same moment from its cache, which may wait 100 ms for etcd to report
#: that nothing has changed.
JUST_EMPTY = 1.0
_MOST_NAMED = 3
#: How a text begins that is about work that blocks the repair.
_WORK_LEFT = "work is still on the node: "


@define(eq=False, repr=False, slots=False, kw_only=True)
class RepairStartChecks:
    """Reads what is known of a node, and changes nothing. ``test_namespace``: of tests' pods."""

    _acts: NodeActions
    _drain: DrainRules
    _proposals: Proposals
    _test_namespace: str
    _uncordon: UncordonRules

    def is_taken_back(self, node_state: NodeState) -> bool:
        """Whether a person ends the quarantine by the Node, as last read: the force on it is gone,
        or they have uncordoned it. A check may hold that end.
        """
        quarantine, known = node_state.quarantine, node_state.quarantine_view
        other = node_state.cluster.node_gone or known.node_replaced or bool(known.reborn)
        unforced = node_state.is_unforced
        withdrawn = quarantine is not None and is_withdrawn(
            quarantine, unforced=unforced, other_node=other
        )
        ends = withdrawn or node_state.is_released_by_uncordon(self._uncordon)
        return ends and not node_state.release_held

    async def against(
        self,
        node_state: NodeState,
        node: Node,
        quarantine: Quarantine,
        repair: str,
        *,
        by_hand: bool,
        anew: bool = False,
    ) -> str:
        """Why the repair may not begin on this node now; empty: it may. ``by_hand``: a person has
        requested it. ``anew``: its pods are read in any case.
        """
        if node.uid != quarantine.status.node_uid or not is_marked(node) or not node.unschedulable:
            return "the node does not have all of our marks"
        party = other_party(node) or next(filter(None, node_state.others.forbidden(node)), "")
        if party:
            return f"another party is at work on the node: {party}"
        clocks, requests = self._acts.clocks, read_operator_requests(node.annotations)
        now = clocks.earliest()
        if quarantine.spec.requester == OURS and requests.exempt(now):
            return requests.why_capped(now)
        if repair in NEEDS_PERSON:
            # No reservation, which a stop would hold.
            stop = self._acts.switch.reason
            return held_text(repair, stopped(stop)) if stop else ""
        held = None if repair == TEST or by_hand else self._proposals.repair_hold(node_state)
        if held is not None:
            return held_text(repair, held)
        if repair == TEST and node.boot_id not in ("", boot_of(node_state)):
            return "the node's kubelet and its agent do not name the same boot"
        if not anew and node_state.quarantine_view.was_just_empty(
            self._acts.clocks.now(), JUST_EMPTY
        ):
            return ""
        return await self._work_left(node_state, quarantine, now)

    async def _work_left(self, node_state: NodeState, quarantine: Quarantine, now: float) -> str:
        """The pods on the node that a drain would evict, in words; empty: there are none."""
        status = quarantine.status
        moment = DrainMoment(now, status.drain_started_at or now, status.deadline_at or now)
        found = await self._acts.cluster.pods_on(node_state.node)
        pods = without_own(found, status.repair, self._test_namespace)
        left = plan_drain(pods, self._drain, moment)
        if not left.remaining:
            return ""
        going = (*left.evict, *left.force, *left.leaving, *left.returned)
        names = sorted({*(pod.key for pod in going), *(left.kept or ()), *(left.waiting or ())})
        return f"{_WORK_LEFT}{some_of(names, _MOST_NAMED)}"


def is_in_use(quarantine: Quarantine, step: NextOperation, why: str) -> bool:
    """Whether a node that was only cordoned is in use, so that no test is due on it.

    ``why`` is the reason against the step.
    """
    cordon = quarantine.spec.action is Action.CORDON
    due = step.repair == TEST and not step.request
    return due and cordon and why.startswith(_WORK_LEFT)
