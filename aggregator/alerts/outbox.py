"""Alerts not yet delivered: durable, so that a killed process loses none.

Blocking: `Notifier` calls it in a thread of its own. Times are wall clock seconds, because they
outlive the process. The content of one delivery is fixed here once, under an id that never changes,
and sent only then: a delivery that is tried again, even by the next process, is the same one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from aggregator.alerts.alert import OF_INCIDENT, Alert
from aggregator.alerts.alert_codec import decode_alert
from aggregator.alerts.batch import AlertHold, Batch, Item, chunks, set_holds
from aggregator.alerts.composition import MOST_GROUPED, BatchWait, compose, due_rows
from aggregator.alerts.message import PendingDelivery, summaries_of
from aggregator.alerts.overview import DeadDelivery
from aggregator.alerts.store import OutboxStore
from aggregator.alerts.tables import dead, deliveries, groups, lasting, pending, reported

__all__ = [
    "AlertHold",
    "AlertOutbox",
    "BatchWait",
    "Item",
    "PendingDelivery",
]

#: The most alerts that wait for one route before the oldest is dropped.
MOST_WAITING = 20_000
#: The most alerts of one node: the events of one agent must not displace others' alerts.
MOST_OF_NODE = 200
#: Dead letters that are kept for inspection.
MOST_DEAD = 500
_MOST_SUMMARIES = 3
#: Seconds for which the same alert is not sent again, unless it has ended in between. Those of an
#: incident are sent once until they end.
SAME_WITHIN = 6 * 3600.0
#: Seconds after which an alert that lasts is forgotten: its end is not sent any more.
LASTS_AT_MOST = 60 * 86400.0
#: Seconds for which the last delivery of a group is remembered.
GROUP_KEPT = 86400.0


P = ParamSpec("P")
T = TypeVar("T")


def _one_change(
    work: Callable[Concatenate["AlertOutbox", sa.Connection, P], T],
) -> Callable[Concatenate["AlertOutbox", P], T]:
    """The method, whose first argument is the database, as one that makes a change as a whole."""

    @wraps(work)
    def change(self: "AlertOutbox", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._store.change(lambda db: work(self, db, *args, **kwargs))

    return change


class AlertOutbox:
    """The tables in ``store``. Every method may raise `DatabaseError`, and then changes nothing.

    ``replica``: this process's own name, where others use the same tables.
    """

    def __init__(self, store: OutboxStore, replica: str = "") -> None:
        self._store = store
        self._replica = replica if store.shared else ""

    @property
    def shared(self) -> bool:
        return self._store.shared

    @_one_change
    def accept(
        self, db: sa.Connection, items: Sequence[Item], now: float, earliest: float | None = None
    ) -> tuple[int, int]:
        """Make durable. Returns how many alerts were new, and how many old ones were dropped.

        ``earliest``: of the times that it may be now, by which rows are too old.
        """
        before = now if earliest is None else earliest
        others = reported.c.kind.not_in(sorted(OF_INCIDENT))
        db.execute(sa.delete(reported).where(reported.c.at < before - SAME_WITHIN, others))
        for table, column, most in (
            (reported, reported.c.at, LASTS_AT_MOST),
            (lasting, lasting.c.at, LASTS_AT_MOST),
            (groups, groups.c.last_at, GROUP_KEPT),
        ):
            db.execute(sa.delete(table).where(column < before - most))
        # A clock that was set back must not silence repeated alerts until it has caught up.
        db.execute(sa.update(reported).where(reported.c.at > now).values(at=now))
        batch = Batch(db, items, now)
        for item in items:
            batch.take(item)
        batch.write()
        dropped = 0
        for route in {route for item in items for route in item.routes}:
            dropped += _bound_nodes(db, route, items)
            # The newest alerts matter most to a receiver that is away for days.
            dropped += _drop_oldest(db, MOST_WAITING, pending.c.route == route)
        return batch.new, dropped

    @_one_change
    def expire(self, db: sa.Connection, route: str, before: float) -> int:
        """Drop alerts accepted before that time that are in no delivery yet. Returns how many."""
        # An alert that a silence holds is not too old: it waits for the end of that.
        old = (pending.c.accepted_at < before, pending.c.not_before < before)
        return db.execute(sa.delete(pending).where(pending.c.route == route, *old)).rowcount

    @_one_change
    def next(
        self, db: sa.Connection, route: str, now: float, wait: BatchWait, *, lease: float = 60.0
    ) -> PendingDelivery | float | None:
        """The open delivery, or one composed now; else seconds until there may be one, or None.

        Where replicas share the tables, the delivery is this one's for ``lease`` seconds.
        """
        row = db.execute(sa.select(deliveries).where(deliveries.c.route == route)).one_or_none()
        if row is not None:
            busy = self._busy_for(row, now)
            if busy > 0:
                return busy
            found: PendingDelivery | float | None = _delivery(row)
        else:
            due, soonest = due_rows(db, route, now, wait)
            found = compose(db, route, due, now) if due else soonest
        if isinstance(found, PendingDelivery) and self._replica:
            claim = {"claimed_by": self._replica, "claimed_until": now + lease}
            db.execute(sa.update(deliveries).where(deliveries.c.route == route).values(**claim))
        return found

    @_one_change
    def again(
        self, db: sa.Connection, delivery: PendingDelivery, next_at: float
    ) -> PendingDelivery:
        """One more attempt has failed; the next is not before ``next_at``, by any replica."""
        attempts = delivery.attempts + 1
        db.execute(
            sa.update(deliveries)
            .where(deliveries.c.route == delivery.route, deliveries.c.id == delivery.id)
            .values(attempts=attempts, next_at=next_at, claimed_until=0.0)
        )
        return replace(delivery, attempts=attempts, next_at=next_at)

    @_one_change
    def done(self, db: sa.Connection, delivery: PendingDelivery) -> None:
        """The receiver has accepted the delivery."""
        _close(db, delivery)

    @_one_change
    def dead_letter(
        self, db: sa.Connection, delivery: PendingDelivery, because: str, now: float
    ) -> None:
        """The receiver will never accept the delivery: keep it for inspection, and continue with
        the next.
        """
        _close(db, delivery)
        row = {"route": delivery.route, "id": delivery.id, "alerts": delivery.alerts}
        db.execute(sa.insert(dead).values(**row, size=delivery.size, because=because, at=now))
        newest = sa.select(sa.func.max(dead.c.seq)).scalar_subquery()
        db.execute(sa.delete(dead).where(dead.c.seq <= newest - MOST_DEAD))

    @_one_change
    def dead_letters(self, db: sa.Connection, most: int) -> list[DeadDelivery]:
        """The newest dead letters, newest first. Their ``route`` is its key."""
        rows = db.execute(sa.select(dead).order_by(dead.c.seq.desc()).limit(most))
        return [
            DeadDelivery(
                row.route,
                row.id,
                row.at,
                row.because,
                row.size,
                summaries_of(row.alerts, _MOST_SUMMARIES),
            )
            for row in rows
        ]

    @_one_change
    def newest_dead(self, db: sa.Connection) -> tuple[int, int]:
        """The number of the newest dead letter, and how many are kept: cheap to compare."""
        newest, kept = sa.func.coalesce(sa.func.max(dead.c.seq), 0), sa.func.count()
        seq, number = db.execute(sa.select(newest, kept)).one()
        return seq, number

    @_one_change
    def dead_count(self, db: sa.Connection) -> Mapping[str, int]:
        """How many dead letters of each route are kept."""
        query = sa.select(dead.c.route, sa.func.count()).group_by(dead.c.route)
        return {route: int(number) for route, number in db.execute(query)}

    @_one_change
    def keep_only(self, db: sa.Connection, routes: Sequence[str], before: float) -> int:
        """Drop alerts accepted before that time for routes that are no longer configured.

        Returns how many. A replica of another configuration may be about to send newer ones.
        """
        gone = db.execute(
            sa.delete(pending).where(pending.c.route.not_in(routes), pending.c.accepted_at < before)
        ).rowcount
        old = sa.and_(deliveries.c.route.not_in(routes), deliveries.c.first_at < before)
        sizes = db.execute(sa.select(deliveries.c.size).where(old)).scalars().all()
        db.execute(sa.delete(deliveries).where(old))
        db.execute(sa.delete(lasting).where(lasting.c.route.not_in(routes), lasting.c.at < before))
        return int(gone + sum(sizes))

    @_one_change
    def held(self, db: sa.Connection) -> list[tuple[int, Alert]]:
        """The alerts that a silence holds, with their numbers."""
        query = sa.select(pending.c.seq, pending.c.alert).where(pending.c.held_by == "silence")
        return [(seq, decode_alert(text)) for seq, text in db.execute(query)]

    @_one_change
    def exempt_nodes(self, db: sa.Connection) -> list[str]:
        """The nodes whose alerts an exemption holds."""
        query = sa.select(pending.c.node).where(pending.c.held_by == "exempt").distinct()
        return list(db.execute(query).scalars())

    @_one_change
    def hold(self, db: sa.Connection, holds: Mapping[int, AlertHold | None]) -> None:
        """What holds the alerts of these numbers now; None: nothing."""
        set_holds(db, holds)

    @_one_change
    def lasting_alerts(self, db: sa.Connection, route: str) -> list[Alert]:
        """The alerts that the route has sent and that last, oldest first."""
        query = (
            sa.select(lasting.c.alert)
            .where(lasting.c.route == route, lasting.c.delivery != "", lasting.c.ended == 0)
            .order_by(lasting.c.at)
            .limit(MOST_GROUPED)
        )
        return [decode_alert(text) for text in db.execute(query).scalars()]

    @_one_change
    def unended(self, db: sa.Connection) -> set[tuple[str, str, str]]:
        """Kind, node and incident of the alerts that last, and of those not to be sent again."""
        topics = sa.select(reported.c.kind, reported.c.node, reported.c.incident)
        found = {(kind, node, incident) for kind, node, incident in db.execute(topics)}
        alerts = db.execute(sa.select(lasting.c.alert).where(lasting.c.ended == 0)).scalars()
        return found | {(one.kind, one.node, one.incident) for one in map(decode_alert, alerts)}

    @_one_change
    def depths(self, db: sa.Connection) -> Mapping[str, int]:
        """How many alerts wait for each route; routes without any are not named."""
        waiting = sa.select(pending.c.route, sa.func.count()).group_by(pending.c.route)
        found = {route: int(number) for route, number in db.execute(waiting)}
        for route, size in db.execute(sa.select(deliveries.c.route, deliveries.c.size)):
            found[route] = found.get(route, 0) + size
        return found

    def close(self) -> None:
        """Close the tables' store; a later call opens it again."""
        self._store.close()

    def _busy_for(self, row: Any, now: float) -> float:
        """Seconds for which the delivery is another replica's, or waits for its next attempt."""
        if not self._replica:
            return 0.0  # the one sender of a file waits by itself
        until = row.next_at if row.attempts else 0.0
        if row.claimed_by != self._replica:
            until = max(until, row.claimed_until)
        return float(until - now)


def _delivery(row: Any) -> PendingDelivery:
    return PendingDelivery(
        row.route, row.id, row.alerts, row.size, row.attempts, row.first_at, row.next_at, row.grp
    )


def _close(db: sa.Connection, delivery: PendingDelivery) -> None:
    same = (deliveries.c.route == delivery.route, deliveries.c.id == delivery.id)
    db.execute(sa.delete(deliveries).where(*same))


def _bound_nodes(db: sa.Connection, route: str, items: Sequence[Item]) -> int:
    """Drop the oldest alerts of a node that has too many, never those of other nodes."""
    gone = 0
    nodes = {item.alert.node for item in items if item.alert is not None} - {""}
    for some in chunks(sorted(nodes)):
        of = sa.select(pending.c.node).where(pending.c.route == route, pending.c.node.in_(some))
        many = of.group_by(pending.c.node).having(sa.func.count() > MOST_OF_NODE)
        for node in db.execute(many).scalars().all():
            gone += _drop_oldest(db, MOST_OF_NODE, pending.c.route == route, pending.c.node == node)
    return gone


def _drop_oldest(db: sa.Connection, most: int, *of: "sa.ColumnElement[bool]") -> int:
    beyond = (
        sa.select(pending.c.seq).where(*of).order_by(pending.c.seq.desc()).limit(1).offset(most)
    )
    newest = db.execute(beyond).scalar()
    if newest is None:
        return 0
    return db.execute(sa.delete(pending).where(*of, pending.c.seq <= newest)).rowcount
