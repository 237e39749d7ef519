"""Makes a database's tables, or reports why it leaves those that are there alone.

Runs within the caller's transaction, behind a lock: of replicas that start together one makes
them, and the others find them. The first change of a table after 0.1.0 brings Alembic, whose form
the table of the revision has.
"""

import sqlalchemy as sa

from aggregator.history.engine import HistoryError
from aggregator.history.tables import REVISION, metadata

#: PostgreSQL's advisory locks are numbers; these are ours ("sickbay" and a number for the purpose).
PREPARING = 0x7369636B01
RETAINING = 0x7369636B02

#: The revision, as Alembic keeps it: https://alembic.sqlalchemy.org/en/latest/tutorial.html
VERSIONS = "sickbay_history_version"
_versions = sa.Table(
    VERSIONS,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{VERSIONS}_pkc"),
)


def is_ready(connection: sa.Connection, name: str) -> bool:
    """Whether the tables are there; only reads. Raises `HistoryError` where we can't use them."""
    found = _revision(connection)
    if found is None and (tables := set(metadata.tables) & _tables(connection)):
        # Another replica may have made them since, in one transaction with their revision.
        found = _revision(connection)
        if found is None:
            raise _unreleased(name, tables)
    if found is not None:
        _expect_own_major(found, name)
    return found is not None


def prepare(connection: sa.Connection, name: str) -> None:
    """Make the tables where there are none. Raises `HistoryError`.

    ``connection`` is in a transaction, on SQLite one that holds the write lock.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(PREPARING)))
    if not is_ready(connection, name):
        metadata.create_all(connection)
        _versions.create(connection)
        connection.execute(sa.insert(_versions).values(version_num=REVISION))


def _revision(connection: sa.Connection) -> str | None:
    """The revision, or None where there are no tables of a released version."""
    if not sa.inspect(connection).has_table(VERSIONS):
        return None
    return connection.execute(sa.select(_versions.c.version_num)).scalar()


def _expect_own_major(found: str, name: str) -> None:
    """A later minor has columns and tables more, which are left alone."""
    major, _, minor = found.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise HistoryError(
            f"{name} holds tables of revision {found!r}, which is none of sickbay's; point "
            "history.database elsewhere"
        )
    if major != REVISION.partition(".")[0]:
        raise HistoryError(
            f"{name} was written by another sickbay (tables {found}, this one knows {REVISION}); "
            "use that version, or point history.database elsewhere"
        )


def _tables(connection: sa.Connection) -> set[str]:
    return set(sa.inspect(connection).get_table_names())


def _unreleased(name: str, tables: set[str]) -> HistoryError:
    """Tables without a revision are none of a released version's, and are left alone."""
    return HistoryError(
        f"{name} has tables of an unreleased version of sickbay ({', '.join(sorted(tables))}), "
        "which no version reads; to start afresh, move it away, or point history.database "
        "elsewhere"
    )
