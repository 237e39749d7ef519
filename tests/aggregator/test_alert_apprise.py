"""The receiver `apprise`: the real library against a real HTTP server, and where it is missing."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from aggregator.alerts.alert import alert_of
from aggregator.alerts.http_channel import Exchange
from aggregator.alerts.message import Message
from aggregator.alerts.receivers import apprise
from aggregator.alerts.receivers.apprise import MISSING, AppriseOptions, AppriseReceiver
from aggregator.alerts.receivers.slack import SlackOptions
from aggregator.alerts.settings import ReceiverConfig
from aggregator.alerts.webhook import Delivery, WebhookResponse
from aggregator.events import EventKind
from aggregator.runtime.worker_thread import WorkerThread
from tests.aggregator.test_alert_delivery import delivered, file_of, happened, telling
from tests.support.config_check import config_check
from tests.support.present import present
from tests.support.receiver import Receiver, hang, status, taken
from tests.support.text_files import text_file
from tests.support.waiting import PATIENCE, until

#: The library's plugins use modules of Python that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SECRET = "T0PSECRETOFCHAT"
CONFIG = """
listen: {grpc: "127.0.0.1:0", web: "127.0.0.1:0", insecure_plaintext: true}
cluster: {kind: local}
identity: {kind: insecure-trust-hello}
alerts:
  receivers: [{name: chat, apprise: {url_file: URL}}]
  routes: [{name: chat, receiver: chat}]
"""


def chat(folder: Path, receiver: Receiver, timeout: float = PATIENCE) -> ReceiverConfig:
    """By Apprise's service for JSON over HTTP."""
    file = file_of(folder, "chat", f"json://127.0.0.1:{receiver.port}/{SECRET}")
    return ReceiverConfig("chat", apprise=AppriseOptions(file), timeout=timeout)


async def test_an_alert_and_its_end_arrive_without_mentions(tmp_path: Path) -> None:
    async with Receiver() as receiver, telling(tmp_path, chat(tmp_path, receiver)) as alerts:
        odd = replace(happened("n1"), summary="n1: cordoned: @everyone <!channel>")
        alerts.record_event(odd)
        await until(lambda: delivered(alerts) == 1, lambda: alerts.problem)
        alerts.record_event(happened("n1", EventKind.RELEASED))
        await until(lambda: delivered(alerts) == 2, lambda: alerts.problem)
        first, second = (json.loads(request.body) for request in receiver.requests)
    assert receiver.requests[0].path == f"/{SECRET}"
    assert (first["type"], second["type"]) == ("warning", "success")
    assert first["title"].startswith("[WARNING] n1: cordoned: @\u200beveryone <\u200b!channel>")
    assert "@everyone" not in json.dumps(first, ensure_ascii=False)
    assert "https://sickbay.test/nodes/n1" in first["message"]
    assert second["title"].startswith("[RESOLVED] ")


async def test_a_service_that_refuses_is_tried_again_and_no_secret_is_shown(tmp_path: Path) -> None:
    async with Receiver(answers=[status(403)], answer=status(500)) as receiver:
        async with telling(tmp_path, chat(tmp_path, receiver)) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: "500" in alerts.problem, lambda: alerts.problem)
            assert SECRET not in alerts.problem
            receiver.answer = taken
            await until(lambda: delivered(alerts) == 1, lambda: alerts.problem)
            failed = alerts.tallies()["to-chat"].failed_attempts
        assert failed >= 2
        assert len(receiver.requests) == failed + 1


async def test_a_service_that_never_answers_delays_no_other(tmp_path: Path) -> None:
    async with Receiver(answer=hang) as dead, Receiver() as alive:
        url = file_of(tmp_path, "slack", alive.url("/services/x"))
        other = ReceiverConfig("alive", slack=SlackOptions(url))
        async with telling(tmp_path, chat(tmp_path, dead, timeout=0.3), other) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: alerts.tallies()["to-alive"].delivered == 1)
            await until(lambda: alerts.tallies()["to-chat"].failed_attempts > 0)


def written(folder: Path, url: str) -> Path:
    return text_file(
        folder / "aggregator.yaml", CONFIG.replace("URL", str(file_of(folder, "chat", url)))
    )


async def test_an_attempt_that_was_given_up_before_it_began_sends_nothing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that hangs would have the message of each attempt once it goes on."""
    began, go, sent = threading.Event(), threading.Event(), []

    def send(*message: str) -> WebhookResponse:
        sent.append(message)
        began.set()
        assert go.wait(PATIENCE)
        return WebhookResponse(Delivery.DELIVERED, "taken")

    monkeypatch.setattr(apprise, "_send", send)
    receiver = AppriseReceiver(AppriseOptions(file_of(tmp_path, "chat", "json://a")), "chat")
    exchange = Exchange(cast(aiohttp.ClientSession, None), WorkerThread("secrets"), time.time)
    message = Message("1", 1, (present(alert_of(happened("n1"))),))
    attempts = [asyncio.create_task(receiver.deliver(message, exchange)) for _ in range(3)]
    await until(began.is_set)
    await until(lambda: receiver._thread._calls.qsize() == 2)
    for one in attempts:
        one.cancel()
    await asyncio.wait(attempts)
    go.set()
    await receiver.deliver(message, exchange)
    assert len(sent) == 2
    exchange.thread.stop()


def test_a_file_with_a_url_of_the_library_is_sound(tmp_path: Path) -> None:
    done = config_check(written(tmp_path, "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "url", ["nosuch://host/T0PSECRET0FCHAT", "discord://", "json://a/\njson://b/", "word"]
)
def test_a_url_that_it_does_not_know_is_refused_and_not_shown(tmp_path: Path, url: str) -> None:
    done = config_check(written(tmp_path, url))
    assert done.returncode == 2
    assert "alerts.receivers[0].apprise.url_file: url_file holds no URL that Apprise" in done.stderr
    assert "T0PSECRET0FCHAT" not in done.stderr


def test_where_the_extra_is_not_installed_the_start_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)  # as if there were no such library
    done = config_check(written(tmp_path, "json://localhost/x"))
    assert done.returncode == 2
    assert f"alerts.receivers[0].apprise.url_file: {MISSING}" in done.stderr


def test_the_library_is_imported_for_a_configuration_that_names_it_alone(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from aggregator.alerts.file_check import unusable_files
from aggregator.alerts.routes import targets_of
from aggregator.config.settings import load
settings = load(Path(sys.argv[1])).alert_settings
targets = targets_of(settings)
assert "apprise" not in sys.modules
assert not list(unusable_files(settings))
print("apprise" in sys.modules)
"""
    with_it = written(tmp_path, "json://localhost/x")
    (tmp_path / "without").mkdir()
    without = text_file(tmp_path / "without" / "aggregator.yaml", CONFIG.partition("alerts:")[0])
    for file, imported in ((without, "False"), (with_it, "True")):
        done = subprocess.run(
            [sys.executable, "-c", program, file], capture_output=True, text=True, check=False
        )
        assert (done.stdout.strip(), done.stderr) == (imported, "")
