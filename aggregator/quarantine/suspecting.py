"""Suspects ourselves: hands the fleet's evidence to `CommonCauses`, and tells what comes of it."""

from collections.abc import Iterable, Mapping

from aggregator.policy.incident import Incident
from aggregator.policy.rules import Policy
from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.case import Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.cluster import Action
from aggregator.quarantine.decide.admission import FLEET, Limits, OpenCause
from aggregator.quarantine.decide.blame import VERSIONS, CommonCause, CommonLimits, Group
from aggregator.quarantine.decide.common import CommonCauses
from aggregator.quarantine.decide.record import Record
from aggregator.quarantine.decide.signs import accusing, acting_checks, signs_of, target_of, what_of
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.ledger import Kind, Ledger, Transition
from aggregator.quarantine.times import span, time_of_day

#: For so long after its driver, kernel or agent has changed (seconds) a node counts as upgraded.
UPGRADED = 1800.0

#: What the agent calls its machine's traits, and what the version is called here.
_TRAITS = ("driver", "kernel")


class Suspecting:
    """``limits`` are those of common causes, ``admission`` those of admission."""

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
        self._cooling = ""
        #: Each node's versions, and when they last became others (monotonic).
        self._versions: dict[str, tuple[tuple[Group, ...], float]] = {}

    def hear(self, case: Case) -> None:
        """Count the node as it is now. Cheap where nothing is wrong with it."""
        health = case.patient.health
        if health is None:
            self._common.gone(case.node)
            return
        if not health.has_snapshot:
            return  # what it last said stands
        groups = self._groups(case)
        self._note_versions(case.node, groups)
        self._common.told(
            case.node,
            signs_of(health, case.patient.incidents, self._policy, self._acting),
            groups,
            frozenset(check.name for check in health.checks if not check.off_because),
        )

    def forget(self, case: Case) -> None:
        self._common.gone(case.node)
        self._versions.pop(case.node, None)

    def _note_versions(self, node: str, groups: tuple[Group, ...]) -> None:
        versions = tuple(group for group in groups if group[0] in VERSIONS)
        known = self._versions.get(node)
        if known is None:
            self._versions[node] = (versions, float("-inf"))
        elif known[0] != versions:
            self._versions[node] = (versions, self._clocks.now())

    def unsettled(self, case: Case) -> str:
        """Why it is too soon to tell the node's own fault from its new version's; empty: it isn't.

        What is wrong with a version shows on others that got it in the same wave, a moment later.
        """
        known, now = self._versions.get(case.node), self._clocks.now()
        if known is None or now - known[1] >= UPGRADED:
            return ""
        overruled = frozenset(word.key for word in case.patient.overruled)
        evidence = accusing(case.patient.incidents.values(), overruled)
        stood = max((now - item.since for item in evidence), default=0.0)
        if stood >= self._after_upgrade:
            return ""
        now_runs = ", ".join(f"{name} {version}" for name, version in known[0])
        return (
            f"its version has just changed (now {now_runs}); what accuses it must have stood for "
            f"{span(self._after_upgrade)}, in which others with this version may show the same"
        )

    def _groups(self, case: Case) -> tuple[Group, ...]:
        health, meta = case.patient.health, case.patient.meta
        labels = meta.labels if meta is not None else {}
        found = [(label, labels[label]) for label in self._labels if labels.get(label)]
        if health is not None:
            found += [(name, health.traits[name]) for name in _TRAITS if health.traits.get(name)]
            if health.agent_version:
                found.append(("agent", health.agent_version))
        return tuple(found)

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

    def explains(self, case: Case, incident: Incident) -> str:
        """The id of an open cause, where open causes explain all of this incident of the node."""
        if not self._common.open:
            return ""
        hits = [found & self._common.open.keys() for found in self.suspects(case, [incident])]
        return min(hits[0]) if hits and all(hits) else ""

    def causes(self) -> Mapping[str, OpenCause]:
        """What is open now, for admission: counted anew where something has changed."""
        self.look()
        return {ident: cause.for_admission() for ident, cause in self._common.open.items()}

    def look(self) -> None:
        """Count anew, and tell what has opened and what is over."""
        opened, ended = self._common.look(self._clocks.now())
        for cause in opened:
            self._note(Kind.COMMON_CAUSE, cause, f"common cause: {cause.reason}")
        for cause in ended:
            self._note(Kind.COMMON_CAUSE_OVER, cause, f"no common cause any more: {cause.reason}")
        self._fleet.causes = self._common.open

    def go_round(self, record: Record) -> None:
        """What time alone brings: silence, the end of causes and of the fleet's cooldown."""
        self._common.silence(*self._census.silence())
        self.look()
        now = self._clocks.wall()
        counted = record.pruned(now, window=self._window, cooldown=self._cooldown)
        self._fleet.admitted_lately = len(counted.admissions)
        found = counted.cooldowns.get(FLEET)
        until = f"until {time_of_day(found.at + self._cooldown)}: {found.because}" if found else ""
        if bool(until) != bool(self._cooling):
            kind = Kind.COOLDOWN if until else Kind.COOLDOWN_OVER
            text = f"nothing new is admitted {until}" if until else "admission goes on"
            self._ledger.note(Transition(now, kind, "", text))
        self._cooling = self._fleet.cooling = until

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
