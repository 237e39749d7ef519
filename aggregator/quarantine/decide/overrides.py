"""A person's override of evidence: its subject, and its end. Pure.

An override ends with its evidence: by a cleared fault, another boot, a healthy component. A fault
that the agent no longer knows has not ended, for the agent may have lost it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from aggregator.health.model import Cleared, ClearedBy, Status
from aggregator.health.node import NodeHealth, boot_ends, ends
from aggregator.policy.rules import FLAPS
from aggregator.policy.silent_agent import SILENT_FAILING
from aggregator.policy.windows import LEAST_FLAPS, failures


@dataclass(frozen=True, slots=True, order=True)
class Override:
    """One piece of evidence that a person has overruled: it acts no more until it is over.

    ``cleared_by`` is empty for level evidence.
    """

    code: str
    component: str
    boot_id: str
    cleared_by: str

    @property
    def key(self) -> tuple[str, str]:
        return (self.code, self.component)


def clears(name: str) -> ClearedBy:
    """The kind of sign that ends a fault, by its durable name.

    Only a person ends an unknown name (written by a newer version, or by hand).
    """
    return ClearedBy(name) if name in set(ClearedBy) else ClearedBy.OPERATOR


def ended_by(word: Override, signs: Iterable[Cleared]) -> bool:
    """Whether one of the signs that just came ends the override's evidence.

    Checked for each message and not for remembered evidence: a fault that was cleared and came
    again is another one.
    """
    return bool(word.cleared_by) and any(
        sign.component == word.component
        and sign.code in ("", word.code)
        and ends(sign.how, clears(word.cleared_by), explicit=bool(sign.code))
        for sign in signs
    )


def may_be_open(
    word: Override, health: NodeHealth, on_degraded: Collection[str] = frozenset()
) -> bool:
    """Whether the override's evidence may still be open, by the health that the agent reports.

    ``on_degraded``: the checks on whose degraded results a rule acts.
    """
    if word.code == SILENT_FAILING:
        return False
    if word.cleared_by:
        another_boot = word.boot_id not in ("", health.boot_id)
        if another_boot and boot_ends(clears(word.cleared_by)):
            return False
        fault = health.faults.get(word.key)
        if fault is None:  # a sign from before this override was read ends it too
            return not health.how_cleared(*word.key, clears(word.cleared_by))
        return fault.missing or fault.details.get("verdict") != "none"
    check = (word.code.partition(":")[0], word.component)
    component = health.level(check)
    if component is None:
        return health.cleared.get(check) != "gone"
    if component.status in (Status.FAILED, Status.UNKNOWN):
        return True
    if component.status is Status.DEGRADED and component.check in on_degraded:
        return True
    # A flapping component is healthy most of the time: the override is about its past failures, as
    # long as they count.
    return word.code.endswith(f":{FLAPS}") and failures(component) >= LEAST_FLAPS
