"""When the NVIDIA driver was last loaded, as the kernel log tells, and which GPUs erred since.

A load is a sign that what a reset of a GPU ends is over: nothing of the driver's, nor of the GPU's
running state, survives it. The log's check writes it down here; the checks that look at the GPUs
take it up when the GPU answers.
"""

import math


class DriverLoads:
    """``at``: boottime seconds of the latest load; minus infinity when none was seen."""

    def __init__(self) -> None:
        self.at = -math.inf
        self._erred: set[str] = set()

    def loaded(self, at: float) -> None:
        """The driver was loaded ``at`` (boottime seconds)."""
        if at > self.at:
            self.at = at
            self._erred.clear()

    def erred(self, address: str) -> None:
        """The driver says something bad of the GPU at ``address`` ("0000:3b:00")."""
        self._erred.add(address)

    def ended(self, address: str, since: float) -> bool:
        """Whether a load after ``since`` ended what there was about the GPU at ``address``."""
        return self.at > since and address not in self._erred
