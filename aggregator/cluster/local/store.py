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
from aggregator.cluster.local.rows import (
    TABLES,
    Row,
    Rows,
    Run,
    delete,
    expect_row,
    insert,
    select,
    update,
)
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

    def all_rows(self) -> dict[str, list[Row]]:
        """All that commands of people read or change, by table."""
        return {name: select(self._rows.read, name) for name in _COPIED}

    def take_rows(self, tables: Mapping[str, list[Row]]) -> None:
        """Have these and no others."""

        def write(run: Run) -> None:
            for name, rows in tables.items():
                delete(run, name)
                for row in rows:
                    insert(run, name, **row)

        self._rows.change(write)

    # -- the record -------------------------------------------------------------------

    def record(self) -> RecordText:
        rows = select(self._rows.read, "record")
        if not rows:
            self._rows.change(lambda run: insert(run, "record", id=1, text="", version=1))
            return self.record()
        return RecordText(rows[0]["text"], str(rows[0]["version"]))

    def write_record(self, text: str, version: str) -> RecordText:
        written = self._rows.change(
            lambda run: update(run, "record", {"text": text}, version=int(version))
        )
        now = expect_row(written, "the record was written in between")
        return RecordText(now["text"], str(now["version"]))

    def stop(self) -> StopText:
        """The stop switch. A deleted row leaves it unset."""
        rows = select(self._rows.read, "stop")
        return StopText(rows[0]["reason"], str(rows[0]["version"])) if rows else StopText()

    def stopped(self) -> str:
        """Why all is stopped; empty: it is not."""
        return self.stop().reason or ""

    def set_stop(self, reason: str) -> None:
        """The stop switch, by a person; an empty reason turns it off.

        The record's version moves with it, so that no admission that was decided before is
        written.
        """

        def write(run: Run) -> None:
            if not update(run, "stop", {"reason": reason}):
                insert(run, "stop", id=1, reason=reason, version=1)
            run("UPDATE record SET version = version + 1")

        self._rows.change(write)

    # -- quarantines --------------------------------------------------------------------

    def quarantines(self) -> list[Quarantine]:
        rows = select(self._rows.read, "quarantines")
        operations = self.operations.all()
        return [with_attempts(_quarantine(row), operations) for row in rows]

    def quarantine(self, node: str) -> Quarantine | None:
        rows = select(self._rows.read, "quarantines", node=node)
        return self._joined(_quarantine(rows[0])) if rows else None

    def _joined(self, quarantine: Quarantine) -> Quarantine:
        return with_attempts(quarantine, self.operations.of(quarantine.node))

    def create_quarantine(self, node: str, spec: QuarantineSpec, *, finalizer: bool) -> Quarantine:
        """Raises Conflict, and Refused for a name that is a pattern to a site's command."""
        try:
            expect_one_node(node)
        except ValueError as error:
            raise Refused(str(error)) from error

        made = self._rows.change(
            lambda run: insert(
                run,
                "quarantines",
                node=node,
                uid=str(uuid.uuid4()),
                version=1,
                spec=json.dumps(asdict(spec)),
                status=_encode_status(QuarantineStatus()),
                created_at=float(self._wall()),
                deleting=0,
                finalizer=int(finalizer),
            )
        )
        return _quarantine(expect_row(made, f"{node} has a quarantine already"))

    def write_quarantine(self, quarantine: Quarantine) -> Quarantine:
        """Write spec, status and finalizer against the version that was read."""

        def write(run: Run) -> list[Row]:
            values = {
                "spec": json.dumps(asdict(quarantine.spec)),
                "status": _encode_status(quarantine.status, _unread_of(run, quarantine)),
                "finalizer": int(quarantine.has_finalizer),
            }
            which = {"node": quarantine.node, "uid": quarantine.uid}
            return update(run, "quarantines", values, **which, version=int(quarantine.version))

        late = f"the quarantine of {quarantine.node} was written in between"
        return self._joined(_quarantine(expect_row(self._rows.change(write), late)))

    def delete_quarantine(self, node: str, uid: str | None = None) -> None:
        """A person's deletion: with a finalizer the row is only marked. ``uid``: of that one
        alone.
        """
        which = {"node": node} if uid is None else {"node": node, "uid": uid}

        def write(run: Run) -> None:
            delete(run, "quarantines", **which, finalizer=0)
            update(run, "quarantines", {"deleting": 1}, **which)

        self._rows.change(write)

    def drop_quarantine(self, quarantine: Quarantine) -> None:
        which = {"node": quarantine.node, "uid": quarantine.uid}
        self._rows.change(lambda run: delete(run, "quarantines", **which))

    # -- nodes --------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        return [_node(row) for row in select(self._rows.read, "nodes")]

    def node(self, name: str) -> Node:
        """The node; a read of a node adds it to the local cluster."""
        found = self.node_now(name)
        if found is not None:
            return found
        empty = {"taints": "[]", "labels": "{}", "annotations": "{}"}
        new = {"name": name, "uid": str(uuid.uuid4()), "version": 1, "unschedulable": 0, **empty}
        self._rows.change(lambda run: insert(run, "nodes", **new))
        return self.node(name)

    def write_node(self, node: Node) -> Node:
        """Against the version that was read. The same content leaves the version as it is."""

        def write(run: Run) -> Node:
            now = _expected(run, node)
            if replace(node, boot_id=now.boot_id, ready=now.ready) == now:
                return now
            values = {
                "unschedulable": int(node.unschedulable),
                "taints": json.dumps([asdict(taint) for taint in node.taints]),
                "labels": json.dumps(dict(node.labels)),
                "annotations": json.dumps(dict(node.annotations)),
            }
            return _node(update(run, "nodes", values, name=node.name)[0])

        return self._rows.change(write)

    def delete_node(self, node: Node) -> None:
        """Against the version that was read, and only where it has no quarantine."""

        def write(run: Run) -> None:
            _expected(run, node)
            if select(run, "quarantines", node=node.name):
                raise Conflict(f"{node.name} has a quarantine")
            delete(run, "nodes", name=node.name)

        self._rows.change(write)

    def expect_node(self, node: Node) -> Node:
        """The node as it is now, or `Conflict` where that is not the one that was read."""
        return _expected(self._rows.read, node)

    def node_now(self, name: str) -> Node | None:
        return _node_now(self._rows.read, name)

    def drained_for(self, name: str) -> str:
        """The uid of the quarantine for which the drain command has succeeded."""
        rows = select(self._rows.read, "nodes", name=name)
        return str(rows[0]["drained_for"]) if rows else ""

    def set_drained_for(self, name: str, uid: str) -> None:
        self.node(name)  # a row to write to
        self._rows.change(
            lambda run: run(
                "UPDATE nodes SET drained_for = :uid WHERE name = :name", uid=uid, name=name
            )
        )

    def drain_of(self, name: str) -> str:
        """The record of the drain in the workload manager; empty: none is ours."""
        rows = select(self._rows.read, "drains", node=name)
        return str(rows[0]["text"]) if rows else ""

    def drains(self) -> dict[str, str]:
        """All that were recorded, by node."""
        return {row["node"]: row["text"] for row in select(self._rows.read, "drains")}

    def set_drain_of(self, name: str, text: str, before: str | None = None) -> None:
        """Durable before the drain is written; an empty text removes it. Against the text
        ``before``, if given.
        """

        def write(run: Run) -> None:
            there = delete(run, "drains", node=name)
            if before is not None and [row["text"] for row in there] != [before]:
                raise Conflict(f"the record of the drain of {name} was written in between")
            if text:
                insert(run, "drains", node=name, text=text)

        self._rows.change(write)


class LocalStore(ClusterStore):
    """The file at ``path``. Raises also what `SqliteRows` raises on opening it."""

    def __init__(self, path: Path, *, wall: Callable[[], float]) -> None:
        super().__init__(SqliteRows(path, SCHEMA), wall=wall)


def _unread_of(run: Run, quarantine: Quarantine) -> dict[str, Any]:
    """The fields of its status that can't be read, as they are stored."""
    if not quarantine.unread_fields:
        return {}
    rows = select(run, "quarantines", node=quarantine.node)
    there = json.loads(rows[0]["status"]) if rows else {}
    kept = {name: there[name] for name in quarantine.unread_fields if name in there}
    if quarantine.status.phase is Phase.RELEASING:
        kept.pop("phase", None)
    return kept


def _node_now(run: Run, name: str) -> Node | None:
    rows = select(run, "nodes", name=name)
    return _node(rows[0]) if rows else None


def _expected(run: Run, node: Node) -> Node:
    now = _node_now(run, node.name)
    if now is None or now.uid != node.uid or now.version != node.version:
        raise Conflict(f"{node.name} was written in between")
    return now


_SPEC = msgspec.json.Decoder(QuarantineSpec)


def _node(row: Row) -> Node:
    return Node(
        row["name"],
        row["uid"],
        str(row["version"]),
        bool(row["unschedulable"]),
        tuple(Taint(**taint) for taint in json.loads(row["taints"])),
        json.loads(row["labels"]),
        json.loads(row["annotations"]),
    )


def _encode_status(status: QuarantineStatus, unread: Mapping[str, Any] = EMPTY) -> str:
    """``unread``: the fields that can't be read, which stay as they are. The attempts at repairs
    are rows of their own.
    """
    found = {**asdict(status), **unread}
    if "repair" not in unread:
        del found["repair"]["attempts"], found["repair"]["requests"]
    return json.dumps(found)


def _quarantine(row: Row) -> Quarantine:
    status, why, unread_fields = read_fields(QuarantineStatus, row["status"])
    return Quarantine(
        row["node"],
        row["uid"],
        str(row["version"]),
        _SPEC.decode(row["spec"]),
        status,
        row["created_at"],
        bool(row["deleting"]),
        bool(row["finalizer"]),
        unread=f"status: {why}" if why is not None else "",
        unread_fields=unread_fields,
    )
