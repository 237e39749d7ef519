"""An incident: one cause on one node, opened and closed by policy."""

from dataclasses import dataclass
from hashlib import blake2b

from aggregator.health.model import ClearedBy


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an incident rests on: a fault's code, or "CHECK:REASON" for level evidence."""

    code: str
    component: str
    message: str
    cleared_by: ClearedBy | None  # None: level evidence, over when it is ok again
    in_force: bool  # False: recovering, within healthy_for


@dataclass(frozen=True, slots=True)
class Incident:
    """One cause on one node. ``since`` and ``recovering_since`` are monotonic seconds.

    ``action`` is what the rule asks for ("observe", "cordon", "drain"), before mode and admission.
    """

    id: str
    node: str
    boot_id: str
    rule: str
    kind: str  # gpu, disk, network, node
    action: str
    summary: str
    why: str  # the rule's reason, and its source
    since: float
    evidence: tuple[Evidence, ...]
    recovering_since: float | None = None


def incident_id(node: str, boot_id: str, rule: str, component: str) -> str:
    """The same on every replica and after every restart: derived from the evidence alone.

    The node's UID is not in it: a node made anew with the same boot id is the same patient.
    """
    text = "\x1f".join((node, boot_id, rule, component))
    return blake2b(text.encode(), digest_size=8).hexdigest()
