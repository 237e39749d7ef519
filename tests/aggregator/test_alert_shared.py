"""Several replicas share the outbox in PostgreSQL: one sends, and another one when that dies."""

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy.engine import make_url

from aggregator.alerts.alert import alert_of, dedup_key, resolves
from aggregator.alerts.notifier import Notifier
from aggregator.alerts.outbox import AlertOutbox, BatchWait, Item, PendingDelivery
from aggregator.alerts.receivers.base import Receiver as Receiving
from aggregator.alerts.routes import RouteTarget, group_of
from aggregator.alerts.store import FileStore, SharedStore
from aggregator.alerts.tables import SHARED_OUTBOX
from aggregator.events import EventKind, Transition
from aggregator.history.engine import DatabaseCredentials
from aggregator.history.postgres import Postgres
from aggregator.runtime.database import DatabaseError
from tests.support.postgres import PostgresServer
from tests.support.present import of_type, present
from tests.support.receiver import Hook, Receiver, webhook_settings
from tests.support.text_files import text_file
from tests.support.waiting import CLOCKS, until

NOW = 1_750_000_000.0
ROUTE = "route-1"
WAIT = BatchWait(1.0, 1.0)


def item(node: str, kind: EventKind = EventKind.CORDONED, at: float = NOW) -> Item:
    happened = Transition(at, kind, node, f"{node}: {kind}", f"inc-{node}")
    return Item(
        dedup_key(happened),
        alert_of(happened),
        resolves(happened),
        (ROUTE,),
        {},
        frozenset({ROUTE}),
    )


class Replicas:
    """Outboxes of several replicas on one database."""

    def __init__(self, server: PostgresServer, ending: ExitStack) -> None:
        self.url = server.new_database()
        self._credentials = DatabaseCredentials(password_file=server.password_file)
        self._ending = ending

    def store(self, former: Path | None = None) -> SharedStore:
        engine = Postgres(make_url(self.url), self._credentials, "sickbay test", SHARED_OUTBOX)
        self._ending.callback(engine.close)
        return SharedStore(engine, former)

    def outbox(self, name: str, former: Path | None = None) -> AlertOutbox:
        return AlertOutbox(self.store(former), name)


@pytest.fixture
def replicas(postgres: PostgresServer) -> Iterator[Replicas]:
    with ExitStack() as ending:
        yield Replicas(postgres, ending)


def test_one_replica_sends_and_another_goes_on_when_it_dies(replicas: Replicas) -> None:
    one, two = replicas.outbox("a"), replicas.outbox("b")
    assert one.accept([item("n1")], NOW) == (1, 0)
    assert two.accept([item("n1"), item("n2")], NOW) == (1, 0), "one has reported n1"
    mine = of_type(one.next(ROUTE, NOW + 2, WAIT, lease=40.0), PendingDelivery)
    assert two.next(ROUTE, NOW + 3, WAIT, lease=40.0) == pytest.approx(39)
    # "a" is gone; its claim ends, and the delivery is the same.
    found = two.next(ROUTE, NOW + 43, WAIT, lease=40.0)
    assert found == mine
    two.done(mine)
    assert one.next(ROUTE, NOW + 44, WAIT) is None
    assert one.depths() == {}


def test_after_a_failure_any_replica_makes_the_next_attempt(replicas: Replicas) -> None:
    one, two = replicas.outbox("a"), replicas.outbox("b")
    one.accept([item("n1")], NOW)
    mine = of_type(one.next(ROUTE, NOW + 2, WAIT), PendingDelivery)
    later = one.again(mine, NOW + 30)
    for each in (one, two):
        assert each.next(ROUTE, NOW + 20, WAIT) == pytest.approx(10)
    assert two.next(ROUTE, NOW + 31, WAIT) == later
    assert isinstance(one.next(ROUTE, NOW + 32, WAIT), float)


def test_an_alert_that_one_replica_sent_is_ended_by_another(replicas: Replicas) -> None:
    one, two = replicas.outbox("a"), replicas.outbox("b")
    one.accept([item("n1", EventKind.AGENT_SILENT)], NOW)
    sent = of_type(one.next(ROUTE, NOW + 2, WAIT), PendingDelivery)
    one.done(sent)
    two.accept([item("n1", EventKind.AGENT_BACK, NOW + 60)], NOW + 60)
    over = of_type(two.next(ROUTE, NOW + 62, WAIT), PendingDelivery)
    assert '"state":"resolved"' in over.alerts
    assert f'"delivery":"{sent.id}"' in over.alerts


@pytest.mark.parametrize(
    "owner", ["a\0b", "".join(random.Random(1).choices("abcdefgh", k=100_000))]
)
def test_no_text_of_a_tenant_for_an_owner_stops_the_alerts(replicas: Replicas, owner: str) -> None:
    """The annotation of a namespace: PostgreSQL takes no NUL, and no long text into an index."""
    target = RouteTarget("owners", ROUTE, cast(Receiving, None), group_by=("owner",))
    one = item("n1")
    group = group_of(target, replace(present(one.alert), labels={"owner": owner}))
    outbox = replicas.outbox("a")
    assert outbox.accept([replace(one, groups={ROUTE: group})], NOW) == (1, 0)
    assert isinstance(outbox.next(ROUTE, NOW + 2, WAIT), PendingDelivery)


def test_the_file_of_before_is_moved_with_all_that_waits_in_it(
    replicas: Replicas, tmp_path: Path
) -> None:
    path = tmp_path / "outbox.db"
    before = AlertOutbox(FileStore(path))
    before.accept([item("n1")], NOW)
    open_one = before.next(ROUTE, NOW + 2, WAIT)
    before.accept([item("n2")], NOW + 2)
    before.close()
    after = replicas.outbox("a", path)
    assert after.depths() == {ROUTE: 2}
    assert not path.exists()
    assert path.with_name("outbox.db.moved").exists()
    assert after.next(ROUTE, NOW + 9, WAIT) == open_one
    assert after.accept([item("n1")], NOW + 10) == (0, 0)
    assert replicas.outbox("b", tmp_path / "none.db").depths() == {ROUTE: 2}


def test_no_alert_is_lost_when_two_replicas_files_have_an_open_delivery_each(
    replicas: Replicas, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        before = AlertOutbox(FileStore(tmp_path / name))
        before.accept([item(f"{name}1"), item(f"{name}2")], NOW)
        assert isinstance(before.next(ROUTE, NOW + 2, WAIT), PendingDelivery)
        before.accept([item(f"{name}3")], NOW + 2)
        if name == "c":
            with closing(sqlite3.connect(tmp_path / name)) as db, db:
                db.execute("UPDATE alert_deliveries SET alerts = '['")
            db.close()
        before.close()
        after = replicas.outbox(name, tmp_path / name)
        assert after.depths()
    assert after.depths() == {ROUTE: 7}
    [unreadable] = after.dead_letters(9)
    assert (unreadable.alerts, unreadable.because[:20]) == (2, "its row can't be rea")
    nodes: list[str] = []
    for _ in range(2):
        sent = of_type(after.next(ROUTE, NOW + 30, WAIT), PendingDelivery)
        nodes += [one["node"] for one in json.loads(sent.alerts)]
        after.done(sent)
    assert nodes == ["a1", "a2", "a3", "b1", "b2", "b3", "c3"]


def test_tables_of_a_newer_version_are_left_alone(
    replicas: Replicas, postgres: PostgresServer
) -> None:
    replicas.outbox("a").depths()
    name = make_url(replicas.url).database or ""
    postgres.run("UPDATE sickbay_outbox_version SET version_num = '99.0'", name)
    with pytest.raises(DatabaseError, match=r"another sickbay \(tables 99\.0.*alerts\.shared"):
        replicas.outbox("b").depths()


async def test_the_alerts_of_a_replica_that_died_are_sent_by_the_other_once(
    replicas: Replicas, tmp_path: Path
) -> None:
    secret = text_file(tmp_path / "secret", "s")
    async with Receiver() as receiver:
        settings = webhook_settings(Hook(receiver.url(), secret))
        survivor, dead = (
            Notifier(
                replicas.store(),
                settings,
                clocks=CLOCKS,
                rng=random.Random(number),
                replica=f"replica-{number}",
            )
            for number in range(2)
        )
        # The dead one stores and never sends, as if it was killed just then.
        for number in range(20):
            dead.record_event(
                Transition(NOW, EventKind.CORDONED, f"n{number}", "n", f"inc-{number}")
            )
        await dead._accept()
        assert not dead._queue
        survivor.start()
        try:
            await until(lambda: sum(t.delivered for t in survivor.tallies().values()) == 20)
        finally:
            await survivor.close()
            await dead.close()
        nodes = [node for request in receiver.requests for node in request.nodes]
        assert sorted(nodes) == sorted({f"n{number}" for number in range(20)})
