"""The history's tables, in SQL that SQLite and PostgreSQL share."""

import sqlalchemy as sa

from aggregator.runtime.sqlite_format import HISTORY_REVISIONS
from aggregator.runtime.tables import Tables, revision_table

metadata = sa.MetaData()
HISTORY = Tables(
    revision_table(HISTORY_REVISIONS, metadata),
    revision="1.0",
    what="the history",
    instead="point history.database elsewhere",
)


def _own_id() -> "sa.Column[int]":
    """A row's number, given by us and not by the database.

    So a batch that is written again after an unknown end of its first try has the same rows. On
    SQLite an INTEGER key is the row's own place.
    """
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", number, primary_key=True, autoincrement=False)


def _replica() -> "sa.Column[str]":
    """The writer of the row, as several may share a database; empty where there is one."""
    return sa.Column("replica", sa.String(253), nullable=False, server_default=sa.text("''"))


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
    _replica(),
    # A node's last month, and the fleet's: both read backwards, so newest first costs no sort.
    sa.Index("transitions_node_at", "node", "at", "id"),
    sa.Index("transitions_at", "at", "id"),
    # How often each node was in quarantine, over a month and a fleet.
    sa.Index("transitions_kind_at", "kind", "at", "node"),
    # An incident's last state, which a takeover derives again.
    sa.Index("transitions_incident_at", "incident", "at"),
)

#: The agents' evidence, as far as it can change an evaluation. docs/policy.md, "Replay".
evidence = sa.Table(
    "evidence",
    metadata,
    _own_id(),
    sa.Column("at", sa.Double, nullable=False),  # wall clock seconds since the epoch
    sa.Column("node", sa.String(253), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("body", sa.JSON, nullable=False),
    _replica(),
    sa.Index("evidence_node_at", "node", "at", "id"),
    sa.Index("evidence_at", "at", "id"),
)
