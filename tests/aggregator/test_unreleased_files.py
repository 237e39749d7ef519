"""Files of an unreleased version: one line, exit code 2, and the file as it was."""

import sqlite3
from argparse import Namespace
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.cli.main import main as command
from aggregator.cli.source import has_kubeconfig
from aggregator.cluster.local.store import LocalStore
from aggregator.config.settings import load
from aggregator.config.unreleased_files import damaged_files, unreleased_files
from aggregator.daemon_cli import replay
from aggregator.daemon_cli.main import main
from aggregator.runtime.database import DatabaseError
from tests.support.config_check import config_check

CONFIG = """
identity: {{kind: insecure-trust-hello}}
cluster: {{kind: local, local: {{database: cluster.db}}}}
listen: {{grpc: "unix:{folder}/grpc.sock", web: "unix:{folder}/web.sock"}}
history: {{database: "sqlite:///{folder}/history.db"}}
alerts: {{outbox: outbox.db}}
"""
OLD = {
    "cluster.db": ("cluster.local.database", "CREATE TABLE quarantines (node TEXT)"),
    "history.db": ("history.database", "CREATE TABLE transitions (id INTEGER)"),
    "outbox.db": ("alerts.outbox", "CREATE TABLE alert_pending (seq INTEGER)"),
}


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aggregator.yaml").write_text(CONFIG.format(folder=tmp_path))
    path = tmp_path / str(request.param)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(OLD[path.name][1])
        db.execute("PRAGMA user_version=2")
    db.close()
    return path


@pytest.mark.parametrize("words", [("run", "--config"), ("config", "check")])
def test_the_aggregator_does_not_start_on_one(
    old: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    before = old.read_bytes()
    with pytest.raises(SystemExit) as ended:
        main([*words, "aggregator.yaml"])
    [said] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert said.startswith("aggregator.yaml:")
    assert f"{OLD[old.name][0]}: " in said
    assert "of an unreleased version of sickbay, which no version reads; to start afresh" in said
    assert old.read_bytes() == before


@pytest.mark.parametrize("name", OLD)
def test_a_check_of_the_configuration_names_a_file_that_is_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aggregator.yaml").write_text(CONFIG.format(folder=tmp_path))
    (tmp_path / name).write_bytes(b"noise" * 100)
    with pytest.raises(SystemExit) as ended:
        main(["config", "check", "aggregator.yaml"])
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert f"{OLD[name][0]}: " in line
    assert f"{name} is no database of SQLite (file is not a database); expected one" in line


def test_a_path_that_this_user_may_not_see_is_left_to_the_code_that_opens_it(
    tmp_path: Path,
) -> None:
    # For root only such a path leads to the error of a folder without permission.
    file, unseen = tmp_path / "aggregator.yaml", f"{tmp_path}/{'a' * 300}"
    text = CONFIG.format(folder=tmp_path).replace(f"{tmp_path}/history", f"{unseen}/history")
    file.write_text(text.replace("cluster.db", f"{unseen}/cluster.db"))
    config = load(file, root=None)
    assert [*unreleased_files(config), *damaged_files(config)] == []
    with pytest.raises(DatabaseError, match=r"history\.db: File name too long; expected"):
        list(replay._rows(config.history, ""))
    assert not has_kubeconfig(Namespace(kubeconfig="", context=""), {"HOME": unseen})


def test_empty_files_and_those_of_this_version_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aggregator.yaml").write_text(CONFIG.format(folder=tmp_path))
    (tmp_path / "outbox.db").touch()
    LocalStore(tmp_path / "cluster.db", wall=lambda: 0.0).close()
    assert config_check("aggregator.yaml").returncode == 0


def test_a_local_clusters_file_is_refused_by_the_command_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.db"
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("record", "stop", "nodes", "quarantines"):
            db.execute(f"CREATE TABLE {table} (name TEXT)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(SystemExit) as ended:
        command(["stop", "--reason", "x", "--local", str(path)])
    assert ended.value.code == 2
    assert "of an unreleased version of sickbay" in capsys.readouterr().err
    assert path.read_bytes() == before
