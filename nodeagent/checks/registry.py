"""All checks, in the order in which people read about them.

A new check is one file, one line here, one test; `make docs-reference` writes the table.
"""

import json
from types import ModuleType
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

#: Modules that have a check, and the checks of `kernel_lines` by name.
_ORDER: tuple[ModuleType | str, ...] = (
    *(gpu_inventory, gpu_driver, gpu_ecc, gpu_rows, gpu_pages, gpu_recovery, gpu_nvlink),
    *(gpu_fabric, gpu_fabric_manager, gpu_pcie, gpu_clocks, gpu_thermal, gpu_settings),
    *(gpu_inforom, gpu_events, xid, sxid, "nvidia-driver", "machine-check", "pcie-aer"),
    *("pci-device", "iommu", "cpu-thermal", pcie_link, disk_space, disk_mounts, disk_readonly),
    *(disk_write, "disk-io", disk_ext4, disk_nvme, disk_md, "file-server", nic_link),
    *(nic_health, optics, "nic-driver", infiniband, reach, peers, dns, net_tables),
    *(pod_network, clock, memory, pressure, "oom", "hung-task", "kernel-oops"),
    *("kernel-limits", processes, kubelet, container_runtime, reboot, maintenance, drift),
)
SPECS: tuple[CheckSpec, ...] = tuple(
    LINES[each] if isinstance(each, str) else each.SPEC for each in _ORDER
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
