"""Operations of the local cluster: one table, written by compare-and-set."""

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TypeVar

import msgspec

from aggregator.cluster.local.rows import Row, Rows, delete, expect_row, insert, select, update
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

_TABLE = "operations"
_SPEC = msgspec.json.Decoder(OperationSpec)


class OperationTable:
    """All methods block, and raise what ``rows`` raise."""

    def __init__(self, rows: Rows, wall: Callable[[], float]) -> None:
        self._rows = rows
        self._wall = wall

    def create(self, name: str, spec: OperationSpec) -> Operation:
        """Raises Conflict where the name is taken."""
        made = self._rows.change(
            lambda run: insert(
                run,
                _TABLE,
                name=name,
                uid=str(uuid.uuid4()),
                version=1,
                node=spec.node,
                spec=json.dumps(asdict(spec)),
                status=json.dumps(asdict(OperationStatus())),
                created_at=float(self._wall()),
            )
        )
        return _operation(expect_row(made, f"there is an operation {name}"))

    def read(self, name: str) -> Operation | None:
        return next(iter(self._select(name=name)), None)

    def of(self, node: str) -> list[Operation]:
        return self._select(node=node)

    def all(self) -> list[Operation]:
        return self._select()

    def _select(self, **where: object) -> list[Operation]:
        return [_operation(row) for row in select(self._rows.read, _TABLE, **where)]

    def write_status(self, operation: Operation, status: OperationStatus) -> Operation:
        """Against the version that was read."""
        written = with_conditions(operation.status, status, self._wall())
        values = {"status": json.dumps(asdict(written))}
        rows = self._rows.change(lambda run: update(run, _TABLE, values, **_as_read(operation)))
        return _operation(expect_row(rows, _late(operation)))

    def cancel(self, operation: Operation) -> None:
        """A person deletes it: one that has not begun is gone, another one is to be cancelled."""
        which = {"name": operation.name, "uid": operation.uid}
        there: Operation | None = operation
        while there is not None and there.uid == operation.uid:
            if there.status.phase is not RepairState.PENDING:
                self._rows.change(lambda run: update(run, _TABLE, {"deleting": 1}, **which))
                return
            try:
                self.drop(there)
            except Conflict:  # the aggregator wrote in between: why it waits, or that it began
                there = self.read(operation.name)
            else:
                return

    def drop(self, operation: Operation) -> None:
        """Against the version that was read."""
        gone = self._rows.change(lambda run: delete(run, _TABLE, **_as_read(operation)))
        if not gone and self.read(operation.name) is not None:
            raise Conflict(_late(operation))


def _as_read(operation: Operation) -> dict[str, object]:
    """Its row at the version that was read."""
    return {"name": operation.name, "uid": operation.uid, "version": int(operation.version)}


def _late(operation: Operation) -> str:
    return f"operation {operation.name} was written in between"


def _operation(row: Row) -> Operation:
    spec = _SPEC.decode(row["spec"])
    status, why, _ = read_fields(OperationStatus, row["status"])
    if why is not None:  # a later version wrote it: nothing follows it
        status = unknown_outcome(row["name"], spec, status, why)
    return Operation(
        name=row["name"],
        uid=row["uid"],
        version=str(row["version"]),
        spec=spec,
        status=status,
        created_at=row["created_at"],
        deleting=bool(row["deleting"]),
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
