"""The facts of a node: versions and settings that are to be the same on all nodes of a pool.

Each fact is a short text. The values of kernel parameters that differ by design are left out, and
those that may be secrets are redacted.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import entries, read_small, small_text

SYSCTLS = (
    *("fs.inotify.max_user_instances", "fs.inotify.max_user_watches", "kernel.numa_balancing"),
    *("kernel.panic", "kernel.panic_on_oops", "kernel.pid_max", "net.core.rmem_max"),
    *("net.core.somaxconn", "net.core.wmem_max", "net.ipv4.neigh.default.gc_thresh3"),
    *("net.ipv4.tcp_congestion_control", "vm.max_map_count", "vm.nr_hugepages"),
    *("vm.overcommit_memory", "vm.swappiness", "vm.zone_reclaim_mode"),
)
_MOST_VALUE = 160
_MOST_COMMAND_LINE = 600

#: Parameters that name this machine's own disks, addresses and ids.
_OF_THIS_NODE = re.compile(
    r"(root|resume|ip|BOOT_IMAGE|initrd|hostname|systemd\.(machine_id|hostname)|rd\.luks\.\S+"
    r"|rd\.lvm\.\S+|rd\.md\.uuid|cryptdevice|nfsroot|BOOTIF|ostree|flatcar\.oem\.id|dm-mod\.\S+"
    r"|verity\.\S+|usrhash|mount\.usrhash|efi)"
)
_SECRET_NAME = re.compile(r"pass|secret|token|key|cred|auth|cookie", re.IGNORECASE)
#: A URL that may have a password or a token, and a long word of letters and digits.
_SECRET_URL = re.compile(r"://\S*[@?]")
_LONG_WORD = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9+/_=-]{20,}")


def command_line(text: str) -> str:
    """The kernel's command line, sorted, without this node's own values and without secrets.

    What comes after "--" is the init program's own.
    """
    words = sorted({_parameter(word) for word in f"{text} ".partition(" -- ")[0].split()})
    kept: list[str] = []
    for word in words:
        if sum(len(each) + 1 for each in kept) + len(word) > _MOST_COMMAND_LINE:
            return " ".join([*kept, f"(and {len(words) - len(kept)} more)"])
        kept.append(word)
    return " ".join(kept)


def _parameter(word: str) -> str:
    name, equals, value = word.partition("=")
    name = _clean(name, 64)
    if not equals:
        return "<redacted>" if _is_secret(name) else name
    if _OF_THIS_NODE.fullmatch(name):
        return f"{name}=<own>"
    if _SECRET_NAME.search(name) or _is_secret(value):
        return f"{name}=<redacted>"
    return f"{name}={_clean(value)}"


def _is_secret(value: str) -> bool:
    if "://" in value:
        return _SECRET_URL.search(value) is not None
    return any(map(_LONG_WORD.fullmatch, re.split(r"[^A-Za-z0-9+/_=-]+", value)))


def kernel(machine: HostRoots) -> dict[str, str]:
    facts = {
        "release": small_text(machine.proc / "sys/kernel/osrelease"),
        "command line": command_line(small_text(machine.proc / "cmdline")),
    }
    return {name: value for name, value in facts.items() if value}


def sysctls(machine: HostRoots) -> dict[str, str]:
    """The listed sysctls, the transparent huge pages and the governor of the first CPU."""
    facts = {each: read_small(machine.proc / "sys" / each.replace(".", "/")) for each in SYSCTLS}
    pages = small_text(machine.sys / "kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", pages)
    facts["transparent_hugepage"] = chosen[1] if chosen else None
    facts["cpu governor"] = read_small(
        machine.sys / "devices/system/cpu/cpufreq/policy0/scaling_governor"
    )
    return {name: _clean(value) for name, value in facts.items() if value}


def adapters(machine: HostRoots) -> dict[str, str]:
    """The firmware of network adapters by their board, from ``/sys/class/infiniband``."""
    return _firmware(machine.sys / "class/infiniband", "board_id", "fw_ver")


def drives(machine: HostRoots) -> dict[str, str]:
    """The firmware of NVMe drives by their model."""
    return _firmware(machine.sys / "class/nvme", "model", "firmware_rev")


def gpus(sample: GpuSample, driver: str) -> dict[str, str]:
    """The driver, and by model the VBIOS and modes of the GPUs."""
    facts = {"driver": driver or sample.driver}
    for model in sorted({gpu.name for gpu in sample.gpus if gpu.name}):
        ours = [gpu for gpu in sample.gpus if gpu.name == model]
        for name, values in _GPU_FACTS.items():
            facts[f"{model} {name}"] = _all_of(map(values, ours))
    return {_clean(name): value for name, value in facts.items() if value}


def _switch(state: bool | None) -> str:  # noqa: FBT001 - a value, not an option
    return {None: "", True: "on", False: "off"}[state]


_GPU_FACTS = {
    "VBIOS": lambda gpu: gpu.vbios,
    "persistence": lambda gpu: _switch(gpu.limits.persistence),
    "ECC": lambda gpu: _switch(None if gpu.ecc_mode is None else gpu.ecc_mode.enabled),
    "MIG": lambda gpu: _switch(None if gpu.mig is None else gpu.mig.enabled),
}


def _firmware(folder: Path, kind: str, version: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for device in entries(folder):
        if not (device / "device/physfn").exists() and (value := read_small(device / version)):
            found.setdefault(_clean(small_text(device / kind)) or "firmware", []).append(value)
    return {name: _all_of(values) for name, values in found.items()}


def _all_of(values: Iterable[str]) -> str:
    return _clean(", ".join(sorted({value for value in values if value})))


def _clean(text: str, most: int = _MOST_VALUE) -> str:
    """Printable, short, and without the characters that separate facts."""
    return "".join(each if each.isprintable() and each != ";" else " " for each in text)[
        :most
    ].strip()


def to_text(facts: Mapping[str, str], most: int) -> str:
    """``name: value`` pairs in at most ``most`` bytes; facts without room are left out."""
    kept: list[str] = []
    size = 0
    for name, value in facts.items():
        pair = f"{name}: {value}"
        size += len(pair.encode()) + 2
        if size <= most:
            kept.append(pair)
    return "; ".join(kept)
