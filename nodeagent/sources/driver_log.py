"""The NVIDIA driver's kernel log messages that the checks of the GPUs must know.

A load of the driver is a sign that faults which a reset of a GPU ends are over: no part of the
GPU's running state survives it. An Xid that the log has reported need not be reported by NVML once
more. The log's check writes both down here.
"""

import math

#: The fault of a GPU that did not start, which is over once the GPU gives values.
INIT_FAILED = "nvidia-driver:init-failed"
#: Xids remembered, by GPU and code; the oldest are forgotten first.
_MOST = 1024


class DriverLog:
    """``loaded_at``: boottime seconds of the latest load; minus infinity when none was seen."""

    def __init__(self) -> None:
        self.loaded_at = -math.inf
        #: UUIDs for which the driver requested a reset, and not yet no action again.
        self.wanted: set[str] = set()
        self._erred: set[str] = set()
        #: By address: when the driver last failed to start a GPU.
        self._not_started: dict[str, float] = {}
        self._logged: dict[tuple[str, int], float] = {}

    def loaded(self, at: float) -> None:
        """The driver was loaded ``at`` (boottime seconds)."""
        if at > self.loaded_at:
            self.loaded_at = at
            self._erred.clear()

    def erred(self, address: str) -> None:
        """The driver reports an error of the GPU at ``address`` ("0000:3b:00")."""
        self._erred.add(address)

    def failed_to_start(self, address: str, at: float) -> None:
        """The driver could not start the GPU at ``address``, as was read ``at``."""
        self.erred(address)
        self._not_started[address] = at

    def take_start(self, address: str, at: float) -> bool:
        """The GPU answers ``at``. Whether it had failed to start before, which is over now."""
        failed = self._not_started.get(address, math.inf) < at
        if failed:
            del self._not_started[address]
        return failed

    def xid(self, address: str, code: int, at: float) -> None:
        """The log has an Xid of that GPU, stamped ``at``."""
        self._logged.pop((address, code), None)
        self._logged[address, code] = at
        if len(self._logged) > _MOST:
            del self._logged[next(iter(self._logged))]

    def has_reported(self, address: str, code: int, since: float) -> bool:
        """Whether the log has had that Xid since then."""
        return self._logged.get((address, code), -math.inf) >= since

    def has_reset(self, address: str, since: float) -> bool:
        """Whether a load after ``since`` ended the faults of the GPU at ``address``."""
        return self.loaded_at > since and address not in self._erred
