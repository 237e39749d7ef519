"""A webhook receiver on loopback: the demo shows the alerts that an on-call person would get."""

import http.server
import json
import threading
from dataclasses import dataclass, field
from typing import Any, Self

#: The largest request body that is read, in bytes. The aggregator sends a few KiB.
_MAX_BODY = 1 << 20


@dataclass
class AlertReceiver:
    """Use it as a context manager. ``port`` is set by the system."""

    _alerts: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The address for ``alerts.receivers[].webhook.url``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def received(self) -> list[dict[str, Any]]:
        """All alerts, each once: a delivery may be repeated."""
        return list({one["id"]: one for one in self._alerts}.values())

    def forget(self) -> None:
        """Begin anew: the next part of the story has alerts of its own."""
        self._alerts.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        alerts = self._alerts

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length", "0")), _MAX_BODY)
                alerts.extend(json.loads(self.rfile.read(length))["alerts"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                """The demo's output is its story alone."""

        return Handler
