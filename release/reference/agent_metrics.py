"""docs/reference/agent-metrics.md: every metric of the agent, as a scrape describes it."""

import re
from collections.abc import Iterator
from typing import cast

from nodeagent.checks.base import Check
from nodeagent.config.reload import ConfigState
from nodeagent.evidence.latch import Latch
from nodeagent.kernel_feed import Tally
from nodeagent.local.render import About, metrics
from nodeagent.model import FaultSighting, Observation, Status
from nodeagent.scheduler import Scheduled
from release.reference.tables import table

_HEAD = """# Metrics of the agent
Made from the code by `make docs-reference`. [agent.md](../agent.md#metrics) explains where.
"""


def page() -> str:
    """The page's Markdown."""
    lines = [_HEAD, *table(("metric", "type", "labels", "meaning"), _rows(_scrape()))]
    return "\n".join(lines).rstrip() + "\n"


def _scrape() -> str:
    """The text of an agent with one component, one fault and one check."""
    latch = Latch(boot_id="boot", epoch="epoch")
    seen = Observation("memory", "", Status.OK)
    fault = FaultSighting("xid:79", "xid", "GPU-1", "", "kmsg", 1, 0.0)
    latch.apply([seen, fault], 0.0)
    check = Scheduled("memory", cast("Check", None), 60.0, 5.0, runs=1, last_success=0.0)
    about = About(
        node="node",
        version="0.1.0",
        uptime=0.0,
        uplink={},
        state_problem="",
        kernel_records=0,
        kernel_seconds=0.0,
        log_checks={"xid": Tally()},
        quiesced_for=0.0,
        config=ConfigState(),
    )
    return metrics(latch, [check], about, 0.0)


def _rows(scrape: str) -> Iterator[tuple[str, str, str, str]]:
    for name, meaning, kind, rest in re.findall(
        r"^# HELP (\w+) (.*)\n# TYPE \w+ (\w+)\n((?:[^#\n].*\n?)*)", scrape, re.MULTILINE
    ):
        sample = re.match(rf"{name}\{{(.*?)\}} ", rest)
        labels = re.findall(r'(\w+)="', sample[1]) if sample is not None else []
        yield f"`{name}`", kind, ", ".join(f"`{one}`" for one in labels), meaning
