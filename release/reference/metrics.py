"""docs/reference/metrics.md: every metric of the aggregator, by aggregator/web/metrics.yaml."""

from collections.abc import Mapping
from typing import Any

from aggregator.web.metric_families import declared
from release.reference.tables import table

_HEAD = """# Metrics of the aggregator
Made from the code by `make docs-reference`. [metrics.md](../metrics.md) groups them by question and
has the recorded series and alert rules; [agent.md](../agent.md#metrics) has the agent's.
"""


def page() -> str:
    """The page's Markdown."""
    body = sorted(_row(name, of) for name, of in declared().items())
    lines = [_HEAD, *table(("metric", "type", "labels", "meaning"), body)]
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, of: Mapping[str, Any]) -> tuple[str, str, str, str]:
    total = "_total" if of["type"] == "counter" else ""
    labels = ", ".join(f"`{one}`" for one in of.get("labels", ()))
    return f"`{name}{total}`", of["type"], labels, of["help"]
