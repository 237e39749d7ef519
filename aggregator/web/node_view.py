"""One node as view models for people. Pure: a node's state and a moment go in, models come out.

Inside, evidence is dated by the aggregator's monotonic clock; people read a wall clock.
`ViewMoment` holds both as they were at one instant, and turns one into the other.
"""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from aggregator import advice, documentation
from aggregator.cluster import port
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.events import Transition
from aggregator.health.model import Component, Fault, Status
from aggregator.health.node import NodeHealth, gpu_name, name_gpus
from aggregator.policy import evaluate as policy
from aggregator.policy.network.verdict import NetworkVerdict
from aggregator.quarantine.decide.common_cause import LEAST, CommonCause
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.lost_marks import describe_missing
from aggregator.quarantine.decide.uncordon import is_left_schedulable
from aggregator.quarantine.decide.unreadable_annotations import unreadable_annotations
from aggregator.quarantine.state.fleet import (
    MARKED_ALONE,
    UNREAD_STATUS,
    FleetState,
    NodeSummary,
    QuarantineSummary,
    awaits_marks,
)
from aggregator.runtime.text import truncate
from aggregator.web import models, repair_view
from aggregator.web.timefmt import bounded_time, wall_time

_STRENGTH = {"drain": 0, "cordon": 1, "observe": 2}
_WORST = {Status.FAILED: 0, Status.DEGRADED: 1, Status.UNKNOWN: 2, Status.OK: 3}
#: Characters.
_LONGEST_REASON = 1_000
_LONGEST_EVENT = 4_000  # has the end of a site command's output
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class ViewMoment:
    """An instant on both clocks, in seconds."""

    now: float
    wall: float

    def when(self, monotonic: float) -> dt.datetime:
        """The wall clock time of a monotonic one."""
        return bounded_time(self.wall + monotonic - self.now)

    def when_or_never(self, monotonic: float | None) -> dt.datetime | None:
        """The same, or None for never."""
        return None if monotonic is None else self.when(monotonic)


def brief(text: str) -> str:
    """A person's reason, which may be a pasted log; the object has all of it."""
    return truncate(text, _LONGEST_REASON)


def agent(node_summary: NodeSummary) -> str:
    """attached, silent, or never: no message has come since this aggregator started."""
    if node_summary.agent.is_reporting:
        return "attached"
    view = node_summary.agent
    return "never" if view.health is None and view.last_seen is None else "silent"


def why(
    node_summary: NodeSummary, state: QuarantineSummary, words: ClusterWords = KUBERNETES
) -> str:
    """The reason for the node's state, in one line. Empty for a healthy node."""
    refused = node_summary.agent.refused
    if node_summary.quarantine is not None:
        return _why_quarantined(node_summary, node_summary.quarantine, words)
    if node_summary.quarantine_view.unclaimed:
        return node_summary.quarantine_view.unclaimed
    if node_summary.cluster.marked:
        return MARKED_ALONE
    if node_summary.decision.hold is not None:
        return f"held by {node_summary.decision.hold.limit}: {node_summary.decision.hold.reason}"
    would, spared = node_summary.decision.would, node_summary.decision.spared
    if would:
        return f"a person exempted it ({spared}); else: {would}" if spared else f"would {would}"
    if node_summary.work.last_error:
        return f"the last step failed and is tried again: {node_summary.work.last_error}"
    if node_summary.agent.conflict:
        return node_summary.agent.conflict
    if state is QuarantineSummary.SILENT:
        how = f"is not understood ({refused})" if refused else "is silent"
        return f"its agent {how}; " + (_worst(node_summary) or "no check was failing")
    if state is QuarantineSummary.UNKNOWN and refused:
        return f"its agent is not understood: {refused}"
    if state is QuarantineSummary.UNKNOWN:
        attached = node_summary.agent.attached
        return "no state known yet" if attached else "no agent has reported from it"
    if node_summary.cluster.untested and state is QuarantineSummary.OK:
        return node_summary.cluster.untested
    if node_summary.decision.requests and state is QuarantineSummary.OK:
        return node_summary.decision.requests[0]
    return _others_at_work(node_summary) or _worst(node_summary)


def _others_at_work(node_summary: NodeSummary) -> str:
    maintained, foreign = node_summary.cluster.maintained, node_summary.cluster.foreign
    if maintained:
        return f"another tool or person is at work on it: {maintained}"
    return f"out of service by another tool or person: {foreign}" if foreign else ""


def _why_quarantined(
    node_summary: NodeSummary, quarantine: port.Quarantine, words: ClusterWords
) -> str:
    held = node_summary.decision.hold
    holds = held is not None and held.limit in ("stop", UNREAD_STATUS)
    by = f", held by {held.limit}" if held is not None and holds else ""
    if quarantine.foreign:
        by = f", by the sickbay in namespace {quarantine.foreign}"
    if awaits_marks(node_summary):
        error = node_summary.work.last_error
        failed = f"; the last step failed and is tried again: {error}" if error else ""
        by += f", no mark keeps work off it yet{failed}"
    loose = "the node is schedulable" if is_left_schedulable(quarantine.status) else ""
    wrong = "; ".join(one for one in (loose, unmarked(node_summary, quarantine)) if one)
    lost = f" ({wrong})" if wrong else ""
    spec = quarantine.spec
    reason = name_gpus(brief(spec.reason), node_summary.agent.health)
    return f"{words.phase(quarantine.status.phase)}{by}{lost}: {reason}"


def _worst(node_summary: NodeSummary) -> str:
    incidents = sorted(node_summary.decision.incidents.values(), key=_by_strength)
    if incidents:
        return name_gpus(incidents[0].summary, node_summary.agent.health)
    if node_summary.agent.health is None:
        return ""
    worst = _worst_component(node_summary.agent.health)
    if worst is not None:
        named = gpu_name(node_summary.agent.health, worst.component) or worst.component
        name = f"{worst.check} {named}".rstrip()
        return f"{name} {worst.status.name.lower()}: {worst.message or worst.reason}"
    latched = [fault for fault in node_summary.agent.health.faults.values() if not fault.historical]
    return f"{latched[0].code}: {latched[0].message}" if latched else ""


def _worst_component(health: NodeHealth) -> Component | None:
    """A failed component, else a degraded one, else None."""
    bad = health.components.that_are(Status.DEGRADED, Status.FAILED)
    return min(bad, key=lambda component: _WORST[component.status]) if bad else None


def worst_since(node_summary: NodeSummary, moment: ViewMoment) -> dt.datetime | None:
    """Since when its worst component is so, or None where all are well."""
    health = node_summary.agent.health
    worst = _worst_component(health) if health is not None else None
    return None if worst is None else moment.when(worst.since)


def node_row(
    fleet: FleetState,
    node_summary: NodeSummary,
    moment: ViewMoment,
    state: QuarantineSummary | None = None,
) -> models.NodeRow:
    """The node in one line."""
    state = state or node_summary.state()
    return models.NodeRow(
        node=node_summary.node,
        state=state,
        agent=agent(node_summary),
        last_seen=moment.when_or_never(node_summary.agent.last_seen),
        why=why(node_summary, state, fleet.words),
        exempt=node_summary.decision.exempt,
        requests=list(node_summary.decision.requests),
        untested=bool(node_summary.cluster.untested),
    )


def _by_strength(incident: policy.Incident) -> tuple[int, float]:
    return (_STRENGTH.get(incident.action, 3), incident.since)


def incidents(
    fleet: FleetState, node_summary: NodeSummary, moment: ViewMoment
) -> list[models.Incident]:
    """The node's open incidents, the strongest first."""
    ordered = sorted(node_summary.decision.incidents.values(), key=_by_strength)
    return [_incident(fleet, node_summary, found, moment) for found in ordered]


def _incident(
    fleet: FleetState, node_summary: NodeSummary, incident: policy.Incident, moment: ViewMoment
) -> models.Incident:
    recovering = incident.recovering_since
    clears = [item.cleared_by or "" for item in incident.in_force]
    mode = fleet.mode_of(node_summary)
    return models.shape_of(
        models.Incident,
        incident,
        summary=name_gpus(incident.summary, node_summary.agent.health),
        since=moment.when(incident.since),
        recovering_since=moment.when_or_never(recovering),
        closes_at=None if recovering is None else moment.when(recovering + incident.healthy_for),
        evidence=[_evidence(node_summary, item, moment) for item in incident.evidence],
        doing=_doing(node_summary, incident, fleet.words),
        advice=advice.for_incident(node_summary, clears, incident.action, mode, fleet.how),
    )


def _doing(node_summary: NodeSummary, incident: policy.Incident, words: ClusterWords) -> str:
    overruled = {word.key for word in node_summary.cluster.overruled}
    if incident.evidence and all(item.key in overruled for item in incident.evidence):
        return "overruled by a person"
    if incident.action == "observe":
        return "watched"
    if node_summary.quarantine is not None:
        return f"in quarantine: {words.phase(node_summary.quarantine.status.phase)}"
    if node_summary.decision.hold is not None:
        return f"held by {node_summary.decision.hold.limit}"
    if node_summary.decision.would and node_summary.decision.spared:
        return "a person exempted the node"
    if node_summary.decision.would:
        return "the mode keeps us from acting"
    if incident.recovering_since is not None:
        return "recovering"
    if node_summary.agent.conflict:
        return "no action: two agents claim the node"
    return "being admitted"


def _evidence(
    node_summary: NodeSummary, item: policy.Evidence, moment: ViewMoment
) -> models.Evidence:
    return models.shape_of(
        models.Evidence,
        item,
        device=_device(node_summary, item.code, item.component),
        since=moment.when(item.since),
        cleared_by=item.cleared_by or "",
    )


def quarantine(
    fleet: FleetState, node_summary: NodeSummary, found: port.Quarantine, moment: ViewMoment
) -> models.Quarantine:
    """The quarantine of the node, its progress, the pods in its way, and the node's repairs."""
    spec, status, repairs = found.spec, found.status, fleet.repairs
    in_force = [item.cleared_by for item in spec.evidence if not item.cleared]
    return models.shape_of(
        models.Quarantine,
        status,
        node=found.node,
        action=spec.action.value,
        kind=spec.kind,
        phase=status.phase.value,
        phase_since=wall_time(found.phase_since),
        reason=name_gpus(brief(spec.reason), node_summary.agent.health),
        requester=truncate(spec.requester, _LONGEST_NAME),
        incident=spec.incident,
        message=found.problem or found.unread or status.message,
        created_at=wall_time(found.created_at),
        pre_evict=str(status.pre_evict or ""),
        pods_total=None
        if status.pods_remaining is None
        else max(node_summary.quarantine_view.most_pods, status.pods_remaining),
        blockers=[models.shape_of(models.Blocker, one) for one in status.blockers],
        release_held=node_summary.quarantine_view.release_held or status.release_held,
        unmarked=unmarked(node_summary, found),
        unmarked_since=wall_time(status.marks.since),
        in_record=node_summary.work.in_record,
        agent=agent(node_summary),
        last_error=node_summary.work.last_error,
        evidence=[_durable_evidence(node_summary, item) for item in spec.evidence],
        advice=advice.for_quarantine(node_summary, found, in_force, fleet.how, fleet.words),
        repair=repair_view.repair(
            found,
            repairs,
            moment.wall,
            awaited=agent(node_summary) == "never" and moment.now < repairs.agents_awaited_until,
        ),
        uid=found.uid,
        cluster=fleet.words.kind,
    )


def unmarked(node_summary: NodeSummary, found: port.Quarantine) -> str:
    """Which of our marks the node lacks, and how often they were set again; empty: it has all."""
    marks = found.status.marks
    missing = node_summary.quarantine_view.missing or marks.missing
    if not missing:
        return ""
    again = f"; set again {marks.restored} times before" if marks.restored else ""
    return f"the node lacks {describe_missing(missing, found.status.applied)}{again}"


def _device(node_summary: NodeSummary, code: str, component: str) -> str:
    """A GPU's index and PCI address; the latched fault of this evidence may have the address."""
    health = node_summary.agent.health
    fault = health.faults.get((code, component)) if health is not None else None
    return gpu_name(health, component, fault.details if fault is not None else None)


def _durable_evidence(node_summary: NodeSummary, item: port.EvidenceItem) -> models.Evidence:
    """As the object has it, which keeps no times, because another process can't use them."""
    return models.shape_of(
        models.Evidence,
        item,
        device=_device(node_summary, item.code, item.component),
        action="",
        since=None,
        over=item.cleared,
        lost=False,
    )


def hold(fleet: FleetState, node_summary: NodeSummary) -> models.Hold | None:
    """Why a node that policy wants in quarantine is not, or why its quarantine does not continue.

    Returns None without a hold.
    """
    found = node_summary.decision.hold
    would, spared = node_summary.decision.would, node_summary.decision.spared
    if node_summary.quarantine is not None and (found is None or found.limit != "stop"):
        return None
    mode, how = fleet.mode_of(node_summary), fleet.how
    if found is not None:
        to_do = advice.for_hold(node_summary, found, mode, how, fleet.words)
    elif not would:
        return None
    elif spared:
        found = Held("exempt", spared, f"a person exempted it; else: {would}", since=0.0)
        to_do = advice.for_exempt(node_summary, mode, how)
    else:
        found = Held("mode", mode, f"would {would}", since=0.0)
        to_do = advice.for_mode(node_summary, mode, how)
    return models.shape_of(
        models.Hold,
        found,
        node=node_summary.node,
        advice=to_do,
        documentation=documentation.of_hold(found.limit),
    )


def causes(found: Iterable[CommonCause], moment: ViewMoment) -> tuple[models.CommonCause, ...]:
    """Open common causes, the one with most nodes first."""
    return tuple(
        models.shape_of(
            models.CommonCause,
            one,
            sample=list(one.sample),
            since=moment.when(one.since),
            advice=advice.for_cause(one.scope),
            documentation=documentation.of_cause(one.scope),
        )
        for one in sorted(found, key=lambda one: (-one.nodes, one.id))
    )


def blamed(found: Iterable[NetworkVerdict], moment: ViewMoment) -> tuple[models.CommonCause, ...]:
    """The findings of triangulation, except targets that are common causes already."""
    return tuple(
        models.CommonCause(
            id=one.subject,
            scope="network",
            limit="triangulation",
            value=one.kind,
            reason=one.message,
            nodes=one.count,
            total=one.total,
            sample=list(one.nodes),
            since=moment.when(one.since),
            advice=advice.for_cause("network"),
            documentation=documentation.of_cause("network"),
        )
        for one in sorted(found, key=lambda one: one.subject)
        if one.kind != "target" or one.count < LEAST
    )


def event(transition: Transition) -> models.Event:
    """A transition, for people."""
    return models.shape_of(
        models.Event,
        transition,
        at=bounded_time(transition.at),
        summary=truncate(transition.summary, _LONGEST_EVENT),
        details=dict(transition.details),
    )


def components(
    found: Iterable[Component], moment: ViewMoment, health: NodeHealth | None = None
) -> list[models.Component]:
    """The worst first."""
    return [
        models.shape_of(
            models.Component,
            component,
            status=component.status.name.lower(),
            since=moment.when(component.since),
            device=gpu_name(health, component.component),
        )
        for component in sorted(found, key=lambda c: (_WORST[c.status], c.check, c.component))
    ]


def faults(
    found: Iterable[Fault], moment: ViewMoment, health: NodeHealth | None = None
) -> list[models.Fault]:
    """Those of this boot first, the newest first."""
    return [
        models.shape_of(
            models.Fault,
            fault,
            first_at=moment.when(fault.first_at),
            last_at=moment.when(fault.last_at),
            cleared_by=fault.cleared_by.value,
            details=dict(fault.details),
            device=gpu_name(health, fault.component, fault.details),
        )
        for fault in sorted(found, key=lambda f: (f.historical, -f.last_at, f.code, f.component))
    ]


def node(
    fleet: FleetState,
    node_summary: NodeSummary,
    moment: ViewMoment,
    outliers: Iterable[models.Outlier] = (),
) -> models.Node:
    """One node's details, without its timeline."""
    health, meta = node_summary.agent.health, node_summary.cluster.meta
    state = node_summary.state()
    held = node_summary.quarantine
    return models.Node(
        node=node_summary.node,
        uid=meta.uid if meta else "",
        state=state,
        why=why(node_summary, state, fleet.words),
        agent=agent(node_summary),
        last_seen=moment.when_or_never(node_summary.agent.last_seen),
        read_at=moment.when_or_never(node_summary.cluster.read_at),
        agent_version=health.agent_version if health else "",
        boot_id=health.boot_id if health else "",
        conflict=node_summary.agent.conflict,
        foreign=node_summary.cluster.foreign,
        last_error=node_summary.work.last_error,
        labels=dict(sorted(meta.labels.items())) if meta else {},
        traits=dict(sorted(health.traits.items())) if health else {},
        incidents=incidents(fleet, node_summary, moment),
        quarantine=quarantine(fleet, node_summary, held, moment) if held is not None else None,
        hold=hold(fleet, node_summary),
        mode=fleet.mode_of(node_summary),
        pool=fleet.pool_of(node_summary),
        would=node_summary.decision.would,
        exempt=node_summary.decision.exempt,
        requests=list(node_summary.decision.requests),
        overruled=[
            models.shape_of(
                models.Overruled, one, device=_device(node_summary, one.code, one.component)
            )
            for one in sorted(node_summary.cluster.overruled)
        ],
        components=components(health.levels(), moment, health) if health else [],
        faults=faults(health.faults.values(), moment, health) if health else [],
        checks=[models.shape_of(models.Check, one) for one in (health.checks if health else ())],
        lost=[models.shape_of(models.Lost, one) for one in reversed(health.lost if health else [])],
        new_node=repair_view.new_node(fleet.test_of(node_summary.node), fleet.repairs),
        operations=repair_view.requests(fleet, node_summary),
        timeline=[],
        timeline_trouble="",
        outliers=list(outliers),
        unreadable=list(unreadable_annotations(node_summary.node, meta.annotations, fleet.words))
        if meta
        else [],
    )


def steady(shown: models.Node) -> models.Node:
    """Without the fields that change while the node does not, so that two can be compared."""
    return msgspec.structs.replace(shown, last_seen=None)
