"""A job of the demo: it trains step by step, and saves a checkpoint when it gets the notice of a
drain (`drain.pre_evict`, `drain.notice`).
"""

import http.server
import json
import threading
from pathlib import Path
from typing import Any, Self

_STEP = 0.2
#: Seconds in which a step and its checkpoint are written.
_SAVES = 10.0
_MAX_BODY = 1 << 20


class DemoJob:
    """Use it as a context manager. Its checkpoint is ``file``; ``node`` is where it trains."""

    def __init__(self, file: Path) -> None:
        self.node = ""
        self.file = file
        self.step = 0
        self._notice, self._saved = threading.Event(), threading.Event()
        self._ended = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._threads = [
            threading.Thread(target=self._server.serve_forever, daemon=True),
            threading.Thread(target=self._train, daemon=True),
        ]

    @property
    def url(self) -> str:
        """The address of its webhook."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

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

    def save(self) -> tuple[int, str]:
        """The status and text of the answer: 202 is "not yet", and the next call repeats it."""
        self._notice.set()
        if not self._saved.wait(_SAVES):
            return 202, "the step has not ended"
        return 200, f"saved at step {self.step}"

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        job = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length", "0")), _MAX_BODY)
                node = json.loads(self.rfile.read(length))["node"]
                status, text = job.save() if node == job.node else (200, "no job runs there")
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_args: object) -> None:
                """The demo's output is its story alone."""

        return Handler
