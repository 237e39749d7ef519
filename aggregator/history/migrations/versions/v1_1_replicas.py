"""Several replicas share one database: who wrote a row, and what an incident said last."""

import sqlalchemy as sa
from alembic import op

revision = "1.1"
down_revision = "1.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # With a default: a program of before this step writes on, should somebody go back to it.
    for table in ("transitions", "evidence"):
        op.add_column(
            table,
            sa.Column("replica", sa.String(253), nullable=False, server_default=sa.text("''")),
        )
    op.create_index("transitions_incident_at", "transitions", ["incident", "at"])
    # The version of before Alembic: what it said stands in Alembic's own table.
    op.drop_table("sickbay_history_schema", if_exists=True)
