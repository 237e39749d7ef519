"""A job of the demo: it trains step by step, and saves a checkpoint when it gets the notice of a
drain (`drain.pre_evict`, `drain.notice`).
"""

import json
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from aggregator.demo.receiver import LoopbackReceiver

_STEP = 0.2
#: Seconds in which a step and its checkpoint are written.
_SAVES = 10.0


class DemoJob(LoopbackReceiver):
    """Its checkpoint is ``file``; ``node`` is where it trains."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.node = ""
        self.file = file
        self.step = 0
        self._notice, self._saved = threading.Event(), threading.Event()
        self._ended = threading.Event()
        self._training = threading.Thread(target=self._train, daemon=True)

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        """The saved step, or None before the notice."""
        if not self._saved.is_set():
            return None
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    def _train(self) -> None:
        while not self._ended.wait(_STEP) and not self._saved.is_set():
            self.step += 1
            if self._notice.is_set():
                self.file.write_text(json.dumps({"step": self.step}))
                self._saved.set()

    def answer(self, body: dict[str, Any]) -> tuple[HTTPStatus, str]:
        """202 is "not yet", and the next call repeats the notice."""
        if body["node"] != self.node:
            return HTTPStatus.OK, "no job runs there"
        self._notice.set()
        if not self._saved.wait(_SAVES):
            return HTTPStatus.ACCEPTED, "the step has not ended"
        return HTTPStatus.OK, f"saved at step {self.step}"

    def __enter__(self) -> Self:
        self._training.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        super().__exit__(*error)
        self._training.join()
