"""One webhook's sender in virtual time: each attempt's time, the numbers, and the reports."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar, cast

import aiohttp
import pytest

from aggregator.alerts import notifier as alerts_module
from aggregator.alerts.alert import alert_of, dedup_key, resolves
from aggregator.alerts.notifier import MOST_WAITING, Notifier
from aggregator.alerts.outbox import AlertOutbox, BatchWait, Item, PendingDelivery
from aggregator.alerts.receivers.webhook import WebhookReceiver
from aggregator.alerts.routes import RouteTarget
from aggregator.alerts.sender import RouteSender
from aggregator.alerts.store import FileStore
from aggregator.alerts.webhook import Retry
from aggregator.clock import Clocks
from aggregator.events import EventKind, Transition
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.database import DatabaseError
from aggregator.runtime.secret_file import SecretError, read_password, read_secret
from aggregator.runtime.worker_thread import WorkerThread
from tests.support.draws import HighestDraw
from tests.support.present import of_type
from tests.support.receiver import Hook, webhook_settings
from tests.support.text_files import text_file
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

P = ParamSpec("P")
T = TypeVar("T")
HOOK = "hook-1"
Answers = tuple[tuple[int, dict[str, str]], ...]
OUTBOX_AGAIN = 5.0


class InlineThread:
    """Runs each call at once, on the loop; the first ``failing`` of one name fail."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        name = function.__name__
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            raise DatabaseError(f"{name} fails")
        return function(*args, **kwargs)

    def stop(self) -> None:
        """There is no thread to stop."""


class Answered:
    """The answer to a request."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """There is no connection to close."""


class ScriptedSession:
    """Answers by its list, then always with ``last``; ``at`` has the time of each request."""

    def __init__(self, *answers: tuple[int, dict[str, str]]) -> None:
        self._answers = deque(answers)
        self.last = 200
        self.at: list[float] = []

    def post(self, _url: str, **_request: Any) -> Answered:
        self.at.append(loop_time() - START)
        return Answered(*(self._answers.popleft() if self._answers else (self.last, {})))


#: Where the virtual clock begins; the wall clock shows the same.
START = 1000.0


class Bench:
    """A sender with an outbox of its own."""

    def __init__(
        self,
        folder: Path,
        *answers: tuple[int, dict[str, str]],
        retry: Retry,
    ) -> None:
        assert loop_time() == START
        secret = text_file(folder / "secret", "s")
        self.wall = loop_time
        self.outbox = AlertOutbox(FileStore(folder / "outbox.db"))
        self.thread = InlineThread()
        self.session = ScriptedSession(*answers)
        self.rng = HighestDraw()
        self.sender = RouteSender(
            RouteTarget(
                "receiver",
                HOOK,
                WebhookReceiver("http://127.0.0.1:1/", secret),
                wait=BatchWait(0.0, 0.0),
            ),
            outbox=self.outbox,
            thread=cast(WorkerThread, self.thread),
            session=cast(aiohttp.ClientSession, self.session),
            clocks=Clocks(loop_time, loop_time),
            rng=self.rng,
            retry=retry,
        )

    def accept(self, *nodes: str, at: float = START) -> None:
        self.outbox.accept([item(node) for node in nodes], at)

    def attempted(self, attempts: int, next_at: float) -> PendingDelivery:
        """A delivery that another process has tried before."""
        delivery = of_type(self.outbox.next(HOOK, START, BatchWait(0.0, 0.0)), PendingDelivery)
        for _ in range(attempts):
            delivery = self.outbox.again(delivery, next_at)
        return delivery

    @contextmanager
    def running(self) -> Iterator[None]:
        task = asyncio.get_running_loop().create_task(self.sender.run())
        try:
            yield
        finally:
            task.cancel()
            self.outbox.close()


def item(node: str) -> Item:
    transition = Transition(START, EventKind.CORDONED, node, f"{node} is cordoned", f"inc-{node}")
    return Item(dedup_key(transition), alert_of(transition), resolves(transition), (HOOK,))


async def test_attempts_wait_longer_each_time_and_end_at_the_age_at_which_they_are_given_up(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, retry=Retry(Backoff(0.25, 60.0), give_up=1.75))
    bench.session.last = 500
    bench.accept("n1", "n2", "n3")
    tally = bench.sender.tally
    with bench.running():
        await asyncio.sleep(600)
        assert dict(bench.outbox.depths()) == {}
    assert bench.session.at == [0.0, 0.25, 0.75, 1.75]
    assert (tally.dead, tally.delivered, tally.failed_attempts) == (3, 0, 4)
    assert bench.sender.problem == "HTTP 500"


async def test_a_delivery_that_is_taken_counts_each_of_its_alerts_and_ends_the_problem(
    tmp_path: Path,
) -> None:
    answers: Answers = ((503, {}), (429, {"Retry-After": "7"}), (503, {"Retry-After": "1"}))
    bench = Bench(tmp_path, *answers, retry=Retry(Backoff(0.5, 900.0)))
    bench.accept("n1", "n2")
    tally = bench.sender.tally
    with bench.running():
        await until(lambda: tally.failed_attempts == 1)
        assert bench.sender.problem == "HTTP 503"
        await until(lambda: tally.delivered > 0)
        # The receiver's wish counts only where it is longer than our own pause.
        assert bench.session.at == pytest.approx([0.0, 0.5, 7.5, 9.5], abs=0.01)
        assert (tally.dead, tally.delivered, tally.failed_attempts) == (0, 2, 3)
        assert tally.durations.count == 4
        assert bench.sender.problem == ""
        bench.accept("n3", at=loop_time())
        bench.sender.wake()
        await until(lambda: tally.delivered > 2)
    assert tally.delivered == 3


async def test_no_answer_and_no_failure_of_a_receiver_ends_its_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = {"Retry-After": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}
    bench = Bench(tmp_path, (503, later), (599, {}), retry=Retry(Backoff(0.5, 900.0)))
    post, fails = bench.session.post, [RuntimeError("a mistake of a library at http://secret")]

    def failing(url: str, **request: Any) -> Answered:
        if bench.session.at and fails:
            raise fails.pop()
        return post(url, **request)

    monkeypatch.setattr(bench.session, "post", failing)
    bench.accept("n1")
    with bench.running():
        await until(lambda: bench.sender.problem == "HTTP 503")
        await until(lambda: bench.sender.problem == "can't be reached: RuntimeError")
        await until(lambda: bench.sender.tally.delivered == 1)
    assert bench.sender.tally.failed_attempts == 3


async def test_refused_deliveries_are_counted_one_after_the_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path, (400, {}), (400, {}), retry=Retry())
    tally = bench.sender.tally
    with bench.running():
        for number in (1, 2):
            bench.accept(f"n{number}", f"m{number}", at=loop_time())
            bench.sender.wake()
            await until(lambda total=2 * number: tally.dead == total)  # type: ignore[misc]
    assert (tally.delivered, tally.failed_attempts, len(bench.session.at)) == (0, 2, 2)


async def test_alerts_that_waited_too_long_are_counted_as_dead_and_younger_ones_are_sent(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, retry=Retry(give_up=100.0))
    bench.accept("n1", "n2", at=START - 101)
    bench.accept("n3", at=START - 99)
    tally = bench.sender.tally
    with bench.running():
        await until(lambda: tally.delivered)
        assert (tally.dead, tally.delivered) == (2, 1)
        bench.accept("n4", at=loop_time() - 101)
        bench.sender.wake()
        await until(lambda: tally.dead != 2)
        assert (tally.dead, tally.delivered) == (3, 1)


@pytest.mark.parametrize(
    ("most", "next_at", "sent_at"),
    [
        (900.0, START + 40, 40.0),
        (900.0, START - 40, 0.0),
        (900.0, START + 90_000, 3600.0),  # the wall clock was set back meanwhile
        (7200.0, START + 90_000, 7200.0),
    ],
)
async def test_an_attempt_of_an_earlier_process_is_waited_for_and_never_for_long(
    tmp_path: Path, most: float, next_at: float, sent_at: float
) -> None:
    bench = Bench(tmp_path, retry=Retry(Backoff(1.0, most)))
    bench.accept("n1")
    bench.attempted(1, next_at)
    with bench.running():
        await asyncio.sleep(10_000)
    assert bench.sender.tally.delivered == 1
    assert bench.session.at == [pytest.approx(sent_at, abs=0.01)]


@pytest.mark.parametrize(("answer", "step"), [(200, "done"), (400, "dead_letter")])
async def test_a_delivery_whose_end_cannot_be_written_is_not_sent_again_and_the_problem_ends(
    tmp_path: Path, answer: int, step: str
) -> None:
    bench = Bench(tmp_path, (answer, {}), retry=Retry())
    bench.thread.failing = {step: 2}
    bench.accept("n1")
    with bench.running():
        await until(lambda: "can't be recorded in the outbox" in bench.sender.problem)
        assert bench.outbox.depths() == {HOOK: 1}
        await asyncio.sleep(2 * OUTBOX_AGAIN - 1)
        assert bench.outbox.depths() == {HOOK: 1}
        await asyncio.sleep(600)
        assert dict(bench.outbox.depths()) == {}
        assert bench.sender.problem == ("" if answer == 200 else "HTTP 400")
    assert len(bench.session.at) == 1


async def test_an_outbox_that_can_be_read_again_is_no_problem_though_nothing_is_to_be_sent(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, retry=Retry())
    bench.thread.failing = {"expire": 1, "next": 1}
    with bench.running():
        await until(lambda: bench.sender.problem == "alerts can't be read: expire fails")
        await until(lambda: bench.sender.problem == "alerts can't be read: next fails")
        await until(lambda: bench.sender.problem == "")
        assert loop_time() == pytest.approx(START + 2 * OUTBOX_AGAIN, abs=0.5)
        bench.accept("n1", at=loop_time())
        bench.sender.wake()
        await until(lambda: bench.sender.tally.delivered == 1)


@pytest.mark.parametrize(
    ("content", "secret", "problem"),
    [
        (b"s" * 4096, b"s" * 4096, ""),
        (b" two words \n\n", b" two words", ""),
        (b"s" * 4097, b"", "is longer than 4096 bytes"),
        (b" \n", b"", "is empty"),
        (b"", b"", "is empty"),
    ],
)
def test_a_secret_is_read_whole_or_refused(
    tmp_path: Path, content: bytes, secret: bytes, problem: str
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    if not problem:
        assert read_secret(path) == secret
        assert read_password(path) == content.decode().rstrip("\n"), "it may end with a space"
        return
    with pytest.raises(SecretError, match=problem):
        read_secret(path)


# -- what is noted until the outbox has it ---------------------------------------------------------


class IdleCourier(RouteSender):
    """Sends no request."""

    async def run(self) -> None:
        await asyncio.Event().wait()


def alerts_without_delivery(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Notifier, InlineThread, HighestDraw]:
    thread, rng = InlineThread(), HighestDraw()
    monkeypatch.setattr(alerts_module, "WorkerThread", lambda _name: thread)
    monkeypatch.setattr(alerts_module, "RouteSender", IdleCourier)
    alerts = Notifier(
        FileStore(folder / "outbox.db"),
        webhook_settings(Hook("http://127.0.0.1:1/", folder / "secret")),
        clocks=Clocks(loop_time, loop_time),
        rng=rng,
    )
    return alerts, thread, rng


def cordoned(node: str) -> Transition:
    return Transition(START, EventKind.CORDONED, node, f"{node} is cordoned", f"inc-{node}")


async def test_an_outbox_that_fails_is_tried_again_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, thread, rng = alerts_without_delivery(tmp_path, monkeypatch)
    thread.failing = {"accept": 9}
    alerts.start()
    alerts.record_event(cordoned("n1"))
    await until(lambda: alerts.problem == "alerts are not kept: accept fails")
    await asyncio.sleep(600)
    assert not alerts._queue
    pauses = [0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0, 15.0]
    assert rng.ranges == [pytest.approx((0.0, pause)) for pause in pauses]
    assert alerts.problem == ""
    thread.failing = {"accept": 1}  # the count begins anew
    alerts.record_event(cordoned("n2"))
    await asyncio.sleep(60)
    assert not alerts._queue
    assert rng.ranges[len(pauses) :] == [pytest.approx((0.0, 0.4))]
    await alerts.close()


async def test_repeated_alerts_are_kept_once_and_lost_ones_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, _, _ = alerts_without_delivery(tmp_path, monkeypatch)
    for node in ("n1", "n2", "n1", "n1", "n3"):
        alerts.record_event(cordoned(node))
    assert list(alerts.depth().values()) == [5]
    alerts.start()
    await until(lambda: list(alerts.depth().values()) == [3])
    alerts.record_event(cordoned("n2"))
    alerts.record_event(cordoned("n4"))
    await until(lambda: list(alerts.depth().values()) == [4])
    assert alerts.lost == 0
    await alerts.close()
    alerts.record_event(cordoned("n5"))
    alerts.record_event(cordoned("n6"))
    assert alerts.lost == 2


async def test_only_so_many_alerts_wait_in_memory_and_the_rest_are_counted_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, _, _ = alerts_without_delivery(tmp_path, monkeypatch)
    for number in range(MOST_WAITING + 3):
        alerts.record_event(cordoned(f"n{number}"))
    assert list(alerts.depth().values()) == [MOST_WAITING]
    assert alerts.lost == 3
    await alerts.close()  # it was never started: waiting alerts are lost, too
    assert alerts.lost == MOST_WAITING + 3
    assert list(alerts.depth().values()) == [0]


async def test_what_the_outbox_had_no_room_for_is_logged_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aggregator.alerts.outbox.MOST_WAITING", 4)
    alerts, _, _ = alerts_without_delivery(tmp_path, monkeypatch)
    alerts.start()
    for numbers, dropped in ((range(6), 2), (range(6, 9), 3)):
        for number in numbers:
            alerts.record_event(cordoned(f"n{number}"))
        await until(lambda: not alerts._queue and list(alerts.depth().values()) == [4])
        events = [vars(one) for one in caplog.records]
        counts = [one["count"] for one in events if one.get("event") == "alerts.dropped"]
        assert counts == [dropped]
        caplog.clear()
    await alerts.close()


async def test_before_its_start_there_is_neither_a_tally_nor_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, _, _ = alerts_without_delivery(tmp_path, monkeypatch)
    assert (dict(alerts.tallies()), alerts.problem) == ({}, "")
    alerts.start()
    [tally] = alerts.tallies().values()
    assert (tally.delivered, tally.dead, tally.failed_attempts) == (0, 0, 0)
    assert alerts.problem == ""
    await alerts.close()


class FailedCourier(IdleCourier):
    """Ends by a mistake of ours, while it ``fails``."""

    fails = True

    async def run(self) -> None:
        if self.fails:
            raise RuntimeError("a mistake")
        await super().run()


async def test_a_courier_that_has_failed_is_a_problem_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, _, _ = alerts_without_delivery(tmp_path, monkeypatch)
    monkeypatch.setattr(alerts_module, "RouteSender", FailedCourier)
    alerts.start()
    told = "alerts: route hook (webhook hook) has failed; report it"
    await until(lambda: alerts.problem == told)
    monkeypatch.setattr(FailedCourier, "fails", False)
    await until(lambda: alerts.problem == "")
    await alerts.close()


class SlowCourier(IdleCourier):
    """Takes a second to end."""

    ended = 0

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await asyncio.sleep(1)
            SlowCourier.ended += 1


async def test_an_idle_outbox_is_closed_at_once_and_its_couriers_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[aiohttp.ClientSession] = []
    real = aiohttp.ClientSession

    def session(**how: Any) -> aiohttp.ClientSession:
        sessions.append(real(**how))
        return sessions[-1]

    alerts, _, _ = alerts_without_delivery(tmp_path, monkeypatch)
    monkeypatch.setattr(alerts_module, "RouteSender", SlowCourier)
    monkeypatch.setattr(aiohttp, "ClientSession", session)
    alerts.start()
    await asyncio.sleep(1)
    began, before = loop_time(), SlowCourier.ended
    await alerts.close()
    assert SlowCourier.ended == before + 1
    assert loop_time() - began == pytest.approx(1.0)
    assert [one.closed for one in sessions] == [True]
    assert alerts.lost == 0


async def test_at_the_end_what_waits_is_kept_or_given_up_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("kept", "fails", "hangs")]
    for folder in folders:
        folder.mkdir()

    async def close_with(folder: Path, *, failing: int, hangs: bool) -> tuple[int, int, int]:
        alerts, thread, _ = alerts_without_delivery(folder, monkeypatch)
        alerts.start()
        await asyncio.sleep(1)
        thread.failing = {"accept": failing}
        if hangs:

            async def hang(*_: object) -> None:
                await asyncio.Event().wait()

            monkeypatch.setattr(alerts, "_accept", hang)
        for node in ("n1", "n2"):
            alerts.record_event(cordoned(node))
        began = loop_time()
        await alerts.close()
        return round(loop_time() - began), sum(alerts.depth().values()), alerts.lost

    assert await close_with(folders[0], failing=0, hangs=False) == (0, 2, 0)
    # A failure is not waited out at the end, and what hangs is cut off.
    assert await close_with(folders[1], failing=100, hangs=False) == (0, 0, 2)
    assert await close_with(folders[2], failing=0, hangs=True) == (5, 0, 2)


async def test_what_waits_is_counted_now_and_then_while_something_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, _, _ = alerts_without_delivery(tmp_path, monkeypatch)
    alerts.start()
    alerts.record_event(cordoned("n1"))
    await until(lambda: not alerts._queue and list(alerts.depth().values()) == [1])
    [key] = [hook.key for hook in alerts.targets]
    found = alerts._outbox.next(key, loop_time() + 60, BatchWait(0.0, 0.0))
    assert isinstance(found, PendingDelivery)
    alerts._outbox.done(found)
    assert list(alerts.depth().values()) == [1], "as it was counted last"
    await asyncio.sleep(1.1)
    assert list(alerts.depth().values()) == [0]
    await alerts.close()


async def test_dead_letters_are_read_once_and_again_when_there_is_another_or_one_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, _, _ = alerts_without_delivery(tmp_path, monkeypatch)
    outbox, readings = alerts._outbox, []
    read = AlertOutbox.dead_letters

    def dead_letters(self: AlertOutbox, most: int) -> object:
        readings.append(most)
        return read(self, most)

    monkeypatch.setattr(AlertOutbox, "dead_letters", dead_letters)
    alerts.start()
    for number in (1, 2):
        alerts.record_event(cordoned(f"n{number}"))
        await until(lambda: not alerts._queue)
        [key] = [hook.key for hook in alerts.targets]
        found = outbox.next(key, loop_time() + 60, BatchWait(0.0, 0.0))
        outbox.dead_letter(of_type(found, PendingDelivery), "HTTP 400", loop_time())
        await until(lambda number=number: len(alerts.overview().dead) == number)  # type: ignore[misc]
        await asyncio.sleep(600)
        assert len(readings) == number
    with closing(sqlite3.connect(tmp_path / "outbox.db")) as db, db:
        db.execute("DELETE FROM alert_dead WHERE seq = 1")  # a person has read it
    await until(lambda: len(alerts.overview().dead) == 1)
    await alerts.close()
