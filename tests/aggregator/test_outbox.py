"""The alerts' outbox: an accepted alert outlives kill -9, full disks and broken files."""

# ruff: noqa: ASYNC240 - a test may wait for its own disk

import asyncio
import json
import random
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.alerts import composition
from aggregator.alerts import notifier as alerts_module
from aggregator.alerts import outbox as outbox_module
from aggregator.alerts.alert import GROUPED, alert_of, dedup_key, group, resolves
from aggregator.alerts.notifier import Notifier
from aggregator.alerts.outbox import (
    SAME_WITHIN,
    AlertOutbox,
    BatchWait,
    Item,
    PendingDelivery,
)
from aggregator.alerts.routes import targets_of
from aggregator.alerts.settings import AlertSettings
from aggregator.alerts.store import FileStore
from aggregator.alerts.webhook import Retry
from aggregator.events import EventKind, Transition
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.database import DatabaseError
from tests.controlplane.ports import ReservedPort
from tests.support.present import of_type
from tests.support.receiver import Hook, Receiver, hang, status, taken, webhook_settings
from tests.support.text_files import text_file
from tests.support.waiting import CLOCKS, PATIENCE, until

NOW = 1_750_000_000.0
HOOK = "hook-1"


def happened(
    node: str = "n1", kind: EventKind = EventKind.CORDONED, **changes: object
) -> Transition:
    base = Transition(NOW, kind, node, f"{node}: {kind}", f"inc-{node}")
    return replace(base, **changes)  # type: ignore[arg-type]  # a test's words


def item(transition: Transition, *routes: str) -> Item:
    keys = routes or (HOOK,)
    return Item(dedup_key(transition), alert_of(transition), resolves(transition), keys)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    return text_file(tmp_path / "secret", "s")


def compose(outbox: AlertOutbox, now: float, webhook: str = HOOK) -> PendingDelivery | float | None:
    return outbox.next(webhook, now, BatchWait(1.0, 10.0))


def composed(outbox: AlertOutbox, now: float, webhook: str = HOOK) -> PendingDelivery:
    return of_type(compose(outbox, now, webhook), PendingDelivery)


def nodes_of(delivery: PendingDelivery) -> list[str]:
    return [node for alert in json.loads(delivery.alerts) for node in alert["nodes"]]


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


# -- the file -------------------------------------------------------------------------------------


def test_a_delivery_is_the_same_one_however_often_the_file_is_opened(path: Path) -> None:
    first = AlertOutbox(FileStore(path))
    first.accept([item(happened("n1")), item(happened("n2"))], NOW)
    delivery = composed(first, NOW + 2)
    assert nodes_of(delivery) == ["n1", "n2"]
    first.accept([item(happened("n3"))], NOW + 2)  # comes too late for it
    again = AlertOutbox(FileStore(path))  # the first was never closed: it was killed
    assert composed(again, NOW + 50) == delivery
    tried = again.again(delivery, NOW + 60)
    assert (tried.attempts, tried.next_at, tried.id) == (1, NOW + 60, delivery.id)
    third = AlertOutbox(FileStore(path))
    assert composed(third, NOW + 51) == tried
    third.done(tried)
    last = composed(third, NOW + 52)
    assert nodes_of(last) == ["n3"]
    assert last.id != delivery.id
    for outbox in (first, again, third):
        outbox.close()


def test_no_two_deliveries_ever_share_an_id(path: Path) -> None:
    seen = set()
    for number in range(5):
        outbox = AlertOutbox(FileStore(path))
        outbox.accept([item(happened(kind=EventKind.INCIDENT_CHANGED, summary=str(number)))], NOW)
        delivery = composed(outbox, NOW + 2)
        seen.add(delivery.id)
        outbox.done(delivery)
        outbox.close()
    assert len(seen) == 5


def test_alerts_wait_for_company_and_grouped_ones_longer(path: Path) -> None:
    outbox = AlertOutbox(FileStore(path))
    assert compose(outbox, NOW) is None
    outbox.accept([item(happened("n1", EventKind.AGENT_SILENT))], NOW)
    assert compose(outbox, NOW + 4) == pytest.approx(6)
    outbox.accept([item(happened("n2"))], NOW + 4)
    assert compose(outbox, NOW + 4.25) == pytest.approx(0.75)
    delivery = composed(outbox, NOW + 5)
    assert nodes_of(delivery) == ["n2"]
    outbox.done(delivery)
    outbox.accept([item(happened("n3", EventKind.AGENT_SILENT))], NOW + 9)
    assert nodes_of(composed(outbox, NOW + 10)) == ["n1", "n3"]
    outbox.close()


def test_a_clock_that_was_set_back_holds_no_alert(path: Path) -> None:
    outbox = AlertOutbox(FileStore(path))
    outbox.accept([item(happened())], NOW)
    assert nodes_of(composed(outbox, NOW - 86_400)) == ["n1"]
    outbox.close()


def test_a_clock_that_was_set_back_silences_nothing_for_longer_than_one_that_was_right(
    path: Path,
) -> None:
    """The clock was a year ahead, as on a machine whose time was not yet set, when it reported."""
    outbox = AlertOutbox(FileStore(path))
    conflict = item(happened(kind=EventKind.AGENT_CONFLICT))
    assert outbox.accept([conflict], NOW + 365 * 86_400)[0] == 1
    assert outbox.accept([conflict], NOW)[0] == 0, "said a moment ago, as far as anybody knows"
    assert outbox.accept([conflict], NOW + SAME_WITHIN + 1)[0] == 1
    outbox.close()


def test_a_clock_that_jumps_forgets_no_alert_that_lasts_and_repeats_none(path: Path) -> None:
    outbox = AlertOutbox(FileStore(path))
    begun = replace(item(happened()), follow=frozenset({HOOK}))
    assert outbox.accept([begun], NOW, NOW)[0] == 1
    outbox.done(composed(outbox, NOW + 2))
    year = NOW + 365 * 86_400
    assert outbox.accept([begun], year, NOW + 60)[0] == 0
    outbox.accept([item(happened(kind=EventKind.RELEASED))], year, NOW + 60)
    states = [one["state"] for one in json.loads(composed(outbox, year + 2).alerts)]
    assert states == ["resolved"]
    outbox.close()


def test_a_post_carries_a_bounded_number(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "MOST_IN_ONE", 10)
    outbox = AlertOutbox(FileStore(path))
    outbox.accept([item(happened(f"n{n}")) for n in range(25)], NOW)
    sizes = []
    while isinstance(delivery := compose(outbox, NOW + 2), PendingDelivery):
        sizes.append(delivery.size)
        outbox.done(delivery)
    assert sizes == [10, 10, 5]
    outbox.close()


def test_a_post_carries_less_than_a_megabyte_of_long_alerts(path: Path) -> None:
    """One node's long texts must not have a receiver refuse the alerts of others, too."""
    outbox = AlertOutbox(FileStore(path))
    long = [happened(f"n{n}", details={str(i): "x" * 3_900 for i in range(8)}) for n in range(50)]
    outbox.accept([item(one) for one in long], NOW)
    sizes = []
    while isinstance(delivery := compose(outbox, NOW + 0.1), PendingDelivery):
        assert len(delivery.alerts) < 600_000
        sizes.append(delivery.size)
        outbox.done(delivery)
    assert len(sizes) == 3
    assert sum(sizes) == 48, "the last of them wait for others"
    assert composed(outbox, NOW + 2).size == 2
    outbox.close()


def test_each_route_has_a_place_of_its_own(path: Path) -> None:
    outbox = AlertOutbox(FileStore(path))
    outbox.accept([item(happened("n1"), "a", "b"), item(happened("n2"), "b")], NOW)
    assert outbox.depths() == {"a": 1, "b": 2}
    outbox.done(composed(outbox, NOW + 2, "b"))
    assert outbox.depths() == {"a": 1}
    assert nodes_of(composed(outbox, NOW + 2, "a")) == ["n1"]
    assert outbox.depths() == {"a": 1}
    assert outbox.keep_only(["b"], NOW + 9) == 1
    assert outbox.depths() == {}
    outbox.close()


def test_the_oldest_go_when_too_many_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MOST_WAITING", 10)
    outbox = AlertOutbox(FileStore(path))
    assert outbox.accept([item(happened(f"n{n}")) for n in range(13)], NOW) == (13, 3)
    assert nodes_of(composed(outbox, NOW + 2)) == [f"n{n}" for n in range(3, 13)]
    outbox.close()


def test_what_is_too_old_is_dropped(path: Path) -> None:
    outbox = AlertOutbox(FileStore(path))
    outbox.accept([item(happened("n1"))], NOW)
    outbox.accept([item(happened("n2"))], NOW + 100)
    assert outbox.expire(HOOK, NOW + 50) == 1
    assert nodes_of(composed(outbox, NOW + 200)) == ["n2"]
    outbox.close()


def test_dead_letters_are_kept_to_be_looked_at_and_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "MOST_DEAD", 3)
    outbox = AlertOutbox(FileStore(path))
    for number in range(5):
        outbox.accept([item(happened(f"n{number}"))], NOW)
        outbox.dead_letter(composed(outbox, NOW + 2), "HTTP 400", NOW + 3)
    assert compose(outbox, NOW + 9) is None
    with closing(sqlite3.connect(path)) as other, other:
        rows = other.execute("SELECT because, alerts FROM alert_dead ORDER BY seq").fetchall()
    assert [(because, json.loads(text)[0]["node"]) for because, text in rows] == [
        ("HTTP 400", f"n{n}") for n in (2, 3, 4)
    ]
    outbox.close()


def test_the_file_is_nobody_elses_to_read(path: Path) -> None:
    outbox = AlertOutbox(FileStore(path))
    outbox.accept([item(happened())], NOW)
    assert path.stat().st_mode & 0o777 == 0o600
    outbox.close()


def test_a_file_from_the_future_is_refused_and_left_alone(path: Path) -> None:
    with closing(AlertOutbox(FileStore(path))) as outbox:
        outbox.depths()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE sickbay_outbox_version SET version_num = '2.0'")
    before = dump(path)
    with pytest.raises(DatabaseError, match=r"another sickbay \(tables 2\.0.*alerts\.outbox"):
        AlertOutbox(FileStore(path)).accept([item(happened())], NOW)
    assert dump(path) == before


def test_a_file_that_was_taken_away_or_replaced_is_not_written_on_into_nowhere(
    path: Path,
) -> None:
    outbox = AlertOutbox(FileStore(path))
    outbox.accept([item(happened("n1"))], NOW)
    path.rename(path.with_name("old.db"))
    outbox.accept([item(happened("n2"))], NOW)
    again = AlertOutbox(FileStore(path))  # the first was never closed: it was killed
    assert nodes_of(composed(again, NOW + 2)) == ["n2"]
    for one in (outbox, again):
        one.close()


def test_a_broken_file_is_put_aside_and_the_next_try_works(path: Path) -> None:
    path.write_bytes(b"not a database, whatever it is called\n" * 500)
    outbox = AlertOutbox(FileStore(path))
    with pytest.raises(DatabaseError, match="put aside as"):
        outbox.accept([item(happened())], NOW)
    assert outbox.accept([item(happened())], NOW) == (1, 0)
    assert path.with_name("outbox.db.broken").read_bytes().startswith(b"not a database")
    outbox.close()


def test_a_broken_file_that_cannot_be_put_aside_is_told_and_left_where_it_is(path: Path) -> None:
    path.write_bytes(b"not a database, whatever it is called\n" * 500)
    path.with_name("outbox.db.broken").mkdir()
    with pytest.raises(
        DatabaseError, match="file is not a database; and it can't be put aside: Is a"
    ):
        AlertOutbox(FileStore(path)).accept([item(happened())], NOW)
    assert path.read_bytes().startswith(b"not a database")


# -- said once -------------------------------------------------------------------------------------


def again(path: Path, *transitions: Transition, at: float = NOW) -> int:
    """How many of these are new, when they come one after the other."""
    outbox = AlertOutbox(FileStore(path))
    new, _ = outbox.accept([item(transition) for transition in transitions], at)
    outbox.close()
    return new


OPENED = happened(kind=EventKind.INCIDENT_OPENED, details={"action": "drain"})
CLOSED = happened(kind=EventKind.INCIDENT_CLOSED, details={"action": "drain"})
HELD = happened(kind=EventKind.HELD, details={"limit": "limits.concurrent"})


def test_what_a_restart_derives_again_is_not_told_again(path: Path) -> None:
    """An incident that lasts is told once; anything else again after some hours."""
    notice = happened(kind=EventKind.AGENT_SILENT)
    assert again(path, OPENED, notice) == 2
    assert again(path, replace(OPENED, at=NOW + 60), notice, at=NOW + 60) == 0
    late = NOW + SAME_WITHIN + 1
    assert again(path, replace(OPENED, at=NOW + 120), at=late) == 0
    assert again(path, replace(OPENED, at=NOW + 120), notice, at=late) == 1
    assert again(path, OPENED, at=NOW + 61 * 86_400) == 1


def test_what_was_over_in_between_is_told_again(path: Path) -> None:
    assert again(path, OPENED, CLOSED, replace(OPENED, at=NOW + 5)) == 3  # closed is one, too
    silent, back = happened(kind=EventKind.AGENT_SILENT), happened(kind=EventKind.AGENT_BACK)
    assert again(path, silent, back, silent, silent, back) == 4
    stop, go = happened("", EventKind.STOPPED), happened("", EventKind.RESUMED)
    assert again(path, stop, stop, go, stop) == 3
    rack = [happened("", kind) for kind in (EventKind.COMMON_CAUSE, EventKind.COMMON_CAUSE_OVER)]
    begun, over = (replace(one, incident="rack=r1 check:nic-link") for one in rack)
    assert again(path, begun, begun, replace(begun, incident="check:dns"), over, begun) == 4
    cooling, on = happened("", EventKind.COOLDOWN), happened("", EventKind.COOLDOWN_OVER)
    assert again(path, cooling, cooling, on, cooling) == 3
    lost, whole = happened("", EventKind.RECORD_LOST), happened("", EventKind.RECORD_WHOLE)
    assert again(path, lost, replace(lost, summary="worse"), whole, lost, whole) == 4
    cordoned, released = happened(kind=EventKind.CORDONED), happened(kind=EventKind.RELEASED)
    admitted = happened(kind=EventKind.ADMITTED)
    assert again(path, admitted, cordoned, released, admitted, cordoned, released) == 6


def test_one_nodes_end_is_not_the_others(path: Path) -> None:
    theirs = happened("n2", EventKind.INCIDENT_OPENED, details={"action": "drain"})
    assert again(path, OPENED, theirs, CLOSED, theirs) == 3


# -- which transitions are alerts ------------------------------------------------------------------


kinds = st.sampled_from(list(EventKind))
transitions = st.builds(
    Transition,
    at=st.floats(0, 4e9),
    kind=kinds,
    node=st.sampled_from(["", "n1", "n2"]),
    summary=st.text(max_size=50),
    incident=st.sampled_from(["", "a", "b"]),
    details=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)


@given(transitions)
def test_an_alerts_id_depends_on_nothing_but_the_transition(transition: Transition) -> None:
    alert = alert_of(transition)
    assert alert == alert_of(replace(transition))
    if alert is not None:
        assert alert.severity in ("critical", "warning", "info")
        json.dumps(alert.to_json()).encode()


@given(st.lists(transitions, max_size=20))
def test_telling_together_loses_no_node_and_groups_only_what_is_grouped(
    many: list[Transition],
) -> None:
    alerts = [alert for one in many if (alert := alert_of(one)) is not None]
    told_as = group(alerts)
    for kind in {alert.kind for alert in alerts}:
        before = [node for alert in alerts if alert.kind == kind for node in alert.nodes]
        after = [node for alert in told_as if alert.kind == kind for node in alert.nodes]
        if kind in GROUPED:
            assert after == list(dict.fromkeys(before)) or len(alerts) == 1
            assert sum(alert.kind == kind for alert in told_as) == 1
        else:
            assert after == before


# -- across processes ----------------------------------------------------------------------------


@asynccontextmanager
async def telling(
    path: Path, url: str, secret_file: Path, name: str = "hook"
) -> AsyncIterator[Notifier]:
    settings = webhook_settings(Hook(url, secret_file, timeout=PATIENCE, name=name))
    alerts = Notifier(
        FileStore(path),
        settings,
        clocks=CLOCKS,
        rng=random.Random(2),
        retry=Retry(Backoff(0.02, 0.1)),
        targets=[replace(target, wait=BatchWait(0.02, 0.1)) for target in targets_of(settings)],
    )
    alerts.start()
    try:
        yield alerts
    finally:
        await alerts.close()


async def killed_after(path: Path, url: str, secret_file: Path, receiver: Receiver | None) -> None:
    """A process of its own accepts five alerts and is killed with -9."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.aggregator.outbox_process",
        str(path),
        url,
        str(secret_file),
        "5",
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert (await process.stdout.readline()).strip() == b"kept"
    if receiver is not None:
        await until(lambda: receiver.requests)
    process.kill()
    await process.wait()


async def test_kill_9_between_acceptance_and_delivery_loses_no_alert(
    path: Path, secret_file: Path
) -> None:
    with ReservedPort() as port:  # no process listens there
        receiver = Receiver(port=port.number)
        await killed_after(path, receiver.url(), secret_file, None)
        async with receiver, telling(path, receiver.url(), secret_file) as alerts:
            await until(lambda: sum(t.delivered for t in alerts.tallies().values()) == 5)
    nodes = [node for request in receiver.requests for node in request.nodes]
    assert nodes == [f"n{n}" for n in range(5)]


async def test_kill_9_in_the_middle_of_a_post_sends_it_again_under_the_same_id(
    path: Path, secret_file: Path
) -> None:
    async with Receiver(answer=hang) as receiver:
        await killed_after(path, receiver.url(), secret_file, receiver)
        assert len(receiver.requests) == 1
        receiver.answer = taken
        async with telling(path, receiver.url(), secret_file) as alerts:
            await until(lambda: sum(t.delivered for t in alerts.tallies().values()) == 5)
        first, second = receiver.requests
        assert first.headers["X-Sickbay-Delivery"] == second.headers["X-Sickbay-Delivery"]
        assert first.ids == second.ids
        assert first.json["alerts"] == second.json["alerts"]


async def test_an_orderly_close_leaves_what_was_noted_to_the_next_process(
    path: Path, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "_CLOSE_WITHIN", PATIENCE)  # four batches on a busy disk
    async with Receiver(answer=status(503)) as receiver:
        async with telling(path, receiver.url(), secret_file) as alerts:
            for number in range(2_000):
                alerts.record_event(happened(f"n{number}"))
        assert alerts.lost == 0
        receiver.requests.clear()
        receiver.answer = taken
        async with telling(path, receiver.url(), secret_file) as after:
            await until(lambda: sum(t.delivered for t in after.tallies().values()) == 2_000)
        nodes = [node for request in receiver.requests for node in request.nodes]
        assert nodes == [f"n{n}" for n in range(2_000)]


async def test_without_routes_there_is_no_outbox(path: Path) -> None:
    alerts = Notifier(FileStore(path), AlertSettings(), clocks=CLOCKS, rng=random.Random(1))
    alerts.start()
    alerts.record_event(happened())
    assert (alerts.problem, dict(alerts.depth())) == ("", {})
    await alerts.close()
    assert not path.exists()


async def test_alerts_for_a_route_that_is_no_longer_configured_are_dropped_and_said(
    path: Path, secret_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with telling(path, "http://127.0.0.1:1/", secret_file, "old") as alerts:
        alerts.record_event(happened())
        await until(lambda: not alerts._queue)
    async with Receiver() as receiver, telling(path, receiver.url(), secret_file) as after:
        await until(lambda: "no longer configured" in caplog.text)
        assert list(after.depth().values()) == [0]


async def test_an_outbox_that_cannot_be_written_holds_up_nobody_and_catches_up(
    tmp_path: Path,
    secret_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(alerts_module, "MOST_WAITING", 5)
    path = tmp_path / "later" / "outbox.db"
    async with Receiver() as receiver, telling(path, receiver.url(), secret_file) as alerts:
        began = time.monotonic()
        for number in range(8):
            alerts.record_event(happened(f"n{number}"))
        assert time.monotonic() - began < 5
        assert alerts.lost == 3
        assert list(alerts.depth().values()) == [5]
        await until(lambda: "alerts are not kept" in alerts.problem)
        path.parent.mkdir()
        await until(lambda: sum(t.delivered for t in alerts.tallies().values()) == 5, within=20)
        await until(lambda: alerts.problem == "")
        assert receiver.requests[0].nodes == [f"n{n}" for n in range(5)]
    assert [vars(one)["count"] for one in caplog.records if "were lost" in one.message] == [3]


def test_a_file_of_an_unreleased_version_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE pending (seq INTEGER)")
    before = dump(path)
    with pytest.raises(DatabaseError, match=r"unreleased version of sickbay.*to start afresh"):
        AlertOutbox(FileStore(path)).depths()
    assert dump(path) == before
