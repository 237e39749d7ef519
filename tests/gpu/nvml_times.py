"""How long NVML takes: its start, whole samples, each call. ``python -m tests.gpu.nvml_times``.

Runs the worker's own sampler in this process, on the library that the agent would find; prints one
object of JSON, times in milliseconds.
"""

import ctypes
import json
import os
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from nodeagent.sources.nvml_library import SONAME, candidates
from nodeagent.sources.nvml_sampler import SLOW_EVERY, Sampler

_QUICK, _SLOW = 50, 5
#: Samples in which memory must not grow, and the seconds after which there are no more.
_LONG_RUN, _LONGEST = 200, 15.0


class Stopwatch:
    """Told which call begins, it adds up the time since to the call before."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._name, self._at = "", 0.0

    def begin(self, call: str) -> None:
        """``call`` as the sampler says it: "rows" or "3 rows"."""
        self.end()
        self._name, self._at = call.rsplit(maxsplit=1)[-1], time.perf_counter()

    def end(self) -> None:
        if self._name:
            self.seconds[self._name].append(time.perf_counter() - self._at)
        self._name = ""

    def take(self) -> dict[str, list[float]]:
        """The times since the last take, by call."""
        found, self.seconds = dict(self.seconds), defaultdict(list)
        return found


def measure(pynvml: Any) -> dict[str, Any]:
    """All figures. Its NVML stays initialised."""
    watch = Stopwatch()
    sampler = Sampler(pynvml, watch.begin, time.time)
    answers: list[dict[str, Any]] = []
    began = time.perf_counter()
    driver = sampler.start()
    watch.end()
    started = time.perf_counter() - began

    def sample(at: float) -> float:
        answers.clear()
        began = time.perf_counter()
        sampler.sample(answers.append, at)
        watch.end()
        return time.perf_counter() - began

    watch.take()
    at = SLOW_EVERY + 1.0
    first, first_calls = sample(at), watch.take()
    quick = [sample(at) for _ in range(_QUICK)]
    quick_calls = watch.take()
    slow = [sample(at + (1 + number) * (SLOW_EVERY + 1)) for number in range(_SLOW)]
    slow_calls = watch.take()
    own = psutil.Process()
    before = own.memory_info().rss
    end, count = time.perf_counter() + _LONGEST, 0
    while count < _LONG_RUN and time.perf_counter() < end:
        sample(at + (_SLOW + 2 + count) * (SLOW_EVERY + 1))
        count += 1
    return {
        "driver": driver,
        "gpus": sum("uuid" in each for each in answers),
        "errors": {
            each["uuid"]: each["errors"] for each in answers if "uuid" in each and each["errors"]
        },
        "init_ms": _ms([started]),
        "first_sample_ms": _ms([first]),
        "quick_sample_ms": _ms(quick),
        "slow_sample_ms": _ms(slow),
        "first_calls_ms": {name: _ms([sum(times)]) for name, times in first_calls.items()},
        "quick_calls_ms": {name: _ms(times) for name, times in quick_calls.items()},
        "slow_calls_ms": {name: _ms(times) for name, times in slow_calls.items()},
        "samples": count,
        "growth_kib": (own.memory_info().rss - before) // 1024,
    }


def _ms(seconds: list[float]) -> float:
    return round(1000 * median(seconds), 3)


def main() -> None:
    import pynvml

    for library in [SONAME, *candidates(Path("/"), os.environ)]:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        break
    print(json.dumps(measure(pynvml)))


if __name__ == "__main__":
    main()
