"""Which conditions of a Node sickbay has written for other tools: an annotation records them. Pure.

A Node's conditions name no author. One is ours where the record has its type for this installation,
and its status and reason are still those that were written.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

#: Written in the same request as the conditions.
CONDITIONS = "sickbay.dev/conditions"


class WrittenCondition(NamedTuple):
    """A condition as an installation last wrote it."""

    status: str
    reason: str
    installation: str


def read_written(annotations: Mapping[str, str]) -> dict[str, WrittenCondition]:
    """Those of all installations, by type. An unreadable annotation counts as none."""
    try:
        data = json.loads(annotations.get(CONDITIONS) or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {
        kind: WrittenCondition(*one)
        for kind, one in data.items()
        if isinstance(one, list) and len(one) == 3 and all(isinstance(text, str) for text in one)
    }


def record_written(written: Mapping[str, WrittenCondition]) -> str | None:
    """The annotation that `read_written` reads, or None where there is nothing to record."""
    if not written:
        return None
    return json.dumps({kind: list(one) for kind, one in written.items()}, sort_keys=True)
