"""Eviction requests, and the meaning of each answer for the pod.

Tried on kube-apiserver 1.36: a budget that blocks it is 429 with cause DisruptionBudget; two
budgets on one pod are 500, which needs a person to fix; stale preconditions are 409.
"""

from aggregator.cluster.kubernetes.errors import DISRUPTION_BUDGET, Failure
from aggregator.cluster.port import NAMESPACE_DELETED, Evicted, EvictionResult, Pod

#: The API server's wording; the answer has no machine-readable cause.
_TWO_BUDGETS = "more than one PodDisruptionBudget"
#: A pod of a namespace that is being deleted can't be evicted; the deletion takes it soon.
_ENDING = "NamespaceTerminating"
#: Our credentials, a slow answer, an expired version, a busy server: these pass for all pods alike.
_NOT_OF_THE_POD = (401, 408, 410, 429)


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
    kubelet, and never is requested.
    """
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": _preconditions(pod),
        "gracePeriodSeconds": max(1, grace),
    }


def read_deletion(failure: Failure, pod: Pod) -> EvictionResult:
    """The meaning of a refused deletion for this pod. Raises where it isn't about the pod."""
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
    """The meaning of a refused eviction for this pod. Raises where it isn't about the pod.

    The typed error is raised then. It is about the pod where admission refused it, and where the
    request itself is refused: the other pods of the node may still be evicted.
    """
    if failure.of_admission:
        outcome = Evicted.FAILING if failure.code >= 500 else Evicted.REJECTED
        return EvictionResult(outcome, _rejected(failure), failure.retry_after)
    if failure.code in {404, 409}:
        return EvictionResult(Evicted.GONE, failure.message)
    budget = failure.cause(DISRUPTION_BUDGET)
    if failure.code == 429 and budget is not None:
        # Retry-After, where there is one: the budget was changed and is not counted yet.
        text = budget.message or failure.message
        return EvictionResult(Evicted.BLOCKED, text, failure.retry_after)
    if failure.code == 403 and failure.cause(_ENDING) is not None:
        return EvictionResult(Evicted.BLOCKED, NAMESPACE_DELETED)
    if failure.code == 500 and _TWO_BUDGETS in failure.message:
        return EvictionResult(Evicted.MISCONFIGURED, failure.message)
    if 400 <= failure.code < 500 and failure.code not in _NOT_OF_THE_POD:
        return EvictionResult(Evicted.REJECTED, _rejected(failure))
    raise failure.error()


def _rejected(failure: Failure) -> str:
    return f"its eviction is rejected ({failure.code}): {failure.message}"
