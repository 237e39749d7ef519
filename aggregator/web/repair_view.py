"""The repairs of a node in quarantine, and those under way in the fleet, as view models. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator

from aggregator.advice import by_hand
from aggregator.cluster.port import BUSY, Quarantine, RepairStatus
from aggregator.policy.repairs import ATTEMPTS, TEST
from aggregator.quarantine.decide.node_tests import BY_HAND
from aggregator.quarantine.decide.pool_budget import allowance
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.decide.repair_plan import RepairPlan, is_emptied
from aggregator.quarantine.state.fleet import FleetState, NodeSummary, NodeTestView
from aggregator.runtime.cli_flags import reading_flags
from aggregator.web import models
from aggregator.web.models import limit_use
from aggregator.web.timefmt import wall_time

#: How far the test of a new node is: it has not begun, it runs, or a person has to continue.
NEW_NODE_STATES = ("waiting", "testing", "needs_person")
_UNDER_WAY = tuple(state.value for state in BUSY)


def repair(
    found: Quarantine, plan: RepairPlan, now: float, *, awaited: bool = False
) -> models.Repair | None:
    """The node's ladder, its attempts and what holds the next; None where repairs are off and none
    ever was. ``now`` is wall clock seconds, and ``awaited`` as for `RepairPlan.waits`.
    """
    status = found.status.repair
    if status == RepairStatus() and plan.is_off:
        return None
    return models.Repair(
        mode=plan.rules.mode.value,
        ladder=list(plan.ladder(found.spec)),
        repairers=sorted(plan.kinds),
        attempts=[models.shape_of(models.AttemptedRepair, one) for one in status.attempts],
        requested=", ".join(f"{one.what} ({one.name})" for one in status.requests),
        waits=plan.waits(found, now, requested=bool(status.requests), awaited=awaited),
        exhausted=status.exhausted,
        exhausted_at=wall_time(status.exhausted_at),
    )


def new_node(view: NodeTestView | None, plan: RepairPlan) -> models.NewNode | None:
    """The last test of a new or an idle node."""
    if view is None:
        return None
    test = view.test
    return models.NewNode(
        taint=plan.rules.new_nodes.taint,
        tainted=view.tainted,
        test=models.shape_of(models.AttemptedRepair, test, repair=TEST) if test else None,
        waits="" if view.passed else view.held,
        needs_person=view.needs_person,
        reason="" if view.tainted else _reason(view),
        requested=view.requested,
        removes_taint=plan.rules.new_nodes.remove_taint,
        passed=view.passed,
    )


def _reason(view: NodeTestView) -> str:
    """Why a node without the startup taint is tested."""
    test = view.test
    by_hand = view.requested or (test is not None and test.request and test.reason)
    return BY_HAND if by_hand else test.reason if test is not None else ""


def requests(fleet: FleetState, node_summary: NodeSummary) -> models.OperationRequests:
    """What a person may request for the node."""
    rules, known = fleet.repairs.rules, fleet.repairs.test_profiles
    view = fleet.test_of(node_summary.node)
    is_new = node_summary.quarantine is None and view is not None and view.tainted
    profile = rules.new_nodes.profile if is_new else rules.in_service.profile
    refused = {kind: _refusal(fleet, node_summary, kind, is_new=is_new) for kind in ATTEMPTS}
    return models.OperationRequests(
        refused={kind: why for kind, why in refused.items() if why},
        profiles=sorted(known) if known is not None else None,
        profile=profile if node_summary.quarantine is None else rules.verify,
    )


def _refusal(fleet: FleetState, node_summary: NodeSummary, kind: str, *, is_new: bool) -> str:
    """Why a person's request can't begin as things are, and the next step; empty: it can."""
    plan, found, node = fleet.repairs, node_summary.quarantine, node_summary.node
    if plan.rules.mode is not RepairMode.REPAIR:
        return (
            f"repair.mode of the aggregator is {plan.rules.mode.value}, so no repair is ordered; "
            "expected mode repair (docs/repair.md)"
        )
    if kind not in plan.kinds:
        kinds = ", ".join(sorted(plan.kinds - {TEST})) or "none"
        expected = "a repairer of this kind there" if kind == TEST else f"one of: {kinds}"
        return f"repair.repairers of the aggregator has no {kind}; expected {expected}"
    if found is not None:
        if kind != TEST or is_emptied(found):
            return ""
        return (
            f"it is not drained ({fleet.words.phase(found.status.phase)}), and a node with work is "
            f"not tested; first: sickbay wait {node} --for drained{reading_flags(fleet.how)}"
        )
    observes = fleet.mode_of(node_summary) == "observe"
    if kind == TEST and (is_new or (plan.tests_in_service and not observes)):
        return ""
    if kind != TEST:
        why = "no other node is repaired"
    elif observes:
        why = "no node in service is tested in mode observe"
    else:
        why = (
            "a job could start next to the test of a node in service: it needs one that work "
            "preempts, by a repairer with job and gpus: all (a new node is known as such within "
            "three minutes)"
        )
    text = f"it is not in quarantine (sickbay node {node}{reading_flags(fleet.how)}), and {why}"
    if observes:
        return text
    return f"{text}; first: {by_hand(node_summary, 'drain', fleet.how, f'for its {kind}')}"


def new_node_states(found: Iterable[NodeTestView]) -> Counter[str]:
    """The nodes with a startup taint, by state."""
    return Counter(
        "testing"
        if one.test is not None and one.test.is_busy
        else "needs_person"
        if one.needs_person
        else "waiting"
        for one in found
        if one.tainted
    )


def under_way(quarantines: Iterable[models.Quarantine]) -> list[models.OngoingRepair]:
    """The repairs that may still act on a node, the oldest first."""
    found = [
        models.OngoingRepair(
            node=one.node,
            repair=attempt.repair,
            state=attempt.state,
            began_at=attempt.began_at,
            deadline_at=attempt.deadline_at,
        )
        for one in quarantines
        if one.repair is not None
        for attempt in one.repair.attempts
        if attempt.state in _UNDER_WAY
    ]
    return sorted(found, key=lambda one: (one.began_at is None, str(one.began_at), one.node))


def limits(plan: RepairPlan, running: int, nodes: int) -> Iterator[models.LimitUse]:
    """The limits of repairs, by their names in the configuration; none where repairs are off."""
    if plan.is_off:
        return
    rules = plan.rules
    share = allowance(nodes, rules.concurrent_percent)
    percent = f"{rules.concurrent_percent:g}%"
    text = "nodes repaired at once"
    yield limit_use("repair.concurrent", str(rules.concurrent), running, rules.concurrent, text)
    text = f"{percent} of {nodes:,} {'node' if nodes == 1 else 'nodes'} repaired at once"
    yield limit_use("repair.concurrent_percent", percent, running, share, text)
    text = "nodes of one pool repaired at once"
    yield limit_use("repair.pool_concurrent", str(rules.pool_concurrent), None, None, text)
