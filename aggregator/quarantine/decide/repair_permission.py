"""Whether the act of a repair's order may still begin, by its Quarantine and its Node. Pure."""

from aggregator.cluster.port import BUSY, Node, Phase, Quarantine, RepairAttempt
from aggregator.quarantine.decide.repair import malformed

NO_ORDER = "no quarantine and no test of the node has this order"
CANCELLED = "a person has cancelled it"


def open_attempt(quarantine: Quarantine | None, operation: str) -> RepairAttempt | None:
    """The attempt with this operation, while its order may be carried out."""
    if quarantine is None or malformed(quarantine.status.repair):
        return None
    found = (one for one in quarantine.status.repair.attempts if one.operation == operation)
    return next((one for one in found if one.state in BUSY and one.ends_as is None), None)


def permission_refusal(
    quarantine: Quarantine | None, node: Node | None, operation: str, repair: str, now: float
) -> str:
    """Why the order's act must not begin; empty: it may. ``now`` is wall clock seconds."""
    if quarantine is None or quarantine.deleting or quarantine.status.phase is Phase.RELEASING:
        return "the node is released"
    attempt = open_attempt(quarantine, operation)
    if attempt is None or attempt.repair != repair:
        return NO_ORDER
    if node is None or node.uid != attempt.node_uid:
        return "the cluster's Node is another one, or none"
    if attempt.boot_id and node.boot_id and attempt.boot_id != node.boot_id:
        return "the node is in another boot than the order was for"
    if now >= attempt.deadline_at:
        return "the time of the attempt is over"
    status = quarantine.status.repair
    ended = bool(status.exhausted) and status.exhausted_at >= attempt.began_at
    if ended or attempt.deleted:
        return CANCELLED
    return ""
