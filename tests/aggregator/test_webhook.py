"""Alerts to a real receiver on loopback: signed, retried, given up, one receiver not the other."""

# ruff: noqa: ASYNC240 - a test may wait for its own disk

import asyncio
import datetime as dt
import hashlib
import hmac
import json
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.alerts.http_channel import Exchange
from aggregator.alerts.message import Message
from aggregator.alerts.notifier import Notifier
from aggregator.alerts.outbox import BatchWait
from aggregator.alerts.routes import RouteTarget, targets_of
from aggregator.alerts.store import FileStore
from aggregator.alerts.webhook import (
    MOST_RETRY_AFTER,
    Delivery,
    Retry,
    WebhookResponse,
    classify_response,
)
from aggregator.clock import Clocks
from aggregator.events import EventKind, Transition
from aggregator.runtime.backoff import Backoff
from tests.controlplane.pki import Authority
from tests.controlplane.ports import ReservedPort
from tests.support.present import of_type
from tests.support.receiver import (
    Answer,
    Hook,
    Received,
    Receiver,
    hang,
    status,
    taken,
    webhook_settings,
)
from tests.support.waiting import CLOCKS, PATIENCE, until

SECRET = b"correct horse"
QUICK = Retry(Backoff(0.02, 0.1), give_up=60)
SOON = BatchWait(linger=0.05, grouped=0.2)


def happened(node: str = "n1", kind: EventKind = EventKind.CORDONED, **details: str) -> Transition:
    return Transition(time.time(), kind, node, f"{node}: {kind}", f"inc-{node}", details)


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    return path


@asynccontextmanager
async def telling(
    folder: Path,
    *addresses: Hook,
    retry: Retry = QUICK,
    patience: BatchWait = SOON,
    clocks: Clocks = CLOCKS,
    by: Callable[[RouteTarget], RouteTarget] = lambda target: target,
) -> AsyncIterator[Notifier]:
    settings = webhook_settings(*addresses)
    alerts = Notifier(
        FileStore(folder / "outbox.db"),
        settings,
        clocks=clocks,
        rng=random.Random(1),
        retry=retry,
        targets=[by(replace(target, wait=patience)) for target in targets_of(settings)],
    )
    alerts.start()
    try:
        yield alerts
    finally:
        await alerts.close()


def address(
    receiver: Receiver,
    secret_file: Path,
    *,
    kinds: tuple[EventKind, ...] | None = None,
    path: str = "/h",
    name: str = "hook",
) -> Hook:
    return Hook(receiver.url(path), secret_file, kinds, timeout=PATIENCE, name=name)


def is_signed(request: Received, secret: bytes) -> bool:
    """The check that docs/alerts.md describes for a receiver, written down once more."""
    timestamp = request.headers["X-Sickbay-Timestamp"]
    digest = hmac.new(secret, f"{timestamp}.".encode() + request.body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(request.headers["X-Sickbay-Signature"], f"sha256={digest}")


def delivered(alerts: Notifier) -> int:
    return sum(tally.delivered for tally in alerts.tallies().values())


async def test_an_alert_arrives_as_documented_and_signed(tmp_path: Path, secret_file: Path) -> None:
    transition = Transition(
        1_750_000_000.25,
        EventKind.INCIDENT_OPENED,
        "n1",
        "n1: xid:79 on GPU-1",
        "0011",
        {"action": "drain", "kind": "gpu"},
    )
    async with Receiver() as receiver, telling(tmp_path, address(receiver, secret_file)) as alerts:
        alerts.record_event(transition)
        await until(lambda: delivered(alerts) == 1)
        await until(lambda: list(alerts.depth().values()) == [0])
        assert alerts.problem == ""
    (request,) = receiver.requests
    assert is_signed(request, SECRET)
    assert not is_signed(request, b"another secret")
    assert abs(int(request.headers["X-Sickbay-Timestamp"]) - time.time()) < 60
    document = request.json
    assert set(document) == {"version", "source", "delivery", "alerts"}
    assert document["delivery"] == {"id": request.headers["X-Sickbay-Delivery"], "attempt": 1}
    (alert,) = document["alerts"]
    ident = alert.pop("id")
    assert len(ident) == 32
    assert len(alert.pop("key")) == 32
    assert alert == {
        "state": "firing",
        "labels": {},
        "kind": "incident.opened",
        "severity": "critical",
        "at": "2025-06-15T15:06:40.250Z",
        "node": "n1",
        "nodes": ["n1"],
        "summary": "n1: xid:79 on GPU-1",
        "advice": "",
        "incident": "0011",
        "details": {"action": "drain", "kind": "gpu"},
        "documentation": "docs/alert-kinds.md#incidentopened",
    }


async def test_a_thousand_silent_agents_are_one_post_with_one_alert(
    tmp_path: Path, secret_file: Path
) -> None:
    names = [f"node-{number:04}" for number in range(1_000)]
    patience = replace(SOON, grouped=2.0)  # a busy machine takes a while to record them
    async with (
        Receiver() as receiver,
        telling(tmp_path, address(receiver, secret_file), patience=patience) as alerts,
    ):
        for start in range(0, 1_000, 100):
            for name in names[start : start + 100]:
                alerts.record_event(happened(name, EventKind.AGENT_SILENT))
            await asyncio.sleep(0.005)
        await until(lambda: delivered(alerts) == 1_000)
        # A later alert is a request of its own, and comes after all that were left.
        alerts.record_event(happened("later", EventKind.CORDONED))
        await until(lambda: delivered(alerts) == 1_001)
        request, last = receiver.requests
        assert last.nodes == ["later"]
        (alert,) = request.json["alerts"]
        assert alert["nodes"] == names
        assert alert["node"] == ""
        assert alert["summary"].startswith("1000 agents are silent: node-0000, node-0001")


async def test_a_failing_receiver_gets_the_same_delivery_until_it_takes_it(
    tmp_path: Path, secret_file: Path
) -> None:
    async with Receiver(answers=[status(500), status(503), status(408), status(425)]) as receiver:
        async with telling(tmp_path, address(receiver, secret_file)) as alerts:
            alerts.record_event(happened())
            await until(lambda: delivered(alerts) == 1)
            (tally,) = alerts.tallies().values()
            assert tally.failed_attempts == 4
            assert alerts.problem == ""
        assert [request.json["delivery"]["attempt"] for request in receiver.requests] == [
            1,
            2,
            3,
            4,
            5,
        ]
        assert len({request.headers["X-Sickbay-Delivery"] for request in receiver.requests}) == 1
        assert len({tuple(request.ids) for request in receiver.requests}) == 1
        assert all(is_signed(request, SECRET) for request in receiver.requests)


async def test_a_receiver_that_is_down_is_told_when_it_is_up(
    tmp_path: Path, secret_file: Path
) -> None:
    with ReservedPort() as port:  # no process listens there
        receiver = Receiver(port=port.number)
        async with telling(tmp_path, address(receiver, secret_file)) as alerts:
            alerts.record_event(happened())
            await until(lambda: "can't be reached" in alerts.problem)
            assert alerts.depth() == {"hook": 1}
            async with receiver:
                await until(lambda: delivered(alerts) == 1)


async def test_a_redirect_is_not_followed(tmp_path: Path, secret_file: Path) -> None:
    async with Receiver() as target:
        elsewhere = status(302, Location=target.url())
        answers = [status(307, Location=target.url())]
        async with (
            Receiver(answers=answers, answer=elsewhere) as receiver,
            telling(tmp_path, address(receiver, secret_file)) as alerts,
        ):
            alerts.record_event(happened())
            await until(lambda: len(receiver.requests) >= 3)
            await until(lambda: "redirects, which is not followed" in alerts.problem)
            receiver.answer = taken
            await until(lambda: delivered(alerts) == 1)
        assert target.requests == []


async def test_a_refusal_is_a_dead_letter_and_the_next_alert_goes_out(
    tmp_path: Path, secret_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Receiver(answers=[status(410)]) as receiver:
        async with telling(tmp_path, address(receiver, secret_file)) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: sum(t.dead for t in alerts.tallies().values()) == 1)
            alerts.record_event(happened("n2"))
            await until(lambda: delivered(alerts) == 1)
        assert [request.nodes for request in receiver.requests] == [["n1"], ["n2"]]
    (line,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert line.__dict__["because"] == "HTTP 410"
    assert line.__dict__["alerts"] == 1


async def test_an_alert_is_not_given_up_where_the_clock_jumps_between_its_check_and_its_signature(
    tmp_path: Path, secret_file: Path
) -> None:
    ahead, answers = [0.0], [Delivery.DROP, Delivery.DELIVERED]

    class Refusing:
        """Refuses the first request, for which the clock has just jumped."""

        async def deliver(self, message: Message, exchange: Exchange) -> WebhookResponse:
            verdict = answers.pop(0)
            ahead[0] = 86400.0 if verdict is Delivery.DROP else 0.0
            return WebhookResponse(verdict, "HTTP 401")

    clocks = Clocks(time.monotonic, lambda: time.time() + ahead[0])
    where = Hook("http://localhost:1/", secret_file)
    by = partial(replace, receiver=Refusing())
    async with telling(tmp_path, where, clocks=clocks, by=by) as alerts:
        alerts.record_event(happened("n1"))
        await until(lambda: delivered(alerts) == 1)


@pytest.mark.parametrize("answer", [taken, status(500), status(401)])
async def test_a_clock_that_jumps_ahead_gives_up_no_alert(
    answer: Answer, tmp_path: Path, secret_file: Path
) -> None:
    """An alert that is refused for the time in its signature is not given up either."""
    ahead, fresh = [0.0], [status(500)]

    def answered(request: Received) -> Any:
        signed = float(request.headers["X-Sickbay-Timestamp"])
        return (fresh[0] if abs(time.time() - signed) < 300 else answer)(request)

    clocks = Clocks(time.monotonic, lambda: time.time() + ahead[0])
    async with (
        Receiver(answer=answered) as receiver,
        telling(tmp_path, address(receiver, secret_file), clocks=clocks) as alerts,
    ):
        alerts.record_event(happened("n1"))
        await until(lambda: receiver.requests)
        alerts.record_event(happened("n2"))
        ahead[0] = 30 * 86400.0
        if answer is not taken:
            before = len(receiver.requests)
            await until(lambda: len(receiver.requests) > before + 3)
            fresh[0] = taken
            ahead[0] = 0.0
        await until(lambda: delivered(alerts) == 2)
        assert sum(tally.dead for tally in alerts.tallies().values()) == 0


async def test_a_dead_receiver_holds_up_nobody(tmp_path: Path, secret_file: Path) -> None:
    async with Receiver(answer=hang) as dead, Receiver() as alive:
        hooks = (address(dead, secret_file, name="dead"), address(alive, secret_file))
        async with telling(tmp_path, *hooks) as alerts:
            for number in range(5):
                alerts.record_event(happened(f"n{number}"))
                await until(lambda n=number: len(alive.requests) == n + 1)  # type: ignore[misc]
            depth = alerts.depth()
            assert depth["dead"] == 5
            await until(lambda: alerts.depth()["hook"] == 0)


async def test_each_route_has_the_kinds_that_it_names(tmp_path: Path, secret_file: Path) -> None:
    async with Receiver() as receiver:
        hooks = (
            address(receiver, secret_file, path="/all"),
            address(
                receiver,
                secret_file,
                path="/some",
                name="some",
                kinds=(EventKind.MOVED, EventKind.RELEASED),
            ),
        )
        async with telling(tmp_path, *hooks) as alerts:
            alerts.record_event(happened("n1", EventKind.CORDONED))
            alerts.record_event(happened("n2", EventKind.MOVED, pod="jobs/a"))
            alerts.record_event(happened("n3", EventKind.RELEASED))
            alerts.record_event(happened("n4", EventKind.INCIDENT_OPENED, action="observe"))
            alerts.record_event(happened("n5", EventKind.INCIDENT_OPENED, action="cordon"))
            await until(lambda: delivered(alerts) == 5)
            alerts.record_event(
                happened("n6", EventKind.RELEASED)
            )  # to both, after all that is on its way
            await until(lambda: [one.nodes[-1] for one in receiver.requests].count("n6") == 2)
        by_path: dict[str, list[str]] = {}
        for request in receiver.requests:
            by_path.setdefault(request.path, []).extend(request.nodes)
        assert by_path == {"/all": ["n1", "n3", "n5", "n6"], "/some": ["n2", "n3", "n6"]}


async def test_the_secret_is_read_again_at_each_attempt_and_its_absence_is_said(
    tmp_path: Path, secret_file: Path
) -> None:
    async with Receiver() as receiver:
        async with telling(tmp_path, address(receiver, secret_file)) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: delivered(alerts) == 1)
            secret_file.unlink()
            alerts.record_event(happened("n2"))
            await until(lambda: f"secret_file {secret_file} can't be read" in alerts.problem)
            secret_file.write_text(" \n")
            await until(lambda: "is empty" in alerts.problem)
            secret_file.write_bytes(b"rotated")
            await until(lambda: delivered(alerts) == 2)
        first, second = receiver.requests
        assert is_signed(first, SECRET)
        assert is_signed(second, b"rotated")


async def test_neither_secret_nor_url_is_ever_logged(
    tmp_path: Path, secret_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver = Receiver(answers=[status(500), status(302), status(429), status(404)])
    async with receiver:
        where = Hook(receiver.url("/T0PSECRET-path"), secret_file, timeout=PATIENCE)
        gone = Hook("http://user:pw-in-url@127.0.0.1:1/T0PSECRET-path", secret_file, name="gone")
        async with telling(tmp_path, where, gone) as alerts:
            alerts.record_event(happened())
            await until(lambda: sum(t.dead for t in alerts.tallies().values()) == 1)
            problem = alerts.problem
            names = repr(alerts.targets) + str(dict(alerts.depth()))
    ours = [one for one in caplog.records if one.name.startswith("sickbay")]
    assert len(ours) >= 4
    text = problem + names + "".join(str(vars(record)) for record in ours)
    assert "T0PSECRET" not in text
    assert "pw-in-url" not in text
    assert SECRET.decode() not in text


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    tmp_path: Path, secret_file: Path
) -> None:
    pair = Authority.create(tmp_path / "authority").server("hook", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    async with (
        Receiver(tls=context) as receiver,
        telling(tmp_path, address(receiver, secret_file)) as alerts,
    ):
        alerts.record_event(happened())
        await until(lambda: "certificate is not trusted" in alerts.problem, lambda: alerts.problem)
        assert receiver.requests == []


# -- what an answer means, and how long to wait: pure ----------------------------------------------


def test_every_status_means_one_thing() -> None:
    for code in range(100, 600):
        _means_one_thing(code)


def _means_one_thing(code: int) -> None:
    answer = classify_response(code, {}, 0.0)
    if 200 <= code < 300:
        assert answer.verdict is Delivery.DELIVERED
    elif 400 <= code < 500 and code not in (408, 425, 429):
        assert answer.verdict is Delivery.DROP
    else:
        assert answer.verdict is Delivery.RETRY
    assert answer.because.startswith(f"HTTP {code}")
    assert ("redirects" in answer.because) == (300 <= code < 400)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 60.0),
        ("Wed, 21 Oct 2015 07:00:00 GMT", 0.0),
        ("99999999", MOST_RETRY_AFTER),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("٣", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_bounded(text: str, seconds: float | None) -> None:
    now = dt.datetime(2015, 10, 21, 7, 27, tzinfo=dt.UTC).timestamp()
    assert classify_response(503, {"Retry-After": text}, now).retry_after == seconds


@given(st.text(max_size=40))
def test_no_retry_after_breaks_us(text: str) -> None:
    found = classify_response(429, {"Retry-After": text}, 0.0).retry_after
    assert found is None or 0 <= found <= MOST_RETRY_AFTER


@given(st.integers(1, 10_000), st.randoms(use_true_random=False))
def test_pauses_are_a_quarter_of_an_hour_at_most(attempts: int, rng: random.Random) -> None:
    assert Retry().pause(attempts, rng) <= min(900, 2 ** min(attempts - 1, 40))


def test_the_documented_example_is_a_body_we_send(tmp_path: Path) -> None:
    """docs/alerts.md shows a body; its keys are those of the real one."""
    text = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()
    example = json.loads(text.split("```json\n")[1].split("```")[0])
    assert set(example) == {"version", "source", "delivery", "alerts"}
    assert set(example["delivery"]) == {"id", "attempt"}
    from aggregator.alerts.alert import Alert, alert_of

    alert = of_type(alert_of(happened()), Alert)
    for shown in example["alerts"]:
        assert set(shown) == {*alert.to_json(), "documentation"}
