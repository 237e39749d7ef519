"""The Job of one test. Pure.

What makes its end readable is not the site's to change: one pod, never restarted, on this node. It
has a deadline of its own, so that it ends also where its Job was deleted without it.
"""

import hashlib
from typing import Any

from aggregator.cluster.node_names import TAINT
from aggregator.config.job import CONTAINER, JobSection
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.own_pods import OPERATION
from aggregator.quarantine.repair.protocol import RepairOrder
from aggregator.repairers.order_object import owner_of

#: Exit codes of a test: docs/active-tests.md.
PASSED, FAILED, NO_VERDICT = 0, 1, 3
#: A Job that no process has evaluated is deleted by the cluster (seconds after its end).
_KEPT_FOR = 86400
#: A Job ends this long before its attempt (seconds), so that its end is seen.
_SPARE = 60
#: From the deadline until the programs are killed (seconds).
_GRACE = 10
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


def job_name(order: RepairOrder) -> str:
    """The same for each process, and for no other operation, nor for one that has come again."""
    began = f" {order.began_at!r}" if order.began_at else ""
    key = f"{order.operation}{began}"
    return f"sickbay-test-{hashlib.sha256(key.encode()).hexdigest()[:40]}"


def job_manifest(
    section: JobSection, order: RepairOrder, *, gpus: int, taint: str = TAINT
) -> dict[str, Any]:
    """``taint``: the key of the taint that a site has chosen for nodes in quarantine."""
    spec = {
        "backoffLimit": 0,
        "completions": 1,
        "parallelism": 1,
        "activeDeadlineSeconds": deadline(order),
        "ttlSecondsAfterFinished": _KEPT_FOR,
        "podFailurePolicy": _failure_policy(),
        "template": _pod(section, order, gpus, taint),
    }
    metadata = {
        "name": job_name(order),
        "namespace": section.namespace,
        "labels": _LABELS,
        "annotations": {OPERATION: order.operation},
        "ownerReferences": [owner_of(order)],
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def deadline(order: RepairOrder) -> int:
    """Seconds from now until the Job ends."""
    return max(1, int(max(order.lasts - _SPARE, order.lasts / 2)))


_LABELS = {"app.kubernetes.io/name": "sickbay", "app.kubernetes.io/component": TEST}


def _failure_policy() -> dict[str, Any]:
    """No pod follows a failed one; the reason of the end distinguishes an exit code from a
    disruption.
    """

    def exits(code: int) -> dict[str, Any]:
        codes = {"containerName": CONTAINER, "operator": "In", "values": [code]}
        return {"action": "FailJob", "onExitCodes": codes}

    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "rules": [
            {"action": "FailJob", "onPodConditions": disrupted},
            exits(FAILED),
            exits(NO_VERDICT),
        ]
    }


def _pod(section: JobSection, order: RepairOrder, gpus: int, taint: str) -> dict[str, Any]:
    given, spec = section.template.metadata, section.template.spec
    name = order.idle_class or section.priority_class
    priority = {"priorityClassName": name} if name else {}
    return {
        "metadata": {
            "labels": {**given.labels, **_LABELS},
            "annotations": {**given.annotations, OPERATION: order.operation},
        },
        "spec": {
            **(spec.model_extra or {}),
            **priority,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline(order),
            "terminationGracePeriodSeconds": _GRACE,
            "serviceAccountName": section.service_account,
            "automountServiceAccountToken": False,
            "affinity": _on(order.node),
            "tolerations": [*_own_tolerations(order, taint), *spec.tolerations],
            "containers": [_container(section, order, gpus)],
        },
    }


def _container(section: JobSection, order: RepairOrder, gpus: int) -> dict[str, Any]:
    [given] = section.template.spec.containers or [{}]
    resources = dict(given.get("resources") or {})
    if gpus:
        for name in ("requests", "limits"):
            resources[name] = {**(resources.get(name) or {}), section.gpu_resource: gpus}
    security = {} if section.privileged else {"allowPrivilegeEscalation": False}
    security |= {**(given.get("securityContext") or {}), "privileged": section.privileged}
    return {
        **given,
        "name": CONTAINER,
        "image": section.image,
        "command": list(section.profiles[order.profile].command),
        "securityContext": security,
        "resources": resources,
        "terminationMessagePath": "/dev/termination-log",
        # Not FallbackToLogsOnError: a log's tail is no verdict, and logs are never read.
        "terminationMessagePolicy": "File",
    }


def _own_tolerations(order: RepairOrder, taint: str) -> list[dict[str, str]]:
    """Those of a node in quarantine, or that of the startup taint, whatever its effect; none for
    an idle node, whose test must not begin once it has one of these.
    """
    if order.idle_class:
        return []
    if order.tolerates:
        return [{"key": order.tolerates, "operator": "Exists"}]
    return [*map(_tolerated, sorted({TAINT, taint, _UNSCHEDULABLE}))]


def _tolerated(key: str) -> dict[str, str]:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def _on(node: str) -> dict[str, Any]:
    """By the scheduler: with spec.nodeName the kubelet refuses a pod that lacks a device, and DRA
    allocates nothing. By the Node's name: its hostname label may be another's.
    """
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": wanted}
