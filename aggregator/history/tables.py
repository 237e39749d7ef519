"""The history's tables, in words that SQLite and PostgreSQL share."""

import sqlalchemy as sa

#: Counts up with each change of the tables that an older program can't live with; one that finds a
#: higher number keeps its hands off. A table or an index that is added leaves it as it is.
VERSION = 1

metadata = sa.MetaData()

#: One row: the version that the tables were made at, or migrated to.
schema = sa.Table(
    "sickbay_history_schema",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
)


def _own_id() -> "sa.Column[int]":
    """A row's number: ours and not the database's.

    So a batch that is written again after an unknown end of its first try is the same rows. On
    SQLite an INTEGER key is the row's own place.
    """
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", number, primary_key=True, autoincrement=False)


transitions = sa.Table(
    "transitions",
    metadata,
    _own_id(),
    sa.Column("at", sa.Double, nullable=False),  # wall clock seconds since the epoch
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("node", sa.String(253), nullable=False),  # "" for the fleet
    sa.Column("incident", sa.String(64), nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("details", sa.JSON, nullable=False),
    # A node's last month, and everybody's: both read backwards, so newest first costs nothing.
    sa.Index("transitions_node_at", "node", "at", "id"),
    sa.Index("transitions_at", "at", "id"),
    # Who has been in quarantine how often, over a month and a fleet.
    sa.Index("transitions_kind_at", "kind", "at", "node"),
)

#: What the agents told, as far as it can change a judgement. docs/policy.md, "Replay".
evidence = sa.Table(
    "evidence",
    metadata,
    _own_id(),
    sa.Column("at", sa.Double, nullable=False),  # wall clock seconds since the epoch
    sa.Column("node", sa.String(253), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("body", sa.JSON, nullable=False),
    sa.Index("evidence_node_at", "node", "at", "id"),
    sa.Index("evidence_at", "at", "id"),
)
