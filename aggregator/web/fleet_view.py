"""The whole fleet as view models for people. Pure; nodes are added one by one.

Adding is the costly part (a few microseconds a node), so a caller that does it for 10,000 nodes can
yield to other tasks in between; only ``at`` in the result depends on the time.
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aggregator.cluster.port import Phase
from aggregator.quarantine.decide.pool_budget import allowance, floored
from aggregator.quarantine.state.fleet import (
    MARKED_ALONE,
    UNCLAIMED,
    FleetState,
    NodeSummary,
    QuarantineSummary,
)
from aggregator.quarantine.state.gpus import GpuCounts, gpu_counts
from aggregator.runtime.text import natural
from aggregator.web import models, node_view, repair_view
from aggregator.web.models import limit_use
from aggregator.web.node_view import ViewMoment
from aggregator.web.pool_view import PoolCounter

LETTERS = {
    QuarantineSummary.OK: "o",
    QuarantineSummary.UNKNOWN: "u",
    QuarantineSummary.SILENT: "s",
    QuarantineSummary.WARNING: "w",
    QuarantineSummary.HELD: "h",
    QuarantineSummary.QUARANTINED: "q",
}
#: The states of a node that may have neither quarantine, hold nor incident, other than well.
UNWELL = (QuarantineSummary.WARNING, QuarantineSummary.SILENT, QuarantineSummary.UNKNOWN)
_ACTIONS = ("drain", "cordon", "observe")
_PHASES = (
    Phase.INVALID,
    Phase.DRAINING,
    Phase.ADMITTED,
    Phase.RELEASING,
    Phase.CORDONED,
    Phase.DRAINED,
)
#: Why a node without a known Quarantine counts as quarantined.
_MARKED = (UNCLAIMED, MARKED_ALONE)
#: The texts of limits that are not counted in nodes.
_TEXTS = {
    "concurrent_percent": "of all nodes",
    "small_fleet_floor": "nodes that the shares allow at least, up to half of a fleet below 40",
    "new_per_window_percent": "of all nodes, new within the window",
    "window": "the time that counts as at once",
    "cooldown": "the pause of new quarantines after the rate or a common cause has tripped",
    "absent_node_after": "without its Node, and a quarantine ends",
    "after_upgrade": "the least age of evidence where the driver, kernel or agent is new",
    "fabric_hold": "the wait of NVLink evidence for that of the fabric's other nodes",
    "common_cause_percent": "of the nodes with the check: more that fail alike are one cause",
    "common_cause_nodes": "nodes: more that fail alike are one cause",
    "domain_percent": "of a rack or version: if more fail alike, it is the cause",
    "evictions_at_once": "requests that move work, under way at once",
    "quorum_percent": "of the nodes must have reported before a quarantine is admitted",
    "per_workload": "nodes of one workload that are drained within the window",
    "pool_label": "the node label that names a pool",
}


@dataclass(frozen=True, slots=True)
class UnwellNode:
    """A node with a warning, silent or unknown, and no open incident. ``since``: of its worst
    component, or the last sign of life of a silent one, if any.
    """

    node: str
    why: str
    since: dt.datetime | None


@dataclass(frozen=True, slots=True)
class FleetViewFindings:
    """The content of the fleet's page and API, except history. Lists are whole and sorted."""

    names: tuple[str, ...] = ()
    states: Mapping[str, QuarantineSummary] = field(default_factory=dict)
    incidents: tuple[models.Incident, ...] = ()
    quarantines: tuple[models.Quarantine, ...] = ()
    holds: tuple[models.Hold, ...] = ()
    unwell: tuple[UnwellNode, ...] = ()
    silent: tuple[models.NodeRow, ...] = ()
    requested: tuple[models.NodeRow, ...] = ()
    exempt: int = 0
    never_seen: int = 0
    untested: int = 0
    attached: int = 0
    conflicts: int = 0
    mode: str = ""
    stop: str = ""
    view_lost: str = ""
    clock_doubt: str = ""
    waiting_for_quorum: str = ""
    cooling: str = ""
    causes: tuple[models.CommonCause, ...] = ()
    record_entries: int = 0
    limits: tuple[models.LimitUse, ...] = ()
    pools: tuple[models.Pool, ...] = ()
    replicas: tuple[models.Replica, ...] = ()
    lease_lost: str = ""
    #: GPUs, by whether the node is in quarantine.
    gpus: Mapping[bool, GpuCounts] = field(default_factory=dict, compare=False)
    #: The nodes with a startup taint, by how far their test is.
    new_nodes: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def counts(self) -> dict[QuarantineSummary, int]:
        """Nodes by state, with every state."""
        found = Counter(self.states.values())
        return {state: found[state] for state in QuarantineSummary}

    def marked_only(self) -> list[str]:
        """Nodes that count as quarantined, without a Quarantine that is known."""
        known = {one.node for one in self.quarantines}
        marked = (name for name, one in self.states.items() if one is QuarantineSummary.QUARANTINED)
        return sorted((name for name in marked if name not in known), key=natural)


class FleetViewBuilder:
    """Takes in the nodes one by one, then concludes."""

    def __init__(self, fleet: FleetState, moment: ViewMoment) -> None:
        self._fleet = fleet
        self._moment = moment
        self._states: dict[str, QuarantineSummary] = {}
        self._incidents: list[models.Incident] = []
        self._quarantines: list[models.Quarantine] = []
        self._holds: list[models.Hold] = []
        self._unwell: list[UnwellNode] = []
        self._silent: list[tuple[float, models.NodeRow]] = []
        self._pools: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._policy_pools = PoolCounter(fleet)
        self._pool_label = fleet.limits.get("pool_label", "")
        self._requested: list[models.NodeRow] = []
        self._never = self._attached = self._conflicts = self._exempt = 0
        self._untested = 0
        self._gpus: Counter[tuple[bool, GpuCounts]] = Counter()

    def add(self, node_summary: NodeSummary) -> None:
        """Take one node in."""
        moment, state = self._moment, node_summary.state()
        self._states[node_summary.node] = state
        self._policy_pools.add(self._fleet.pool_of(node_summary), state)
        if self._pool_label and node_summary.cluster.meta is not None:
            pool = node_summary.cluster.meta.labels.get(self._pool_label, "")
            self._pools[pool] += 1
            self._taken[pool] += node_summary.work.in_record
        quarantined = state is QuarantineSummary.QUARANTINED
        self._gpus[quarantined, gpu_counts(node_summary)] += 1
        self._attached += node_summary.agent.is_reporting
        self._conflicts += bool(node_summary.agent.conflict)
        self._exempt += node_summary.decision.exempt
        self._untested += bool(node_summary.cluster.untested)
        if node_summary.decision.requests:
            self._requested.append(node_view.node_row(self._fleet, node_summary, moment, state))
        if not node_summary.agent.is_reporting:
            if node_view.agent(node_summary) == "never":
                self._never += 1
            else:
                last_seen = node_summary.agent.last_seen
                row = node_view.node_row(self._fleet, node_summary, moment, state)
                self._silent.append((moment.now if last_seen is None else last_seen, row))
        if node_summary.decision.incidents:
            self._incidents.extend(node_view.incidents(self._fleet, node_summary, moment))
        elif state in UNWELL:
            why = node_view.why(node_summary, state, self._fleet.words)
            since = _unwell_since(node_summary, state, moment)
            self._unwell.append(UnwellNode(node_summary.node, why, since))
        if node_summary.quarantine is not None:
            quarantine = node_summary.quarantine
            shown = node_view.quarantine(self._fleet, node_summary, quarantine, moment)
            self._quarantines.append(shown)
        held = node_view.hold(self._fleet, node_summary)
        if held is not None:
            self._holds.append(held)

    def conclude(self, names: Iterable[str]) -> FleetViewFindings:
        """The findings. ``names`` are the nodes in the order in which people read them.

        The states of the replicas themselves come from elsewhere.
        """
        fleet = self._fleet
        return FleetViewFindings(
            names=tuple(name for name in names if name in self._states),
            states=self._states,
            incidents=tuple(
                sorted(
                    self._incidents,
                    key=lambda one: (
                        _ACTIONS.index(one.action),
                        one.recovering_since is not None,
                        -one.since.timestamp(),
                        one.node,
                    ),
                )
            ),
            quarantines=tuple(sorted(self._quarantines, key=_urgency)),
            holds=tuple(sorted(self._holds, key=lambda one: natural(one.node))),
            unwell=tuple(self._unwell),
            silent=tuple(row for _, row in sorted(self._silent, key=lambda pair: pair[0])),
            requested=tuple(sorted(self._requested, key=lambda one: natural(one.node))),
            exempt=self._exempt,
            never_seen=self._never,
            untested=self._untested,
            attached=self._attached,
            conflicts=self._conflicts,
            mode=fleet.mode,
            stop=node_view.brief(fleet.stop),
            view_lost=fleet.view_lost,
            clock_doubt=fleet.clock_doubt,
            waiting_for_quorum=fleet.waiting_for_quorum,
            cooling=fleet.cooling,
            causes=node_view.causes(fleet.causes.values(), self._moment)
            + node_view.blamed(fleet.network.values(), self._moment),
            record_entries=fleet.record_entries,
            limits=tuple(self._limits()),
            pools=self._policy_pools.pools(),
            gpus={which: self._gpus_that_are(quarantined=which) for which in (False, True)},
            new_nodes=repair_view.new_node_states(self._fleet.node_tests.values()),
        )

    def _gpus_that_are(self, *, quarantined: bool) -> GpuCounts:
        found = [
            [count * nodes for count in counts]
            for (which, counts), nodes in self._gpus.items()
            if which is quarantined
        ]
        return GpuCounts(*map(sum, zip(*found, strict=True))) if found else GpuCounts()

    def _limits(self) -> Iterable[models.LimitUse]:
        for key, value in self._fleet.limits.items():
            yield self._limit(key, value)
        yield from repair_view.limits(self._fleet.repairs, self._fleet.repairing, len(self._states))

    def _limit(self, key: str, value: str) -> models.LimitUse:
        """``value``: a number, a percentage or a duration, as `limits_for_people` has it."""
        name, nodes = f"limits.{key}", len(self._states)
        used = self._fleet.record_entries - self._fleet.absent_entries
        lately = self._fleet.admitted_lately
        within = f"within {self._fleet.limits.get('window', '')}"
        of_all = f"{value} of {nodes:,} {_nodes(nodes)}"
        match key:
            case "concurrent":
                return limit_use(name, value, used, int(value), "nodes in quarantine at once")
            case "concurrent_percent" if nodes:
                most = self._floored(allowance(nodes, _percent(value)), nodes)
                return limit_use(name, value, used, most, of_all)
            case "pool_percent" if self._pools:
                pool, taken, most = self._fullest_pool(_percent(value))
                text = f"{value} of a pool; the fullest is {pool or '(no pool)'}"
                return limit_use(name, value, taken, most, text)
            case "new_per_window":
                return limit_use(name, value, lately, int(value), f"new quarantines {within}")
            case "new_per_window_percent" if nodes and _percent(value) < 100:
                most = allowance(nodes, _percent(value))
                return limit_use(name, value, lately, most, f"{of_all}, new {within}")
        return limit_use(name, value, None, None, _TEXTS.get(key, ""))

    def _fullest_pool(self, percent: float) -> tuple[str, int, int]:
        shares = [
            (self._taken[pool] / self._floored(allowance(total, percent), total), pool)
            for pool, total in self._pools.items()
        ]
        _, pool = max(shares)
        total = self._pools[pool]
        return pool, self._taken[pool], self._floored(allowance(total, percent), total)

    def _floored(self, most: int, of: int) -> int:
        """With the floor of small fleets."""
        floor = int(self._fleet.limits.get("small_fleet_floor", "1"))
        return floored(most, floor, of=of, fleet=len(self._states))


def _urgency(one: models.Quarantine) -> tuple[bool, int, float, str]:
    """Stuck ones first, then those under way, then those that wait for a repair."""
    since = one.phase_since
    return (
        not (one.blockers or one.last_error or one.release_held or one.unmarked),
        _PHASES.index(Phase(one.phase)),
        -since.timestamp() if since else 0.0,
        one.node,
    )


def _unwell_since(
    node_summary: NodeSummary, state: QuarantineSummary, moment: ViewMoment
) -> dt.datetime | None:
    if state is QuarantineSummary.SILENT:
        return moment.when_or_never(node_summary.agent.last_seen)
    return node_view.worst_since(node_summary, moment)


def _nodes(count: int) -> str:
    return "node" if count == 1 else "nodes"


def _percent(value: str) -> float:
    return float(value.removesuffix("%"))
