"""One SQLite file with the cluster's tables. The aggregator and `sickbay --local` have it open."""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aggregator.cluster.local.rows import Row, Run
from aggregator.cluster.port import Refused, Unreachable
from aggregator.runtime.sqlite_format import LOCAL_CLUSTER, is_of_no_release, of_no_release

T = TypeVar("T")

_MARK = f"PRAGMA application_id = {LOCAL_CLUSTER}; PRAGMA user_version = 1;"


class UnreleasedFile(Refused):
    """An unreleased version wrote the file: it is neither read nor changed."""


class SqliteRows:
    """Implements `Rows` on the file at ``path``, which ``schema`` gives its tables.

    Raises `Unreachable` also when the file is busy, its disk is full, or its name is another file's
    or none's; `Refused` when it can't be opened.
    """

    def __init__(self, path: Path, schema: str) -> None:
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(path)
            with contextlib.ExitStack() as undo:
                self._db = undo.enter_context(contextlib.closing(_connect(path)))
                if is_of_no_release(self._db, LOCAL_CLUSTER):
                    key = "cluster.local.database"
                    raise UnreleasedFile(of_no_release(path, "a local cluster's database", key))
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.executescript(_MARK + schema)
                self._db.row_factory = sqlite3.Row
                self._file = _identity(path)
                undo.pop_all()
        except (sqlite3.Error, OSError) as error:
            why = getattr(error, "strerror", None) or error
            text = f"{path} can't be opened as the local cluster's database: {why}"
            raise Refused(text) from error

    def close(self) -> None:
        self._db.close()

    def read(self, query: str, **values: object) -> list[Row]:
        try:
            return [dict(row) for row in self._db.execute(query, values)]
        except sqlite3.Error as error:
            raise Unreachable(f"{self._path}: {error}") from error

    def change(self, work: Callable[[Run], T]) -> T:
        self._expect_file()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                result = work(self.read)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise Unreachable(f"{self._path}: {error}") from error
        return result

    def changed_elsewhere(self) -> int:
        self._expect_file()
        return int(self.read("PRAGMA data_version")[0]["data_version"])

    def _expect_file(self) -> None:
        """Without this check the process would continue with a deleted file: a person's stop would
        reach another file, or none.
        """
        try:
            there = _identity(self._path)
        except OSError as error:
            raise Unreachable(
                f"{self._path} is gone ({error.strerror}): put it back, or restart the aggregator "
                "to begin a new one"
            ) from error
        if there != self._file:
            raise Unreachable(
                f"{self._path} is not the file that was opened: put that one back, or restart the "
                "aggregator to go on with this one"
            )


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)


def _make_private(path: Path) -> None:
    """Make the file private before SQLite opens it; SQLite gives its companion files the same mode.

    A group that may write is the site's own choice, and stays.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # PermissionError: another's
            mode = stat.S_IMODE(file.stat().st_mode)
            private = mode & (0o660 if mode & stat.S_IWGRP else 0o600)
            if mode != private:
                file.chmod(private)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
