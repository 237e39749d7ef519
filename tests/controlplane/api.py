"""A small blocking client of the API server: tests ask with it, and no test is about it."""

import contextlib
import http.client
import json
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.controlplane.pki import KeyPair

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class Answer(NamedTuple):
    """An answer of the API server: the HTTP status and the body (parsed if it is JSON)."""

    status: int
    body: Any


class ApiError(RuntimeError):
    """The API server refused. `status` and `body` are its answer's."""

    def __init__(self, request: str, answer: Answer) -> None:
        message = answer.body.get("message") if isinstance(answer.body, dict) else answer.body
        super().__init__(f"{request}: {answer.status} {message}")
        self.status = answer.status
        self.body = answer.body


class ApiClient:
    """Speaks for one identity: a client certificate, or a bearer token. Safe to share by threads.

    Connections are kept and used again, and none is tried twice: a request that got no answer
    raises OSError or http.client.HTTPException, as it may have been carried out.
    """

    def __init__(
        self,
        port: int,
        ca_file: Path,
        *,
        certificate: KeyPair | None = None,
        token: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        if certificate is not None:
            self._tls.load_cert_chain(certificate.certificate, certificate.key)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout_s = timeout_s
        #: What manifests.py remembers of this server: the resources of an API group by its path;
        #: each document that was applied and the answer, by the object's path.
        self.discovered: dict[str, list[Any]] = {}
        self.applied: dict[str, tuple[bytes, Any]] = {}
        self._idle: list[http.client.HTTPSConnection] = []
        self._lock = threading.Lock()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = JSON,
        *,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send one request; any HTTP status is an answer. A body that isn't bytes becomes JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        # The published keys are application/jwk-set+json, and that alone.
        sent = {"Accept": f"{JSON}, */*;q=0.5"} | self._headers | (headers or {})
        if data is not None:
            sent["Content-Type"] = content_type
        connection = self._take()
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            raw = response.read()
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        is_json = "json" in response.headers.get("Content-Type", "")
        return Answer(response.status, json.loads(raw) if is_json else raw.decode())

    def call(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> Any:
        """As `request`, but returns the body alone. Raises ApiError unless the status is 2xx."""
        answer = self.request(method, path, body, content_type)
        if not 200 <= answer.status < 300:
            raise ApiError(f"{method} {path}", answer)
        return answer.body

    def watch(self, path: str) -> Iterator[bytes]:
        """The lines of a watch as they arrive, until the server ends it or the client is let go."""
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._tls)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.request("GET", path, headers={"Accept": JSON} | self._headers)
        response = connection.getresponse()
        if response.status != 200:
            with contextlib.closing(connection):
                raise ApiError(f"GET {path}", Answer(response.status, response.read().decode()))
        return self._lines(connection, response)

    @staticmethod
    def _lines(
        connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> Iterator[bytes]:
        with contextlib.closing(connection):
            yield from iter(response.readline, b"")

    def close(self) -> None:
        """Close the idle connections; the client stays usable."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self) -> http.client.HTTPSConnection:
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            # An idle connection on which there is data to read has ended: the server closed it.
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()
        return http.client.HTTPSConnection(
            "127.0.0.1", self._port, timeout=self._timeout_s, context=self._tls
        )

    def _give_back(self, connection: http.client.HTTPSConnection) -> None:
        with self._lock:
            self._idle.append(connection)
