"""The outbox's tables, in SQL that SQLite and PostgreSQL share."""

from dataclasses import replace

import sqlalchemy as sa

from aggregator.runtime.sqlite_format import OUTBOX_REVISIONS
from aggregator.runtime.tables import Tables, revision_table

metadata = sa.MetaData()
OUTBOX = Tables(
    revision_table(OUTBOX_REVISIONS, metadata),
    revision="1.0",
    what="the outbox",
    instead="point alerts.outbox elsewhere",
)
SHARED_OUTBOX = replace(OUTBOX, instead="set alerts.shared: false")
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _number() -> "sa.Column[int]":
    return sa.Column("seq", _NUMBER, primary_key=True, autoincrement=True)


#: Alerts in no delivery yet. ``grp`` is the group of the route; ``grouped``: of a kind that waits
#: for others of its kind; ``firing`` the id of the alert, or of the one that this one ends. A row
#: is sent at ``not_before`` (wall clock seconds) or later, where ``held_by`` keeps it ("silence",
#: "exempt").
pending = sa.Table(
    "alert_pending",
    metadata,
    _number(),
    sa.Column("route", sa.Text, nullable=False),
    sa.Column("grp", sa.Text, nullable=False),
    sa.Column("grouped", sa.Integer, nullable=False),
    sa.Column("accepted_at", sa.Double, nullable=False),
    sa.Column("not_before", sa.Double, nullable=False),
    sa.Column("held_by", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("firing", sa.Text, nullable=False),
    sa.Column("alert", sa.Text, nullable=False),
    sa.Index("alert_pending_route", "route", "grp", "seq"),
    sa.Index("alert_pending_node", "route", "node", "seq"),
    sqlite_autoincrement=True,
)

#: The delivery that each route works on. Where replicas share the tables, the replica
#: ``claimed_by`` makes the attempt until ``claimed_until``.
deliveries = sa.Table(
    "alert_deliveries",
    metadata,
    sa.Column("route", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("grp", sa.Text, nullable=False),
    sa.Column("alerts", sa.Text, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("first_at", sa.Double, nullable=False),
    sa.Column("next_at", sa.Double, nullable=False),
    sa.Column("claimed_by", sa.Text, nullable=False),
    sa.Column("claimed_until", sa.Double, nullable=False),
)

#: Deliveries that a receiver refused, or that were given up.
dead = sa.Table(
    "alert_dead",
    metadata,
    _number(),
    sa.Column("route", sa.Text, nullable=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("alerts", sa.Text, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sqlite_autoincrement=True,
)

#: Alerts that are not sent again for some hours, unless they end.
reported = sa.Table(
    "alert_reported",
    metadata,
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("incident", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Index("alert_reported_node", "node"),
    sa.Index("alert_reported_at", "at"),
)

#: Alerts that last, for each route that reports their end. ``delivery`` announced it;
#: ``ended``: its end waits to be sent.
lasting = sa.Table(
    "alert_lasting",
    metadata,
    sa.Column("route", sa.Text, primary_key=True),
    sa.Column("firing", sa.Text, primary_key=True),
    sa.Column("grp", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("delivery", sa.Text, nullable=False),
    sa.Column("ended", sa.Integer, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("alert", sa.Text, nullable=False),
    sa.Index("alert_lasting_node", "node"),
    sa.Index("alert_lasting_delivery", "route", "delivery"),
)

#: When the last delivery of a group was made.
groups = sa.Table(
    "alert_groups",
    metadata,
    sa.Column("route", sa.Text, primary_key=True),
    sa.Column("grp", sa.Text, primary_key=True),
    sa.Column("last_at", sa.Double, nullable=False),
)
