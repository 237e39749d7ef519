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


def eviction_of(pod: Pod, *, dry_run: bool = False) -> dict[str, object]:
    """The body. Both preconditions: with the uid alone, a repeated one evicts a second time."""
    options: dict[str, object] = {"preconditions": _preconditions(pod)}
    if dry_run:
        options["dryRun"] = ["All"]
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": options,
    }


def deletion_of(pod: Pod, grace: int) -> dict[str, object]:
    """The body of a deletion past the budgets. A grace of 0 would take the pod from under its
    kubelet, and never is asked for.
    """
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": _preconditions(pod),
        "gracePeriodSeconds": max(1, grace),
    }


def read_deletion(failure: Failure, pod: Pod) -> EvictionResult:
    """What a refused deletion means for this pod. Raises where it isn't about the pod."""
    if failure.code == 403 and failure.cause(_ENDING) is None:
        text = (
            f"may not be deleted: {pod.namespace} has not bound the ClusterRole "
            "sickbay-aggregator-force (deploy/examples/force-rbac.yaml)"
        )
        return EvictionResult(Evicted.FORBIDDEN, text)
    return read_refusal(failure)


def _preconditions(pod: Pod) -> dict[str, str]:
    return {"uid": pod.uid, "resourceVersion": pod.version}


def read_refusal(failure: Failure) -> EvictionResult:
    """What a refusal means for this pod. Raises its typed error where it isn't about the pod."""
    if failure.code in {404, 409}:
        return EvictionResult(Evicted.GONE, failure.message)
    budget = failure.cause(DISRUPTION_BUDGET)
    if failure.code == 429 and budget is not None:
        # Retry-After, where there is one: the budget was changed and is not counted yet.
        text = budget.message or failure.message
        return EvictionResult(Evicted.BLOCKED, text, failure.retry_after)
    if failure.code == 403 and failure.cause(_ENDING) is not None:
        return EvictionResult(Evicted.BLOCKED, "its namespace is being deleted")
    if failure.code == 500 and _TWO_BUDGETS in failure.message:
        return EvictionResult(Evicted.MISCONFIGURED, failure.message)
    raise failure.error()
