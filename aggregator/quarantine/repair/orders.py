"""The evidence of an order for a person, who may be at another site."""

import json
from collections.abc import Mapping
from dataclasses import asdict

from aggregator.cluster.port import Quarantine
from aggregator.runtime.json_text import as_json_object

_MOST_BUNDLE = 64 * 1024


def evidence_bundle(quarantine: Quarantine, collected: Mapping[str, str]) -> str:
    """The evidence for a person at the other end, as JSON, bounded.

    ``collected``: what the agent did, by operation; each has a bound of its own, and is left out
    where it is no JSON object.
    """
    repair = quarantine.status.repair
    evidence = [asdict(item) for item in quarantine.spec.evidence]
    attempts = [asdict(one) for one in repair.attempts]
    while True:
        text = json.dumps({"evidence": evidence, "attempts": attempts})
        if len(text) <= _MOST_BUNDLE or not evidence:
            break
        evidence = evidence[: len(evidence) // 2]
    agent = ", ".join(
        f'{{"operation": {json.dumps(operation)}, "collected": {found}}}'
        for operation, result in collected.items()
        if (found := as_json_object(result))
    )
    return f'{text[:-1]}, "agent": [{agent}]}}' if agent else text
