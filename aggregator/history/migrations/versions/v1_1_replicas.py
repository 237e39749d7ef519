"""Several replicas share one database: a row's writer, and an incident's last state."""

import sqlalchemy as sa
from alembic import op

revision = "1.1"
down_revision = "1.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # With a default: after a rollback an older program goes on writing.
    for table in ("transitions", "evidence"):
        op.add_column(
            table,
            sa.Column("replica", sa.String(253), nullable=False, server_default=sa.text("''")),
        )
    op.create_index("transitions_incident_at", "transitions", ["incident", "at"])
    # The version from before Alembic: Alembic's own table has its content.
    op.drop_table("sickbay_history_schema", if_exists=True)
