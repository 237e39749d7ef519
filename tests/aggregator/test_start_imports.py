"""A start imports only what this start needs: each restart of a replica takes that time."""

import json
import signal
import subprocess
from typing import IO

import pytest
import yaml

from tests.support.imported import TRACED, modules_in

PROGRAM = "from aggregator.daemon_cli.entry import main; main()"
#: The library, and the one who needs it.
UNNEEDED = {
    "asyncpg": "a history in PostgreSQL",
    "jinja2": "the page's first reader, and templates of alerts",
    "sqlalchemy.dialects.postgresql": "a history in PostgreSQL",
}


@pytest.mark.parametrize("library", UNNEEDED)
def test_a_start_does_not_import_what_only_others_need(library: str, started: set[str]) -> None:
    assert "aiohttp.web" in started
    assert library not in started, f"only {UNNEEDED[library]} needs it"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules that an aggregator on a local cluster imports until it runs, and at its end."""
    folder = tmp_path_factory.mktemp("aggregator")
    file = folder / "aggregator.yaml"
    text = {
        "cluster": {"kind": "local", "local": {"database": str(folder / "cluster.db")}},
        "listen": {"grpc": "127.0.0.1:0", "web": "127.0.0.1:0"},
        "identity": {"kind": "insecure-trust-hello"},
        "history": {"database": f"sqlite:///{folder / 'history.db'}"},
        "alerts": {"outbox": str(folder / "outbox.db")},
    }
    file.write_text(yaml.safe_dump(text))
    line = [*TRACED, "-c", PROGRAM, "run", "--config", str(file)]
    imports = folder / "imports"
    with (
        imports.open("w") as stderr,
        subprocess.Popen(line, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            wait_for(process.stdout, "cluster.connected")
        finally:
            process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode == 0, imports.read_text()[-2000:]
    return modules_in(imports.read_text())


def wait_for(log: IO[str], event: str) -> None:
    """Until the log has this event, or ends."""
    for line in log:
        if json.loads(line).get("event") == event:
            return
