"""Kinds of transitions that have another name now."""

import sqlalchemy as sa
from alembic import op

revision = "1.2"
down_revision = "1.1"
branch_labels = None
depends_on = None

_RENAMED = {
    "quarantine.would": "quarantine.suppressed",
    "node.wished": "node.requested",
    "fleet.common-cause": "fleet.common_cause",
    "fleet.common-cause-over": "fleet.common_cause_over",
    "fleet.cooldown-over": "fleet.cooldown_over",
    "fleet.record-lost": "fleet.record_lost",
    "fleet.record-whole": "fleet.record_whole",
    "fleet.replicas-apart": "fleet.replicas_apart",
    "fleet.replicas-together": "fleet.replicas_together",
}


def upgrade() -> None:
    # An older program that goes on beside this one writes the old names. The reader knows both.
    rows = sa.table("transitions", sa.column("kind", sa.String(40)))
    for old, new in _RENAMED.items():
        op.execute(sa.update(rows).where(rows.c.kind == old).values(kind=new))
