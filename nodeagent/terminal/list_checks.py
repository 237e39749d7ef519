"""``sickbay-agent checks``: all checks, which are on, why others are off, their cost and limits."""

import textwrap
from collections.abc import Sequence
from typing import Any

from nodeagent.config.checks import specs_of
from nodeagent.config.settings import Config
from nodeagent.local.findings import Findings
from nodeagent.terminal.report import WIDTH

_LABEL = 12


def entries(config: Config, findings: Findings) -> list[dict[str, Any]]:
    """An object per check, the agent's first, as ``checks -o json`` shows it.

    ``findings`` show why a check is off ("no GPU").
    """
    off = {check.name: check.off_because for check in findings.checks}
    return [
        {
            "name": spec.name,
            "on": not off.get(spec.name),
            "off_because": off.get(spec.name, ""),
            "interval_seconds": config.checks[spec.name].interval,
            "deadline_seconds": config.checks[spec.name].deadline,
            "sees": spec.sees,
            "source": spec.source,
            "cost": spec.cost,
            "blind_to": spec.blind_to,
        }
        for spec in specs_of(config)
    ]


def listing(checks: Sequence[dict[str, Any]]) -> str:
    """A paragraph per check."""
    return "\n\n".join(_paragraph(check) for check in checks)


def _paragraph(check: dict[str, Any]) -> str:
    if check["off_because"]:
        state = f"off: {check['off_because'].removeprefix('off ')}"
    elif check["interval_seconds"]:
        state = f"on, every {check['interval_seconds']:g} s"
    else:
        state = "on, as the kernel log comes"
    lines = [f"{check['name']}: {state}"]
    for label, key in (
        ("sees", "sees"),
        ("source", "source"),
        ("cost", "cost"),
        ("can't see", "blind_to"),
    ):
        wrapped = textwrap.wrap(str(check[key]), WIDTH - _LABEL) or [""]
        lines.append(f"  {label}".ljust(_LABEL) + wrapped[0])
        lines += [" " * _LABEL + line for line in wrapped[1:]]
    return "\n".join(lines)
