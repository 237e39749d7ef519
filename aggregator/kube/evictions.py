"""Evictions: what is asked, and what the several answers mean for the pod.

Tried on kube-apiserver 1.36: a budget in the way is 429 with cause DisruptionBudget; two budgets
on one pod are 500, which never heals by itself; stale preconditions are 409.
"""

from aggregator.kube.errors import DISRUPTION_BUDGET, Failure
from aggregator.quarantine.cluster import Evicted, EvictionResult, Pod

#: How the API server words it; there is no machine-readable cause.
_TWO_BUDGETS = "more than one PodDisruptionBudget"
#: A pod of a namespace that is being deleted can't be evicted; the deletion takes it soon.
_ENDING = "NamespaceTerminating"


def eviction_of(pod: Pod) -> dict[str, object]:
    """The body. Both preconditions: with the uid alone, a repeated one evicts a second time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid, "resourceVersion": pod.version}},
    }


def read_refusal(failure: Failure) -> EvictionResult:
    """What a refusal means for this pod. Raises its typed error where it isn't about the pod."""
    if failure.code in {404, 409}:
        return EvictionResult(Evicted.GONE, failure.message)
    budget = failure.cause(DISRUPTION_BUDGET)
    if failure.code == 429 and budget is not None:
        return EvictionResult(Evicted.BLOCKED, budget.message or failure.message)
    if failure.code == 403 and failure.cause(_ENDING) is not None:
        return EvictionResult(Evicted.BLOCKED, "its namespace is being deleted")
    if failure.code == 500 and _TWO_BUDGETS in failure.message:
        return EvictionResult(Evicted.MISCONFIGURED, failure.message)
    raise failure.error()
