"""Whether a release by recovery was decided on the node's operations as they are."""

from aggregator.cluster.operations import cancelled, is_request, pending_of, with_attempts
from aggregator.cluster.port import Cluster, Quarantine
from aggregator.quarantine.state.node import NodeState


async def are_attempts_known(
    cluster: Cluster, node_state: NodeState, quarantine: Quarantine, now: float
) -> bool:
    """Whether the operations, read now, are the attempts of the quarantine; else it is decided
    anew. ``now``: wall clock seconds.

    One that is about to begin is removed, and a person's is ended: it begins no more after that.
    The release is written at the version of the Quarantine that was read before, and a beginning
    writes that too.
    """
    operations = await cluster.operations.of(node_state.node)
    for one in pending_of(quarantine, operations):
        if is_request(one):
            ended = cancelled(one.status, "its node is released", now)
            await cluster.operations.write_status(one, ended)
        else:
            await cluster.operations.drop(one)
    fresh = with_attempts(quarantine, operations)
    known = quarantine.status.repair.attempts
    if fresh.status.repair.attempts == known:  # a request that ends is none
        return True
    node_state.wrote(fresh)
    return False
