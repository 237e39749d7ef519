"""A person's word against evidence: what it is about, and when it is over. Pure.

It is the evidence's own end that ends it: a cleared fault, another boot, a component that is well.
That the agent no longer knows of the fault is no end, for the agent may have lost it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from aggregator.health.model import Cleared, ClearedBy, Status
from aggregator.health.node import NodeHealth, boot_ends, ends
from aggregator.policy.past import LEAST_FLAPS, failures
from aggregator.policy.rules import FLAPS
from aggregator.policy.silent import SILENT_FAILING


@dataclass(frozen=True, slots=True, order=True)
class Word:
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
    """What ends a fault, by its durable name.

    A name that nobody knows (written by a newer version, or by hand) is ended by a person alone.
    """
    return ClearedBy(name) if name in set(ClearedBy) else ClearedBy.OPERATOR


def ended_by(word: Word, signs: Iterable[Cleared]) -> bool:
    """Whether one of the signs that just came ends what the word is about.

    Asked of each message and not of what is remembered: a fault that was cleared and came again is
    another one.
    """
    return bool(word.cleared_by) and any(
        sign.component == word.component
        and sign.code in ("", word.code)
        and ends(sign.how, clears(word.cleared_by), explicit=bool(sign.code))
        for sign in signs
    )


def stands(word: Word, health: NodeHealth) -> bool:
    """Whether what the word is about may still be so, by the node's health; its agent speaks."""
    if word.code == SILENT_FAILING:
        return False
    if word.cleared_by:
        another_boot = word.boot_id not in ("", health.boot_id)
        if another_boot and boot_ends(clears(word.cleared_by)):
            return False
        fault = health.faults.get(word.key)
        if fault is None:  # a sign that this process heard ends also a word that it learned later
            return not health.how_cleared(*word.key, clears(word.cleared_by))
        return fault.missing or fault.details.get("verdict") != "none"
    check = (word.code.partition(":")[0], word.component)
    component = health.level(check)
    if component is None:
        return health.cleared.get(check) != "gone"
    if component.status in (Status.FAILED, Status.UNKNOWN):
        return True
    # What flaps is well most of the time: the word is about its past, for as long as that counts.
    return word.code.endswith(f":{FLAPS}") and failures(component) >= LEAST_FLAPS
