"""NVML through a worker process: the agent never calls the driver itself."""

from collections.abc import Mapping

from nodeagent.sources.gpusample import GpuSample, NvmlTrouble, TroubleKind
from nodeagent.sources.machine import Machine

__all__ = ["GpuSample", "Nvml", "NvmlTrouble", "TroubleKind"]


class Nvml:
    """What NVML says, shared by all GPU checks."""

    def __init__(
        self,
        *,
        machine: Machine,
        library: str | None = None,
        deadline: float = 10.0,
        worker_env: Mapping[str, str] | None = None,
    ) -> None:
        self._machine = machine
        self._library = library
        self._deadline = deadline
        self._worker_env = worker_env

    async def sample(self) -> GpuSample:
        trouble = NvmlTrouble(TroubleKind.NO_LIBRARY, "NVML library not found")
        return GpuSample(self._machine.clock.boottime(), trouble=trouble)

    async def close(self) -> None:
        """End the worker."""
