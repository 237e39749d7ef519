"""The devices of each device plugin and the pods that have them, by the kubelet's own record.

The kubelet's device manager keeps the healthy devices of every resource in its checkpoint
(pkg/kubelet/cm/devicemanager, ``writeCheckpoint``); a resource whose plugin is gone, or whose
devices are all unhealthy, keeps its name with an empty list.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from nodeagent.sources.host import HostRoots

PODS = "/var/lib/kubelet/pods"
#: Of a pod of the API server, or of a static pod (a digest).
_UID = re.compile(r"[0-9a-f][0-9a-f-]{7,63}")
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
#: A few hundred bytes for each container with a device.
_MOST_BYTES = 4 << 20
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


class DevicesUnknown(Exception):
    """There is a record of devices that can't be understood; the text states why."""


def healthy_devices(machine: HostRoots, vendor: str) -> dict[str, int]:
    """How many healthy devices each resource of ``vendor`` ("nvidia.com") has.

    Where some are named as GPUs only these count: NVIDIA's network adapters ("nvidia.com/hostdev")
    have its name too. Empty where there is no kubelet, no such resource, or a checkpoint that
    cannot be understood.
    """
    try:
        with machine.host(CHECKPOINT).open("rb") as file:
            resources = json.loads(file.read(_MOST_BYTES))["Data"]["RegisteredDevices"]
        found = {
            str(name)[:128]: len(devices)
            for name, devices in resources.items()
            if name.startswith(f"{vendor}/")
        }
    except _UNREADABLE:
        return {}
    gpus = tuple(f"{vendor}/{kind}" for kind in ("gpu", "mig-"))
    return {name: count for name, count in found.items() if name.startswith(gpus)} or found


def pods_with_devices(machine: HostRoots, vendor: str) -> list[str]:
    """UIDs of the pods on this node to which the kubelet has allocated a device of ``vendor``.

    The record keeps a pod that has ended until the next allocation, so a pod counts only while the
    kubelet has its folder. Empty where there is no kubelet. Raises DevicesUnknown: a record that
    can't be understood must not read as "no device is allocated".
    """
    try:
        pods = {
            str(entry["PodUID"])
            for entry in _entries(machine)
            if str(entry["ResourceName"]).startswith(f"{vendor}/") and entry["DeviceIDs"]
        }
    except (FileNotFoundError, NotADirectoryError):
        return []
    except _UNREADABLE as error:
        why = f"{type(error).__name__}: {error}"
        raise DevicesUnknown(f"the kubelet's record {CHECKPOINT} can't be read ({why})") from error
    return sorted(uid for uid in pods if _is_here(machine, uid))


def uids_by_device(machine: HostRoots) -> dict[tuple[str, str], frozenset[str]]:
    """By container and device id, the UIDs of the pods that have it and are on this node."""
    found: dict[tuple[str, str], set[str]] = {}
    try:
        for entry in _entries(machine):
            ids = entry["DeviceIDs"]
            # By NUMA node; a list in kubelets before 1.20.
            for one in ids if isinstance(ids, list) else [x for part in ids.values() for x in part]:
                device = str(entry["ContainerName"]), str(one)
                found.setdefault(device, set()).add(str(entry["PodUID"]))
    except _UNREADABLE:
        return {}
    here = {uid: _is_here(machine, uid) for uids in found.values() for uid in uids}
    return {device: frozenset(uid for uid in uids if here[uid]) for device, uids in found.items()}


def _entries(machine: HostRoots) -> Iterator[Any]:
    """The allocations of the record, unchecked; raises `_UNREADABLE`."""
    with machine.host(CHECKPOINT).open("rb") as file:
        yield from json.loads(file.read(_MOST_BYTES))["Data"]["PodDeviceEntries"] or ()


def _is_here(machine: HostRoots, uid: str) -> bool:
    return _UID.fullmatch(uid) is not None and machine.host(f"{PODS}/{uid}").is_dir()
