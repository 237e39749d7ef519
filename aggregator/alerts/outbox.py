"""Alerts not yet delivered to webhooks: one SQLite file, so that a killed process loses none.

Blocking: `Notifier` calls it in a thread of its own. Times are wall clock seconds, because they
outlive the process. The content of one POST is fixed here once, under an id that never changes, and
sent only then: a delivery that is tried again, even by the next process, is the same one.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aggregator.alerts.alert import GROUPED, Alert, Resolution, group
from aggregator.events import kind_named

#: The most alerts that one POST carries, the most that one alert of a grouped kind merges, and the
#: most that wait for one webhook before the oldest is dropped.
MOST_IN_ONE = 200
MOST_GROUPED = 10_000
MOST_WAITING = 20_000
#: The most alerts of one node: the events of one agent must not displace others' alerts.
MOST_OF_NODE = 200
#: Dead letters that are kept for inspection.
MOST_DEAD = 500
#: Seconds for which the same alert is not sent again, unless it has ended in between.
SAME_WITHIN = 6 * 3600.0

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS pending (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, webhook TEXT NOT NULL, grouped INTEGER NOT NULL,
  accepted_at REAL NOT NULL, alert TEXT NOT NULL, node TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS pending_webhook ON pending (webhook, seq);
CREATE TABLE IF NOT EXISTS deliveries (
  webhook TEXT PRIMARY KEY, id TEXT NOT NULL, alerts TEXT NOT NULL, size INTEGER NOT NULL,
  attempts INTEGER NOT NULL, first_at REAL NOT NULL, next_at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS dead (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, webhook TEXT NOT NULL, id TEXT NOT NULL,
  alerts TEXT NOT NULL, because TEXT NOT NULL, at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS told (
  topic TEXT PRIMARY KEY, kind TEXT NOT NULL, node TEXT NOT NULL, incident TEXT NOT NULL,
  at REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS told_node ON told (node);
CREATE INDEX IF NOT EXISTS told_at ON told (at);
"""


class OutboxError(OSError):
    """The file can't be used now; the text names the reason."""


@dataclass(frozen=True, slots=True)
class Item:
    """One transition for the outbox, in the order recorded.

    ``alert`` is None for a transition that is sent to no webhook and only ends an earlier alert.
    ``webhooks`` are the keys of those that receive it.
    """

    topic: str
    alert: Alert | None
    ends: Resolution | None
    webhooks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """One POST: its id never changes. ``size`` is how many alerts were recorded for it."""

    webhook: str
    id: str
    alerts: str  # a JSON array
    size: int
    attempts: int
    first_at: float
    next_at: float


class AlertOutbox:
    """The file at ``path``. Every method may raise `OutboxError`; the file is then unchanged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def accept(self, items: Sequence[Item], now: float) -> tuple[int, int]:
        """Make durable. Returns how many alerts were new, and how many old ones were dropped."""
        new = dropped = 0
        with self._change() as db:
            db.execute("DELETE FROM told WHERE at < ?", (now - SAME_WITHIN,))
            # A clock that was set back must not silence repeated alerts until it has caught up.
            db.execute("UPDATE told SET at = ? WHERE at > ?", (now, now))
            for item in items:
                if item.ends is not None:
                    _forget(db, item.ends)
                if item.alert is not None and _is_new(db, item.topic, item.alert, now):
                    new += 1
                    for webhook in item.webhooks:
                        _queue(db, webhook, item.alert, now)
            for webhook in {webhook for item in items for webhook in item.webhooks}:
                dropped += _bound_nodes(db, webhook, items)
                dropped += _bound(db, webhook)
        return new, dropped

    def expire(self, webhook: str, before: float) -> int:
        """Drop alerts accepted before that time that are in no delivery yet. Returns how many."""
        with self._change() as db:
            gone = db.execute(
                "DELETE FROM pending WHERE webhook = ? AND accepted_at < ?", (webhook, before)
            )
            return gone.rowcount

    def next(
        self, webhook: str, now: float, *, linger: float, grouped_linger: float
    ) -> PendingDelivery | float | None:
        """The open delivery, or one composed now; else seconds until there may be one, or None.

        Alerts wait ``linger`` for others to share the POST, those of a grouped kind
        ``grouped_linger``.
        """
        with self._change() as db:
            found = db.execute(
                f"SELECT {_COLUMNS} FROM deliveries WHERE webhook = ?",  # noqa: S608 - a constant
                (webhook,),
            ).fetchone()
            if found is not None:
                return PendingDelivery(*found)
            rows, wait = _due(db, webhook, now, linger=linger, grouped_linger=grouped_linger)
            return _compose(db, webhook, rows, now) if rows else wait

    def again(self, delivery: PendingDelivery, next_at: float) -> PendingDelivery:
        """One more attempt has failed; the next is not before ``next_at``."""
        with self._change() as db:
            db.execute(
                "UPDATE deliveries SET attempts = ?, next_at = ? WHERE webhook = ? AND id = ?",
                (delivery.attempts + 1, next_at, delivery.webhook, delivery.id),
            )
        return PendingDelivery(
            **{**asdict(delivery), "attempts": delivery.attempts + 1, "next_at": next_at}
        )

    def done(self, delivery: PendingDelivery) -> None:
        """The receiver has accepted the delivery."""
        with self._change() as db:
            _close(db, delivery)

    def dead_letter(self, delivery: PendingDelivery, because: str, now: float) -> None:
        """The receiver will never accept the delivery: keep it for inspection, and go on with the
        next.
        """
        with self._change() as db:
            _close(db, delivery)
            db.execute(
                "INSERT INTO dead (webhook, id, alerts, because, at) VALUES (?, ?, ?, ?, ?)",
                (delivery.webhook, delivery.id, delivery.alerts, because, now),
            )
            db.execute(
                "DELETE FROM dead WHERE seq <= (SELECT max(seq) FROM dead) - ?", (MOST_DEAD,)
            )

    def keep_only(self, webhooks: Sequence[str]) -> int:
        """Drop alerts that wait for webhooks that are no longer configured. Returns how many."""
        marks = ",".join("?" * len(webhooks))
        with self._change() as db:
            gone = db.execute(
                f"DELETE FROM pending WHERE webhook NOT IN ({marks})",  # noqa: S608 - only marks
                webhooks,
            ).rowcount
            open_ones = db.execute(
                f"DELETE FROM deliveries WHERE webhook NOT IN ({marks}) RETURNING size",  # noqa: S608
                webhooks,
            ).fetchall()
        return gone + sum(int(size) for (size,) in open_ones)

    def depths(self) -> Mapping[str, int]:
        """How many alerts wait for each webhook; webhooks without any are not named."""
        with self._change() as db:
            counted = db.execute(
                "SELECT webhook, sum(n) FROM ("
                "SELECT webhook, count(*) AS n FROM pending GROUP BY webhook UNION ALL "
                "SELECT webhook, size FROM deliveries) GROUP BY webhook"
            )
            return {webhook: int(number) for webhook, number in counted}

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        try:
            db = self._open()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
        except sqlite3.Error as error:
            self._let_go()
            raise OutboxError(f"{self._path}: {error}{self._put_aside(error)}") from error

    def _let_go(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    def _put_aside(self, error: sqlite3.Error) -> str:
        """A broken file must not keep the next alert from going out."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return ""
        aside = self._path.with_name(f"{self._path.name}.broken")
        try:
            self._path.rename(aside)
            for name in ("-wal", "-shm"):
                self._path.with_name(self._path.name + name).unlink(missing_ok=True)
        except OSError as failure:
            return f"; and it can't be put aside: {failure.strerror}"
        return f"; put aside as {aside}, with the alerts that waited in it"

    def _open(self) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        try:
            self._path.touch(mode=0o600)
        except OSError as error:
            raise OutboxError(f"{self._path}: {error.strerror}") from error
        db = sqlite3.connect(self._path, timeout=5, isolation_level=None, check_same_thread=False)
        try:
            _prepare(db, self._path)
        except BaseException:
            db.close()
            raise
        self._db = db
        return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > _VERSION:
        raise OutboxError(
            f"{path} was written by a newer sickbay (version {version}); "
            "upgrade, or point alerts.outbox elsewhere"
        )
    # FULL: an accepted alert stays on disk even when the machine loses its power.
    for pragma in ("page_size=8192", "journal_mode=WAL", "synchronous=FULL"):
        db.execute(f"PRAGMA {pragma}")
    db.executescript(_SCHEMA)
    # Files of older versions lack the column; those versions do without it, too.
    if "node" not in {row[1] for row in db.execute("PRAGMA table_info(pending)")}:
        db.execute("ALTER TABLE pending ADD COLUMN node TEXT NOT NULL DEFAULT ''")
    db.execute("CREATE INDEX IF NOT EXISTS pending_node ON pending (webhook, node, seq)")
    db.execute(f"PRAGMA user_version={_VERSION}")


_COLUMNS = "webhook, id, alerts, size, attempts, first_at, next_at"


def _forget(db: sqlite3.Connection, ends: Resolution) -> None:
    kinds = sorted(kind.value for kind in ends.kinds)
    marks = ",".join("?" * len(kinds))
    db.execute(
        f"DELETE FROM told WHERE node = ? AND (? = '' OR incident = ?) AND kind IN ({marks})",  # noqa: S608
        (ends.node, ends.incident, ends.incident, *kinds),
    )


def _is_new(db: sqlite3.Connection, topic: str, alert: Alert, now: float) -> bool:
    done = db.execute(
        "INSERT OR IGNORE INTO told VALUES (?, ?, ?, ?, ?)",
        (topic, alert.kind, alert.node, alert.incident, now),
    )
    return done.rowcount == 1


def _queue(db: sqlite3.Connection, webhook: str, alert: Alert, now: float) -> None:
    db.execute(
        "INSERT INTO pending (webhook, grouped, accepted_at, alert, node) VALUES (?, ?, ?, ?, ?)",
        (webhook, alert.kind in GROUPED, now, json.dumps(asdict(alert)), alert.node),
    )


def _bound_nodes(db: sqlite3.Connection, webhook: str, items: Sequence[Item]) -> int:
    """Drop the oldest alerts of a node that has too many, never those of other nodes."""
    gone = 0
    for node in {item.alert.node for item in items if item.alert is not None} - {""}:
        gone += db.execute(
            "DELETE FROM pending WHERE webhook = ? AND node = ? AND seq <= (SELECT seq FROM "
            "pending WHERE webhook = ? AND node = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
            (webhook, node, webhook, node, MOST_OF_NODE),
        ).rowcount
    return gone


def _bound(db: sqlite3.Connection, webhook: str) -> int:
    """The newest alerts matter most to a receiver that is away for days."""
    gone = db.execute(
        "DELETE FROM pending WHERE webhook = ? AND seq <= (SELECT seq FROM pending "
        "WHERE webhook = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (webhook, webhook, MOST_WAITING),
    )
    return gone.rowcount


def _due(
    db: sqlite3.Connection, webhook: str, now: float, *, linger: float, grouped_linger: float
) -> tuple[list[tuple[int, Alert]], float | None]:
    """The alerts that one POST takes now, and the seconds until some are due."""
    taken: list[tuple[int, Alert]] = []
    waits: list[float] = []
    for grouped, patience, most in ((0, linger, MOST_IN_ONE), (1, grouped_linger, MOST_GROUPED)):
        rows = db.execute(
            "SELECT seq, accepted_at, alert FROM pending WHERE webhook = ? AND grouped = ? "
            "ORDER BY seq LIMIT ?",
            (webhook, grouped, most),
        ).fetchall()
        if not rows:
            continue
        waited = now - rows[0][1]
        if 0 <= waited < patience and len(rows) < most:  # a clock set back: don't wait for it
            waits.append(patience - waited)
        else:
            taken += [(seq, _alert(json.loads(text))) for seq, _, text in rows]
    return sorted(taken, key=lambda one: one[0]), min(waits, default=None)


def _alert(data: dict[str, Any]) -> Alert:
    kind = kind_named(data["kind"])
    renamed = {} if kind is None else {"kind": kind.value}
    return Alert(**{**data, **renamed, "nodes": tuple(data["nodes"])})


def _compose(
    db: sqlite3.Connection, webhook: str, rows: Sequence[tuple[int, Alert]], now: float
) -> PendingDelivery:
    told = group([alert for _, alert in rows])
    text = json.dumps([alert.to_json() for alert in told], separators=(",", ":"))
    # The first row's number is never used again: no two deliveries of this file share an id.
    ident = f"{webhook}-{rows[0][0]}-{told[0].id[:12]}"
    delivery = PendingDelivery(webhook, ident, text, len(rows), 0, now, now)
    db.execute(
        f"INSERT INTO deliveries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (webhook, ident, text, len(rows), 0, now, now),
    )
    db.executemany("DELETE FROM pending WHERE seq = ?", [(seq,) for seq, _ in rows])
    return delivery


def _close(db: sqlite3.Connection, delivery: PendingDelivery) -> None:
    db.execute(
        "DELETE FROM deliveries WHERE webhook = ? AND id = ?", (delivery.webhook, delivery.id)
    )
