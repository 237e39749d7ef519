"""Which pod uses which GPU, as the agent reports it."""

from nodeagent.dataclass import dataclass

__all__ = ["PodGpu", "PodGpus"]


@dataclass(frozen=True, slots=True)
class PodGpu:
    """As the message of this name. ``gpu`` keeps a plugin's mark of a share ("GPU-1::3")."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    gpu: str
    claim: str = ""
    allocated: bool = True
    processes: int = 0


@dataclass(frozen=True, slots=True)
class PodGpus:
    """``unknown``: why allocations are missing; ``processes_unknown``: why processes are."""

    pods: tuple[PodGpu, ...] = ()
    unknown: str = ""
    processes_unknown: str = ""
