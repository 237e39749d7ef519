"""Waiting for the thing itself, for a bounded time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    probe: Callable[[], T | None],
    *,
    what: str | Callable[[], object],
    timeout_s: float = 30.0,
    every_s: float = 0.05,
) -> T:
    """Call `probe` until what it returns is true, and return that.

    Raises TimeoutError that says what was waited for, and what the probe last returned.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        last = probe()
        if last:
            return last
        if time.monotonic() >= deadline:
            told = what() if callable(what) else what
            raise TimeoutError(f"waited {timeout_s:g} s for {told}; last seen: {last!r}")
        time.sleep(every_s)
