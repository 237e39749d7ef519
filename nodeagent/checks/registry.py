"""All checks, in the order in which people read about them.

A new check is one file, one line here, one test; `make docs-reference` writes the table.
"""

import json
from typing import Any

from nodeagent.checks import (
    clock,
    container_runtime,
    disk_ext4,
    disk_md,
    disk_mounts,
    disk_nvme,
    disk_readonly,
    disk_space,
    disk_write,
    dns,
    drift,
    gpu_clocks,
    gpu_driver,
    gpu_ecc,
    gpu_events,
    gpu_fabric,
    gpu_fabric_manager,
    gpu_inforom,
    gpu_inventory,
    gpu_nvlink,
    gpu_pages,
    gpu_pcie,
    gpu_recovery,
    gpu_rows,
    gpu_settings,
    gpu_thermal,
    infiniband,
    kubelet,
    maintenance,
    memory,
    net_tables,
    nic_health,
    nic_link,
    optics,
    pcie_link,
    peers,
    pod_network,
    pressure,
    processes,
    reach,
    reboot,
    sxid,
    xid,
)
from nodeagent.checks.base import CheckSpec, Kind
from nodeagent.checks.kernel_lines import SPECS as LINES

SPECS: tuple[CheckSpec, ...] = (
    gpu_inventory.SPEC,
    gpu_driver.SPEC,
    gpu_ecc.SPEC,
    gpu_rows.SPEC,
    gpu_pages.SPEC,
    gpu_recovery.SPEC,
    gpu_nvlink.SPEC,
    gpu_fabric.SPEC,
    gpu_fabric_manager.SPEC,
    gpu_pcie.SPEC,
    gpu_clocks.SPEC,
    gpu_thermal.SPEC,
    gpu_settings.SPEC,
    gpu_inforom.SPEC,
    gpu_events.SPEC,
    xid.SPEC,
    sxid.SPEC,
    LINES["nvidia-driver"],
    LINES["machine-check"],
    LINES["pcie-aer"],
    LINES["pci-device"],
    LINES["iommu"],
    LINES["cpu-thermal"],
    pcie_link.SPEC,
    disk_space.SPEC,
    disk_mounts.SPEC,
    disk_readonly.SPEC,
    disk_write.SPEC,
    LINES["disk-io"],
    disk_ext4.SPEC,
    disk_nvme.SPEC,
    disk_md.SPEC,
    LINES["file-server"],
    nic_link.SPEC,
    nic_health.SPEC,
    optics.SPEC,
    LINES["nic-driver"],
    infiniband.SPEC,
    reach.SPEC,
    peers.SPEC,
    dns.SPEC,
    net_tables.SPEC,
    pod_network.SPEC,
    clock.SPEC,
    memory.SPEC,
    pressure.SPEC,
    LINES["oom"],
    LINES["hung-task"],
    LINES["kernel-oops"],
    LINES["kernel-limits"],
    processes.SPEC,
    kubelet.SPEC,
    container_runtime.SPEC,
    reboot.SPEC,
    maintenance.SPEC,
    drift.SPEC,
)


def by_name() -> dict[str, CheckSpec]:
    return {spec.name: spec for spec in SPECS}


def markdown() -> str:
    """The checks as docs/reference/checks.md shows them: a table, then each check's settings."""
    lines = [
        "| check | sees | source | every | cost | can't see |",
        "|---|---|---|---|---|---|",
    ]
    for spec in SPECS:
        every = written(Kind.DURATION, spec.interval) if spec.interval else "as it is logged"
        on = "" if spec.on else " (off by default)"
        name = f"[`{spec.name}`](#{spec.name}){on}"
        lines.append(_row(name, spec.sees, spec.source, every, spec.cost, spec.blind_to))
    for spec in SPECS:
        lines += ["", f"## {spec.name}", "", f"Settings under `[checks.{spec.name}]`:", ""]
        lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
        lines += [_row(f"`{key}`", *cells) for key, *cells in _settings(spec)]
    return "\n".join(lines) + "\n"


def written(kind: Kind, value: Any) -> str:
    """The value as a configuration file has it."""
    match kind:
        case Kind.DURATION:
            return f'"{value:g}s"'
        case Kind.PERCENT:
            return f'"{value:g}%"'
        case Kind.SIZE:
            power = max(n for n in range(6) if value % 1024**n == 0) if value else 0
            return f'"{value // 1024**power}{("", "Ki", "Mi", "Gi", "Ti", "Pi")[power]}B"'
        case _:
            return json.dumps(value)


def _settings(spec: CheckSpec) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, Kind, Any, str]] = [("on", Kind.FLAG, spec.on, "whether it runs")]
    if spec.interval:
        rows.append(("interval", Kind.DURATION, spec.interval, "between two runs, jittered"))
        rows.append(("deadline", Kind.DURATION, spec.deadline, "a longer run is reported as hung"))
    rows += [(each.name, each.kind, each.default, each.help) for each in spec.options]
    return [
        (name, kind.value, f"`{written(kind, value)}`", about) for name, kind, value, about in rows
    ]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
