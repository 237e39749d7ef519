"""Alerts to a real Alertmanager, a real SMTP server, and receivers that fail in every way."""

import asyncio
import json
import random
import re
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from aggregator.alerts import sender
from aggregator.alerts.http_channel import Exchange, HttpOptions
from aggregator.alerts.message import Message
from aggregator.alerts.notifier import Notifier
from aggregator.alerts.outbox import AlertOutbox, BatchWait
from aggregator.alerts.receivers.alertmanager import AlertmanagerOptions
from aggregator.alerts.receivers.email import EmailOptions
from aggregator.alerts.receivers.pagerduty import PagerDutyOptions
from aggregator.alerts.receivers.slack import SlackOptions
from aggregator.alerts.receivers.teams import TeamsOptions
from aggregator.alerts.receivers.webhook import WebhookOptions
from aggregator.alerts.routes import RouteTarget, targets_of
from aggregator.alerts.settings import AlertSettings, ReceiverConfig, RouteConfig
from aggregator.alerts.store import FileStore
from aggregator.alerts.webhook import Delivery, Retry, WebhookResponse
from aggregator.events import EventKind, Transition
from aggregator.runtime import tasks
from aggregator.runtime.backoff import Backoff
from tests.controlplane.pki import Authority
from tests.controlplane.ports import ReservedPort
from tests.support.receiver import Answer, Received, Receiver, hang, status, taken
from tests.support.text_files import text_file
from tests.support.waiting import CLOCKS, PATIENCE, until
from tests.support.yaml_documents import read_yaml

PROGRAM = "prometheus-alertmanager"
_START_S = 60.0
_CONFIG = "route: {receiver: none}\nreceivers: [{name: none}]\n"


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


class Alertmanager:
    """``tls``: files of its certificate and key, and of the CA of clients' certificates."""

    def __init__(
        self, folder: Path, tls: tuple[Path, Path, Path] | None = None, config: str = _CONFIG
    ) -> None:
        self._folder = folder
        self._port = ReservedPort()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._port.number}"
        (folder / "alertmanager.yml").write_text(config)
        self._web = folder / "web.yml"
        if tls is not None:
            certificate, key, clients = tls
            self._web.write_text(
                f"tls_server_config: {{cert_file: {certificate}, key_file: {key}, "
                f"client_ca_file: {clients}, client_auth_type: RequireAndVerifyClientCert}}\n"
            )

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        command = [
            PROGRAM,
            f"--config.file={self._folder / 'alertmanager.yml'}",
            f"--storage.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port.number}",
            "--cluster.listen-address=",
        ]
        if self._web.exists():
            command.append(f"--web.config.file={self._web}")
        log = (self._folder / "alertmanager.log").open("ab")
        self._process = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + _START_S
        while b"Listening on" not in (self._folder / "alertmanager.log").read_bytes():
            told = (self._folder / "alertmanager.log").read_text()
            assert self._process.poll() is None, told
            assert time.monotonic() < deadline, told
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9; it keeps no alerts."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            (self._folder / "alertmanager.log").write_bytes(b"")

    def close(self) -> None:
        self.kill()
        self._port.close()

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that last, as its API has them."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=300) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found


SOON = BatchWait(0.05, 0.05)
QUICK = Retry(Backoff(0.02, 0.1), give_up=60)
K = EventKind

needs_alertmanager = pytest.mark.skipif(
    not is_installed(),
    reason="there is no prometheus-alertmanager: tests/setup-debian.sh installs it",
)


def happened(node: str, kind: EventKind = K.CORDONED) -> Transition:
    return Transition(time.time(), kind, node, f"{node}: {kind}", f"inc-{node}", {})


@asynccontextmanager
async def telling(
    folder: Path, *receivers: ReceiverConfig, wait: BatchWait = SOON
) -> AsyncIterator[Notifier]:
    """A route for each receiver."""
    routes = tuple(RouteConfig(name=f"to-{one.name}", receiver=one.name) for one in receivers)
    settings = AlertSettings(receivers=receivers, routes=routes, page="https://sickbay.test")
    alerts = Notifier(
        FileStore(folder / "outbox.db"),
        settings,
        clocks=CLOCKS,
        rng=random.Random(1),
        retry=QUICK,
        targets=[
            replace(one, wait=wait, resend=one.resend and 0.3) for one in targets_of(settings)
        ],
    )
    alerts.start()
    try:
        yield alerts
    finally:
        await alerts.close()


def delivered(alerts: Notifier) -> int:
    return sum(tally.delivered for tally in alerts.tallies().values())


def file_of(folder: Path, name: str, content: str) -> Path:
    return text_file(folder / name, f"{content}\n")


# -- Alertmanager ----------------------------------------------------------------------------------


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Alertmanager]:
    with closing(Alertmanager(tmp_path)) as made:
        made.start()
        yield made


@needs_alertmanager
async def test_alertmanager_has_an_alert_until_its_end_and_again_after_a_restart(
    tmp_path: Path, manager: Alertmanager
) -> None:
    receiver = ReceiverConfig("am", alertmanager=AlertmanagerOptions(manager.url))

    def nodes() -> list[str]:
        return sorted(one["labels"]["node"] for one in manager.alerts())

    async with telling(tmp_path, receiver) as alerts:
        for number in range(3):
            alerts.record_event(happened(f"n{number}"))
        await until(lambda: delivered(alerts) == 3, lambda: alerts.problem)
        [first, *_] = sorted(manager.alerts(), key=lambda one: str(one["labels"]["node"]))
        assert first["labels"]["alertname"] == "SickbayQuarantineCordoned"
        assert first["labels"]["severity"] == "warning"
        assert first["generatorURL"] == "https://sickbay.test/nodes/n0"
        assert nodes() == ["n0", "n1", "n2"]
        alerts.record_event(happened("n1", K.RELEASED))
        await until(lambda: nodes() == ["n0", "n2"], lambda: (nodes(), alerts.problem))
        manager.kill()
        manager.start()
        await until(lambda: nodes() == ["n0", "n2"], lambda: (nodes(), alerts.problem))


def quiet_hours(*, all_day: bool, rooms: Mapping[str, str]) -> str:
    """The documented configuration, with its hours all day or never, and receivers by URL."""
    text = Path("docs/alerts.md").read_text("utf-8").partition("## Quiet hours")[2]
    config = read_yaml(re.findall(r"```yml\n(.*?)```", text, re.DOTALL)[0])
    if all_day:
        whole = {"times": [{"start_time": "00:00", "end_time": "24:00"}]}
        config["time_intervals"][0]["time_intervals"] = [whole]
    else:
        never = {"years": ["1999"]}
        config["time_intervals"][0]["time_intervals"] = [never]
    config["route"] |= {"group_wait": "0s", "group_interval": "1s"}
    config["receivers"] = [
        {"name": name, "webhook_configs": [{"url": url}]} for name, url in rooms.items()
    ]
    return yaml.safe_dump(config)


@needs_alertmanager
@pytest.mark.parametrize("all_day", [True, False])
async def test_in_the_documented_quiet_hours_critical_alerts_alone_get_out(
    tmp_path: Path, *, all_day: bool
) -> None:
    async with Receiver() as oncall, Receiver() as room:
        rooms = {"oncall": oncall.url(), "gpu-room": room.url()}
        config = quiet_hours(all_day=all_day, rooms=rooms)
        with closing(Alertmanager(tmp_path, config=config)) as manager:
            manager.start()
            receiver = ReceiverConfig("am", alertmanager=AlertmanagerOptions(manager.url))
            async with telling(tmp_path, receiver) as alerts:
                alerts.record_event(happened("n1", K.CORDONED))
                await until(lambda: delivered(alerts) == 1, lambda: alerts.problem)
                if not all_day:
                    await until(lambda: room.requests)
                alerts.record_event(happened("n1", K.OVERDUE))
                await until(lambda: oncall.requests)
                assert bool(room.requests) != all_day


@needs_alertmanager
async def test_alertmanager_over_mutual_tls_with_a_private_ca(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority")
    pair = authority.server("alertmanager", ["127.0.0.1"])
    client = authority.user("sickbay", "sickbay", ())
    files = (pair.certificate, pair.key, authority.certificate)
    with closing(Alertmanager(tmp_path, tls=files)) as manager:
        manager.start()
        http = HttpOptions(
            ca_file=authority.certificate, cert_file=client.certificate, key_file=client.key
        )
        without = HttpOptions(ca_file=authority.certificate)
        receivers = [
            ReceiverConfig(name, alertmanager=AlertmanagerOptions(manager.url, options))
            for name, options in (("with", http), ("without", without))
        ]
        async with telling(tmp_path, *receivers) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: alerts.tallies()["to-with"].delivered == 1, lambda: alerts.problem)
            await until(lambda: alerts.tallies()["to-without"].failed_attempts > 0)
            assert "route to-without (alertmanager without): can't be reached" in alerts.problem


# -- e-mail ----------------------------------------------------------------------------------------


class Mailbox:
    """Takes mail; ``answers`` are given first, each to one mail."""

    def __init__(self, *answers: str) -> None:
        self.mails: list[EmailMessage] = []
        self._answers = list(answers)

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:
        if self._answers:
            return self._answers.pop(0)
        self.mails.append(message_from_bytes(envelope.content, policy=default))
        return "250 OK"


class Logins:
    """One user and one password."""

    def __call__(self, _s: object, _n: object, _e: object, _m: object, data: Any) -> AuthResult:
        good = LoginPassword(b"sickbay", b"correct horse")
        return AuthResult(success=data == good, handled=False)


@asynccontextmanager
async def smtp(mailbox: Mailbox, **how: Any) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()  # else it makes one that nobody closes
    controller = Controller(mailbox, loop=loop, hostname="127.0.0.1", port=0, **how)
    server = await loop.create_server(controller.factory, "127.0.0.1", 0)
    with closing(server):
        yield server.sockets[0].getsockname()[1]


def mail_to(port: int, **more: Any) -> ReceiverConfig:
    options = EmailOptions(f"localhost:{port}", "sickbay@site.test", ("oncall@site.test",), **more)
    return ReceiverConfig("mail", email=options, timeout=PATIENCE)


async def test_a_mail_arrives_and_its_end_in_the_same_thread(tmp_path: Path) -> None:
    mailbox = Mailbox("451 4.3.0 not now")
    async with smtp(mailbox) as port, telling(tmp_path, mail_to(port, tls="none")) as alerts:
        alerts.record_event(happened("gpu-0117"))
        await until(lambda: len(mailbox.mails) == 1, lambda: alerts.problem)
        assert alerts.tallies()["to-mail"].failed_attempts == 1
        alerts.record_event(happened("gpu-0117", K.RELEASED))
        await until(lambda: len(mailbox.mails) == 2, lambda: alerts.problem)
    first, second = mailbox.mails
    assert first["Subject"] == "[WARNING] gpu-0117: quarantine.cordoned"
    assert first["To"] == "oncall@site.test"
    assert "https://sickbay.test/nodes/gpu-0117" in first.get_content()
    assert second["Subject"].startswith("[RESOLVED] gpu-0117: quarantine.released")
    assert second["References"] == first["Message-ID"]


class HangsAt(Mailbox):
    """Answers no command of this name."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        setattr(self, f"handle_{command}", self._hang)

    async def _hang(self, *_: object) -> str:
        self.asked.set()
        await asyncio.sleep(3600)
        return "250 OK"


async def test_a_mail_that_was_accepted_is_not_sent_again_for_a_server_that_hangs_then(
    tmp_path: Path,
) -> None:
    mailbox = HangsAt("QUIT")
    async with smtp(mailbox) as port, telling(tmp_path, mail_to(port, tls="none")) as alerts:
        alerts.record_event(happened("n1"))
        await until(lambda: delivered(alerts) == 1, lambda: alerts.problem)
        assert alerts.tallies()["to-mail"].failed_attempts == 0
        await mailbox.asked.wait()  # it is said all the same
    assert len(mailbox.mails) == 1


async def test_a_mail_server_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    mailbox = HangsAt("MAIL")
    async with smtp(mailbox) as port:
        receiver = replace(mail_to(port, tls="none"), timeout=300.0)
        async with asyncio.timeout(PATIENCE), telling(tmp_path, receiver) as alerts:
            alerts.record_event(happened("n1"))
            await mailbox.asked.wait()


class KnowsOne(Mailbox):
    """One address."""

    async def handle_RCPT(
        self, _server: object, _session: object, envelope: Any, address: str, _: object
    ) -> str:
        if address != "oncall@site.test":
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"


async def test_an_address_that_a_mail_server_refuses_is_told_and_the_others_have_the_mail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox = KnowsOne()
    async with smtp(mailbox) as port:
        to = ("nobody@site.test", "oncall@site.test")
        options = EmailOptions(f"localhost:{port}", "sickbay@site.test", to, tls="none")
        async with telling(tmp_path, ReceiverConfig("mail", email=options)) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: delivered(alerts) == 1, lambda: alerts.problem)
    assert len(mailbox.mails) == 1
    [line] = [one for one in caplog.records if "refused one of several" in one.message]
    assert (vars(line)["address"], vars(line)["because"]) == (to[0], "5.1.1 no such user")


async def test_a_mail_server_is_verified_and_logged_in_to(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority")
    pair = authority.server("mail", ["127.0.0.1", "localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    mailbox = Mailbox()
    password = file_of(tmp_path, "password", "wrong")
    how = {"tls_context": context, "authenticator": Logins(), "auth_required": True}
    async with smtp(mailbox, **how) as port:
        foreign = mail_to(port, username="sickbay", password_file=password)
        async with telling(tmp_path, foreign) as alerts:
            alerts.record_event(happened("n1"))
            await until(
                lambda: "certificate is not trusted" in alerts.problem, lambda: alerts.problem
            )
        known = mail_to(
            port, username="sickbay", password_file=password, ca_file=authority.certificate
        )
        async with telling(tmp_path, known) as alerts:
            await until(lambda: "SMTP 535" in alerts.problem, lambda: alerts.problem)
            password.write_text("correct horse\n")  # the login is no reason to drop an alert
            await until(lambda: len(mailbox.mails) == 1, lambda: alerts.problem)
    assert "correct horse" not in str(mailbox.mails[0])


class LosesCancellation:
    """As asyncio.wait_for of Python 3.11 does where a reply arrives with the cancellation."""

    def __init__(self, verdict: Delivery) -> None:
        self.called = asyncio.Event()
        self._verdict = verdict

    async def deliver(self, _message: Message, _exchange: Exchange) -> WebhookResponse:
        self.called.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        return WebhookResponse(self._verdict, "answered at the end")


@pytest.mark.parametrize("verdict", [Delivery.DELIVERED, Delivery.RETRY])
async def test_a_sender_ends_though_a_library_loses_the_cancellation(
    tmp_path: Path, verdict: Delivery
) -> None:
    receiver = LosesCancellation(verdict)
    alerts = Notifier(
        FileStore(tmp_path / "outbox.db"),
        AlertSettings(),
        clocks=CLOCKS,
        rng=random.Random(1),
        retry=QUICK,
        targets=[RouteTarget("to-mail", "to-mail", receiver, timeout=3600.0, wait=SOON)],
    )
    alerts.start()
    alerts.record_event(happened("n1"))
    await receiver.called.wait()
    async with asyncio.timeout(PATIENCE):
        await alerts.close()
    with closing(AlertOutbox(FileStore(tmp_path / "outbox.db"))) as outbox:
        assert outbox.depths() == ({} if verdict is Delivery.DELIVERED else {"to-mail": 1})


# -- receivers that fail ---------------------------------------------------------------------------

SECRET_URL = "/services/T0/B0/T0PSECRETOFCHAT"


def over_http(
    folder: Path, receiver: Receiver, http: HttpOptions | None = None
) -> list[ReceiverConfig]:
    """One receiver of each kind over HTTP, all at the same server."""
    http = http or HttpOptions()
    url_file = file_of(folder, "url", receiver.url(SECRET_URL))
    secret = file_of(folder, "secret", "0123456789abcdef0123456789abcdef")
    return [
        ReceiverConfig("slack", slack=SlackOptions(url_file, http=http), timeout=PATIENCE),
        ReceiverConfig("teams", teams=TeamsOptions(url_file, http=http), timeout=PATIENCE),
        ReceiverConfig(
            "pagerduty",
            pagerduty=PagerDutyOptions(secret, receiver.url("/v2/enqueue"), http=http),
            timeout=PATIENCE,
        ),
        ReceiverConfig(
            "am", alertmanager=AlertmanagerOptions(receiver.url(""), http), timeout=PATIENCE
        ),
        ReceiverConfig(
            "hook", webhook=WebhookOptions(receiver.url("/hook"), secret, http), timeout=PATIENCE
        ),
    ]


@pytest.mark.parametrize("number", range(5), ids=["slack", "teams", "pagerduty", "am", "hook"])
async def test_every_receiver_is_tried_again_until_it_takes_the_same_message(
    tmp_path: Path, number: int
) -> None:
    """Server errors, a rate limit, a redirect to an internal address, no answer, a closed door."""
    answers: list[Answer] = [
        status(500),
        status(429, Retry_After="0"),
        status(302, Location="http://169.254.169.254/latest/meta-data"),
        hang,
        status(503),
    ]
    async with Receiver(answers=answers) as receiver:
        one = replace(over_http(tmp_path, receiver)[number], timeout=0.3)
        async with telling(tmp_path, one) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: delivered(alerts) == 1, lambda: alerts.problem)
            [tally] = alerts.tallies().values()
            assert tally.failed_attempts >= 5
            assert tally.dead == 0
        assert len({request.path for request in receiver.requests}) == 1, "no redirect is followed"
        if one.name not in ("am", "hook"):  # they have a time, or the attempt's number
            assert len({request.body for request in receiver.requests}) == 1


@pytest.mark.parametrize(("code", "dead"), [(400, 1), (401, 0), (403, 0), (404, 0)])
async def test_a_credential_that_is_refused_keeps_the_alerts_and_a_bad_body_is_a_dead_letter(
    tmp_path: Path, code: int, dead: int
) -> None:
    async with Receiver(answers=[status(code)]) as receiver:
        [slack, *_] = over_http(tmp_path, receiver)
        async with telling(tmp_path, slack) as alerts:
            alerts.record_event(happened("n1"))
            tally = alerts.tallies()["to-slack"]
            await until(lambda: tally.dead + tally.delivered == 1)
            assert tally.dead == dead


async def test_headers_a_token_and_a_proxy_are_used(tmp_path: Path) -> None:
    token = file_of(tmp_path, "token", "t0ken")
    async with Receiver() as proxy, Receiver() as unreachable:
        http = HttpOptions(
            headers={"X-Scope-OrgID": "gpu"}, bearer_token_file=token, proxy=proxy.url("")
        )
        [*_, manager, _hook] = over_http(tmp_path, unreachable, http)
        async with telling(tmp_path, manager) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: delivered(alerts) == 1, lambda: alerts.problem)
        [request] = proxy.requests[:1]
        assert unreachable.requests == []
        assert request.headers["X-Scope-OrgID"] == "gpu"
        assert request.headers["Authorization"] == "Bearer t0ken"


async def test_an_answer_without_end_is_read_to_a_bound(tmp_path: Path) -> None:
    async def endless(_: Received) -> web.StreamResponse:
        return web.Response(status=500, body=b"\x1b[31mno <b>" + b"x" * 20_000_000)

    async with Receiver(answer=endless) as receiver:
        [slack, *_] = over_http(tmp_path, receiver)
        async with telling(tmp_path, slack) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: "HTTP 500" in alerts.problem, lambda: alerts.problem)
            assert len(alerts.problem) < 400
            assert "\x1b" not in alerts.problem
            assert SECRET_URL not in alerts.problem
            receiver.answer = taken
            await until(lambda: delivered(alerts) == 1)


@pytest.mark.parametrize("number", range(4), ids=["slack", "teams", "pagerduty", "am"])
async def test_no_secret_that_a_receiver_repeats_is_shown_or_kept(
    tmp_path: Path, number: int
) -> None:
    def repeat(request: Received) -> web.Response:
        query = "?sig=S1G:NATURE/0123" if request.path == SECRET_URL else ""
        said = f"no {request.path}{query} {request.headers.get('Authorization')}"
        escaped = request.path.replace("/", "\\/")
        return web.Response(status=400, text=f"{said} {escaped} {request.body[:90].decode()}")

    token = file_of(tmp_path, "token", "t0ken-of-the-proxy")
    async with Receiver(answer=repeat) as receiver:
        one = over_http(tmp_path, receiver, HttpOptions(bearer_token_file=token))[number]
        file_of(tmp_path, "url", receiver.url(f"{SECRET_URL}?sig=S1G%3ANATURE%2F0123"))
        async with telling(tmp_path, one) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: sum(t.dead for t in alerts.tallies().values()) == 1)
            problem = alerts.problem
        with closing(AlertOutbox(FileStore(tmp_path / "outbox.db"))) as outbox:
            [letter] = outbox.dead_letters(9)
        shown = problem + letter.because
        assert "HTTP 400: no ***" in shown
        for secret in ("T0PSECRET", "NATURE", "t0ken", "0123456789abcdef"):
            assert secret not in shown


@pytest.mark.parametrize(("owner", "method"), [(Notifier, "_accept"), (sender.RouteSender, "_one")])
async def test_a_bug_is_logged_and_alerts_go_on(
    owner: type,
    method: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bugs, right = [ValueError("a bug")], getattr(owner, method)

    async def wrong_once(self: object) -> None:
        if bugs:
            raise bugs.pop()
        await right(self)

    monkeypatch.setattr(owner, method, wrong_once)
    monkeypatch.setattr(tasks, "AGAIN_AFTER", 0.0)
    async with Receiver() as receiver:
        [slack, *_] = over_http(tmp_path, receiver)
        async with telling(tmp_path, slack) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: delivered(alerts) == 1)
    assert "met an unexpected error" in caplog.text


async def test_a_message_that_cannot_be_read_is_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("kind")

    monkeypatch.setattr(sender, "alerts_of", broken)
    async with Receiver() as receiver:
        [slack, *_] = over_http(tmp_path, receiver)
        async with telling(tmp_path, slack) as alerts:
            alerts.record_event(happened("n1"))
            await until(lambda: alerts.tallies()["to-slack"].dead == 1)
        assert receiver.requests == []
