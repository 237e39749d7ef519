"""A site's repairers for bench-repair: an endpoint that keeps ids, and a command that does not.

Both write what they carry out to a file before they answer, and outlive the aggregator.
"""

import hashlib
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.support.present import present

#: The answers to one operation, one after another; the last one stays. 0: the connection is closed
#: without an answer, after the order was taken.
Answers = Callable[[str], tuple[int, ...]]

#: Appends one line, which the kernel does at once, and answers by the number of the node.
_COMMAND = """#!/bin/sh
echo "$1 $2 $3" >> {file}
case "$3" in *[13579]) exit 0;; esac
exit 1
"""


@dataclass(frozen=True, slots=True)
class Carried:
    """An operation that was carried out."""

    operation: str
    quarantine: str
    node: str
    repair: str
    at: float


def at_once(_: str) -> tuple[int, ...]:
    return (200,)


def by_chance(operation: str) -> tuple[int, ...]:
    """Done or failed at once, under way for two questions, or lost after it was taken."""
    kinds = ((422,), (202, 202, 422), (202, 202, 200), (0, 422), (503, 422), (0, 202, 200))
    return kinds[hashlib.sha256(operation.encode()).digest()[0] % len(kinds)]


class RepairReceiver:
    """An endpoint on loopback. ``resent`` counts orders of an operation that it knew."""

    def __init__(self, folder: Path, answers: Answers) -> None:
        self.resent = 0
        self._answers = answers
        self._asked: dict[str, int] = defaultdict(int)
        self._carried: dict[str, Carried] = {}
        self._come = threading.Condition()
        self._file = (folder / "operations").open("a")
        self._commands = folder / "commands"
        self._commands.touch()
        self.command = folder / "repair-node"
        self.command.write_text(_COMMAND.format(file=self._commands))
        self.command.chmod(0o755)
        self.secret = folder / "secret"
        self.secret.write_text("not-so-secret")
        self.secret.chmod(0o600)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._file.close()

    def webhook(self, kind: str) -> dict[str, Any]:
        """The section of the configuration for this kind of repair."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}/{kind}"
        webhook = {"url": url, "secret_file": str(self.secret)}
        return {"kind": kind, "webhook": webhook, "timeout": "1m"}

    def by_command(self, kind: str) -> dict[str, Any]:
        """The same for the command, which carries out each call."""
        words = [str(self.command), "{operation}", "{quarantine}", "{node}"]
        return {"kind": kind, "command": words, "timeout": "1m"}

    @property
    def carried(self) -> list[Carried]:
        """All that the endpoint has carried out."""
        with self._come:
            return list(self._carried.values())

    def commands(self) -> list[tuple[str, str, str]]:
        """Operation, quarantine and node of each call of the command."""
        found = []
        for line in self._commands.read_text().splitlines():
            operation, quarantine, node = line.split()
            found.append((operation, quarantine, node))
        return found

    def when(self, node: str, *, within: float = 60.0) -> float:
        """The moment (monotonic seconds) of the first order for the node. Raises TimeoutError."""
        with self._come:
            if not self._come.wait_for(lambda: self._first(node) is not None, within):
                raise TimeoutError(f"no order for {node} within {within:g} s")
            found = present(self._first(node))
            return found.at

    def _first(self, node: str) -> Carried | None:
        return next((one for one in self._carried.values() if one.node == node), None)

    def _take(self, body: dict[str, Any], at: float) -> int:
        operation = body["operation"]
        with self._come:
            answers, asked = self._answers(operation), self._asked[operation]
            self._asked[operation] += 1
            status = answers[min(asked, len(answers) - 1)]
            if status == 503:
                return status  # it promises that nothing was ordered
            if operation in self._carried:
                self.resent += 1
                return status
            self._file.write(operation + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._carried[operation] = Carried(
                operation, body["quarantine"], body["node"], body["repair"], at
            )
            self._come.notify_all()
            return status

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        take = self._take

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                at = time.monotonic()
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = take(body, at)
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """No line for each request."""

        return Handler
