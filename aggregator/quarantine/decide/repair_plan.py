"""The configuration of repairs as people see it, and what keeps the next repair from beginning.

Pure. `repair.next_repair` decides; this explains it from the Quarantine alone, which each replica
knows of every node.
"""

from dataclasses import dataclass, field

from aggregator.cluster.port import Action, Phase, Quarantine, QuarantineSpec, RepairState
from aggregator.policy.repairs import ASKS_A_PERSON, joined
from aggregator.policy.rules import Policy
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.repair import BUSY, RepairMode, RepairRules
from aggregator.rfc3339 import write_time


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The limits of repairs, the kinds that have a repairer, and the policy with the ladders."""

    rules: RepairRules = field(default_factory=RepairRules)
    kinds: frozenset[str] = frozenset()
    policy: Policy | None = None

    @property
    def is_off(self) -> bool:
        return self.rules.mode is RepairMode.OFF

    def ladder(self, spec: QuarantineSpec) -> tuple[str, ...]:
        """As `ladder_of`; empty without a policy."""
        return ladder_of(spec, self.policy) if self.policy is not None else ()

    def waits(self, quarantine: Quarantine, now: float) -> str:
        """Why the next repair does not begin now, for people; empty: it is due.

        ``now`` is wall clock seconds.
        """
        if self.is_off:
            return "repair.mode is off"
        status, spec = quarantine.status, quarantine.spec
        repair = status.repair
        if repair is not None and repair.exhausted:
            return f"no further repair begins by itself: {repair.exhausted}"
        last = repair.attempts[-1] if repair is not None and repair.attempts else None
        if last is not None and last.state in BUSY:
            return f"{last.repair} is under way, until {write_time(last.deadline_at)} at the latest"
        if spec.evidence and all(item.cleared for item in spec.evidence):
            return "its evidence is over"
        done = last is not None and last.state is RepairState.SUCCEEDED
        until = last.ended_at + self.rules.verify if last is not None else 0.0
        if last is not None and done and last.repair not in ASKS_A_PERSON and now < until:
            return f"its evidence has until {write_time(until)} to clear after {last.repair}"
        if not is_emptied(quarantine):
            return "the node is not drained"
        if repair is not None and repair.held:
            return repair.held
        return self._without_rung(spec)

    def _without_rung(self, spec: QuarantineSpec) -> str:
        if spec.requester != OURS:
            return "a quarantine that a person made is repaired by hand alone"
        ladder = self.ladder(spec)
        if not ladder:
            return "a rule of its evidence has no repair: a person decides"
        if not self.kinds.intersection(ladder):
            return f"no repairer is configured for {', '.join(ladder)}"
        if self.rules.mode is RepairMode.OBSERVE:
            return "repair.mode is observe: no repair is ordered"
        return ""


def ladder_of(spec: QuarantineSpec, policy: Policy) -> tuple[str, ...]:
    """The ladder of the evidence that no sign has ended; a person's quarantine has none."""
    if spec.requester != OURS:
        return ()
    rules = policy.by_name
    names = [item.rule for item in spec.evidence if not item.cleared]
    return joined(rules[name].repair if name in rules else () for name in names)


def is_emptied(quarantine: Quarantine) -> bool:
    """Whether its node has left the phase of draining, or is only cordoned and meant to be so."""
    phase = quarantine.status.phase
    cordon = quarantine.spec.action is Action.CORDON
    return phase is Phase.DRAINED or (cordon and phase is Phase.CORDONED)
