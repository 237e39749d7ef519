"""An incident: one cause on one node, opened and closed by policy."""

from dataclasses import dataclass
from hashlib import blake2b

from aggregator.health.model import ClearedBy


@dataclass(frozen=True, slots=True)
class Evidence:
    """A piece of evidence of an incident: a fault's code, or "CHECK:REASON" for level evidence.

    ``cleared_by`` is None for level evidence, which is over when its component is ok again.
    ``over`` names the positive sign that ended it; empty: it is in force. ``lost`` means that the
    agent no longer knows of it although no sign has cleared it.
    """

    code: str
    component: str
    boot_id: str
    rule: str
    action: str
    message: str
    cleared_by: ClearedBy | None
    since: float
    over: str = ""
    lost: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return (self.code, self.component)


@dataclass(frozen=True, slots=True)
class Incident:
    """One cause on one node. ``since`` and ``recovering_since`` are monotonic seconds.

    All evidence of one kind (gpu, disk, network, node) on one node in one boot is one incident: two
    reasons that alternate do not move its start, and many components may share it. ``action`` is
    the strongest that its evidence asks for, before mode and admission. ``remembered``: it was
    restored from a durable record, which does not hold its start; the agent's snapshot does.
    """

    id: str
    node: str
    boot_id: str
    kind: str
    action: str
    summary: str
    since: float
    evidence: tuple[Evidence, ...]
    healthy_for: float
    recovering_since: float | None = None
    remembered: bool = False

    @property
    def in_force(self) -> tuple[Evidence, ...]:
        """The evidence that no positive sign has ended."""
        return tuple(item for item in self.evidence if not item.over)


def incident_id(node: str, boot_id: str, kind: str) -> str:
    """The same on every replica and after every restart: derived from the evidence alone.

    The node's UID is not in it: a Node created again with the same boot id is the same machine.
    """
    return blake2b(f"{node}\x1f{boot_id}\x1f{kind}".encode(), digest_size=8).hexdigest()
