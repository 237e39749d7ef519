"""Brings a database's tables to this program's version, or reports why it leaves them alone.

Runs within the caller's transaction, behind a lock: of replicas that start together one migrates,
and the others find the tables current. Alembic is imported only where older tables need a step,
because its import costs as much as the rest of the history's imports.
"""

import logging
from pathlib import Path

import sqlalchemy as sa

from aggregator.history.engine import HistoryError
from aggregator.history.tables import REVISION, metadata

log = logging.getLogger("sickbay.history")

#: PostgreSQL's advisory locks are numbers; these are ours ("sickbay" and a number for the purpose).
MIGRATING = 0x7369636B01
RETAINING = 0x7369636B02

#: Where Alembic keeps the revision.
VERSIONS = "sickbay_history_version"
#: As Alembic makes it: https://alembic.sqlalchemy.org/en/latest/tutorial.html
_versions = sa.Table(
    VERSIONS,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{VERSIONS}_pkc"),
)


def is_ready(connection: sa.Connection, name: str) -> bool:
    """Whether the tables need no step; only reads. Raises `HistoryError` where we can't use
    them.
    """
    found = _revision(connection)
    if found is None and (tables := set(metadata.tables) & _tables(connection)):
        # Another replica may have made them since, in one transaction with their revision.
        found = _revision(connection)
        if found is None:
            raise _unreleased(name, tables)
    return found is not None and not _is_older(found, name)


def prepare(connection: sa.Connection, name: str) -> None:
    """Bring the tables to `REVISION`; leave those of a later minor alone. Raises `HistoryError`.

    ``connection`` is in a transaction, on SQLite one that holds the write lock.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATING)))
    if is_ready(connection, name):
        return
    found = _revision(connection)
    if found is None:
        create(connection)
        return
    log.info("the history's tables are migrated", extra={"from": found, "to": REVISION})
    upgrade(connection)


def create(connection: sa.Connection) -> None:
    """Make the tables in a database that has none of them, as all the steps together would."""
    metadata.create_all(connection)
    _versions.create(connection)
    connection.execute(sa.insert(_versions).values(version_num=REVISION))


def upgrade(connection: sa.Connection, to: str = REVISION) -> None:
    """Take the steps up to the revision ``to``."""
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs every step otherwise
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, to)


def _revision(connection: sa.Connection) -> str | None:
    """The revision, or None where there are no tables of a released version."""
    if not sa.inspect(connection).has_table(VERSIONS):
        return None
    return connection.execute(sa.select(_versions.c.version_num)).scalar()


def _is_older(found: str, name: str) -> bool:
    """Whether there are steps to take. A revision of our major and a later minor needs none."""
    major, _, minor = found.partition(".")
    own_major, own_minor = (int(part) for part in REVISION.split("."))
    if not (major.isdecimal() and minor.isdecimal()):
        raise HistoryError(
            f"{name} holds tables of revision {found!r}, which is none of sickbay's; point "
            "history.database elsewhere"
        )
    if int(major) > own_major:
        raise _newer(name, found)
    return (int(major), int(minor)) < (own_major, own_minor)


def _tables(connection: sa.Connection) -> set[str]:
    return set(sa.inspect(connection).get_table_names())


def _unreleased(name: str, tables: set[str]) -> HistoryError:
    """Tables without a revision are none of a released version's, and are left alone."""
    return HistoryError(
        f"{name} has tables of an unreleased version of sickbay ({', '.join(sorted(tables))}), "
        "which no version reads; to start afresh, move it away, or point history.database "
        "elsewhere"
    )


def _newer(name: str, found: str) -> HistoryError:
    return HistoryError(
        f"{name} was written by a newer sickbay (tables {found}, this one knows {REVISION}); "
        "upgrade, or point history.database elsewhere"
    )
