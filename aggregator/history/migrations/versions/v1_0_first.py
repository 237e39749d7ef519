"""The tables of version 0.1.0."""

import sqlalchemy as sa
from alembic import op

revision = "1.0"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "transitions",
        sa.Column("id", number, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("incident", sa.String(64), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("replica", sa.String(253), nullable=False, server_default=sa.text("''")),
    )
    op.create_table(
        "evidence",
        sa.Column("id", number, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("replica", sa.String(253), nullable=False, server_default=sa.text("''")),
    )
    for name, table, columns in (
        ("transitions_node_at", "transitions", ["node", "at", "id"]),
        ("transitions_at", "transitions", ["at", "id"]),
        ("transitions_kind_at", "transitions", ["kind", "at", "node"]),
        ("transitions_incident_at", "transitions", ["incident", "at"]),
        ("evidence_node_at", "evidence", ["node", "at", "id"]),
        ("evidence_at", "evidence", ["at", "id"]),
    ):
        op.create_index(name, table, columns)
