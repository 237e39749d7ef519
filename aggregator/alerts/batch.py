"""The changes that some transitions make to the outbox: new alerts, ends of alerts, repeats.

Computed in memory and written at once: a storm brings thousands of transitions.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from aggregator.alerts.alert import GROUPED, Alert, AlertState, NodeDecision, Resolution, ended
from aggregator.alerts.alert_codec import decode_alert, encode_alert
from aggregator.alerts.tables import lasting, pending, reported

#: Keys of one query.
CHUNK = 400


@dataclass(frozen=True, slots=True)
class AlertHold:
    """An alert that is not sent before ``until``, unless it ends first. ``by``: "silence",
    "exempt", or "decision" (`alert.DECIDED_WITHIN`).
    """

    until: float
    by: str


def longer_hold(silence: float, exempt: float) -> AlertHold | None:
    """The hold of an alert that is silenced and whose node is exempt until then; 0: it is not."""
    found = AlertHold(silence, "silence") if silence >= exempt else AlertHold(exempt, "exempt")
    return found if found.until else None


@dataclass(frozen=True, slots=True)
class Exemption:
    """Until when the node is exempt now, 0: it is not. ``silence``: the same of an alert."""

    node: str
    until: float
    silence: Callable[[Alert], float]


@dataclass(frozen=True, slots=True)
class Item:
    """One transition for the outbox, in the order recorded.

    ``alert`` is None for a transition that is sent on no route and only ends an earlier alert.
    ``routes`` are the keys of those that send it, ``groups`` its group on each; ``follow`` those
    that also send the end of alerts. ``exempt``: that of a node, which may have changed.
    ``decision``: alerts of the node that wait for it are sent now, or dropped where it is
    covered by a common cause.
    """

    topic: str
    alert: Alert | None
    ends: Resolution | None
    routes: tuple[str, ...]
    groups: Mapping[str, str] = field(default_factory=dict)
    follow: frozenset[str] = frozenset()
    hold: AlertHold | None = None
    exempt: Exemption | None = None
    decision: NodeDecision | None = None


class Batch:
    """The changes that some items make, computed in memory and written at once."""

    def __init__(self, db: sa.Connection, items: Sequence[Item], now: float) -> None:
        self._db, self._now = db, now
        self.new = 0
        nodes = {item.ends.node for item in items if item.ends is not None}
        topics = {item.topic for item in items if item.alert is not None}
        #: By node, so that each end reads those of its own alone: the kind and incident of topics.
        self._topics: defaultdict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        for column, keys in ((reported.c.topic, topics), (reported.c.node, nodes)):
            for row in _rows(db, reported, column, keys):
                self._topics[row.node][row.topic] = row.kind, row.incident
        self._forgotten: set[str] = set()
        self._reported: dict[str, dict[str, Any]] = {}
        self._lasting: defaultdict[str, dict[tuple[str, str], dict[str, Any]]] = defaultdict(dict)
        for row in _rows(db, lasting, lasting.c.node, nodes):
            self._lasting[row.node][row.route, row.firing] = row._asdict()
        self._begun: dict[tuple[str, str], dict[str, Any]] = {}
        self._ended: list[tuple[str, str]] = []
        held = sa.and_(pending.c.not_before > now, pending.c.node.in_(sorted(nodes)))
        waiting = db.execute(
            sa.select(pending.c.route, pending.c.firing, pending.c.alert).where(held)
        )
        self._held = {(route, firing): decode_alert(text) for route, firing, text in waiting}
        self._dropped: list[tuple[str, str]] = []
        self._queue: list[dict[str, Any]] = []
        self._exempt: dict[str, Exemption] = {}
        self._decisions: dict[str, NodeDecision] = {}

    def take(self, item: Item) -> None:
        reported_of = self._end(item.ends) if item.ends is not None else set()
        if item.exempt is not None:
            self._exempt[item.exempt.node] = item.exempt
        if item.decision is not None:
            self._decisions[item.decision.node] = item.decision
        alert = item.alert
        if alert is None or item.topic in self._reported:
            return
        topics = self._topics[alert.node]
        if item.topic in topics and item.topic not in self._forgotten:
            return
        self.new += 1
        topics[item.topic] = alert.kind, alert.incident
        self._reported[item.topic] = {
            "topic": item.topic,
            "kind": alert.kind,
            "node": alert.node,
            "incident": alert.incident,
            "at": self._now,
        }
        if item.hold is not None and alert.state is not AlertState.FIRING:
            return  # a moment that no route is configured to report
        for route in item.routes:
            if route in reported_of and alert.severity == "info":
                continue  # the end of the alerts before it reports the same
            grp = item.groups.get(route, "")
            self._queue.append(pending_row(route, grp, alert, self._now, alert.id, item.hold))
            if item.hold is not None and item.hold.until > self._now:
                self._held[route, alert.id] = alert
            if route in item.follow and alert.state is AlertState.FIRING:
                self._begun[route, alert.id] = {
                    "route": route,
                    "firing": alert.id,
                    "grp": grp,
                    "node": alert.node,
                    "delivery": "",
                    "ended": 0,
                    "at": self._now,
                    "alert": encode_alert(alert),
                }
                self._lasting[alert.node][route, alert.id] = self._begun[route, alert.id]

    def _end(self, ends: Resolution) -> set[str]:
        """The routes that report an end."""
        kinds = {kind.value for kind in ends.kinds}
        for topic, (kind, incident) in self._topics[ends.node].items():
            if kind in kinds and ends.incident in ("", incident):
                self._reported.pop(topic, None)
                self._forgotten.add(topic)
        self._dropped += [key for key, alert in self._held.items() if ends.ends(alert)]
        learn = set()
        for key, row in self._lasting[ends.node].items():
            if row["ended"]:
                continue
            alert = decode_alert(row["alert"])
            if not ends.ends(alert):
                continue
            row["ended"] = 1
            if key in self._held:
                continue
            learn.add(key[0])
            self._ended.append(key)
            over = ended(alert, ends)
            self._queue.append(pending_row(key[0], row["grp"], over, self._now, alert.id))
        return learn

    def write(self) -> None:
        db = self._db
        for some in chunks(sorted(self._forgotten)):
            db.execute(sa.delete(reported).where(reported.c.topic.in_(some)))
        if self._reported:
            db.execute(sa.insert(reported), list(self._reported.values()))
        dropped = set(self._dropped)
        queue = [row for row in self._queue if (row["route"], row["firing"]) not in dropped]
        begun = [row for key, row in self._begun.items() if key not in dropped]
        if queue:
            db.execute(sa.insert(pending), queue)
        if begun:
            # A batch whose commit was not answered is written again.
            for some in chunks(sorted({row["firing"] for row in begun})):
                db.execute(sa.delete(lasting).where(lasting.c.firing.in_(some)))
            db.execute(sa.insert(lasting), begun)
        for route, firing in dropped:
            for table in (pending, lasting):
                same = (table.c.route == route, table.c.firing == firing)
                db.execute(sa.delete(table).where(*same))
        for route, firing in self._ended:
            same = (lasting.c.route == route, lasting.c.firing == firing)
            db.execute(sa.update(lasting).where(*same).values(ended=1))
        for node, exempt in self._exempt.items():
            its = (pending.c.held_by.in_(("exempt", "silence")), pending.c.node == node)
            rows = db.execute(sa.select(pending.c.seq, pending.c.alert).where(*its)).all()
            alerts = ((seq, decode_alert(text)) for seq, text in rows)
            set_holds(
                db, {seq: longer_hold(exempt.silence(one), exempt.until) for seq, one in alerts}
            )
        for decision in self._decisions.values():
            _decide(db, decision)


def set_holds(db: sa.Connection, holds: Mapping[int, AlertHold | None]) -> None:
    """What holds the alerts of these numbers now; None: nothing."""
    for seq, hold in holds.items():
        now_held = hold or AlertHold(0.0, "")
        values = {"not_before": now_held.until, "held_by": now_held.by}
        db.execute(sa.update(pending).where(pending.c.seq == seq).values(**values))


def _decide(db: sa.Connection, decision: NodeDecision) -> None:
    """Send or drop the alerts of the node that waited for the decision."""
    waits = (pending.c.held_by == "decision", pending.c.node == decision.node)
    if not decision.covered:
        db.execute(sa.update(pending).where(*waits).values(not_before=0.0, held_by=""))
        return
    for route, firing in db.execute(
        sa.select(pending.c.route, pending.c.firing).where(*waits)
    ).all():
        same = (lasting.c.route == route, lasting.c.firing == firing)
        db.execute(sa.delete(lasting).where(*same))
    db.execute(sa.delete(pending).where(*waits))


def _rows(
    db: sa.Connection, table: sa.Table, column: "sa.Column[Any]", keys: Iterable[str]
) -> list[Any]:
    found: list[Any] = []
    for some in chunks(sorted(keys)):
        found += db.execute(sa.select(table).where(column.in_(some))).all()
    return found


def chunks(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(keys), CHUNK):
        yield keys[start : start + CHUNK]


def pending_row(
    route: str, group: str, alert: Alert, now: float, firing: str, hold: AlertHold | None = None
) -> dict[str, Any]:
    """The row of an alert that waits, as of `tables.pending`."""
    return {
        "route": route,
        "grp": group,
        "grouped": int(alert.kind in GROUPED),
        "accepted_at": now,
        "not_before": hold.until if hold is not None else 0.0,
        "held_by": hold.by if hold is not None else "",
        "node": alert.node,
        "firing": firing,
        "alert": encode_alert(alert),
    }
