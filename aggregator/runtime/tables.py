"""A database's tables: made once, and those of other versions and programs are left alone.

Runs within the caller's transaction, behind a lock: of replicas that start together one makes
them, and the others find them. The first change of a table after 0.1.0 brings Alembic, whose form
the table of the revision has.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from aggregator.runtime.database import DatabaseError

#: PostgreSQL's advisory locks are numbers; this is ours ("sickbay" and a number for the purpose).
PREPARING = 0x7369636B01


def revision_table(name: str, metadata: sa.MetaData) -> sa.Table:
    """As Alembic keeps it: https://alembic.sqlalchemy.org/en/latest/tutorial.html"""
    key = sa.PrimaryKeyConstraint("version_num", name=f"{name}_pkc")
    return sa.Table(name, metadata, sa.Column("version_num", sa.String(32), nullable=False), key)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables next to that of their revision.

    ``revision``: MAJOR.MINOR. A program works with every database of its own major, so a change
    that an older program can't work with must raise the major; an addition raises the minor.
    ``what`` they are and what to do ``instead`` of using them are for messages.
    """

    revisions: sa.Table
    revision: str
    what: str
    instead: str

    def is_ready(self, connection: sa.Connection, name: str) -> bool:
        """Whether they are there; only reads. Raises `DatabaseError` where we can't use them."""
        found = self._revision(connection)
        if found is None and (tables := self._in_the_way(connection)):
            # Another replica may have made them since, in one transaction with their revision.
            found = self._revision(connection)
            if found is None:
                raise DatabaseError(
                    f"{name}: {self.what} has tables of another program, or of an unreleased "
                    f"version of sickbay ({', '.join(sorted(tables))}), which no version reads; to "
                    f"start afresh, move it away, or {self.instead}"
                )
        if found is not None:
            self._expect_own_major(found, name)
        return found is not None

    def prepare(self, connection: sa.Connection, name: str) -> None:
        """Make the tables where there are none. Raises `DatabaseError`.

        ``connection`` is in a transaction, on SQLite one that holds the write lock.
        """
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(PREPARING)))
        if not self.is_ready(connection, name):
            self.revisions.metadata.create_all(connection)
            connection.execute(sa.insert(self.revisions).values(version_num=self.revision))

    def _revision(self, connection: sa.Connection) -> str | None:
        """The revision, or None where there are no tables of a released version."""
        if not sa.inspect(connection).has_table(self.revisions.name):
            return None
        return connection.execute(sa.select(self.revisions.c.version_num)).scalar()

    def _in_the_way(self, connection: sa.Connection) -> set[str]:
        """A server's database may be shared; a file with any tables is somebody's."""
        tables = set(sa.inspect(connection).get_table_names())
        shared = connection.dialect.name == "postgresql"
        return tables & set(self.revisions.metadata.tables) if shared else tables

    def _expect_own_major(self, found: str, name: str) -> None:
        """A later minor has columns and tables more, which are left alone."""
        major, _, minor = found.partition(".")
        if not (major.isdecimal() and minor.isdecimal()):
            raise DatabaseError(
                f"{name}: {self.what} has tables of revision {found!r}, which is none of "
                f"sickbay's; {self.instead}"
            )
        if major != self.revision.partition(".")[0]:
            raise DatabaseError(
                f"{name}: {self.what} was written by another sickbay (tables {found}, this one "
                f"knows {self.revision}); use that version, or {self.instead}"
            )
