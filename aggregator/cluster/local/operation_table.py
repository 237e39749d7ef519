"""Operations of the local cluster: one table, written by compare-and-set."""

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeVar

import msgspec

from aggregator.cluster.local.rows import Rows
from aggregator.cluster.operation_conditions import with_conditions
from aggregator.cluster.operations import unknown_outcome
from aggregator.cluster.port import (
    Conflict,
    Operation,
    OperationSpec,
    OperationStatus,
    QuarantineStatus,
    RepairState,
)

S = TypeVar("S", OperationStatus, QuarantineStatus)

_COLUMNS = "name, uid, version, spec, status, created_at, deleting"
_INSERT = """
INSERT INTO operations VALUES (:name, :uid, 1, :node, :spec, :status, :created_at, 0)
ON CONFLICT DO NOTHING RETURNING name, uid, version, spec, status, created_at, deleting
"""
_UPDATE = """
UPDATE operations SET status = :status, version = version + 1
WHERE name = :name AND uid = :uid AND version = :version
RETURNING name, uid, version, spec, status, created_at, deleting
"""
_SPEC = msgspec.json.Decoder(OperationSpec)


class OperationTable:
    """All methods block, and raise what ``rows`` raise."""

    def __init__(self, rows: Rows, wall: Callable[[], float]) -> None:
        self._rows = rows
        self._wall = wall

    def create(self, name: str, spec: OperationSpec) -> Operation:
        """Raises Conflict where the name is taken."""
        made = self._rows.change(
            lambda run: run(
                _INSERT,
                name=name,
                uid=str(uuid.uuid4()),
                node=spec.node,
                spec=json.dumps(asdict(spec)),
                status=json.dumps(asdict(OperationStatus())),
                created_at=float(self._wall()),
            )
        )
        if not made:
            raise Conflict(f"there is an operation {name}")
        return _operation(made[0])

    def read(self, name: str) -> Operation | None:
        query = f"SELECT {_COLUMNS} FROM operations WHERE name = :name"  # noqa: S608 - a constant
        rows = self._rows.read(query, name=name)
        return _operation(rows[0]) if rows else None

    def of(self, node: str) -> list[Operation]:
        query = f"SELECT {_COLUMNS} FROM operations WHERE node = :node"  # noqa: S608 - a constant
        return [_operation(row) for row in self._rows.read(query, node=node)]

    def all(self) -> list[Operation]:
        query = f"SELECT {_COLUMNS} FROM operations"  # noqa: S608 - a constant
        return [_operation(row) for row in self._rows.read(query)]

    def write_status(self, operation: Operation, status: OperationStatus) -> Operation:
        """Against the version that was read."""
        written = with_conditions(operation.status, status, self._wall())
        rows = self._rows.change(
            lambda run: run(
                _UPDATE,
                status=json.dumps(asdict(written)),
                name=operation.name,
                uid=operation.uid,
                version=int(operation.version),
            )
        )
        if not rows:
            raise Conflict(f"operation {operation.name} was written in between")
        return _operation(rows[0])

    def cancel(self, operation: Operation) -> None:
        """A person deletes it: one that has not begun is gone, another one is to be cancelled."""
        there: Operation | None = operation
        while there is not None and there.uid == operation.uid:
            if there.status.phase is not RepairState.PENDING:
                self._mark_deleted(there)
                return
            try:
                self.drop(there)
            except Conflict:  # the aggregator wrote in between: why it waits, or that it began
                there = self.read(operation.name)
            else:
                return

    def _mark_deleted(self, operation: Operation) -> None:
        self._rows.change(
            lambda run: run(
                "UPDATE operations SET deleting = 1, version = version + 1"
                " WHERE name = :name AND uid = :uid",
                name=operation.name,
                uid=operation.uid,
            )
        )

    def drop(self, operation: Operation) -> None:
        """Against the version that was read."""
        gone = self._rows.change(
            lambda run: run(
                "DELETE FROM operations WHERE name = :name AND uid = :uid AND version = :version"
                " RETURNING name",
                name=operation.name,
                uid=operation.uid,
                version=int(operation.version),
            )
        )
        if not gone and self.read(operation.name) is not None:
            raise Conflict(f"operation {operation.name} was written in between")


def _operation(row: tuple[Any, ...]) -> Operation:
    name, ident, version, text, progress, created_at, deleting = row
    spec = _SPEC.decode(text)
    status, why, _ = read_fields(OperationStatus, progress)
    if why is not None:  # a later version wrote it: nothing follows it
        status = unknown_outcome(name, spec, status, why)
    return Operation(
        name=name,
        uid=ident,
        version=str(version),
        spec=spec,
        status=status,
        created_at=created_at,
        deleting=bool(deleting),
    )


def read_fields(
    kind: type[S], text: str
) -> tuple[S, msgspec.ValidationError | None, frozenset[str]]:
    """The status in a row; why a field can't be read, and the names of all that can't, which have
    their defaults.
    """
    there = json.loads(text)
    try:
        return msgspec.convert(there, kind), None, frozenset()
    except msgspec.ValidationError as error:
        why = error
    found, unread = {}, set()
    for name in {one.name for one in fields(kind)} & there.keys():
        try:
            found[name] = getattr(msgspec.convert({name: there[name]}, kind), name)
        except msgspec.ValidationError:
            unread.add(name)
    return kind(**found), why, frozenset(unread)
