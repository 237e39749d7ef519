"""Chooses the next step of a node's repair, by what this process knows of the node."""

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.port import BUSY, Quarantine
from aggregator.policy.repairs import is_lemon, verdict_of
from aggregator.policy.rules import Policy
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.operation_step import NextOperation
from aggregator.quarantine.decide.repair import RepairFacts, next_repair
from aggregator.quarantine.decide.repair_plan import is_emptied, ladder_of
from aggregator.quarantine.repair.before_release import TestsBeforeRelease, boot_of, is_in_force
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED


@define(eq=False, slots=False, kw_only=True)
class RepairStepChoice:
    """Collects the facts for the pure decision; reads no object and changes nothing durable."""

    _settings: RepairSettings
    _record_writer: AdmissionRecordWriter
    _clocks: Clocks
    _policy: Policy
    _tests: TestsBeforeRelease

    def may_begin(self, quarantine: Quarantine) -> bool:
        """Whether an attempt may begin, as far as settings and the Quarantine show."""
        return not (self._settings.off or quarantine.deleting) and is_emptied(quarantine)

    def _time(self, quarantine: Quarantine) -> float:
        """The wall clock's time; while an attempt is under way, that of the clock that began it."""
        repair = quarantine.status.repair
        last = repair.attempts[-1] if repair is not None and repair.attempts else None
        if last is None or last.state not in BUSY:
            return self._clocks.earliest()
        return self._record_writer.times.time_of(last.operation, last.began_at)

    def next_step(self, node_state: NodeState, quarantine: Quarantine) -> NextOperation:
        now, rules = self._time(quarantine), self._settings.rules
        past = self._record_writer.record.past_repairs.get(node_state.node, ())
        facts = RepairFacts(
            ladder=ladder_of(quarantine.spec, self._policy),
            available={
                kind: one.repairer.sends_twice for kind, one in self._settings.repairers.items()
            },
            past=tuple(one for one in past if abs(now - one.at) < rules.window),
            verdict=verdict_of(node_state.agent.health),
            lemon=is_lemon(node_state.agent.health),
            is_open=_is_open(node_state, quarantine),
            began=quarantine.status.admitted_at or quarantine.created_at,
            returns=self._tests.is_what_holds(node_state),
            whole=ladder_of(quarantine.spec, self._policy, cleared=True),
            boot_id=boot_of(node_state),
        )
        return next_repair(quarantine.status.repair, facts, rules, now)


def _is_open(node_state: NodeState, quarantine: Quarantine) -> bool:
    """Whether evidence of the quarantine is in force, and is not only waited for to stay away."""
    if quarantine.status.phase not in MARKED:
        return False
    if node_state.agent.is_fresh:
        return is_in_force(node_state)
    return any(not item.cleared for item in quarantine.spec.evidence)
