"""The healthy devices of each device plugin, by the kubelet's own record of them.

The kubelet's device manager keeps the healthy devices of every resource in its checkpoint
(pkg/kubelet/cm/devicemanager, ``writeCheckpoint``); a resource whose plugin is gone, or whose
devices are all unhealthy, keeps its name with an empty list.
"""

import json

from nodeagent.sources.host import HostRoots

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
