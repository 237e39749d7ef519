"""One node as the controller works on it: the patient, and what only the controller needs."""

import asyncio
from dataclasses import dataclass, field

from aggregator.health.node import NodeHealth
from aggregator.policy.incident import Evidence, Incident
from aggregator.policy.judge import judge
from aggregator.policy.rules import Policy
from aggregator.quarantine.cluster import Action, Node, Phase, Quarantine
from aggregator.quarantine.decide.marks import Overruled, read_overruled
from aggregator.quarantine.decide.steps import (
    Situation,
    Wanted,
    incidents_of,
    wanted_of,
)
from aggregator.quarantine.fleet import Patient

#: From here on the node carries our marks.
MARKED = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)


@dataclass(slots=True)
class Case:
    """The controller's side of a patient.

    ``restored``: the uid of the quarantine whose evidence was taken back into memory.
    ``ended``: the uid of the last quarantine that was released; news of it come late.
    ``suspect``: the news hint that the node may be schedulable again, or gone; a read decides.
    ``orphan``: the uid of a quarantine that vanished without its undo.
    ``forgive``: the node's memory of a person's word is out of date.
    """

    patient: Patient
    task: asyncio.Task[None] | None = None
    again: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    restored: str = ""
    ended: str = ""
    suspect: bool = False
    uncordoned: bool = False
    node_replaced: bool = False
    node_gone: bool = False
    definition_going: bool = False
    orphan: str = ""
    forgive: bool = False
    overruled_boot: str = ""
    wanted: Wanted | None = None
    trail: asyncio.Task[None] | None = None

    @property
    def node(self) -> str:
        return self.patient.node

    @property
    def fresh(self) -> bool:
        """The agent is attached and has given its snapshot since."""
        health = self.patient.health
        return self.patient.attached and health is not None and health.has_snapshot

    @property
    def acting(self) -> bool:
        """Whether an open incident asks for more than being looked at."""
        return any(incident.action != "observe" for incident in self.patient.incidents.values())

    def take_quarantine(self, quarantine: Quarantine, policy: Policy, now: float) -> None:
        """The object as last read or written; its evidence comes back into memory once."""
        if quarantine.uid == self.ended:
            return
        known = self.patient.quarantine
        if known is not None and known.uid == quarantine.uid and _older(quarantine, known):
            return
        self.patient.quarantine = quarantine
        if self.restored == quarantine.uid:
            return
        self.restored = quarantine.uid
        for ident, incident in incidents_of(quarantine, policy, now).items():
            mine = self.patient.incidents.get(ident)
            self.patient.incidents[ident] = incident if mine is None else _joined(mine, incident)

    def take_node(self, node: Node | None) -> None:
        """The node as just read: the base for what people did to it."""
        self.suspect = False
        quarantine = self.patient.quarantine
        self.node_gone = node is None
        self.node_replaced = self.uncordoned = False
        if node is None:
            return
        self.take_overruled(read_overruled(node.annotations))
        if quarantine is not None and quarantine.status.phase in MARKED:
            self.node_replaced = node.uid != quarantine.status.node_uid
            self.uncordoned = not self.node_replaced and not node.unschedulable

    def take_overruled(self, overruled: Overruled) -> None:
        self.overruled_boot = overruled.boot_id
        self.patient.overruled = overruled.evidence

    def rejudge(
        self, policy: Policy, mode: Action, now: float
    ) -> tuple[list[Incident], float | None]:
        """Judge anew. Returns what closed, and when time alone may change the judgement."""
        health = self.patient.health
        if health is None:
            return [], None
        judgement = judge(policy, health, self.patient.incidents, now, speaking=self.fresh)
        self.patient.incidents = dict(judgement.incidents)
        self._remember_overruled(health)
        self.wanted = wanted_of(self.patient.incidents, self.patient.overruled, mode, policy.hash)
        return list(judgement.closed), judgement.look_again

    def _remember_overruled(self, health: NodeHealth) -> None:
        """A person's word holds until the evidence that it was about is over."""
        if not self.patient.overruled or not self.fresh:
            return
        standing = frozenset(
            item.key
            for incident in self.patient.incidents.values()
            for item in incident.in_force
            if item.key in self.patient.overruled
        )
        if standing != self.patient.overruled:
            self.patient.overruled = standing
            self.overruled_boot = health.boot_id
            self.forgive = True

    def overrule(self) -> Overruled:
        """All that the quarantine stands on, as overruled from now on."""
        quarantine = self.patient.quarantine
        items = set(self.patient.overruled)
        if quarantine is not None:
            items |= {(item.code, item.component) for item in quarantine.spec.evidence}
        if self.wanted is not None:
            items |= {(item.code, item.component) for item in self.wanted.spec.evidence}
        health = self.patient.health
        boot = health.boot_id if health is not None else ""
        if not boot and quarantine is not None:
            boot = quarantine.spec.boot_id
        return Overruled(boot, frozenset(items))

    def situation(
        self, *, mode: Action, in_record: bool, stopped: bool, patient_enough: bool
    ) -> Situation:
        """``patient_enough``: this process has waited for the node's agent as long as it has to."""
        return Situation(
            quarantine=self.patient.quarantine,
            in_record=in_record,
            wanted=self.wanted,
            mode=mode,
            knows=self.fresh or patient_enough,
            fresh=self.fresh,
            recovered=self.fresh and not self.acting,
            uncordoned=self.uncordoned,
            node_replaced=self.node_replaced,
            node_gone=self.node_gone,
            stopped=stopped,
            conflict=bool(self.patient.conflict),
            definition_going=self.definition_going,
        )


def _older(one: Quarantine, other: Quarantine) -> bool:
    """Whether one is an earlier version: resource versions of one object compare as numbers."""
    try:
        return int(one.version) < int(other.version)
    except ValueError:
        return False


def _joined(mine: Incident, remembered: Incident) -> Incident:
    known = {item.key for item in mine.evidence}
    more: tuple[Evidence, ...] = tuple(
        item for item in remembered.evidence if item.key not in known
    )
    return Incident(
        id=mine.id,
        node=mine.node,
        boot_id=remembered.boot_id,
        kind=mine.kind,
        action=mine.action,
        summary=mine.summary,
        since=min(mine.since, remembered.since),
        evidence=(*mine.evidence, *more),
        healthy_for=max(mine.healthy_for, remembered.healthy_for),
        recovering_since=mine.recovering_since,
    )
