"""The local cluster's state: one SQLite file, written by compare-and-set.

Used by the aggregator and by `sickbay --local`, which may both have it open: every change is one
transaction, and versions show which writer came second.
"""

import contextlib
import json
import os
import sqlite3
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from aggregator.cluster.port import (
    Conflict,
    Node,
    NotFound,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RecordText,
    Refused,
    StopText,
    Taint,
    Unreachable,
)
from aggregator.runtime.interning import EMPTY
from aggregator.runtime.node_name import expect_one_node
from aggregator.runtime.sqlite_format import LOCAL_CLUSTER, is_of_no_release, of_no_release

_MARK = f"PRAGMA application_id = {LOCAL_CLUSTER}; PRAGMA user_version = 1;"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
  id INTEGER PRIMARY KEY CHECK (id = 1), text TEXT NOT NULL, version INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO record VALUES (1, '', 1);
CREATE TABLE IF NOT EXISTS stop (
  id INTEGER PRIMARY KEY CHECK (id = 1), reason TEXT, version INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO stop VALUES (1, NULL, 1);
CREATE TABLE IF NOT EXISTS nodes (
  name TEXT PRIMARY KEY, uid TEXT NOT NULL, version INTEGER NOT NULL,
  unschedulable INTEGER NOT NULL, taints TEXT NOT NULL, labels TEXT NOT NULL,
  annotations TEXT NOT NULL, drained_for TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE IF NOT EXISTS drains (node TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS quarantines (
  node TEXT PRIMARY KEY, uid TEXT NOT NULL, version INTEGER NOT NULL, spec TEXT NOT NULL,
  status TEXT NOT NULL, created_at REAL NOT NULL, deleting INTEGER NOT NULL,
  finalizer INTEGER NOT NULL
) STRICT;
"""


class UnreleasedFile(Refused):
    """An unreleased version wrote the file: it is neither read nor changed."""


class LocalStore:
    """The file at ``path``. All methods block; the aggregator calls them in a thread of its own.

    Raises `Conflict` where a version is not the present one, `Unreachable` when the file is busy,
    its disk is full, or its name is another file's or none's, `Refused` when it can't be opened.
    """

    def __init__(self, path: Path, *, wall: Any) -> None:
        self._path = path
        self._wall = wall
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(path)
            self._db = sqlite3.connect(
                path, timeout=5, isolation_level=None, check_same_thread=False
            )
            if is_of_no_release(self._db, LOCAL_CLUSTER):
                self._db.close()
                key = "cluster.local.database"
                raise UnreleasedFile(of_no_release(path, "a local cluster's database", key))
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_MARK + _SCHEMA)
            self._file = _identity(path)
        except (sqlite3.Error, OSError) as error:
            why = getattr(error, "strerror", None) or error
            text = f"{path} can't be opened as the local cluster's database: {why}"
            raise Refused(text) from error

    def close(self) -> None:
        self._db.close()

    def _read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise Unreachable(f"{self._path}: {error}") from error

    def _expect_file(self) -> None:
        """Without this check the process would go on with a deleted file: a person's stop would
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

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        self._expect_file()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise Unreachable(f"{self._path}: {error}") from error

    def changed_elsewhere(self) -> int:
        """A number that differs after another process's commit."""
        self._expect_file()
        ((version,),) = self._read("PRAGMA data_version")
        return int(version)

    # -- the record -------------------------------------------------------------------

    def record(self) -> RecordText:
        rows = self._read("SELECT text, version FROM record")
        if not rows:
            with self._change() as db:
                db.execute("INSERT OR IGNORE INTO record VALUES (1, '', 1)")
            return self.record()
        ((text, version),) = rows
        return RecordText(text, str(version))

    def write_record(self, text: str, version: str) -> RecordText:
        with self._change() as db:
            done = db.execute(
                "UPDATE record SET text = ?, version = version + 1 WHERE version = ?",
                (text, int(version)),
            )
            if done.rowcount == 0:
                raise Conflict("the record was written in between")
        return self.record()

    def stop(self) -> StopText:
        """The stop switch. A deleted row leaves it unset."""
        rows = self._read("SELECT reason, version FROM stop")
        return StopText(rows[0][0], str(rows[0][1])) if rows else StopText()

    def stopped(self) -> str:
        """Why all is stopped; empty: it is not."""
        return self.stop().reason or ""

    def set_stop(self, reason: str) -> None:
        """The stop switch, by a person; an empty reason turns it off.

        The record's version moves with it, so that no admission that was decided before is
        written.
        """
        with self._change() as db:
            db.execute(
                "INSERT INTO stop VALUES (1, ?, 1) ON CONFLICT (id) DO UPDATE"
                " SET reason = excluded.reason, version = version + 1",
                (reason,),
            )
            db.execute("UPDATE record SET version = version + 1")

    # -- quarantines --------------------------------------------------------------------

    def quarantines(self) -> list[Quarantine]:
        return [_quarantine(row) for row in self._read(f"SELECT {_COLUMNS} FROM quarantines")]  # noqa: S608

    def quarantine(self, node: str) -> Quarantine | None:
        rows = self._read(
            f"SELECT {_COLUMNS} FROM quarantines WHERE node = ?",  # noqa: S608 - a constant
            node,
        )
        return _quarantine(rows[0]) if rows else None

    def create_quarantine(self, node: str, spec: QuarantineSpec, *, finalizer: bool) -> Quarantine:
        """Raises Conflict, and Refused for a name that is a pattern to a site's command."""
        try:
            expect_one_node(node)
        except ValueError as error:
            raise Refused(str(error)) from error
        with self._change() as db:
            done = db.execute(
                "INSERT OR IGNORE INTO quarantines VALUES (?, ?, 1, ?, ?, ?, 0, ?)",
                (
                    node,
                    str(uuid.uuid4()),
                    json.dumps(asdict(spec)),
                    _encode_status(QuarantineStatus()),
                    self._wall(),
                    finalizer,
                ),
            )
            if done.rowcount == 0:
                raise Conflict(f"{node} has a quarantine already")
        return self._must(node)

    def write_quarantine(self, quarantine: Quarantine) -> Quarantine:
        """Write spec, status and finalizer against the version that was read."""
        with self._change() as db:
            done = db.execute(
                "UPDATE quarantines SET spec = ?, status = ?, finalizer = ?, version = version + 1"
                " WHERE node = ? AND uid = ? AND version = ?",
                (
                    json.dumps(asdict(quarantine.spec)),
                    _encode_status(quarantine.status, self._unread_of(quarantine)),
                    quarantine.has_finalizer,
                    quarantine.node,
                    quarantine.uid,
                    int(quarantine.version),
                ),
            )
            if done.rowcount == 0:
                raise Conflict(f"the quarantine of {quarantine.node} was written in between")
        return self._must(quarantine.node)

    def _unread_of(self, quarantine: Quarantine) -> dict[str, Any]:
        """The fields of its status that can't be read, as they stand in the file."""
        if not quarantine.unread_fields:
            return {}
        rows = self._read("SELECT status FROM quarantines WHERE node = ?", quarantine.node)
        there = json.loads(rows[0][0]) if rows else {}
        kept = {name: there[name] for name in quarantine.unread_fields if name in there}
        if quarantine.status.phase is Phase.RELEASING:
            kept.pop("phase", None)
        return kept

    def delete_quarantine(self, node: str) -> None:
        """A person's deletion: with a finalizer the row is only marked."""
        with self._change() as db:
            db.execute("DELETE FROM quarantines WHERE node = ? AND finalizer = 0", (node,))
            db.execute(
                "UPDATE quarantines SET deleting = 1, version = version + 1 WHERE node = ?", (node,)
            )

    def drop_quarantine(self, quarantine: Quarantine) -> None:
        with self._change() as db:
            db.execute(
                "DELETE FROM quarantines WHERE node = ? AND uid = ?",
                (quarantine.node, quarantine.uid),
            )

    def _must(self, node: str) -> Quarantine:
        found = self.quarantine(node)
        if found is None:
            raise NotFound(f"{node} has no quarantine")
        return found

    # -- nodes --------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        return [_node(row) for row in self._read(f"SELECT {_NODE} FROM nodes")]  # noqa: S608

    def node(self, name: str) -> Node:
        """The node; the local cluster learns of a node by being asked about it."""
        found = self.node_now(name)
        if found is not None:
            return found
        with self._change() as db:
            db.execute(
                "INSERT OR IGNORE INTO nodes (name, uid, version, unschedulable, taints, labels,"
                " annotations) VALUES (?, ?, 1, 0, '[]', '{}', '{}')",
                (name, str(uuid.uuid4())),
            )
        return self.node(name)

    def write_node(self, node: Node) -> Node:
        """Against the version that was read. The same content leaves the version as it is."""
        with self._change() as db:
            now = self.expect_node(node)
            if replace(node, boot_id=now.boot_id, ready=now.ready) != now:
                db.execute(
                    "UPDATE nodes SET version = version + 1, unschedulable = ?, taints = ?,"
                    " labels = ?, annotations = ? WHERE name = ?",
                    (
                        node.unschedulable,
                        json.dumps([asdict(taint) for taint in node.taints]),
                        json.dumps(dict(node.labels)),
                        json.dumps(dict(node.annotations)),
                        node.name,
                    ),
                )
        return self.node(node.name)

    def delete_node(self, node: Node) -> None:
        """Against the version that was read, and only where it has no quarantine."""
        with self._change() as db:
            self.expect_node(node)
            done = db.execute(
                "DELETE FROM nodes WHERE name = ? AND name NOT IN (SELECT node FROM quarantines)",
                (node.name,),
            )
            if done.rowcount == 0:
                raise Conflict(f"{node.name} has a quarantine")

    def expect_node(self, node: Node) -> Node:
        """The node as it is now, or `Conflict` where that is not the one that was read."""
        now = self.node_now(node.name)
        if now is None or now.uid != node.uid or now.version != node.version:
            raise Conflict(f"{node.name} was written in between")
        return now

    def node_now(self, name: str) -> Node | None:
        rows = self._read(
            f"SELECT {_NODE} FROM nodes WHERE name = ?",  # noqa: S608 - a constant
            name,
        )
        return _node(rows[0]) if rows else None

    def drained_for(self, name: str) -> str:
        """The uid of the quarantine for which the drain command has succeeded."""
        rows = self._read("SELECT drained_for FROM nodes WHERE name = ?", name)
        return str(rows[0][0]) if rows else ""

    def set_drained_for(self, name: str, uid: str) -> None:
        self.node(name)  # a row to write to
        with self._change() as db:
            db.execute("UPDATE nodes SET drained_for = ? WHERE name = ?", (uid, name))

    def drain_of(self, name: str) -> str:
        """The record of the drain in the workload manager; empty: none is ours."""
        rows = self._read("SELECT text FROM drains WHERE node = ?", name)
        return str(rows[0][0]) if rows else ""

    def drains(self) -> dict[str, str]:
        """All that were recorded, by node."""
        return dict(self._read("SELECT node, text FROM drains"))

    def set_drain_of(self, name: str, text: str) -> None:
        """Durable before the drain is written; an empty text removes it."""
        with self._change() as db:
            if text:
                db.execute(
                    "INSERT INTO drains VALUES (?, ?) ON CONFLICT (node) DO UPDATE"
                    " SET text = excluded.text",
                    (name, text),
                )
            else:
                db.execute("DELETE FROM drains WHERE node = ?", (name,))


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


_SPEC = msgspec.json.Decoder(QuarantineSpec)
_COLUMNS = "node, uid, version, spec, status, created_at, deleting, finalizer"
_NODE = "name, uid, version, unschedulable, taints, labels, annotations"


def _node(row: tuple[Any, ...]) -> Node:
    name, uid, version, unschedulable, taints, labels, annotations = row
    return Node(
        name,
        uid,
        str(version),
        bool(unschedulable),
        tuple(Taint(**taint) for taint in json.loads(taints)),
        json.loads(labels),
        json.loads(annotations),
    )


def _encode_status(status: QuarantineStatus, unread: Mapping[str, Any] = EMPTY) -> str:
    """``unread``: the fields that can't be read, which stay as they are."""
    return json.dumps({**asdict(status), **unread})


def _decode_status(text: str) -> tuple[QuarantineStatus, str, frozenset[str]]:
    """The status, why part of it can't be read, and the fields that can't."""
    found = json.loads(text)
    try:
        return msgspec.convert(found, QuarantineStatus), "", frozenset()
    except msgspec.ValidationError as error:
        why = f"status: {error}"
    read, unread = {}, set()
    for field in fields(QuarantineStatus):
        alone = {field.name: found[field.name]} if field.name in found else {}
        try:
            read[field.name] = getattr(msgspec.convert(alone, QuarantineStatus), field.name)
        except msgspec.ValidationError:
            unread.add(field.name)
    return QuarantineStatus(**read), why, frozenset(unread)


def _quarantine(row: tuple[Any, ...]) -> Quarantine:
    node, uid, version, spec, text, created_at, deleting, finalizer = row
    status, unread, unread_fields = _decode_status(text)
    return Quarantine(
        node,
        uid,
        str(version),
        _SPEC.decode(spec),
        status,
        created_at,
        bool(deleting),
        bool(finalizer),
        unread=unread,
        unread_fields=unread_fields,
    )
