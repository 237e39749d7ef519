"""Suspects ourselves: hands the fleet's evidence to `CommonCauses`, and tells what comes of it.

Of several replicas the leader counts, over all nodes, and tells; the others feed their own counts
all the same, so that any of them may lead, and go by what the leader has told them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from aggregator.health.model import CheckOff
from aggregator.policy.catalogue import UNKNOWN
from aggregator.policy.incident import Incident
from aggregator.policy.network.verdict import CHECK
from aggregator.policy.rules import Policy
from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.case import Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.cluster import Action
from aggregator.quarantine.decide.admission import FLEET, Limits, OpenCause
from aggregator.quarantine.decide.blame import VERSIONS, CommonCause, CommonLimits, Group
from aggregator.quarantine.decide.common import CommonCauses
from aggregator.quarantine.decide.doubt import Basis
from aggregator.quarantine.decide.record import Record
from aggregator.quarantine.decide.sayings import Saying
from aggregator.quarantine.decide.signs import (
    NVLINK,
    Sign,
    accusing,
    acting_checks,
    signs_of,
    target_of,
    what_of,
)
from aggregator.quarantine.elsewhere import Elsewhere, Unsaid
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.ledger import Kind, Ledger, Transition
from aggregator.quarantine.telling import Telling
from aggregator.quarantine.times import span, time_of_day

#: For so long after its driver, kernel or agent has changed (seconds) a node counts as upgraded.
UPGRADED = 1800.0

#: What the agent calls its machine's traits, and what the version is called here.
_TRAITS = ("driver", "kernel")


@lru_cache(maxsize=64)
def _running(checks: tuple[CheckOff, ...]) -> frozenset[str]:
    """The checks that run. Nodes of one kind have the same ones, and share the answer."""
    return frozenset(check.name for check in checks if not check.off_because)


@lru_cache(maxsize=4096)
def _alike(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """One tuple for all nodes of the same groups: those of a rack, say."""
    return groups


class Suspecting:
    """``limits`` are those of common causes, ``admission`` those of admission.

    ``owns`` tells whether a node is ours to speak of, ``elsewhere`` has the others, ``unsaid`` is
    marked where something about one of ours has changed.
    """

    def __init__(
        self,
        *,
        limits: CommonLimits,
        admission: Limits,
        policy: Policy,
        census: Census,
        fleet: Fleet,
        ledger: Ledger,
        clocks: Clocks,
        owns: Callable[[str], bool],
        elsewhere: Elsewhere,
        unsaid: Unsaid,
    ) -> None:
        self._limits = limits
        self._cooldown = admission.cooldown
        self._window = admission.window
        self._after_upgrade = admission.after_upgrade
        self._policy = policy
        self._census = census
        self._fleet = fleet
        self._ledger = ledger
        self._clocks = clocks
        self._acting = acting_checks(policy)
        self._common = CommonCauses(limits, census.observers)
        self._labels = tuple(dict.fromkeys((*limits.domain_labels, limits.clique_label)))
        self._owns = owns
        self._elsewhere = elsewhere
        self._unsaid = unsaid
        #: Whether we are the one that counts for all; and whether not all have told us yet.
        self._leading = True
        self._lasting = False
        self._told_causes: Mapping[str, CommonCause] = {}
        self._cooldown_told = Telling(clocks.now)
        #: Each node's versions; and when they last became others, where they did (monotonic).
        self._versions: dict[str, tuple[Group, ...]] = {}
        self._changed: dict[str, float] = {}

    def hear(self, case: Case) -> None:
        """Count the node as it is now. Cheap where nothing is wrong with it."""
        node, health = case.node, case.patient.health
        if not self._owns(node):
            self._hear_of(node)
            return
        if health is None:
            if node in self._elsewhere or self._elsewhere.is_leaving(node):
                self._hear_of(node)  # it came to us, and its agent is on its way
            else:
                self._common.gone(node)
            return
        if not health.has_snapshot:
            return  # what it last said stands
        self._elsewhere.reclaim(node)
        groups = self._groups(case)
        self._note_versions(node, groups)
        self._common.told(
            node,
            signs_of(health, case.patient.incidents, self._policy, self._acting),
            groups,
            _running(health.checks),
        )
        self._unsaid.mark(node)

    def _hear_of(self, node: str) -> None:
        """Another replica's node: its labels may be others now, or it has just left us."""
        saying = self._elsewhere.get(node)
        if saying is not None:
            self.told(saying)
        elif self._common.knows(node):
            self._elsewhere.leave(node, self._clocks.now())
            self._unsaid.mark(node)

    def told(self, saying: Saying) -> None:
        """Count a node as another replica speaks of it."""
        if not (saying.reported or saying.signs or saying.checks or saying.traits):
            return  # its agent has not said anything yet
        case = self._census.known(saying.node)
        groups = (*self._places(case), *saying.traits)
        self._common.told(saying.node, saying.signs, groups, saying.checks)

    def untold(self, node: str) -> None:
        """Nobody speaks of the node any more."""
        self._common.gone(node)

    def word(self, node: str) -> tuple[frozenset[Sign], tuple[Group, ...], frozenset[str]]:
        """What is counted of the node: its signs, its versions, its checks."""
        signs, groups, checks = self._common.known(node)
        return signs, tuple(group for group in groups if group[0] in VERSIONS), checks

    def lead(self) -> None:
        """From now on we count for all. What was open by the last leader's word still is."""
        if not self._leading:
            self._leading = True
            self._common.inherit(self._told_causes.values())
            self._told_causes = {}

    def follow(self) -> None:
        """From now on another one counts. What it last said, or what we said before it, stands."""
        if self._leading:
            self._leading = False
            self._told_causes = self._fleet.causes = dict(self._common.open)
            self._common.disown()

    def answered(self, causes: Iterable[CommonCause]) -> None:
        """What the leader says is open."""
        if not self._leading:
            self._told_causes = {cause.id: cause for cause in causes}
            self._fleet.causes = self._told_causes

    def forget(self, case: Case) -> None:
        if case.node not in self._elsewhere:  # else it is for its replica to forget it
            self._common.gone(case.node)
        self._versions.pop(case.node, None)
        self._changed.pop(case.node, None)
        self._unsaid.mark(case.node)

    def _note_versions(self, node: str, groups: tuple[Group, ...]) -> None:
        versions = _alike(tuple(group for group in groups if group[0] in VERSIONS))
        if self._versions.get(node, versions) != versions:
            self._changed[node] = self._clocks.now()
        self._versions[node] = versions

    def unsettled(self, case: Case) -> str:
        """Why it is too soon to tell the node's own fault from its new version's; empty: it isn't.

        What is wrong with a version shows on others that got it in the same wave, a moment later.
        """
        changed, now = self._changed.get(case.node), self._clocks.now()
        if changed is None or now - changed >= UPGRADED:
            return ""
        overruled = frozenset(word.key for word in case.patient.overruled)
        evidence = accusing(case.patient.incidents.values(), overruled)
        stood = max((now - item.since for item in evidence), default=0.0)
        if stood >= self._after_upgrade:
            return ""
        now_runs = ", ".join(f"{name} {version}" for name, version in self._versions[case.node])
        return (
            f"its version has just changed (now {now_runs}); what accuses it must have stood for "
            f"{span(self._after_upgrade)}, in which others with this version may show the same"
        )

    def _places(self, case: Case | None) -> list[Group]:
        meta = case.patient.meta if case is not None else None
        labels = meta.labels if meta is not None else {}
        return [(label, labels[label]) for label in self._labels if labels.get(label)]

    def _groups(self, case: Case) -> tuple[Group, ...]:
        health, found = case.patient.health, self._places(case)
        if health is not None:
            found += [(name, health.traits[name]) for name in _TRAITS if health.traits.get(name)]
            if health.agent_version:
                found.append(("agent", health.agent_version))
        return _alike(tuple(found))

    def suspects(
        self, case: Case, incidents: Iterable[Incident] | None = None
    ) -> tuple[frozenset[str], ...]:
        """For each piece of evidence that asks for a quarantine, what may explain it.

        Of these ``incidents`` of the node, or of all of them.
        """
        if incidents is None:
            incidents = case.patient.incidents.values()
        overruled = frozenset(word.key for word in case.patient.overruled)
        return tuple(
            self._common.suspects(case.node, what_of(item, self._policy), target_of(item))
            for item in accusing(incidents, overruled)
        )

    def drain_suspects(self, case: Case) -> tuple[frozenset[str], ...]:
        """The same, of the evidence alone that asks for a drain."""
        overruled = frozenset(word.key for word in case.patient.overruled)
        return tuple(
            self._common.suspects(case.node, what_of(item, self._policy), target_of(item))
            for item in accusing(case.patient.incidents.values(), overruled)
            if item.action == Action.DRAIN
        )

    def basis(self, case: Case) -> Basis:
        """What asks for the node's quarantine, as far as admission cares.

        NVLink's faults are no explicit ones: what is wrong may be at the other end.
        """
        overruled = frozenset(word.key for word in case.patient.overruled)
        found = list(accusing(case.patient.incidents.values(), overruled))
        for item in found:
            known = self._policy.catalogue.classify(item.code) != UNKNOWN
            if item.cleared_by is not None and known and what_of(item, self._policy) != NVLINK:
                return Basis.FAULT
        reach = all(item.code.partition(":")[0] == CHECK for item in found)
        return Basis.REACH if found and reach else Basis.OTHER

    @property
    def _open(self) -> Mapping[str, CommonCause]:
        """The causes that are open, by our own count or by the leader's."""
        return self._common.open if self._leading else self._told_causes

    def explains(self, case: Case, incident: Incident) -> str:
        """The id of an open cause, where open causes explain all of this incident of the node."""
        if not self._open:
            return ""
        hits = [found & self._open.keys() for found in self.suspects(case, [incident])]
        return min(hits[0]) if hits and all(hits) else ""

    def causes(self) -> Mapping[str, OpenCause]:
        """What is open now, for admission: counted anew where something has changed."""
        self.look()
        return {ident: cause.for_admission() for ident, cause in self._open.items()}

    def look(self) -> None:
        """Count anew, and tell what has opened and what is over. The leader does."""
        if not self._leading:
            return
        opened, ended = self._common.look(self._clocks.now(), lasting=self._lasting)
        for cause in opened:
            self._note(Kind.COMMON_CAUSE, cause, f"common cause: {cause.reason}")
        for cause in ended:
            self._note(Kind.COMMON_CAUSE_OVER, cause, f"no common cause any more: {cause.reason}")
        self._fleet.causes = self._common.open

    def go_round(self, record: Record, *, lasting: bool = False) -> None:
        """What time alone brings: silence, the end of causes and of the fleet's cooldown.

        ``lasting``: not all replicas have told us of their nodes, so nothing is over.
        """
        self._lasting = lasting
        if self._leading:
            self._common.silence(*self._census.silence())
        self.look()
        now = self._clocks.even()
        counted = record.pruned(now, window=self._window, cooldown=self._cooldown)
        self._fleet.admitted_lately = len(counted.admissions)
        found = counted.cooldowns.get(FLEET)
        until = f"until {time_of_day(found.at + self._cooldown)}: {found.because}" if found else ""
        if self._cooldown_told.is_due("it is cooling down" if until else "", leads=self._leading):
            kind = Kind.COOLDOWN if until else Kind.COOLDOWN_OVER
            text = f"nothing new is admitted {until}" if until else "admission goes on"
            self._ledger.note(Transition(self._clocks.wall(), kind, "", text))
        self._fleet.cooling = until

    def _note(self, kind: Kind, cause: CommonCause, text: str) -> None:
        details = {
            "cause": cause.id,
            "scope": cause.scope,
            "limit": cause.limit,
            "value": cause.value,
            "count": str(cause.nodes),
            "of": str(cause.total),
            "nodes": ", ".join(cause.sample),
        }
        self._ledger.note(Transition(self._clocks.wall(), kind, "", text, cause.id, details))
