"""`helm test`: its program against a page over TLS."""

import http.server
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.templates import CHART
from tests.support.pki import Authority
from tests.support.text_files import text_file

PROGRAM = CHART / "files" / "agents_report.py"


class Page:
    """Answers with ``fleets`` in turn, and with the last one for ever."""

    def __init__(self, folder: Path) -> None:
        self.fleets: list[dict[str, Any]] = []
        #: The token that it asks for; empty: none.
        self.token = ""
        self.authority = Authority.create(folder)
        pair = self.authority.server("page", ["localhost"])
        page = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if page.token and self.headers["Authorization"] != f"Bearer {page.token}":
                    self.send_error(401)
                    return
                fleet = page.fleets.pop(0) if len(page.fleets) > 1 else page.fleets[0]
                body = json.dumps(fleet).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    made = Page(tmp_path)
    yield made
    made.close()


def fleet(nodes: int, attached: int, *not_ready: str) -> dict[str, Any]:
    return {"nodes": nodes, "attached": attached, "not_ready": list(not_ready), "mode": "observe"}


def ran(
    url: str, ca_file: Path, limit_s: float, *token_file: str
) -> "subprocess.CompletedProcess[str]":
    # As the pod has it: the program's text is an argument.
    arguments = [url, str(ca_file), str(limit_s), *token_file]
    command = [sys.executable, "-c", PROGRAM.read_text("utf-8"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_it_waits_until_every_agent_reports(page: Page) -> None:
    page.fleets = [fleet(0, 0), fleet(3, 1), fleet(3, 3, "no view"), fleet(3, 3)]
    done = ran(page.url, page.authority.certificate, 60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "ok: the agents of all 3 nodes report; mode observe\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (fleet(3, 2), "2 of 3 nodes have an agent that reports"),
        (fleet(0, 0), "0 of 0 nodes"),
        (fleet(3, 3, "the record is away"), "not ready: the record is away"),
    ],
)
def test_it_fails_with_what_is_missing(page: Page, answer: dict[str, Any], words: str) -> None:
    page.fleets = [answer]
    done = ran(page.url, page.authority.certificate, 0)
    assert done.returncode == 1
    assert words in done.stdout
    assert not done.stderr


def test_it_says_that_the_page_is_away_or_of_another_authority(page: Page, tmp_path: Path) -> None:
    page.fleets = [fleet(1, 1)]
    (tmp_path / "other").mkdir()
    other = Authority.create(tmp_path / "other")
    for url, ca_file in (
        ("https://localhost:1", page.authority.certificate),
        (page.url, other.certificate),
        (page.url, tmp_path / "missing.crt"),
    ):
        done = ran(url, ca_file, 0)
        assert done.returncode == 1
        assert "the page does not answer" in done.stdout
        assert not done.stderr


def test_it_proves_itself_to_a_page_that_asks(page: Page, tmp_path: Path) -> None:
    page.fleets, page.token = [fleet(1, 1)], "of-the-viewer"
    file = text_file(tmp_path / "token", "of-the-viewer\n")
    assert ran(page.url, page.authority.certificate, 0, str(file)).returncode == 0
    without = ran(page.url, page.authority.certificate, 0)
    assert without.returncode == 1
    assert "401" in without.stdout
    missing = ran(page.url, page.authority.certificate, 0, str(tmp_path / "none"))
    assert missing.returncode == 1
    assert not missing.stderr
