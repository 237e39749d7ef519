"""The pods that an active test of ours has on a node: a drain leaves them alone. Pure.

A tenant must not keep a pod on a sick node by an annotation: so the namespace must be that of the
tests, and the operation that of the attempt which is under way.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from aggregator.cluster.port import BUSY, Pod, RepairStatus
from aggregator.policy.repairs import TEST

#: On an object that was made for an order: the order's operation.
OPERATION = "sickbay.dev/repair-operation"


def without_own(pods: Sequence[Pod], repair: RepairStatus, namespace: str) -> list[Pod]:
    """The pods except those of the test under way. ``namespace``: of the tests; empty: none."""
    attempts = repair.attempts
    under_way = {one.operation for one in attempts if one.repair == TEST and one.state in BUSY}
    return without_tests(pods, under_way, namespace)


def without_tests(pods: Sequence[Pod], operations: AbstractSet[str], namespace: str) -> list[Pod]:
    """The pods except those of the tests with these operations."""
    return [pod for pod in pods if not _is_own(pod, operations, namespace)]


def _is_own(pod: Pod, under_way: AbstractSet[str], namespace: str) -> bool:
    if not namespace or pod.namespace != namespace or pod.owner_kind != "Job":
        return False
    return pod.annotations.get(OPERATION, "") in under_way
