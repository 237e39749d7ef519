"""A history on a medium without writes: a backup, a snapshot, a read-only disk."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aggregator.history.database import Database
from aggregator.history.engine import HistoryError
from aggregator.history.migrate import VERSIONS
from aggregator.history.tables import evidence
from tests.agent.real_disks import run
from tests.support.aggregator_program import AGGREGATOR_COMMANDS
from tests.support.fork_server import run_program
from tests.support.histories import Place

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")]


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Database]:
    """A history that is being written: a row stands in it, another in its write-ahead log alone."""
    folder = tmp_path / "live"
    folder.mkdir()
    database = Database(f"sqlite:///{folder}/history.db")
    _write(database, "older")
    database.close()
    _write(database, "newer")
    yield database
    database.close()


def _write(database: Database, node: str) -> None:
    row = {"at": time.time(), "node": node, "kind": "hello", "body": {}, "replica": ""}
    database.write([{"id": time.time_ns(), **row}], evidence)


def _copied(tmp_path: Path, *ends: str) -> Path:
    """A folder with only this file and these beside it."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for end in ("", *ends):
        shutil.copy(tmp_path / "live" / f"history.db{end}", folder)
    return folder


def _exported(folder: Path) -> "subprocess.CompletedProcess[str]":
    """The output of `history export` for the file in ``folder``, which is mounted read-only."""
    config = folder.parent / "aggregator.yaml"
    config.write_text(
        "cluster: {kind: local}\nidentity: {kind: insecure-trust-hello}\n"
        "listen: {grpc: '127.0.0.1:0', web: '127.0.0.1:0'}\n"
        f"history: {{database: 'sqlite:///{folder}/history.db'}}\n"
    )
    before = sorted(folder.iterdir())
    with _mounted_read_only(folder, folder):
        done = run_program(
            AGGREGATOR_COMMANDS, ["history", "export", "--config", config], limit=300
        )
    assert sorted(folder.iterdir()) == before
    return done


@contextmanager
def _mounted_read_only(folder: Path, way: Path) -> Iterator[None]:
    """By ``way``, until the end of the block, no write is possible in the folder."""
    run("mount", "--bind", folder, way)
    try:
        run("mount", "-o", "remount,ro,bind", way)
        yield
    finally:
        run("umount", "--lazy", way)


def _nodes(done: "subprocess.CompletedProcess[str]") -> list[str]:
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split('"node":')[1].split('"')[1] for line in done.stdout.splitlines()]


def test_a_history_that_was_closed_is_exported_from_a_read_only_disk(
    writing: Database, tmp_path: Path
) -> None:
    writing.close()
    assert _nodes(_exported(_copied(tmp_path))) == ["newer", "older"]


def test_what_stands_in_its_log_alone_is_exported_too(writing: Database, tmp_path: Path) -> None:
    """The machine died, or the file is written at the same time by another way."""
    assert _nodes(_exported(_copied(tmp_path, "-wal", "-shm"))) == ["newer", "older"]
    assert _nodes(_exported(tmp_path / "live")) == ["newer", "older"]
    _write(writing, "newest")
    assert _nodes(_exported(tmp_path / "live")) == ["newer", "newest", "older"]


def test_a_log_that_cant_be_read_there_is_not_passed_over(
    writing: Database, tmp_path: Path
) -> None:
    folder = _copied(tmp_path, "-wal")
    done = _exported(folder)
    file = folder / "history.db"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"sickbay-aggregator: {file}: its newest rows are in {file}-wal, which can't be read "
        f"without {file}-shm where that can't be made; copy {file} and {file}-wal to a folder that "
        "can be written to, and point history.database there\n"
    )


def test_tables_of_an_earlier_version_are_refused_where_they_cant_be_brought_up_to_date(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    place = Place(f"sqlite:///{folder / 'history.db'}")
    place.ask(lambda database: database.recent("", 0.0, 1))
    place.sql(f"UPDATE {VERSIONS} SET version_num = '0.9'")
    done = _exported(folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "was written by an earlier sickbay" in done.stderr
    assert "copy it to a folder that can be written to" in done.stderr


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """The folder of ``writing`` by another way, on which no write is possible."""
    way = tmp_path / "way"
    way.mkdir()
    with _mounted_read_only(tmp_path / "live", way):
        yield way


def test_a_writer_that_begins_while_it_is_read_is_noticed(
    writing: Database, read_only: Path
) -> None:
    """The file was read as one without writers, so without the files by which both would know."""
    writing.close()
    reading = Database(f"sqlite:///{read_only}/history.db", reads=True)
    assert len(list(reading.evidence())) == 2
    _write(writing, "newest")
    with pytest.raises(HistoryError, match="was written to while it was read; try again"):
        list(reading.evidence())
    assert len(list(reading.evidence())) == 3
    reading.close()
