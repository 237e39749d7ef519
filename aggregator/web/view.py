"""One node, turned into what people read. Pure: a patient and a moment go in, shapes come out.

Inside, evidence is dated by the aggregator's monotonic clock; people read a wall clock. `Moment`
holds both as they stood at one instant, and turns one into the other.
"""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from aggregator.health.model import Component, Fault, Status
from aggregator.policy import incident as policy
from aggregator.policy.lemons import Lemon
from aggregator.policy.network.verdict import Verdict
from aggregator.quarantine import cluster, fleet
from aggregator.quarantine.cluster import Phase
from aggregator.quarantine.decide.blame import LEAST, CommonCause
from aggregator.quarantine.fleet import Patient, Standing
from aggregator.quarantine.ledger import Transition
from aggregator.shortened import shortened
from aggregator.web import advice, shapes

_STRENGTH = {"drain": 0, "cordon": 1, "observe": 2}
_WORST = {Status.FAILED: 0, Status.DEGRADED: 1, Status.UNKNOWN: 2, Status.OK: 3}
#: Characters.
_LONGEST_REASON = 1_000
_LONGEST_EVENT = 4_000  # has the end of what a site's command wrote
_LONGEST_NAME = 100
#: The end of year 9999: what a datetime can hold.
LAST = 253_402_300_799.0


@dataclass(frozen=True, slots=True)
class Moment:
    """An instant on both clocks, in seconds."""

    now: float
    wall: float

    def when(self, monotonic: float) -> dt.datetime:
        """The wall clock time of a monotonic one."""
        return _date(self.wall + monotonic - self.now)

    def when_or_never(self, monotonic: float | None) -> dt.datetime | None:
        """The same; None is never."""
        return None if monotonic is None else self.when(monotonic)


def date(at: float) -> dt.datetime | None:
    """Wall clock seconds; 0 is "not yet"."""
    return _date(at) if at else None


def _date(at: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(round(min(max(at, 0.0), LAST), 3), dt.UTC)


def brief(text: str) -> str:
    """What a person gave as a reason, who may have pasted a log: all of it is in the object."""
    return shortened(text, _LONGEST_REASON)


def agent(patient: Patient) -> str:
    """attached, silent, or never: nothing has been heard since this aggregator started."""
    if patient.attached:
        return "attached"
    return "never" if patient.health is None and patient.last_heard is None else "silent"


def why(patient: Patient, standing: Standing) -> str:
    """In one line, why the node stands as it does. Empty for a node that is well."""
    if patient.quarantine is not None:
        status = patient.quarantine.status
        return f"{status.phase}: {brief(patient.quarantine.spec.reason)}"
    if patient.hold is not None:
        return f"held by {patient.hold.limit}: {patient.hold.reason}"
    if patient.would:
        if patient.spared:
            return f"a person exempted it ({patient.spared}); else: {patient.would}"
        return f"would {patient.would}"
    if patient.last_error:
        return f"the last step failed and is tried again: {patient.last_error}"
    if patient.conflict:
        return patient.conflict
    if standing is Standing.SILENT:
        return "its agent is silent; " + (_worst(patient) or "nothing was failing")
    if standing is Standing.UNKNOWN:
        return "nothing known yet" if patient.attached else "no agent has reported from it"
    if patient.wishes and standing is Standing.OK:
        return patient.wishes[0]
    if patient.maintained:
        return f"somebody else is at work on it: {patient.maintained}"
    if patient.foreign:
        return f"cordoned by somebody else: {patient.foreign}"
    return _worst(patient)


def _worst(patient: Patient) -> str:
    incidents = sorted(patient.incidents.values(), key=_by_strength)
    if incidents:
        return incidents[0].summary
    if patient.health is None:
        return ""
    bad = patient.health.components.that_are(Status.DEGRADED, Status.FAILED)
    if bad:
        worst = min(bad, key=lambda component: _WORST[component.status])
        name = f"{worst.check} {worst.component}".rstrip()
        return f"{name} {worst.status.name.lower()}: {worst.message or worst.reason}"
    latched = [fault for fault in patient.health.faults.values() if not fault.historical]
    return f"{latched[0].code}: {latched[0].message}" if latched else ""


def lemon(one: Lemon) -> shapes.Lemon:
    """A repeat offender."""
    return shapes.Lemon(
        node=one.node,
        quarantines=one.quarantines,
        codes=list(one.codes),
        days=one.days,
        returns=one.returns,
        last=dt.datetime.fromtimestamp(one.last, dt.UTC),
        strikes=list(one.strikes),
    )


def node_row(patient: Patient, moment: Moment, standing: Standing | None = None) -> shapes.NodeRow:
    """The node in one line."""
    standing = standing or patient.standing()
    return shapes.NodeRow(
        node=patient.node,
        standing=standing,
        agent=agent(patient),
        last_heard=moment.when_or_never(patient.last_heard),
        why=why(patient, standing),
        exempt=patient.exempt,
        wishes=list(patient.wishes),
    )


def _by_strength(incident: policy.Incident) -> tuple[int, float]:
    return (_STRENGTH.get(incident.action, 3), incident.since)


def incidents(patient: Patient, moment: Moment, how: str) -> list[shapes.Incident]:
    """The node's open incidents, the strongest first. ``how``, here and below: as for `advice`."""
    ordered = sorted(patient.incidents.values(), key=_by_strength)
    return [_incident(patient, found, moment, how) for found in ordered]


def _incident(
    patient: Patient, incident: policy.Incident, moment: Moment, how: str
) -> shapes.Incident:
    recovering = incident.recovering_since
    return shapes.Incident(
        id=incident.id,
        node=incident.node,
        kind=incident.kind,
        action=incident.action,
        summary=incident.summary,
        since=moment.when(incident.since),
        recovering_since=moment.when_or_never(recovering),
        closes_at=None if recovering is None else moment.when(recovering + incident.healthy_for),
        evidence=[_evidence(item, moment) for item in incident.evidence],
        doing=_doing(patient, incident),
        advice=advice.for_incident(
            patient, [item.cleared_by or "" for item in incident.in_force], incident.action, how
        ),
    )


def _doing(patient: Patient, incident: policy.Incident) -> str:
    overruled = {word.key for word in patient.overruled}
    if incident.evidence and all(item.key in overruled for item in incident.evidence):
        return "overruled by a person"
    if incident.action == "observe":
        return "watched"
    if patient.quarantine is not None:
        return f"in quarantine: {patient.quarantine.status.phase}"
    if patient.hold is not None:
        return f"held by {patient.hold.limit}"
    if patient.would and patient.spared:
        return "a person exempted the node"
    if patient.would:
        return "the mode keeps us from acting"
    if incident.recovering_since is not None:
        return "recovering"
    if patient.conflict:
        return "nothing: two agents claim the node"
    return "being admitted"


def _evidence(item: policy.Evidence, moment: Moment) -> shapes.Evidence:
    return shapes.Evidence(
        code=item.code,
        component=item.component,
        rule=item.rule,
        action=item.action,
        message=item.message,
        since=moment.when(item.since),
        cleared_by=item.cleared_by or "",
        over=item.over,
        lost=item.lost,
    )


def quarantine(patient: Patient, found: cluster.Quarantine, how: str) -> shapes.Quarantine:
    """What is done about the node, how far it has come, and who is in the way."""
    spec, status = found.spec, found.status
    reached = {
        Phase.ADMITTED: status.admitted_at or found.created_at,
        Phase.CORDONED: status.cordoned_at,
        Phase.DRAINING: status.drain_started_at,
        Phase.DRAINED: status.drained_at,
    }
    in_force = [item.cleared_by for item in spec.evidence if not item.cleared]
    return shapes.Quarantine(
        node=found.node,
        action=spec.action.value,
        kind=spec.kind,
        phase=status.phase.value,
        phase_since=date(reached.get(status.phase, 0.0)),
        reason=brief(spec.reason),
        requester=shortened(spec.requester, _LONGEST_NAME),
        incident=spec.incident,
        message=found.problem or status.message,
        created_at=date(found.created_at),
        admitted_at=date(status.admitted_at),
        cordoned_at=date(status.cordoned_at),
        drain_started_at=date(status.drain_started_at),
        drained_at=date(status.drained_at),
        deadline_at=date(status.deadline_at),
        overdue_at=date(status.overdue_at),
        pre_evict=_hook(status.pre_evict),
        pods_remaining=status.pods_remaining,
        blockers=[
            shapes.Blocker(pod=blocker.pod, reason=blocker.reason, since=date(blocker.since))
            for blocker in status.blockers
        ],
        released_because=status.released_because,
        release_held=patient.release_held or status.release_held,
        overruled=status.overruled,
        in_record=patient.in_record,
        agent=agent(patient),
        last_error=patient.last_error,
        evidence=[_durable_evidence(item) for item in spec.evidence],
        advice=advice.for_quarantine(patient, found, in_force, how),
    )


def _hook(hook: cluster.HookStatus | None) -> str:
    """What the site's own step has come to; empty where there was none."""
    return f"{hook.state.value}: {hook.message}".rstrip(": ") if hook is not None else ""


def _durable_evidence(item: cluster.EvidenceItem) -> shapes.Evidence:
    """As it stands in the object, which keeps no times: a reader in another life can't use them."""
    return shapes.Evidence(
        code=item.code,
        component=item.component,
        rule=item.rule,
        action="",
        message=item.message,
        since=None,
        cleared_by=item.cleared_by,
        over=item.cleared,
        lost=False,
    )


def hold(patient: Patient, mode: str, how: str) -> shapes.Hold | None:
    """Why a node that policy wants in quarantine is not; None where nothing is held."""
    if patient.quarantine is not None:
        return None
    found: fleet.Hold | None = patient.hold
    if found is not None:
        return shapes.Hold(
            node=patient.node,
            limit=found.limit,
            value=found.value,
            reason=found.reason,
            since=date(found.since),
            advice=advice.for_hold(found, how),
        )
    if patient.would:
        spared = patient.spared
        return shapes.Hold(
            node=patient.node,
            limit="exempt" if spared else "mode",
            value=spared or mode,
            reason=f"a person exempted it; else: {patient.would}"
            if spared
            else f"would {patient.would}",
            since=None,
            advice=advice.for_exempt(patient.node, how)
            if spared
            else advice.for_mode(patient.node, mode, how),
        )
    return None


def causes(found: Iterable[CommonCause], moment: Moment) -> tuple[shapes.CommonCause, ...]:
    """Open common causes, the one with most nodes first."""
    return tuple(
        shapes.CommonCause(
            id=one.id,
            scope=one.scope,
            limit=one.limit,
            value=one.value,
            reason=one.reason,
            nodes=one.nodes,
            total=one.total,
            sample=list(one.sample),
            since=moment.when(one.since),
            advice=advice.for_cause(one.scope),
        )
        for one in sorted(found, key=lambda one: (-one.nodes, one.id))
    )


def blamed(found: Iterable[Verdict], moment: Moment) -> tuple[shapes.CommonCause, ...]:
    """What triangulation blames, but for targets that are common causes already."""
    return tuple(
        shapes.CommonCause(
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
        )
        for one in sorted(found, key=lambda one: one.subject)
        if one.kind != "target" or one.count < LEAST
    )


def event(transition: Transition) -> shapes.Event:
    """Something that happened, for people."""
    return shapes.Event(
        at=_date(transition.at),
        kind=transition.kind.value,
        node=transition.node,
        summary=shortened(transition.summary, _LONGEST_EVENT),
        incident=transition.incident,
        details=dict(transition.details),
    )


def components(found: Iterable[Component], moment: Moment) -> list[shapes.Component]:
    """The worst first."""
    return [
        shapes.Component(
            check=component.check,
            component=component.component,
            status=component.status.name.lower(),
            reason=component.reason,
            message=component.message,
            since=moment.when(component.since),
        )
        for component in sorted(found, key=lambda c: (_WORST[c.status], c.check, c.component))
    ]


def faults(found: Iterable[Fault], moment: Moment) -> list[shapes.Fault]:
    """Those of this boot first, the newest first."""
    return [
        shapes.Fault(
            code=fault.code,
            check=fault.check,
            component=fault.component,
            message=fault.message,
            boot_id=fault.boot_id,
            first_at=moment.when(fault.first_at),
            last_at=moment.when(fault.last_at),
            count=fault.count,
            cleared_by=fault.cleared_by.value,
            historical=fault.historical,
            missing=fault.missing,
            details=dict(fault.details),
        )
        for fault in sorted(found, key=lambda f: (f.historical, -f.last_at, f.code, f.component))
    ]


def node(
    patient: Patient,
    moment: Moment,
    mode: str,
    timeline: Iterable[Transition] = (),
    timeline_trouble: str = "",
    *,
    how: str,
) -> shapes.Node:
    """One node's story. ``timeline`` is newest first."""
    health, meta = patient.health, patient.meta
    standing = patient.standing()
    held = patient.quarantine
    return shapes.Node(
        node=patient.node,
        uid=meta.uid if meta else "",
        standing=standing,
        why=why(patient, standing),
        agent=agent(patient),
        last_heard=moment.when_or_never(patient.last_heard),
        agent_version=health.agent_version if health else "",
        boot_id=health.boot_id if health else "",
        conflict=patient.conflict,
        foreign=patient.foreign,
        last_error=patient.last_error,
        labels=dict(sorted(meta.labels.items())) if meta else {},
        traits=dict(sorted(health.traits.items())) if health else {},
        incidents=incidents(patient, moment, how),
        quarantine=quarantine(patient, held, how) if held is not None else None,
        hold=hold(patient, mode, how),
        would=patient.would,
        exempt=patient.exempt,
        wishes=list(patient.wishes),
        overruled=[
            shapes.Overruled(code=one.code, component=one.component, cleared_by=one.cleared_by)
            for one in sorted(patient.overruled)
        ],
        components=components(health.levels(), moment) if health else [],
        faults=faults(health.faults.values(), moment) if health else [],
        checks=[
            shapes.Check(name=check.name, interval=check.interval, off_because=check.off_because)
            for check in (health.checks if health else ())
        ],
        lost=[
            shapes.Lost(source=lost.source, records=lost.records, message=lost.message)
            for lost in reversed(health.lost if health else [])
        ],
        timeline=[event(transition) for transition in timeline],
        timeline_trouble=timeline_trouble,
    )


def steady(told: shapes.Node) -> shapes.Node:
    """Without what changes while nothing happens, so that two can be compared."""
    return msgspec.structs.replace(told, last_heard=None)
