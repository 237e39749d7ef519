"""Finds databases that an unreleased version of sickbay has written, or that are damaged."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from aggregator.config.settings import Config, history_file
from aggregator.configfile.yaml_source import Key
from aggregator.runtime.sqlite_format import (
    LOCAL_CLUSTER,
    OUTBOX,
    is_of_no_release,
    of_no_release,
)

#: As `aggregator.history.revision` has it, whose imports take half a second.
HISTORY_VERSIONS = "sickbay_history_version"


def unreleased_files(config: Config) -> Iterator[tuple[Key, str]]:
    """The key of each, and the text. Only reads; a file that can't be read is its user's to report.

    A PostgreSQL is not opened here: the history and the outbox report its tables.
    """
    if config.cluster.file is not None:
        key, file = config.cluster.file
        if _found(file, lambda db: is_of_no_release(db, LOCAL_CLUSTER)):
            yield key, of_no_release(file, "a local cluster's database", ".".join(key))
    if config.history.is_file:
        file = Path(history_file(config))
        if _found(file, _is_unreleased_history):
            text = of_no_release(file, "a history", "history.database")
            yield ("history", "database"), text
    if config.history.is_file or not config.alerts.shared:
        file = config.alerts.outbox
        if _found(file, lambda db: is_of_no_release(db, OUTBOX)):
            yield ("alerts", "outbox"), of_no_release(file, "an outbox", "alerts.outbox")


def damaged_files(config: Config) -> Iterator[tuple[Key, str]]:
    """The key of each file that is there and is no database, and the text. Only reads.

    `config check` alone refuses these: a damaged history must keep no aggregator from its start.
    """
    files: list[tuple[Key, Path]] = [(("alerts", "outbox"), config.alerts.outbox)]
    if config.cluster.file is not None:
        files.append(config.cluster.file)
    if config.history.is_file:
        files.append((("history", "database"), Path(history_file(config))))
    for key, file in files:
        why = _damage(file) if file.is_file() else ""
        if why:
            yield key, f"{file} is no database of SQLite ({why}); expected one, or no file yet"


def _damage(file: Path) -> str:
    try:
        with closing(_open(file)) as db:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return ""  # another process has it, or this user may not read it
    except sqlite3.DatabaseError as error:
        return str(error)
    return ""


def _open(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True, timeout=5)


def _is_unreleased_history(db: sqlite3.Connection) -> bool:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return bool(tables & {"transitions", "evidence"}) and HISTORY_VERSIONS not in tables


def _found(file: Path, is_unreleased: Callable[[sqlite3.Connection], bool]) -> bool:
    if not file.is_file():
        return False
    try:
        with closing(_open(file)) as db:
            return is_unreleased(db)
    except sqlite3.Error:
        return False
