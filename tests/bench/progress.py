"""How far a benchmark is: one line on standard error, on a terminal alone."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TextIO

_WIDTH = 30
#: The most of a part's expected time that the bar shows before the part has ended.
_ALMOST = 0.97


class Progress:
    """``parts`` are the seconds that each part is expected to take, in order."""

    def __init__(self, parts: Mapping[str, float], *, out: TextIO = sys.stderr) -> None:
        self._parts = dict(parts)
        self._done = 0.0
        self._out = out
        self._shown = out.isatty()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """While the part runs, its bar grows by the clock; afterwards it counts as done."""
        expected = self._parts.get(name, 0.0)
        over = threading.Event()
        thread = threading.Thread(target=self._follow, args=(name, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._done += expected

    def close(self) -> None:
        """The line is the caller's again."""
        if self._shown:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def line(self, name: str, elapsed: float) -> str:
        """The line when ``name`` has run for ``elapsed`` seconds."""
        expected = self._parts.get(name, 0.0)
        total = sum(self._parts.values()) or 1.0
        share = (self._done + min(elapsed, expected * _ALMOST)) / total
        bar = "#" * round(share * _WIDTH)
        return f"[{bar:.<{_WIDTH}}] {share * 100:3.0f} %  {name} ({elapsed:.0f} s)"

    def _follow(self, name: str, over: threading.Event) -> None:
        begun = time.monotonic()
        while self._shown:
            self._out.write(f"\r\x1b[K{self.line(name, time.monotonic() - begun)}")
            self._out.flush()
            if over.wait(1.0):
                return
