"""The configuration of repairs as people see it, and what keeps the next repair from beginning.

Pure. `repair.next_repair` decides; this explains it from the Quarantine alone, which each replica
knows of every node.
"""

from dataclasses import dataclass, field

from aggregator.cluster.port import BUSY, Action, Phase, Quarantine, QuarantineSpec, RepairState
from aggregator.policy.repairs import NEEDS_PERSON, joined
from aggregator.policy.rules import Policy
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.decide.verdicts import last_repair
from aggregator.rfc3339 import write_time


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The limits of repairs, the kinds that have a repairer, and the policy with the ladders.

    ``agents_awaited_until``: until then (monotonic seconds) this process repairs no node whose
    agent has not reported to it. ``test_profiles``: the profiles that a test can have, or None
    where they are not known. ``tests_in_service``: a person may have a node in service tested.
    """

    rules: RepairRules = field(default_factory=RepairRules)
    kinds: frozenset[str] = frozenset()
    policy: Policy | None = None
    agents_awaited_until: float = float("-inf")
    test_profiles: frozenset[str] | None = None
    tests_in_service: bool = False

    @property
    def is_off(self) -> bool:
        return self.rules.mode is RepairMode.OFF

    def ladder(self, spec: QuarantineSpec) -> tuple[str, ...]:
        """As `ladder_of`; empty without a policy."""
        return ladder_of(spec, self.policy) if self.policy is not None else ()

    def waits(
        self, quarantine: Quarantine, now: float, *, requested: bool = False, awaited: bool = False
    ) -> str:
        """Why the next repair does not begin now, for people; empty: it is due.

        ``now`` is wall clock seconds. ``requested``: a person has requested one. ``awaited``: the
        node's agent has not reported to this process, and is waited for.
        """
        if self.is_off:
            return "repair.mode is off"
        repair = quarantine.status.repair
        last = repair.attempts[-1] if repair.attempts else None
        if last is not None and last.state in BUSY:
            return f"{last.repair} is under way, until {write_time(last.deadline_at)} at the latest"
        over = "" if requested else self._over(quarantine, now)
        if over:
            return over
        if not is_emptied(quarantine):
            return "the node is not drained"
        if awaited:
            return (
                "its agent has not reported since the aggregator's start, and is waited for "
                "(limits.silent_drain_after)"
            )
        if repair.held:
            return repair.held
        return "" if requested else self._without_rung(quarantine.spec)

    def _over(self, quarantine: Quarantine, now: float) -> str:
        """Why no rung follows, or not yet, whatever the ladder has."""
        repair, spec = quarantine.status.repair, quarantine.spec
        if repair.exhausted:
            return f"no further repair begins by itself: {repair.exhausted}"
        if spec.evidence and all(item.cleared for item in spec.evidence):
            return self._before_release(quarantine)
        last = last_repair(repair)
        if last is None or last.state is not RepairState.SUCCEEDED or last.repair in NEEDS_PERSON:
            return ""
        until = last.ended_at + self.rules.clear_within
        if now >= until:
            return ""
        return f"its evidence has until {write_time(until)} to clear after {last.repair}"

    def _before_release(self, quarantine: Quarantine) -> str:
        if not self.rules.verify or self.rules.mode is not RepairMode.REPAIR:
            return "its evidence is over"
        repair = quarantine.status.repair
        waits = f": {repair.held}" if repair.test_waits_since else ""
        return f"its evidence is over; test {self.rules.verify} comes before the release{waits}"

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


def ladder_of(spec: QuarantineSpec, policy: Policy, *, cleared: bool = False) -> tuple[str, ...]:
    """The ladder of the evidence that no sign has ended; a person's quarantine has none.

    ``cleared``: of the evidence that is over too.
    """
    if spec.requester != OURS:
        return ()
    rules = policy.by_name
    names = [item.rule for item in spec.evidence if cleared or not item.cleared]
    return joined(rules[name].repair if name in rules else () for name in names)


def is_emptied(quarantine: Quarantine) -> bool:
    """Whether its node has left the phase of draining, or is only cordoned and meant to be so."""
    phase = quarantine.status.phase
    cordon = quarantine.spec.action is Action.CORDON
    return phase is Phase.DRAINED or (cordon and phase is Phase.CORDONED)
