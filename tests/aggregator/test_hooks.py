"""The site's hooks, for real: commands that run, webhooks that listen, bodies and signatures."""

import asyncio
import hashlib
import hmac
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from aggregator.cluster.port import UNGUARDED
from aggregator.config.settings import ConfigError, load
from aggregator.hooks.command import CommandHook
from aggregator.hooks.factory import hook_rules
from aggregator.hooks.webhook import WebhookHook
from aggregator.quarantine.decide.drain_plan import Leave, NamespaceRule
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult
from tests.support.text_files import text_file

VALUES = {
    "hook": "pre_evict",
    "node": "gpu-1",
    "reason": "xid:79; rm -rf $HOME",
    "action": "drain",
    "kind": "gpu",
    "incident": "inc-1",
    "quarantine": "q-1",
}


def python(script: str, *words: str) -> list[str]:
    return [sys.executable, "-c", script, *words]


# -- commands --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "said", "text"),
    [
        ("print('drained')", HookResult.DONE, "drained"),
        ("import sys; print('3 jobs'); sys.exit(75)", HookResult.LATER, "3 jobs"),
        ("import sys; sys.exit('slurmctld is away')", HookResult.FAILED, "slurmctld is away"),
    ],
)
async def test_a_command_says_by_its_exit_code_whether_it_is_done(
    script: str, said: HookResult, text: str
) -> None:
    answer = await CommandHook(python(script)).call(VALUES, limit=60, guard=UNGUARDED)
    assert (answer.result, text in answer.text) == (said, True)


async def test_a_command_gets_its_words_as_they_are_and_no_shell(tmp_path: Path) -> None:
    script = "import os, sys; print(sys.argv[1:], os.environ['SICKBAY_QUARANTINE'])"
    hook = CommandHook(python(script, "NodeName={node}", "Reason={reason}"))
    answer = await hook.call(VALUES, limit=60, guard=UNGUARDED)
    assert answer == HookAnswer(
        HookResult.DONE, "['NodeName=gpu-1', 'Reason=xid:79; rm -rf $HOME'] q-1"
    )


async def test_a_command_that_is_not_there_or_takes_too_long_has_failed() -> None:
    missing = await CommandHook(["/nowhere/scontrol"]).call(VALUES, limit=60, guard=UNGUARDED)
    assert missing.result is HookResult.FAILED
    assert "/nowhere/scontrol can't be run" in missing.text
    slow = await CommandHook(python("import time; time.sleep(600)")).call(
        VALUES, limit=0.3, guard=UNGUARDED
    )
    assert slow.result is HookResult.FAILED
    assert "did not end within 0.3 s" in slow.text


# -- webhooks --------------------------------------------------------------------------------


class Receiver:
    """A webhook's receiver: gives the answers of the test, and remembers the requests."""

    def __init__(self, status: int, text: str = "", headers: dict[str, str] | None = None) -> None:
        self.answer = (status, text, headers or {})
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.hangs = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        status, text, headers = self.answer
        if status == 0:
            await self.hangs.wait()
        return web.Response(status=status or 200, text=text, headers=headers)


@asynccontextmanager
async def listening(receiver: Receiver) -> AsyncIterator[Receiver]:
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}/hook"
    try:
        yield receiver
    finally:
        receiver.hangs.set()
        await runner.cleanup()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return text_file(tmp_path / "secret", "s3cret\n")


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, {}, HookAnswer(HookResult.DONE, "words")),
        (202, {"Retry-After": "7"}, HookAnswer(HookResult.LATER, "words", 7.0)),
        (202, {}, HookAnswer(HookResult.LATER, "words")),
        (204, {}, HookAnswer(HookResult.FAILED, "HTTP 204")),
        (503, {"Retry-After": "9"}, HookAnswer(HookResult.FAILED, "HTTP 503: words", 9.0)),
        (404, {}, HookAnswer(HookResult.FAILED, "HTTP 404: words")),
        (302, {"Location": "/elsewhere"}, HookAnswer(HookResult.FAILED, "HTTP 302: words")),
    ],
)
async def test_a_webhook_says_by_its_status_whether_it_is_done(
    secret: Path, status: int, headers: dict[str, str], expected: HookAnswer
) -> None:
    async with listening(Receiver(status, "" if status == 204 else "words", headers)) as receiver:
        hook = WebhookHook(receiver.url, secret, wall=time.time)
        assert await hook.call(VALUES, limit=60, guard=UNGUARDED) == expected


async def test_a_webhook_is_signed_and_the_same_for_every_attempt(secret: Path) -> None:
    async with listening(Receiver(202)) as receiver:
        hook = WebhookHook(receiver.url, secret, wall=lambda: 1_700_000_000.0)
        await hook.call(VALUES, limit=60, guard=UNGUARDED)
        await hook.call(VALUES, limit=60, guard=UNGUARDED)
        await hook.call({**VALUES, "hook": "post_release"}, limit=60, guard=UNGUARDED)
    body, sent = receiver.bodies[0], receiver.headers[0]
    assert json.loads(body) == {"version": 1, "source": "sickbay", **VALUES}
    digest = hmac.new(b"s3cret", b"1700000000." + body, hashlib.sha256).hexdigest()
    assert sent["X-Sickbay-Signature"] == f"sha256={digest}"
    idents = [one["X-Sickbay-Delivery"] for one in receiver.headers]
    assert idents == ["q-1-pre_evict", "q-1-pre_evict", "q-1-post_release"]


async def test_a_webhook_gets_the_beginning_of_a_reason_that_somebody_pasted_a_log_into(
    secret: Path,
) -> None:
    async with listening(Receiver(200)) as receiver:
        hook = WebhookHook(receiver.url, secret, wall=time.time)
        await hook.call({**VALUES, "reason": "x" * 100_000}, limit=60, guard=UNGUARDED)
    reason = json.loads(receiver.bodies[0])["reason"]
    assert reason.endswith("xxx… (100,000 characters)")
    assert len(reason) == 4000


async def test_a_webhook_that_can_not_be_asked_has_failed_and_says_why(secret: Path) -> None:
    async with listening(Receiver(0)) as receiver:
        hook = WebhookHook(receiver.url, secret, wall=time.time)
        late = await hook.call(VALUES, limit=2.0, guard=UNGUARDED)
        assert late == HookAnswer(HookResult.FAILED, "no answer within 2 s")
        url = receiver.url
        keyless = WebhookHook(url, secret.with_name("none"), wall=time.time)
        unsigned = await keyless.call(VALUES, limit=60, guard=UNGUARDED)
        assert unsigned.result is HookResult.FAILED
        assert "secret_file" in unsigned.text
        assert len(receiver.bodies) == 1  # no request goes out unsigned
    away = await WebhookHook(url, secret, wall=time.time).call(VALUES, limit=60, guard=UNGUARDED)
    assert away.result is HookResult.FAILED
    assert "can't be reached" in away.text
    assert "/hook" not in away.text  # a URL is often a secret


# -- the configuration -------------------------------------------------------------------------

Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(drain: str) -> Path:
        return text_file(
            tmp_path / "aggregator.yaml", f"listen: {{insecure_plaintext: true}}\ndrain:\n{drain}"
        )

    return write


def test_the_hooks_and_the_namespaces_are_built_as_configured(written: Written) -> None:
    drain = load(
        written(
            """
  namespaces:
    - {match: "slurm-*", policy: wait, wait: "2h"}
    - {match: batch, policy: force, wait: "1h", force_after: "24h"}
    - {match: "*", policy: never}
  gangs: whole
  pre_evict: {command: [scontrol, "{node}"], timeout: "30m", on_failure: go_on}
"""
        )
    ).drain
    assert list(drain.namespaces) == [
        NamespaceRule("slurm-*", Leave.WAIT, 7200.0),
        NamespaceRule("batch", Leave.FORCE, 3600.0, 86400.0),
        NamespaceRule("*", Leave.NEVER),
    ]
    rules = hook_rules(drain, wall=time.time)
    assert isinstance(rules.pre_evict, CommandHook)
    assert (rules.pre_evict_timeout, rules.go_on, rules.post_release) == (1800.0, True, None)


@pytest.mark.parametrize(
    ("drain", "line", "says"),
    [
        ("  namespaces: [{match: a, policy: wait}]", 3, "has no time"),
        ('  namespaces: [{match: a, policy: evict, wait: "2h"}]', 3, "no pod is waited for"),
        (
            '  namespaces: [{match: a, policy: evict, force_after: "2h"}]',
            3,
            "no pod is deleted by force",
        ),
        (
            '  namespaces: [{match: a, policy: force, wait: "2h", force_after: "1h"}]',
            3,
            "sooner than its wait",
        ),
        ('  namespaces: [{match: a, policy: force, force_after: "1s"}]', 3, 'at least "1m"'),
        ("  namespaces: [{match: a, policy: perhaps}]", 3, "expected"),
        ("  namespaces: [{match: A_b, policy: never}]", 3, "expected a namespace"),
        (
            '  namespaces:\n    - {match: "*", policy: evict}\n    - {match: a, policy: never}',
            5,
            "never comes to its turn",
        ),
        (
            "  pre_evict: {command: [x], webhook: {url: 'http://h/', secret_file: s}}",
            3,
            "expected one of them",
        ),
        (
            "  pre_evict: {webhook: {url: 'http://h/', secret_file: /nowhere/secret}}",
            3,
            "/nowhere/secret can't be read",
        ),
        ("  gangs: some", 3, "expected"),
        ('  deadline: "1s"', 3, 'at least "1m"'),
    ],
)
def test_a_drain_that_makes_no_sense_is_refused_with_its_line(
    written: Written, drain: str, line: int, says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(written(drain))
    assert any(
        problem.line == line and says in problem.text for problem in raised.value.problems
    ), str(raised.value)
