"""The evidence about the node before an act that may destroy it: for a ticket, and for a person.

Bounded in bytes and in time. A part that cannot be read is replaced by a sentence with the reason.
"""

import dataclasses
import json
import os
import stat
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nodeagent.active_tests.host import HostPrograms
from nodeagent.config.settings import RepairConfig
from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.host import HostRoots
from nodeagent.version import VERSION
from sickbay.v1.limits import MAX_EVIDENCE_BYTES

__all__ = ["QUERY", "bounded", "collect", "gpus", "kernel_lines"]

#: Fields that every driver since 418 has: one unknown field makes nvidia-smi refuse all.
QUERY = "index,uuid,serial,pci.bus_id,name,vbios_version,driver_version,persistence_mode"
_SMI_LIMIT = 30.0
_KERNEL_RECORDS = 400
_LONGEST = 500
_TAIL = 128 * 1024
#: The ring has some 10,000 records at most; a node that logs faster than we read must not hold us.
_MOST_READS = 50_000
_DMI = ("sys_vendor", "product_name", "product_serial", "product_uuid", "bios_version")


async def collect(
    *,
    machine: HostRoots,
    programs: HostPrograms,
    config: RepairConfig,
    sample: GpuSample | None,
    node: str,
    boot_id: str,
    wall: str,
    kernel_log: Path | None,
    latched: Sequence[Mapping[str, object]] = (),
) -> str:
    """A JSON object of at most `MAX_EVIDENCE_BYTES`. Raises nothing."""
    system = os.uname()
    found: dict[str, Any] = {
        "node": node,
        "boot_id": boot_id,
        "at": wall,
        "agent": VERSION,
        "kernel": f"{system.release} {system.version}",
        "machine": {name: _read(machine.sys / "class/dmi/id" / name) for name in _DMI},
        "gpus": await gpus(programs, config),
        "nvml": _sample(sample),
        "faults": list(latched),
        "kernel_log": [] if kernel_log is None else kernel_lines(kernel_log),
    }
    return bounded(found)


async def gpus(programs: HostPrograms, config: RepairConfig) -> list[dict[str, str]] | str:
    """Rows of nvidia-smi by field name, or why there are none."""
    if programs.find(str(config.nvidia_smi), config.driver_root) is None:
        return f"there is no {config.nvidia_smi} below {config.driver_root} of the host"
    ended = await programs.run(
        [str(config.nvidia_smi), f"--query-gpu={QUERY}", "--format=csv,noheader"],
        limit=_SMI_LIMIT,
        below=config.driver_root,
    )
    exit_code = getattr(ended, "exit", None)
    if exit_code != 0:
        return f"nvidia-smi gave no list: {ended}"[:1000]
    names = QUERY.split(",")
    rows = []
    for line in getattr(ended, "out", "").splitlines()[:256]:
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(names):
            rows.append(dict(zip(names, values, strict=True)))
    return rows


def bounded(found: dict[str, Any], most: int = MAX_EVIDENCE_BYTES) -> str:
    """As JSON. Of too much the oldest kernel lines go first, then NVML's details, then the rest."""
    found = dict(found)
    text = _dump(found)
    lines = list(found.get("kernel_log") or ())
    while len(text) > most and lines:
        # Half of it at a time: a line for each encoding would be quadratic.
        lines = lines[(len(lines) + 1) // 2 :]
        found["kernel_log"] = lines
        text = _dump(found)
    for name in ("nvml", "faults", "gpus"):
        if len(text) > most:
            found[name] = "left out: too long"
            text = _dump(found)
    if len(text) > most:
        text = _dump({"left_out": "the evidence is longer than its bound"})
    return text


def _dump(found: Mapping[str, Any]) -> str:
    # ASCII: a character is a byte, so that the length of the text is its length on the wire.
    return json.dumps(found, separators=(",", ":"), default=str)


def _sample(sample: GpuSample | None) -> Any:
    if sample is None:
        return "not requested"
    return dataclasses.asdict(sample)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()[:200]
    except OSError:
        return ""


def kernel_lines(path: Path) -> list[str]:
    """The latest records of the kernel's ring. Not from a FIFO, whose lines are the agent's."""
    kept: deque[str] = deque(maxlen=_KERNEL_RECORDS)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return [f"{path} cannot be opened: {error.strerror}"]
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            size = os.fstat(fd).st_size
            text = os.pread(fd, _TAIL, max(0, size - _TAIL))
            kept.extend(text.decode("utf-8", "replace").splitlines())
        elif stat.S_ISCHR(mode):
            _read_ring(fd, kept)
        else:
            return [f"{path} is neither a device nor a file"]
    except OSError as error:
        kept.append(f"{path} cannot be read: {error.strerror}")
    finally:
        os.close(fd)
    return [line[:_LONGEST] for line in kept]


def _read_ring(fd: int, kept: "deque[str]") -> None:
    for _ in range(_MOST_READS):
        try:
            record = os.read(fd, 16384)
        except BlockingIOError:
            return  # all of it was read
        except BrokenPipeError:
            continue  # records were overwritten meanwhile; the next read continues after them
        if not record:
            return
        kept.append(record.split(b"\n", 1)[0].decode("utf-8", "replace"))
