"""Disk probes in a child process: what may hang with a device hangs there and not in the agent."""

from nodeagent.sources.machine import Machine

__all__ = ["DiskProbe"]


class DiskProbe:
    """Runs statvfs and write probes in short-lived, exec'd children."""

    def __init__(self, *, machine: Machine, deadline: float = 10.0) -> None:
        self._machine = machine
        self._deadline = deadline

    async def close(self) -> None:
        """Leave no child behind."""
