"""Waiting for the thing itself, for a bounded time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Seconds between the first calls of a wait, and between those of a long one.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: A wait lasts at least so many seconds before it fails: a machine that is busy with something else
#: is slow, and a bound of a test is no measurement of the machine.
PATIENCE = 300.0


def wait_until(
    probe: Callable[[], T | None],
    *,
    what: str | Callable[[], object],
    timeout_s: float = PATIENCE,
    every_s: float | None = None,
) -> T:
    """Call `probe` until what it returns is true, and return that.

    ``timeout_s``: seconds, where it is more than `PATIENCE`.
    ``every_s``: seconds between two calls. Unless it is given, they grow with the wait: a call is
    mostly a request to the API server, which costs some milliseconds of a processor. Raises
    TimeoutError that says what was waited for, and what the probe last returned.
    """
    begun = time.monotonic()
    timeout_s = max(timeout_s, PATIENCE)
    while True:
        last = probe()
        if last:
            return last
        waited = time.monotonic() - begun
        if waited >= timeout_s:
            told = what() if callable(what) else what
            raise TimeoutError(f"waited {timeout_s:g} s for {told}; last seen: {last!r}")
        growing = max(_FIRST_PAUSE, min(waited / 10, _LONGEST_PAUSE))
        time.sleep(growing if every_s is None else every_s)
