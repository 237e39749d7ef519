"""Writes docs/reference, and the documents that the aggregator ships: `make docs-reference`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from release.reference import (
    agent_metrics,
    api,
    checks,
    commands,
    configuration,
    contract_bounds,
    events,
    measurements,
    metrics,
    quarantine,
    rules,
    schemas,
)
from release.tree import ROOT

FOLDER = ROOT / "docs" / "reference"
#: Of the documents that the aggregator ships.
_SHIPPED = {
    "aggregator.schema.json": ROOT / "aggregator" / "config",
    "openapi.json": ROOT / "aggregator" / "web",
}


def place(name: str) -> Path:
    """The one file of that name."""
    return _SHIPPED.get(name, FOLDER) / name


def files() -> Mapping[str, str]:
    """The content of each file by its name."""
    return {
        "agent-metrics.md": agent_metrics.page(),
        "agent.schema.json": _json(schemas.agent_schema()),
        "aggregator-configuration.md": configuration.page(),
        "aggregator.schema.json": _json(schemas.aggregator_schema()),
        "api-fields.md": api.page(),
        "checks.md": checks.page(),
        "commands.md": commands.page(),
        "contract-bounds.md": contract_bounds.page(),
        "events.md": events.page(),
        "measurements.md": measurements.page(),
        "metrics.md": metrics.page(),
        "openapi.json": _json(api.openapi()),
        "quarantine.md": quarantine.page(),
        "rules.md": rules.page(),
    }


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every file."""
    FOLDER.mkdir(exist_ok=True)
    for name, content in files().items():
        place(name).write_text(content, "utf-8")


if __name__ == "__main__":
    main()
