"""Nodes whose driver, kernel or settings differ from most of their pool, for the page. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from aggregator.policy import drift
from aggregator.web import models

_CODE = f"{drift.CHECK}:"


@dataclass(frozen=True, slots=True)
class DriftRow:
    """One fact that differs: its group (kernel, gpu, nic, nvme, sysctl), what it is, the nodes."""

    group: str
    message: str
    nodes: tuple[str, ...]


def drift_rows(found: Iterable[models.Incident]) -> list[DriftRow]:
    """By group and message, those of most nodes first."""
    rows: dict[tuple[str, str], list[str]] = {}
    for incident in found:
        for item in incident.evidence:
            if item.code.startswith(_CODE) and not item.over:
                key = item.code.removeprefix(_CODE), item.message
                rows.setdefault(key, []).append(incident.node)
    made = [
        DriftRow(group, message, tuple(dict.fromkeys(nodes)))
        for (group, message), nodes in rows.items()
    ]
    return sorted(made, key=lambda row: (-len(row.nodes), row.group, row.message))
