"""The cluster's tables in PostgreSQL, which several replicas share.

Each change takes the one row of ``changes`` first, so that changes follow each other as in a file.
A replica that stops within one loses it after `IDLE` seconds, and the server undoes its change.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from aggregator.cluster.local.rows import TABLES, Row, Run
from aggregator.cluster.port import Refused, Unreachable
from aggregator.runtime.database import Engine

T = TypeVar("T")

#: Our tables' schema: history's may be in the same database.
SCHEMA = "sickbay_cluster"
#: The version of the tables.
FORMAT = 1
#: Seconds for a call, and those after which the server ends a transaction whose client stopped.
SECONDS, IDLE = 10.0, 3
#: PostgreSQL's advisory locks are numbers; this is ours ("sickbay" and a number).
_MAKING = 0x7369636B04
SETTINGS: Mapping[str, str] = {
    "search_path": SCHEMA,
    "statement_timeout": f"{SECONDS:g}s",
    "idle_in_transaction_session_timeout": f"{IDLE}s",
}
_TABLES = f"""
CREATE SCHEMA IF NOT EXISTS sickbay_cluster;
CREATE TABLE format (version BIGINT NOT NULL);
INSERT INTO format VALUES (1);
CREATE TABLE changes (number BIGINT NOT NULL);
INSERT INTO changes VALUES (0);
{TABLES.replace("INTEGER", "BIGINT").replace("REAL", "DOUBLE PRECISION")}
CREATE TABLE lease (
  id BIGINT PRIMARY KEY CHECK (id = 1), uid TEXT NOT NULL, number BIGINT NOT NULL,
  holder TEXT NOT NULL, epoch TEXT NOT NULL, address TEXT NOT NULL, page TEXT NOT NULL,
  version TEXT NOT NULL, transitions BIGINT NOT NULL,
  acquired_at TIMESTAMPTZ NOT NULL, renewed_at TIMESTAMPTZ NOT NULL
)
"""  # noqa: S608 - of constants


def is_ready(connection: sa.Connection, name: str) -> bool:
    """Whether the tables are there. Raises `Refused` where a newer sickbay made them."""
    if not sa.inspect(connection).has_table("format", schema=SCHEMA):
        return False
    found = run_statement(connection, f"SELECT version FROM {SCHEMA}.format")[0]["version"]  # noqa: S608
    if found > FORMAT:
        raise Refused(
            f"{name} was written by a newer sickbay (tables {found}, this one knows {FORMAT}); "
            "upgrade, or point cluster.store.database elsewhere"
        )
    return True


def prepare(connection: sa.Connection, name: str) -> None:
    """Make the tables. Of replicas that start together one does."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING)))
    if not is_ready(connection, name):
        for statement in _TABLES.split(";"):
            connection.exec_driver_sql(statement)


def run_statement(connection: sa.Connection, query: str, **values: Any) -> list[Row]:
    """Its rows, if it returns any."""
    result = connection.execute(sa.text(query), values)
    return [dict(row) for row in result.mappings()] if result.returns_rows else []


class PostgresRows:
    """Implements `Rows`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def close(self) -> None:
        self._engine.close()

    def read(self, query: str, **values: object) -> list[Row]:
        return self._call(lambda connection: run_statement(connection, query, **values))

    def change(self, work: Callable[[Run], T]) -> T:
        def in_turn(connection: sa.Connection) -> T:
            run: Run = partial(run_statement, connection)
            run("UPDATE changes SET number = number + 1")
            return work(run)

        return self._call(in_turn, write=True)

    def changed_elsewhere(self) -> int:
        """Counts this process's changes too."""
        return int(self.read("SELECT number FROM changes")[0]["number"])

    def _call(self, work: Callable[[sa.Connection], T], *, write: bool = False) -> T:
        try:
            return self._engine.call(work, write=write, seconds=SECONDS)
        except OSError as error:
            raise Unreachable(str(error)) from error
