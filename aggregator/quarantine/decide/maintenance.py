"""Detects other parties at work on a node, by the marks that they set themselves. Pure.

Such a node is theirs until the mark is gone: we begin no action and evict no pod meanwhile. One
mark forbids evictions alone. Their marks are never touched. An annotation that we have set
ourselves is no mark of another party.
"""

from aggregator.cluster.node_names import own_annotations
from aggregator.cluster.port import Node
from aggregator.quarantine.decide.mark_rules import DO_NOT_DISRUPT

_TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "the autoscaler is removing it",
    "karpenter.sh/disrupted": "Karpenter is removing it",
    "karpenter.sh/disruption": "Karpenter is removing it",
    "node.cloudprovider.kubernetes.io/shutdown": "the cloud has shut it down",
    "node.kubernetes.io/out-of-service": "it was declared out of service",
}
_EXCLUDED = "remediation.medik8s.io/exclude-from-remediation"
_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
#: States of that upgrade in which it does not work on the node (yet, or any more).
_NO_UPGRADE = ("", "unknown", "upgrade-required", "upgrade-done")
_MIG = "nvidia.com/mig.config.state"
#: States of NVIDIA's mig-manager in which it works on the node; the others are success and failed.
_MIG_CHANGES = ("pending", "rebooting")


def forbids_evictions(node: Node) -> str:
    """Why no pod of the node is to be evicted, although it may be cordoned; empty: pods may be.

    Karpenter's mark forbids voluntary disruption, and a NodePool's template gives it to all nodes.
    """
    theirs = node.annotations.get(DO_NOT_DISRUPT) == "true"
    if theirs and DO_NOT_DISRUPT not in own_annotations(node.annotations):
        return f"it is not to be disrupted (annotation {DO_NOT_DISRUPT})"
    return ""


def maintained_by(node: Node) -> str:
    """The party at work on the node, or that wants its work left there; empty without one."""
    for taint in node.taints:
        if taint.key in _TAINTS:
            return f"{_TAINTS[taint.key]} (taint {taint.key})"
    state = node.labels.get(_UPGRADE, "")
    if state not in _NO_UPGRADE:
        return f"its GPU driver is being upgraded ({_UPGRADE}={state})"
    state = node.labels.get(_MIG, "")
    if state in _MIG_CHANGES:
        return f"its MIG configuration is being changed ({_MIG}={state})"
    if node.labels.get(_EXCLUDED) == "true":
        return f"it is excluded from remediation (label {_EXCLUDED})"
    return ""
