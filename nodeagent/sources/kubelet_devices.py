"""The devices of each device plugin and the pods that have them, by the kubelet's own record.

The kubelet's device manager keeps the healthy devices of every resource in its checkpoint
(pkg/kubelet/cm/devicemanager, ``writeCheckpoint``); a resource whose plugin is gone, or whose
devices are all unhealthy, keeps its name with an empty list.
"""

import json
import re

from nodeagent.sources.host import HostRoots

PODS = "/var/lib/kubelet/pods"
#: Of a pod of the API server, or of a static pod (a digest).
_UID = re.compile(r"[0-9a-f][0-9a-f-]{7,63}")
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
#: A few hundred bytes for each container with a device.
_MOST_BYTES = 4 << 20


def healthy_devices(machine: HostRoots, vendor: str) -> dict[str, int]:
    """How many healthy devices each resource of ``vendor`` ("nvidia.com") has.

    Empty where there is no kubelet, no such resource, or a checkpoint that cannot be understood.
    """
    try:
        with machine.host(CHECKPOINT).open("rb") as file:
            resources = json.loads(file.read(_MOST_BYTES))["Data"]["RegisteredDevices"]
        return {
            str(name)[:128]: len(devices)
            for name, devices in resources.items()
            if name.startswith(f"{vendor}/")
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def pods_with_devices(machine: HostRoots, vendor: str) -> list[str]:
    """UIDs of the pods on this node to which the kubelet has allocated a device of ``vendor``.

    The record keeps a pod that has ended until the next allocation, so a pod counts only while the
    kubelet has its folder. Empty where there is no kubelet.
    """
    try:
        with machine.host(CHECKPOINT).open("rb") as file:
            entries = json.loads(file.read(_MOST_BYTES))["Data"]["PodDeviceEntries"]
        pods = {
            str(entry["PodUID"])
            for entry in entries or ()
            if str(entry["ResourceName"]).startswith(f"{vendor}/") and entry["DeviceIDs"]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return sorted(uid for uid in pods if _UID.fullmatch(uid) and _has_folder(machine, uid))


def _has_folder(machine: HostRoots, uid: str) -> bool:
    return machine.host(f"{PODS}/{uid}").is_dir()
