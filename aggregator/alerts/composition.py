"""Which alerts the next delivery of a route has, and its content."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import sqlalchemy as sa

from aggregator.alerts.alert import Alert, AlertState
from aggregator.alerts.alert_codec import decode_alert
from aggregator.alerts.batch import CHUNK, chunks
from aggregator.alerts.message import PendingDelivery
from aggregator.alerts.tables import deliveries, groups, lasting, pending

#: The most alerts that one delivery carries, and the most of a grouped kind, which are sent as one.
MOST_IN_ONE = 200
MOST_GROUPED = 10_000
#: Bytes of the alerts of one delivery, or one alert: many receivers refuse a megabyte.
MOST_BYTES = 512 * 1024
#: Groups of one route that are read for the next delivery.
MOST_GROUPS = 200


@dataclass(frozen=True, slots=True)
class BatchWait:
    """Seconds that an alert waits for others to share its delivery, one of a grouped kind, and a
    group after its last delivery.
    """

    linger: float = 0.5
    grouped: float = 10.0
    interval: float = 0.0


def due_rows(
    db: sa.Connection, route: str, now: float, wait: BatchWait
) -> tuple[list[Any], float | None]:
    """The rows of the delivery that is due, and the seconds until one is."""
    of_route = pending.c.route == route
    free = sa.and_(of_route, pending.c.not_before <= now)
    soonest = db.execute(
        sa.select(sa.func.min(pending.c.not_before)).where(of_route, pending.c.not_before > now)
    ).scalar()
    waits = [soonest - now] if soonest is not None else []
    # A group waits after its last delivery; groups beyond those that wait are read all the same.
    pausing = sa.and_(
        groups.c.route == route, groups.c.last_at > now - wait.interval, groups.c.last_at <= now
    )
    waiting = groups.c.grp.in_(sa.select(pending.c.grp).where(free))
    last = db.execute(sa.select(sa.func.min(groups.c.last_at)).where(pausing, waiting)).scalar()
    if last is not None:
        waits.append(last + wait.interval - now)
    names = db.execute(
        sa.select(pending.c.grp)
        .where(free, pending.c.grp.not_in(sa.select(groups.c.grp).where(pausing)))
        .group_by(pending.c.grp)
        .order_by(sa.func.min(pending.c.seq))
        .limit(MOST_GROUPS)
    ).scalars()
    for name in names.all():
        taken, pause = _due_of_group(db, free, name, now, wait)
        if taken:
            return taken, None
        waits.append(pause)
    return [], min(waits, default=None)


def _due_of_group(
    db: sa.Connection, free: "sa.ColumnElement[bool]", name: str, now: float, wait: BatchWait
) -> tuple[list[Any], float]:
    """The rows of the group that are due, and the seconds until some are."""
    taken: list[Any] = []
    others: list[Any] = []
    waits: list[float] = []
    for grouped, patience, most in ((0, wait.linger, MOST_IN_ONE), (1, wait.grouped, MOST_GROUPED)):
        rows = db.execute(
            sa.select(pending)
            .where(free, pending.c.grp == name, pending.c.grouped == grouped)
            .order_by(pending.c.seq)
            .limit(most)
        ).all()
        if not rows:
            continue
        waited = now - rows[0].accepted_at
        sizes = accumulate(len(row.alert) for row in rows)
        fit = max(1, sum(size <= MOST_BYTES for size in sizes)) if not grouped else most
        full, rows = len(rows) >= min(most, fit + 1), rows[:fit]
        # A clock that was set back is not waited for.
        if 0 <= waited < patience and not full:
            waits.append(patience - waited)
            others += rows
        else:
            taken += rows
    if taken and wait.linger == wait.grouped:
        taken += others  # one message for all of it
    return sorted(taken, key=lambda row: row.seq), min(waits, default=0.0)


def compose(db: sa.Connection, route: str, rows: Sequence[Any], now: float) -> PendingDelivery:
    alerts = [(row.firing, decode_alert(row.alert)) for row in rows]
    grp = rows[0].grp
    # The first row's number is never used again: no two deliveries of these tables share an id.
    ident = f"{route}-{rows[0].seq}-{alerts[0][1].id[:12]}"
    begun = [firing for firing, alert in alerts if alert.state is AlertState.FIRING]
    for some in chunks(begun):
        of = (lasting.c.route == route, lasting.c.firing.in_(some))
        db.execute(sa.update(lasting).where(*of).values(delivery=ident))
    over = [firing for firing, alert in alerts if alert.state is AlertState.RESOLVED]
    announced = _forget_ended(db, route, over)
    text = json.dumps(
        [_with_delivery(alert, announced.get(firing)).to_json() for firing, alert in alerts],
        separators=(",", ":"),
    )
    delivery = PendingDelivery(route, ident, text, len(rows), 0, now, now, grp)
    values = {"route": route, "id": ident, "grp": grp, "alerts": text, "size": len(rows)}
    times = {"attempts": 0, "first_at": now, "next_at": now, "claimed_by": "", "claimed_until": 0.0}
    db.execute(sa.insert(deliveries).values(**values, **times))
    seqs = [row.seq for row in rows]
    for start in range(0, len(seqs), CHUNK):
        db.execute(sa.delete(pending).where(pending.c.seq.in_(seqs[start : start + CHUNK])))
    db.execute(sa.delete(groups).where(groups.c.route == route, groups.c.grp == grp))
    db.execute(sa.insert(groups).values(route=route, grp=grp, last_at=now))
    return delivery


def _forget_ended(db: sa.Connection, route: str, over: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Of each alert that has ended: the delivery that announced it, and how many of that last."""
    announced: dict[str, str] = {}
    for some in chunks(over):
        of = (lasting.c.route == route, lasting.c.firing.in_(some))
        query = sa.select(lasting.c.firing, lasting.c.delivery).where(*of)
        announced |= {row.firing: row.delivery for row in db.execute(query)}
        db.execute(sa.delete(lasting).where(*of))
    left: dict[str, int] = {}
    for delivery in set(announced.values()):
        same = (lasting.c.route == route, lasting.c.delivery == delivery)
        count = sa.select(sa.func.count()).select_from(lasting).where(*same)
        left[delivery] = db.execute(count).scalar_one()
    return {firing: (delivery, left[delivery]) for firing, delivery in announced.items()}


def _with_delivery(alert: Alert, announced: tuple[str, int] | None) -> Alert:
    if alert.ending is None or announced is None:
        return alert
    return replace(alert, ending=replace(alert.ending, delivery=announced[0], open=announced[1]))
