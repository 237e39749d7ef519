"""A webhook receiver on loopback."""

import http.server
import json
import threading
from abc import ABC, abstractmethod
from http import HTTPStatus
from typing import Any, Self

#: The largest request body that is read, in bytes. The aggregator sends a few KiB.
_MAX_BODY = 1 << 20


class LoopbackReceiver(ABC):
    """Use it as a context manager. Its port is set by the system."""

    def __init__(self) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The address for ``webhook.url`` of the aggregator's configuration."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    @abstractmethod
    def answer(self, body: dict[str, Any]) -> tuple[HTTPStatus, str]:
        """The status and text of the answer to a request."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length", "0")), _MAX_BODY)
                status, text = answer(json.loads(self.rfile.read(length)))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_args: object) -> None:
                """The demo's output is its story alone."""

        return Handler
