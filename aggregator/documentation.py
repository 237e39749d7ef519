"""The section of the documentation for each alert, hold and common cause. Pure.

A path is that of a file in the tree, "docs/holds.md#stop". The same path leads to the section on a
code host and on the built site, behind the address that `documentation_url` gives.
"""

import re

_HELD = "quarantine.held"
_ALERTS = "docs/alert-kinds.md"
_HOLDS = "docs/holds.md"

#: Every hold by the name of its limit; each has a section in docs/holds.md.
HOLDS = frozenset(
    {
        "eviction",
        "exempt",
        "fabric",
        "fabric-follower",
        "installation",
        "limits.after_upgrade",
        "limits.clique_label",
        "limits.common_cause_nodes",
        "limits.common_cause_percent",
        "limits.concurrent",
        "limits.concurrent_percent",
        "limits.cooldown",
        "limits.domain_percent",
        "limits.fabric_hold",
        "limits.new_per_window",
        "limits.new_per_window_percent",
        "limits.pool_percent",
        "limits.quorum_percent",
        "maintenance",
        "mode",
        "no-node",
        "pools",
        "pools.limits.concurrent",
        "pools.limits.concurrent_percent",
        "pools.limits.new_per_window",
        "record",
        "repair",
        "repair.attempts",
        "repair.concurrent",
        "repair.concurrent_percent",
        "repair.domain",
        "repair.idle_nodes.concurrent",
        "repair.idle_nodes.concurrent_percent",
        "repair.new_nodes.concurrent",
        "repair.pool_concurrent",
        "repair.refused",
        "repair.window",
        "stale-mark",
        "stop",
        "unread-status",
    }
)
#: Those of them that hold a node. The others hold a repair.
NODE_HOLDS = frozenset(one for one in HOLDS if one.partition(".")[0] != "repair")
_CAUSES = {
    "agents": "docs/alert-kinds.md#agentsilent",
    "network": "docs/network.md",
}
#: Alerts that are no transition.
_TESTS = {"sickbay.test": "docs/alerts.md#test-a-route"}
_NOT_IN_ANCHOR = re.compile(r"[^\w-]")


def of_alert(kind: str, limit: str = "") -> str:
    """The section for an alert of this kind; for one about a hold that of its ``limit``."""
    if kind == _HELD and limit in HOLDS:
        return of_hold(limit)
    return _TESTS.get(kind, f"{_ALERTS}#{_anchor(kind)}")


def of_hold(limit: str) -> str:
    """The section for this hold, or the page of all for one that this version doesn't know."""
    return f"{_HOLDS}#{_anchor(limit)}" if limit in HOLDS else _HOLDS


def of_cause(scope: str) -> str:
    """The section for a common cause of this scope."""
    return _CAUSES.get(scope, "docs/limits.md#common-causes")


def address(base: str, path: str) -> str:
    """The path behind the address of the documentation; the path alone without an address."""
    return f"{base.rstrip('/')}/{path}" if base else path


def _anchor(heading: str) -> str:
    """The anchor that code hosts give to a heading without blanks or capitals."""
    return _NOT_IN_ANCHOR.sub("", heading)
