"""Finds databases that an unreleased version of sickbay has written, or that are damaged."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from aggregator.config.settings import Config, history_file
from aggregator.configfile.yaml_source import Key
from aggregator.runtime.sqlite_format import (
    HISTORY_REVISIONS,
    LOCAL_CLUSTER,
    OUTBOX_REVISIONS,
    is_of_no_release,
    of_no_release,
)
from sickbay.regular_file import is_there


def unreleased_files(config: Config) -> Iterator[tuple[Key, str]]:
    """The key of each, and the text. Only reads; a file that can't be read is its user's to report.

    A PostgreSQL is not opened here: the history and the outbox report its tables.
    """
    for key, file, what, mark in _files(config):
        try:
            with closing(_open(file)) as db:
                unreleased = is_of_no_release(db, mark)
        except sqlite3.Error:
            continue
        if unreleased:
            yield key, of_no_release(file, what, ".".join(map(str, key)))


def damaged_files(config: Config) -> Iterator[tuple[Key, str]]:
    """The key of each file that is there and is no database, and the text. Only reads.

    `config check` alone refuses these: a damaged history must keep no aggregator from its start.
    """
    for key, file, _, _ in _files(config):
        try:
            with closing(_open(file)) as db:
                db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            continue  # another process has it, or this user may not read it
        except sqlite3.DatabaseError as error:
            yield key, f"{file} is no database of SQLite ({error}); expected one, or no file yet"


def _files(config: Config) -> Iterator[tuple[Key, Path, str, int | str]]:
    """Of each file that is there: the key, what it is, and the mark of its format."""
    found: list[tuple[Key, Path, str, int | str]] = [
        (("alerts", "outbox"), config.alerts.outbox, "an outbox", OUTBOX_REVISIONS)
    ]
    if config.cluster.file is not None:
        found.append((*config.cluster.file, "a local cluster's database", LOCAL_CLUSTER))
    if config.history.is_file:
        file = Path(history_file(config))
        found.append((("history", "database"), file, "a history", HISTORY_REVISIONS))
    return (one for one in found if is_there(one[1]))


def _open(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True, timeout=5)
