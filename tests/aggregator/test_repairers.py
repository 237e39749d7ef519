"""Each repairer against a real program or a real server: every answer, and every doubt."""

import asyncio
import hashlib
import hmac
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from aggregator.cluster.port import UNGUARDED, Unreachable
from aggregator.quarantine.repair.protocol import AnswerState, RepairOrder
from aggregator.repairers.command import CommandRepairer
from aggregator.repairers.ipmi import IpmiRepairer, IpmiTarget
from aggregator.repairers.job import JobRepairer
from aggregator.repairers.redfish import RedfishRepairer, RedfishTarget
from aggregator.repairers.webhook import WebhookRepairer
from tests.support.text_files import text_file
from tests.support.waiting import PATIENCE

ORDER = RepairOrder(
    "q-1-reboot", "reboot", "n1", "uid-n1", "boot-1", "q", "xid:79 on GPU-1", 600.0, ("GPU-1",)
)
TICKET = RepairOrder(
    "q-2-ticket", "ticket", "n1", "uid-n1", "b", "q", "why", 600.0, bundle='{"evidence": []}'
)

TEST = RepairOrder("q-3-test", "test", "n1", "uid-n1", "b", "q", "why", 600.0, profile="standard")


class Answers:
    """A server that answers as it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.status, self.text, self.pause = 200, "", 0.0
        self.asked: list[tuple[web.BaseRequest, bytes]] = []
        self.url = ""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append((request, await request.read()))
        await asyncio.sleep(self.pause)
        return web.Response(status=self.status, text=self.text)


@pytest.fixture
async def server() -> AsyncIterator[Answers]:
    answers = Answers()
    runner = web.ServerRunner(web.Server(answers.answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    answers.url = f"http://{host}:{port}"
    yield answers
    await runner.cleanup()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return text_file(tmp_path / "secret", "hush\n")


def program(tmp_path: Path, text: str) -> Path:
    path = text_file(tmp_path / "program", f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# -- a command ------------------------------------------------------------------------------


def command(
    path: Path, *more: str, limit: float = 20.0, cancel: tuple[str, ...] = ()
) -> CommandRepairer:
    return CommandRepairer((str(path), *more), cancel=cancel, limit=limit, sends_twice=False)


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("exit 0", AnswerState.DONE),
        ("exit 75", AnswerState.NOT_SENT),
        ("echo no such node; exit 1", AnswerState.FAILED),
    ],
)
async def test_the_exit_code_of_a_command_is_its_answer(
    tmp_path: Path, text: str, reply: AnswerState
) -> None:
    answer = await command(program(tmp_path, text)).order(ORDER, UNGUARDED)
    assert answer.state is reply
    if reply is AnswerState.FAILED:
        assert "exited with 1: no such node" in answer.text


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("exit 0", AnswerState.DONE),
        ("exit 1", AnswerState.FAILED),
        ("exit 3", AnswerState.INCONCLUSIVE),
        ("exit 2", AnswerState.INCONCLUSIVE),
        ("exit 75", AnswerState.NOT_SENT),
        ("kill -9 $$", AnswerState.INCONCLUSIVE),
        ("sleep 600", AnswerState.INCONCLUSIVE),
    ],
)
async def test_a_command_fails_a_node_by_exit_code_1_alone(
    tmp_path: Path, text: str, reply: AnswerState
) -> None:
    path = program(tmp_path, f'[ "$1" = standard ] || exit 9\n{text}')
    limit = 0.5 if "sleep" in text else PATIENCE
    answer = await command(path, "{profile}", limit=limit).order(TEST, UNGUARDED)
    assert answer.state is reply


async def test_a_command_is_told_the_operation_and_the_boot(tmp_path: Path) -> None:
    path = program(tmp_path, 'echo "$1 $SICKBAY_OPERATION $SICKBAY_BOOT_ID $SICKBAY_REPAIR"')
    answer = await command(path, "{node}").order(ORDER, UNGUARDED)
    assert answer.text == "n1 q-1-reboot boot-1 reboot"


async def test_a_command_without_an_end_leaves_the_outcome_open(tmp_path: Path) -> None:
    answer = await command(program(tmp_path, "sleep 600"), limit=0.3).order(ORDER, UNGUARDED)
    assert answer.state is AnswerState.UNSURE


async def test_a_command_that_is_not_there_has_certainly_ordered_nothing(tmp_path: Path) -> None:
    answer = await command(tmp_path / "none").order(ORDER, UNGUARDED)
    assert answer.state is AnswerState.NOT_SENT


async def test_a_command_is_taken_back_only_where_a_program_for_that_succeeds(
    tmp_path: Path,
) -> None:
    path = program(tmp_path, '[ "$1" = cancel ] && [ "$2" = q-1-reboot ]')
    able = command(path, cancel=(str(path), "cancel", "{operation}"))
    assert await able.cancel(ORDER)
    assert not await command(path, cancel=(str(path), "other")).cancel(ORDER)
    later = command(path, cancel=(str(program(tmp_path, "exit 75")),))
    with pytest.raises(Unreachable):
        await later.cancel(ORDER)
    assert not await command(path).cancel(ORDER)


# -- a webhook ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reply"),
    [
        (200, AnswerState.DONE),
        (202, AnswerState.TAKEN),
        (302, AnswerState.FAILED),
        (404, AnswerState.FAILED),
        (409, AnswerState.FAILED),
        (429, AnswerState.NOT_SENT),
        (503, AnswerState.NOT_SENT),
        (500, AnswerState.UNSURE),
    ],
)
async def test_the_status_of_an_endpoint_is_its_answer(
    server: Answers, secret: Path, status: int, reply: AnswerState
) -> None:
    server.status = status
    made = WebhookRepairer(server.url, secret, wall=lambda: 1000.0)
    assert (await made.order(ORDER, UNGUARDED)).state is reply


async def test_an_order_by_webhook_is_signed_and_names_its_operation(
    server: Answers, secret: Path
) -> None:
    await WebhookRepairer(server.url, secret, wall=lambda: 1000.0).order(ORDER, UNGUARDED)
    ((request, body),) = server.asked
    digest = hmac.new(b"hush", b"1000." + body, hashlib.sha256).hexdigest()
    assert request.headers["X-Sickbay-Signature"] == f"sha256={digest}"
    assert request.headers["X-Sickbay-Delivery"] == "q-1-reboot"
    told = json.loads(body)
    assert told["event"] == "order"
    assert (told["operation"], told["repair"], told["boot_id"]) == (
        "q-1-reboot",
        "reboot",
        "boot-1",
    )
    assert told["gpus"] == ["GPU-1"]
    assert "evidence" not in told


async def test_a_ticket_has_the_evidence(server: Answers, secret: Path) -> None:
    await WebhookRepairer(server.url, secret, wall=lambda: 1000.0).order(TICKET, UNGUARDED)
    assert json.loads(server.asked[0][1])["evidence"] == {"evidence": []}


async def test_a_repair_by_webhook_is_asked_for_its_end_with_the_same_operation(
    server: Answers, secret: Path
) -> None:
    made = WebhookRepairer(server.url, secret, wall=lambda: 1000.0)
    server.status = 202
    assert (await made.order(ORDER, UNGUARDED)).state is AnswerState.TAKEN
    server.status = 503
    assert (await made.read_outcome(ORDER)).state is AnswerState.TAKEN
    server.status = 200
    assert (await made.read_outcome(ORDER)).state is AnswerState.DONE
    assert {one.headers["X-Sickbay-Delivery"] for one, _ in server.asked} == {"q-1-reboot"}


async def test_a_repair_by_webhook_is_taken_back_where_the_endpoint_says_so(
    server: Answers, secret: Path
) -> None:
    made = WebhookRepairer(server.url, secret, wall=lambda: 1000.0)
    assert await made.cancel(ORDER)
    assert json.loads(server.asked[0][1])["event"] == "cancel"
    assert await made.cancel(TEST)
    server.status = 409
    assert not await made.cancel(ORDER)
    server.status = 503
    with pytest.raises(Unreachable):
        await made.cancel(ORDER)


async def test_the_job_of_a_test_that_cannot_be_read_is_taken_back_by_a_later_try() -> None:
    async def get(*_: object) -> None:
        raise Unreachable("HTTP 503")

    section: Any = SimpleNamespace(namespace="tests")
    objects: Any = SimpleNamespace(get=get)
    with pytest.raises(Unreachable):
        await JobRepairer(objects, section).cancel(TEST)


async def test_an_endpoint_that_is_not_there_has_certainly_ordered_nothing(secret: Path) -> None:
    made = WebhookRepairer("http://127.0.0.1:1/", secret, wall=lambda: 1000.0)
    assert (await made.order(ORDER, UNGUARDED)).state is AnswerState.NOT_SENT


async def test_a_secret_that_cannot_be_read_sends_no_order(server: Answers, tmp_path: Path) -> None:
    made = WebhookRepairer(server.url, tmp_path / "none", wall=lambda: 1000.0)
    assert (await made.order(ORDER, UNGUARDED)).state is AnswerState.NOT_SENT
    assert server.asked == []


async def test_an_endpoint_without_an_answer_leaves_the_outcome_open(
    server: Answers, secret: Path
) -> None:
    server.pause = 5.0
    brief = RepairOrder(*(ORDER.operation, "reboot", "n1", "u", "b", "q", "r"), lasts=2.0)
    answer = await WebhookRepairer(server.url, secret, wall=lambda: 1000.0).order(brief, UNGUARDED)
    assert answer.state is AnswerState.UNSURE


# -- Redfish --------------------------------------------------------------------------------


def redfish(url: str, secret: Path) -> RedfishRepairer:
    return RedfishRepairer(RedfishTarget(f"{url}/{{node}}/", "root", secret, "PowerCycle", None))


@pytest.mark.parametrize(
    ("status", "reply"),
    [
        (204, AnswerState.TAKEN),
        (202, AnswerState.TAKEN),
        (401, AnswerState.FAILED),
        (404, AnswerState.FAILED),
        (409, AnswerState.FAILED),
        (500, AnswerState.UNSURE),
        (501, AnswerState.FAILED),
        (503, AnswerState.UNSURE),
    ],
)
async def test_the_status_of_a_bmc_is_its_answer(
    server: Answers, secret: Path, status: int, reply: AnswerState
) -> None:
    server.status, server.text = status, "" if status == 204 else "told"
    assert (await redfish(server.url, secret).order(ORDER, UNGUARDED)).state is reply


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ('{"error": {"message": "no", "@Message.ExtendedInfo": [{"Message": "why"}]}}', "no why"),
        ('{"error": {"message": "no", "@Message.ExtendedInfo": [{"Message": "no"}]}}', "no"),
        ('{"error": {"@Message.ExtendedInfo": [{"MessageId": "x"}]}}', None),
        ('{"error": {"message": "no", "@Message.ExtendedInfo": 7}}', None),
        ('{"error": "no"}', None),
        ("[]", None),
        ("<html>", None),
        (100_000 * "[", 490 * "["),
    ],
)
async def test_the_message_of_a_redfish_error_is_told_and_any_other_text_as_it_is(
    server: Answers, secret: Path, reply: str, text: str | None
) -> None:
    server.status, server.text = 400, reply
    answer = await redfish(server.url, secret).order(ORDER, UNGUARDED)
    assert answer.text == f"HTTP 400: {text or reply}"


async def test_a_bmc_gets_the_reset_that_is_configured_with_the_password_of_the_file(
    server: Answers, secret: Path
) -> None:
    server.status = 204
    await redfish(f"{server.url}/redfish/v1/Systems", secret).order(ORDER, UNGUARDED)
    ((request, body),) = server.asked
    assert request.method == "POST"
    assert request.path == "/redfish/v1/Systems/n1/Actions/ComputerSystem.Reset"
    assert json.loads(body) == {"ResetType": "PowerCycle"}
    assert request.headers["Authorization"] == "Basic cm9vdDpodXNo"  # root:hush


async def test_a_bmc_that_is_not_reached_has_certainly_ordered_nothing(secret: Path) -> None:
    answer = await redfish("http://127.0.0.1:1", secret).order(ORDER, UNGUARDED)
    assert answer.state is AnswerState.NOT_SENT


async def test_an_order_to_a_bmc_is_never_sent_twice(secret: Path) -> None:
    made = redfish("http://127.0.0.1:1", secret)
    assert not made.sends_twice
    assert (await made.read_outcome(ORDER)).state is AnswerState.TAKEN
    assert not await made.cancel(ORDER)


# -- IPMI -----------------------------------------------------------------------------------


def ipmi(tmp_path: Path, secret: Path, text: str) -> IpmiRepairer:
    path = program(tmp_path, text)
    return IpmiRepairer(IpmiTarget("{node}-bmc", 623, "root", secret, "cycle", str(path)))


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("echo 'Chassis Power Control: Cycle'", AnswerState.TAKEN),
        (
            "echo 'Error: Unable to establish IPMI v2 / RMCP+ session' >&2; exit 1",
            AnswerState.NOT_SENT,
        ),
        (
            "echo 'Set Chassis Power Control to Cycle failed: Command not supported' >&2; exit 1",
            AnswerState.FAILED,
        ),
        ("echo 'Error: no response' >&2; exit 1", AnswerState.UNSURE),
    ],
)
async def test_the_words_of_ipmitool_are_its_answer(
    tmp_path: Path, secret: Path, text: str, reply: AnswerState
) -> None:
    assert (await ipmi(tmp_path, secret, text).order(ORDER, UNGUARDED)).state is reply


async def test_ipmitool_has_the_password_in_its_environment_and_not_in_its_arguments(
    tmp_path: Path, secret: Path
) -> None:
    seen = tmp_path / "seen"
    made = ipmi(tmp_path, secret, f'echo "$IPMI_PASSWORD $*" > {seen}')
    assert (await made.order(ORDER, UNGUARDED)).state is AnswerState.TAKEN
    word, *argv = seen.read_text().split()
    assert word == "hush"
    assert argv == [
        "-v",
        "-I",
        "lanplus",
        "-H",
        "n1-bmc",
        "-p",
        "623",
        "-R",
        "1",
        "-N",
        "10",
        "-U",
        "root",
        "-E",
        "chassis",
        "power",
        "cycle",
    ]
    assert "IPMI_PASSWORD" not in os.environ


@pytest.mark.parametrize(
    ("status", "text", "reply"),
    [
        (200, '{"verdict": "passed", "message": "fine"}', AnswerState.DONE),
        (200, '{"verdict": "failed", "message": "GPU 3"}', AnswerState.FAILED),
        (200, '{"verdict": "none"}', AnswerState.INCONCLUSIVE),
        (200, '{"verdict": "Passed"}', AnswerState.INCONCLUSIVE),
        (200, "passed", AnswerState.INCONCLUSIVE),
        (200, '["passed"]', AnswerState.INCONCLUSIVE),
        (200, "[" * 1500, AnswerState.INCONCLUSIVE),
        (202, '{"verdict": "passed"}', AnswerState.TAKEN),
        (404, '{"verdict": "passed"}', AnswerState.INCONCLUSIVE),
        (503, "", AnswerState.NOT_SENT),
        (500, '{"verdict": "failed"}', AnswerState.UNSURE),
    ],
)
async def test_the_verdict_of_a_webhook_is_a_word_in_its_answer_and_no_status(
    server: Answers, secret: Path, status: int, text: str, reply: AnswerState
) -> None:
    server.status, server.text = status, text
    repairer = WebhookRepairer(server.url, secret, wall=lambda: 1.0)
    assert (await repairer.order(TEST, UNGUARDED)).state is reply
    assert json.loads(server.asked[0][1])["profile"] == "standard"
