"""Every check that exists, in the order in which people read about them.

A new check is one file, one line here, one test; ``python -m nodeagent.checks.registry`` prints
the table for docs/checks.md.
"""

import sys

from nodeagent.checks import (
    disk_readonly,
    disk_space,
    disk_write,
    gpu_ecc,
    gpu_inventory,
    gpu_recovery,
    gpu_rows,
    nic_link,
    reach,
    sxid,
    xid,
)
from nodeagent.checks.base import CheckSpec

SPECS: tuple[CheckSpec, ...] = (
    gpu_inventory.SPEC,
    gpu_ecc.SPEC,
    gpu_rows.SPEC,
    gpu_recovery.SPEC,
    xid.SPEC,
    sxid.SPEC,
    disk_space.SPEC,
    disk_readonly.SPEC,
    disk_write.SPEC,
    nic_link.SPEC,
    reach.SPEC,
)


def by_name() -> dict[str, CheckSpec]:
    return {spec.name: spec for spec in SPECS}


def markdown() -> str:
    """The checks as docs/checks.md shows them: a table, then each check's options."""
    lines = [
        "| check | sees | source | every | cost | can't see |",
        "|---|---|---|---|---|---|",
    ]
    for spec in SPECS:
        every = f"{spec.interval:g} s" if spec.interval else "as it is logged"
        on = "" if spec.on else " (off by default)"
        cells = (f"`{spec.name}`{on}", spec.sees, spec.source, every, spec.cost, spec.blind_to)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
