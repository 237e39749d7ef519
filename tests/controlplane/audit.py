"""Reads the API server's audit log: which clients asked for which things, and how often."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

POLICY_FILE = Path(__file__).with_name("audit-policy.yaml")


def read_entries(log: Path, since: int = 0) -> list[dict[str, Any]]:
    """The audit events (audit.k8s.io/v1 Event) behind byte `since`, one for each request.

    A watch is there as soon as it has begun. A line that is still being written is left out, and
    so is the rest of one that was, at ``since``.
    """
    entries: dict[str, dict[str, Any]] = {}
    with log.open("rb") as file:
        if since:
            file.seek(since - 1)
            if not file.readline().endswith(b"\n"):
                return []  # its end may be there a moment later, and would pass for a line
        for line in file:
            if line.endswith(b"\n"):
                entry = json.loads(line)
                # A long request has two stages, ResponseStarted and ResponseComplete.
                entries[entry["auditID"]] = entry
    return list(entries.values())


def by_user_and_verb(entries: Iterable[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """How many requests each user made with each verb (get, list, watch, create, patch, ...)."""
    return Counter((entry["user"]["username"], entry["verb"]) for entry in entries)
