"""The order of an attempt, as its repairer gets it each time, and its evidence for a person."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict

from aggregator.cluster.port import Quarantine, RepairAttempt, RepairStatus
from aggregator.policy.repairs import ASKS_A_PERSON
from aggregator.quarantine.repair.protocol import RepairOrder
from aggregator.quarantine.state.operation_times import OperationTimes
from aggregator.runtime.json_text import as_json_object

_MOST_BUNDLE = 64 * 1024


class RepairOrders:
    """Makes the order from the Quarantine and its attempt; ``collected`` as in RepairSettings."""

    def __init__(
        self, collected: Callable[[str, str], Mapping[str, str]], times: OperationTimes
    ) -> None:
        self._collected = collected
        self._times = times

    def order_of(self, quarantine: Quarantine, attempt: RepairAttempt) -> RepairOrder:
        evidence = quarantine.spec.evidence
        in_force = [item for item in evidence if not item.cleared]
        # After a test that failed the evidence that is over has to be repaired too.
        now = self._times.time_of(attempt.operation, attempt.began_at)
        gpus = {item.component for item in in_force or evidence}
        return RepairOrder(
            operation=attempt.operation,
            repair=attempt.repair,
            node=quarantine.node,
            node_uid=attempt.node_uid,
            boot_id=attempt.boot_id,
            quarantine=quarantine.uid,
            reason=quarantine.spec.reason,
            lasts=max(1.0, attempt.deadline_at - now),
            gpus=tuple(sorted(name for name in gpus if name.startswith("GPU-"))),
            bundle=self._bundle(quarantine) if attempt.repair in ASKS_A_PERSON else "",
            profile=attempt.profile,
        )

    def _bundle(self, quarantine: Quarantine) -> str:
        return evidence_bundle(quarantine, self._collected(quarantine.node, quarantine.uid))


def evidence_bundle(quarantine: Quarantine, collected: Mapping[str, str]) -> str:
    """The evidence for a person at the other end, as JSON, bounded.

    ``collected``: what the agent did, by operation; each has a bound of its own, and is left out
    where it is no JSON object.
    """
    repair = quarantine.status.repair or RepairStatus()
    evidence = [asdict(item) for item in quarantine.spec.evidence]
    attempts = [asdict(one) for one in repair.attempts]
    while True:
        text = json.dumps({"evidence": evidence, "attempts": attempts})
        if len(text) <= _MOST_BUNDLE or not evidence:
            break
        evidence = evidence[: len(evidence) // 2]
    agent = ", ".join(
        f'{{"operation": {json.dumps(operation)}, "collected": {found}}}'
        for operation, told in collected.items()
        if (found := as_json_object(told))
    )
    return f'{text[:-1]}, "agent": [{agent}]}}' if agent else text
