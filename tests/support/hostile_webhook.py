"""A webhook's server in a process of its own, with TLS, which misbehaves by path.

python -m tests.support.hostile_webhook CERTIFICATE KEY    prints its port
"""

import http.server
import json
import ssl
import sys
import threading
from collections import Counter

HUGE = 10 * 1024 * 1024
_lock = threading.Lock()
_calls: Counter[str] = Counter()
_deliveries: dict[str, list[str]] = {}
_go = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/go":
            _go.set()
        with _lock:
            text = json.dumps({"calls": _calls, "deliveries": _deliveries})
        self._answer(200, text.encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with _lock:
            _calls[self.path] += 1
            number = _calls[self.path]
            ids = _deliveries.setdefault(self.path, [])
            ids.append(self.headers["X-Sickbay-Delivery"])
        match self.path:
            case "/never":
                threading.Event().wait()
            case "/twice":
                self._answer(202, b"on it")
                self._answer(200, b"and ready, in a second answer")
                self.close_connection = True
            case "/gone":
                _go.wait()
                self._answer(200, b"ready")
            case "/redirects":
                self._answer(307, b"", Location="/elsewhere")
            case "/huge":
                self._answer(200, b"x" * HUGE)
            case "/recovers":
                self._answer(200 if number > 1 else 500, b"saved")
            case "/elsewhere":
                self._answer(200, b"ready")
            case _:
                self._answer(500, b"broken")

    def _answer(self, status: int, text: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        try:
            self.wfile.write(text)
            self.wfile.flush()
        except OSError:  # the client has read enough
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Its port is all of its output."""


def main(certificate: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
