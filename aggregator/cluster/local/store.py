"""The state of a cluster without Kubernetes: rows, written by compare-and-set.

Used by the aggregator and by `sickbay --local`, which may both have them open: every change is one
transaction, and versions show which writer came second.
"""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from aggregator.cluster.local.operation_table import OperationTable, read_fields
from aggregator.cluster.local.rows import TABLES, Rows, Run
from aggregator.cluster.local.sqlite_rows import SqliteRows
from aggregator.cluster.operations import with_attempts
from aggregator.cluster.port import (
    Conflict,
    Node,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RecordText,
    Refused,
    StopText,
    Taint,
)
from aggregator.runtime.interning import EMPTY
from aggregator.runtime.node_name import expect_one_node

#: As SQLite has them.
SCHEMA = (
    TABLES.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
    .replace("\n);", "\n) STRICT;")
    .replace("INSERT INTO", "INSERT OR IGNORE INTO")
)
_COPIED = ("record", "stop", "nodes", "quarantines", "operations")


class ClusterStore:
    """All methods block; the aggregator calls them in a thread of its own.

    Raises `Conflict` where a version is not the present one, and what its `Rows` raise.
    """

    def __init__(self, rows: Rows, *, wall: Callable[[], float]) -> None:
        self._rows = rows
        self._wall = wall
        self.operations = OperationTable(rows, wall)

    def close(self) -> None:
        self._rows.close()

    def changed_elsewhere(self) -> int:
        """A number that differs after another process's change."""
        return self._rows.changed_elsewhere()

    def all_rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """All that commands of people read or change, by table."""
        return {name: self._rows.read(f"SELECT * FROM {name}") for name in _COPIED}  # noqa: S608

    def take_rows(self, tables: Mapping[str, list[tuple[Any, ...]]]) -> None:
        """Have these and no others."""

        def write(run: Run) -> None:
            for name, rows in tables.items():
                run(f"DELETE FROM {name}")  # noqa: S608
                for row in rows:
                    values = {f"c{number}": value for number, value in enumerate(row)}
                    places = ", ".join(f":{one}" for one in values)
                    run(f"INSERT INTO {name} VALUES ({places})", **values)  # noqa: S608

        self._rows.change(write)

    # -- the record -------------------------------------------------------------------

    def record(self) -> RecordText:
        rows = self._rows.read("SELECT text, version FROM record")
        if not rows:
            empty = "INSERT INTO record VALUES (1, '', 1) ON CONFLICT DO NOTHING"
            self._rows.change(lambda run: run(empty))
            return self.record()
        ((text, version),) = rows
        return RecordText(text, str(version))

    def write_record(self, text: str, version: str) -> RecordText:
        def write(run: Run) -> RecordText:
            written = run(
                "UPDATE record SET text = :text, version = version + 1 WHERE version = :version"
                " RETURNING text, version",
                text=text,
                version=int(version),
            )
            if not written:
                raise Conflict("the record was written in between")
            ((kept, now),) = written
            return RecordText(kept, str(now))

        return self._rows.change(write)

    def stop(self) -> StopText:
        """The stop switch. A deleted row leaves it unset."""
        rows = self._rows.read("SELECT reason, version FROM stop")
        return StopText(rows[0][0], str(rows[0][1])) if rows else StopText()

    def stopped(self) -> str:
        """Why all is stopped; empty: it is not."""
        return self.stop().reason or ""

    def set_stop(self, reason: str) -> None:
        """The stop switch, by a person; an empty reason turns it off.

        The record's version moves with it, so that no admission that was decided before is
        written.
        """

        def write(run: Run) -> None:
            run(
                "INSERT INTO stop VALUES (1, :reason, 1) ON CONFLICT (id) DO UPDATE"
                " SET reason = excluded.reason, version = stop.version + 1",
                reason=reason,
            )
            run("UPDATE record SET version = version + 1")

        self._rows.change(write)

    # -- quarantines --------------------------------------------------------------------

    def quarantines(self) -> list[Quarantine]:
        rows = self._rows.read(f"SELECT {_COLUMNS} FROM quarantines")  # noqa: S608
        operations = self.operations.all()
        return [with_attempts(_quarantine(row), operations) for row in rows]

    def quarantine(self, node: str) -> Quarantine | None:
        rows = self._rows.read(
            f"SELECT {_COLUMNS} FROM quarantines WHERE node = :node",  # noqa: S608 - a constant
            node=node,
        )
        return self._joined(_quarantine(rows[0])) if rows else None

    def _joined(self, quarantine: Quarantine) -> Quarantine:
        return with_attempts(quarantine, self.operations.of(quarantine.node))

    def create_quarantine(self, node: str, spec: QuarantineSpec, *, finalizer: bool) -> Quarantine:
        """Raises Conflict, and Refused for a name that is a pattern to a site's command."""
        try:
            expect_one_node(node)
        except ValueError as error:
            raise Refused(str(error)) from error

        def write(run: Run) -> Quarantine:
            made = run(
                "INSERT INTO quarantines"
                " VALUES (:node, :uid, 1, :spec, :status, :created_at, 0, :finalizer)"
                " ON CONFLICT DO NOTHING RETURNING *",
                node=node,
                uid=str(uuid.uuid4()),
                spec=json.dumps(asdict(spec)),
                status=_encode_status(QuarantineStatus()),
                created_at=float(self._wall()),
                finalizer=int(finalizer),
            )
            if not made:
                raise Conflict(f"{node} has a quarantine already")
            return _quarantine(made[0])

        return self._rows.change(write)

    def write_quarantine(self, quarantine: Quarantine) -> Quarantine:
        """Write spec, status and finalizer against the version that was read."""

        def write(run: Run) -> Quarantine:
            written = run(
                "UPDATE quarantines SET spec = :spec, status = :status, finalizer = :finalizer,"
                " version = version + 1 WHERE node = :node AND uid = :uid AND version = :version"
                " RETURNING *",
                spec=json.dumps(asdict(quarantine.spec)),
                status=_encode_status(quarantine.status, _unread_of(run, quarantine)),
                finalizer=int(quarantine.has_finalizer),
                node=quarantine.node,
                uid=quarantine.uid,
                version=int(quarantine.version),
            )
            if not written:
                raise Conflict(f"the quarantine of {quarantine.node} was written in between")
            return _quarantine(written[0])

        return self._joined(self._rows.change(write))

    def delete_quarantine(self, node: str, uid: str | None = None) -> None:
        """A person's deletion: with a finalizer the row is only marked. ``uid``: of that one
        alone.
        """
        which = "node = :node AND uid = coalesce(:uid, uid)"

        def write(run: Run) -> None:
            run(f"DELETE FROM quarantines WHERE {which} AND finalizer = 0", node=node, uid=uid)  # noqa: S608
            run(
                f"UPDATE quarantines SET deleting = 1, version = version + 1 WHERE {which}",  # noqa: S608
                node=node,
                uid=uid,
            )

        self._rows.change(write)

    def drop_quarantine(self, quarantine: Quarantine) -> None:
        self._rows.change(
            lambda run: run(
                "DELETE FROM quarantines WHERE node = :node AND uid = :uid",
                node=quarantine.node,
                uid=quarantine.uid,
            )
        )

    # -- nodes --------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        return [_node(row) for row in self._rows.read(f"SELECT {_NODE} FROM nodes")]  # noqa: S608

    def node(self, name: str) -> Node:
        """The node; a read of a node adds it to the local cluster."""
        found = self.node_now(name)
        if found is not None:
            return found
        self._rows.change(
            lambda run: run(
                "INSERT INTO nodes (name, uid, version, unschedulable, taints, labels, annotations)"
                " VALUES (:name, :uid, 1, 0, '[]', '{}', '{}') ON CONFLICT DO NOTHING",
                name=name,
                uid=str(uuid.uuid4()),
            )
        )
        return self.node(name)

    def write_node(self, node: Node) -> Node:
        """Against the version that was read. The same content leaves the version as it is."""

        def write(run: Run) -> Node:
            now = _expected(run, node)
            if replace(node, boot_id=now.boot_id, ready=now.ready) == now:
                return now
            written = run(
                "UPDATE nodes SET version = version + 1, unschedulable = :unschedulable,"
                " taints = :taints, labels = :labels, annotations = :annotations"
                " WHERE name = :name AND version = :version RETURNING *",
                unschedulable=int(node.unschedulable),
                taints=json.dumps([asdict(taint) for taint in node.taints]),
                labels=json.dumps(dict(node.labels)),
                annotations=json.dumps(dict(node.annotations)),
                name=node.name,
                version=int(node.version),
            )
            return _node(written[0])

        return self._rows.change(write)

    def delete_node(self, node: Node) -> None:
        """Against the version that was read, and only where it has no quarantine."""

        def write(run: Run) -> None:
            _expected(run, node)
            gone = run(
                "DELETE FROM nodes WHERE name = :name"
                " AND name NOT IN (SELECT node FROM quarantines) RETURNING name",
                name=node.name,
            )
            if not gone:
                raise Conflict(f"{node.name} has a quarantine")

        self._rows.change(write)

    def expect_node(self, node: Node) -> Node:
        """The node as it is now, or `Conflict` where that is not the one that was read."""
        return _expected(self._rows.read, node)

    def node_now(self, name: str) -> Node | None:
        return _node_now(self._rows.read, name)

    def drained_for(self, name: str) -> str:
        """The uid of the quarantine for which the drain command has succeeded."""
        rows = self._rows.read("SELECT drained_for FROM nodes WHERE name = :name", name=name)
        return str(rows[0][0]) if rows else ""

    def set_drained_for(self, name: str, uid: str) -> None:
        self.node(name)  # a row to write to
        self._rows.change(
            lambda run: run(
                "UPDATE nodes SET drained_for = :uid WHERE name = :name", uid=uid, name=name
            )
        )

    def drain_of(self, name: str) -> str:
        """The record of the drain in the workload manager; empty: none is ours."""
        rows = self._rows.read("SELECT text FROM drains WHERE node = :name", name=name)
        return str(rows[0][0]) if rows else ""

    def drains(self) -> dict[str, str]:
        """All that were recorded, by node."""
        return dict(self._rows.read("SELECT node, text FROM drains"))

    def set_drain_of(self, name: str, text: str, before: str | None = None) -> None:
        """Durable before the drain is written; an empty text removes it. Against the text
        ``before``, if given.
        """

        def write(run: Run) -> None:
            query = "SELECT text FROM drains WHERE node = :name"
            if before is not None and run(query, name=name) != [(before,)]:
                raise Conflict(f"the record of the drain of {name} was written in between")
            if text:
                run(
                    "INSERT INTO drains VALUES (:name, :text) ON CONFLICT (node) DO UPDATE"
                    " SET text = excluded.text",
                    name=name,
                    text=text,
                )
            else:
                run("DELETE FROM drains WHERE node = :name", name=name)

        self._rows.change(write)


class LocalStore(ClusterStore):
    """The file at ``path``. Raises also what `SqliteRows` raises on opening it."""

    def __init__(self, path: Path, *, wall: Callable[[], float]) -> None:
        super().__init__(SqliteRows(path, SCHEMA), wall=wall)


def _unread_of(run: Run, quarantine: Quarantine) -> dict[str, Any]:
    """The fields of its status that can't be read, as they are stored."""
    if not quarantine.unread_fields:
        return {}
    rows = run("SELECT status FROM quarantines WHERE node = :node", node=quarantine.node)
    there = json.loads(rows[0][0]) if rows else {}
    kept = {name: there[name] for name in quarantine.unread_fields if name in there}
    if quarantine.status.phase is Phase.RELEASING:
        kept.pop("phase", None)
    return kept


def _node_now(run: Run, name: str) -> Node | None:
    rows = run(
        f"SELECT {_NODE} FROM nodes WHERE name = :name",  # noqa: S608 - a constant
        name=name,
    )
    return _node(rows[0]) if rows else None


def _expected(run: Run, node: Node) -> Node:
    now = _node_now(run, node.name)
    if now is None or now.uid != node.uid or now.version != node.version:
        raise Conflict(f"{node.name} was written in between")
    return now


_SPEC = msgspec.json.Decoder(QuarantineSpec)
#: All columns, in the order of the table.
_COLUMNS = "node, uid, version, spec, status, created_at, deleting, finalizer"
_NODE = "name, uid, version, unschedulable, taints, labels, annotations"


def _node(row: tuple[Any, ...]) -> Node:
    name, uid, version, unschedulable, taints, labels, annotations, *_ = row
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
    """``unread``: the fields that can't be read, which stay as they are. The attempts at repairs
    are rows of their own.
    """
    found = {**asdict(status), **unread}
    if status.repair is not None and "repair" not in unread:
        del found["repair"]["attempts"], found["repair"]["requests"]
    return json.dumps(found)


def _quarantine(row: tuple[Any, ...]) -> Quarantine:
    node, uid, version, spec, text, created_at, deleting, finalizer = row
    status, why, unread_fields = read_fields(QuarantineStatus, text)
    return Quarantine(
        node,
        uid,
        str(version),
        _SPEC.decode(spec),
        status,
        created_at,
        bool(deleting),
        bool(finalizer),
        unread=f"status: {why}" if why is not None else "",
        unread_fields=unread_fields,
    )
