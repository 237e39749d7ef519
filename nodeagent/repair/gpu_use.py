"""Whether a GPU of this node is in use: given to a pod by the kubelet, or open in a process."""

from collections.abc import Collection

from nodeagent.config.settings import RepairConfig
from nodeagent.dataclass import dataclass
from nodeagent.repair.pod_gpu import PodGpus
from nodeagent.sources.gpu_users import GpuUsersUnknown, gpu_users
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kubelet_devices import DevicesUnknown, pods_with_devices

__all__ = ["MONITORS", "GpuUse", "allocated_gpus", "find_gpu_use"]

#: Programs that have GPUs open only to observe or offer them. A restart of the machine interrupts
#: no work of theirs; a reset needs them gone.
MONITORS = (
    "nvidia-device-plugin",
    "gpu-kubelet-plugin",
    "gpu-feature-discovery",
    "nv-hostengine",
    "dcgm-exporter",
)
_MOST_NAMED = 5


_NOT_REQUESTED = PodGpus()


@dataclass(frozen=True, slots=True)
class GpuUse:
    """``users``: the first few, in words. ``unknown``: why it can't be seen, or empty.

    ``pods``: which pod uses which GPU, where it was requested.
    """

    users: tuple[str, ...] = ()
    unknown: str = ""
    pods: PodGpus = _NOT_REQUESTED


def allocated_gpus(machine: HostRoots) -> GpuUse:
    """The pods to which the kubelet has given a GPU, which they may open now."""
    try:
        pods = pods_with_devices(machine, "nvidia.com")
    except DevicesUnknown as error:
        return GpuUse(unknown=str(error))
    if not pods:
        return GpuUse()
    named = ", ".join(pods[:_MOST_NAMED])
    return GpuUse((f"the kubelet has GPUs allocated to pod {named}",))


def find_gpu_use(
    machine: HostRoots,
    config: RepairConfig,
    *,
    children_of: int = 0,
    leave_out: Collection[str] = (),
    killed: bool = True,
) -> GpuUse:
    """As in `gpu_users`; ``leave_out`` names programs beyond those of the configuration."""
    allocated = allocated_gpus(machine)
    if allocated.users or allocated.unknown:
        return allocated
    try:
        users = gpu_users(
            machine,
            leave_out=(*config.gpu_daemons, *leave_out),
            children_of=children_of,
            own_namespace=config.insecure_own_pid_namespace,
            killed=killed,
        )
    except GpuUsersUnknown as error:
        return GpuUse(unknown=str(error))
    except OSError as error:
        return GpuUse(unknown=f"{machine.proc} cannot be read: {error}")
    return GpuUse(tuple(str(user) for user in users[:_MOST_NAMED]))
