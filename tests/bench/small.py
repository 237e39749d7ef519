"""The small form of a benchmark: few nodes, few rounds, seconds; all keys, and no claim.

BENCH_SMALL=1 chooses it. `make test` runs each benchmark so (tests/e2e/test_make_targets.py), which
shows that the command works and which keys it writes. Its figures mean nothing, so they go to
another folder (`figures.FOLDER`), and no bound is applied to them.
"""

import os
from typing import TypeVar

from tests.support.fork_server import start_programs_by_fork

T = TypeVar("T")
SMALL = os.environ.get("BENCH_SMALL", "") not in {"", "0"}


def small_or(small: T, real: T) -> T:
    """The first in a small form, else the second."""
    return small if SMALL else real


def number(name: str, default: int, small: int) -> int:
    """The variable ``name`` of the environment, or what this form has without it."""
    return int(os.environ.get(name, small_or(small, default)))


def seconds(name: str, default: float, small: float) -> float:
    """As `number`, for a time."""
    return float(os.environ.get(name, small_or(small, default)))


def exit_code(*, failed: bool) -> int:
    """1 where a bound does not hold; a small form has no bounds."""
    return int(failed and not SMALL)


def start_quickly() -> None:
    """In a small form, programs are forked from one that has imported their modules."""
    if SMALL:
        start_programs_by_fork()
