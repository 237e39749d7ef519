"""Evictions in the API server's audit log."""

from tests.controlplane.plane import ControlPlane


def accepted_evictions(plane: ControlPlane, since: int, namespace: str = "") -> list[str]:
    """The pods ("namespace/name") whose eviction was answered with 2xx, in order; no dry run."""
    return [
        f"{entry['objectRef']['namespace']}/{entry['objectRef']['name']}"
        for entry in plane.audit_entries(since)
        if entry.get("objectRef", {}).get("subresource") == "eviction"
        and entry["verb"] == "create"
        and "dryRun=All" not in entry["requestURI"]
        and entry["responseStatus"]["code"] // 100 == 2
        and (not namespace or entry["objectRef"]["namespace"] == namespace)
    ]
