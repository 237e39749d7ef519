"""The agent's clock, as an argument."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds of CLOCK_BOOTTIME: monotonic, restarted by a boot alone, right through suspend."""

    def boottime(self) -> float: ...


class SystemClock:
    """The kernel's clock."""

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
