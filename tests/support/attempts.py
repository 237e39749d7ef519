"""The attempts at repairs as the real API server has them: Operations that have begun."""

from typing import Any

from aggregator.cluster.kubernetes import paths
from tests.controlplane.plane import ControlPlane


def attempts_of(plane: ControlPlane) -> dict[str, list[dict[str, Any]]]:
    """By the quarantine's uid, the oldest first: spec, status, and an attempt's own words."""
    found: dict[str, list[dict[str, Any]]] = {}
    operations = plane.call("GET", paths.OPERATIONS)["items"]
    for one in sorted(operations, key=lambda one: int(one.get("status", {}).get("number", 0))):
        spec, status = one["spec"], one.get("status", {})
        phase = status.get("phase", "Pending")
        if phase != "Pending":
            ident = status.get("operation") or one["metadata"]["name"]
            named = {"operation": ident, "repair": spec["kind"], "state": phase}
            found.setdefault(spec.get("quarantine", ""), []).append({**spec, **status, **named})
    return found
