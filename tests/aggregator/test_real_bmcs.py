"""Restarts by real BMCs: sushy-tools' Redfish emulator, and OpenIPMI's simulator with ipmitool."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from aggregator.cluster.port import UNGUARDED
from aggregator.quarantine.repair.protocol import AnswerState, RepairOrder
from aggregator.repairers.ipmi import IpmiRepairer, IpmiTarget
from aggregator.repairers.redfish import RedfishRepairer, RedfishTarget
from tests.support.bmcs import MACHINE, PASSWORD, USER, WATCHED, IpmiBmc, RedfishBmc, running
from tests.support.waiting import until

ORDER = RepairOrder("q-1-reboot", "reboot", "n1", "uid-n1", "boot-1", "q", "xid:79", 600.0)
SECOND = replace(ORDER, operation="q-2-reboot")
#: Where the emulator has the action of the machine that it knows by a name as well.
OTHER = f"/redfish/v1/Systems/{MACHINE}/Actions/ComputerSystem.Reset"
#: Gives a BMC that hangs up after seconds.
BRIEF = replace(ORDER, lasts=2.0)


class Listener:
    """Is told of each change of a machine, and answers none."""

    def __init__(self) -> None:
        self.url = ""
        self.states: list[str] = []

    async def take(self, request: web.BaseRequest) -> web.StreamResponse:
        self.states.append((await request.json())["power_state"])
        await asyncio.Event().wait()
        return web.Response()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    made = Listener()
    runner = web.ServerRunner(web.Server(made.take), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield made
    await runner.cleanup()


@pytest.fixture
async def redfish_bmc(tmp_path: Path, listener: Listener) -> AsyncIterator[RedfishBmc]:
    bmc = RedfishBmc(tmp_path / "redfish", listener.url)
    with running(bmc):
        await bmc.answers()
        yield bmc


@pytest.fixture
async def ipmi_bmc(tmp_path: Path) -> AsyncIterator[IpmiBmc]:
    bmc = IpmiBmc(tmp_path / "ipmi")
    with running(bmc):
        await bmc.answers()
        yield bmc


def password(tmp_path: Path, text: str = PASSWORD) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{text}\n")
    return path


def redfish(
    bmc: RedfishBmc,
    secret: Path,
    *,
    system: str = MACHINE,
    reset_type: str = "ForceRestart",
    trusted: bool = True,
) -> RedfishRepairer:
    authority = bmc.authority.certificate if trusted else None
    target = RedfishTarget(f"{bmc.systems}/{system}", USER, secret, reset_type, authority)
    return RedfishRepairer(target)


# -- Redfish ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reset_type", ["ForceRestart", "GracefulRestart"])
async def test_a_restart_by_redfish_takes_the_machine_off_and_on_again(
    redfish_bmc: RedfishBmc, tmp_path: Path, reset_type: str
) -> None:
    assert await redfish_bmc.power(MACHINE) == "On"
    made = redfish(redfish_bmc, password(tmp_path), reset_type=reset_type)
    answer = await made.order(ORDER, UNGUARDED)
    assert (answer.state, answer.text) == (AnswerState.TAKEN, f"{reset_type}: HTTP 204")
    assert await redfish_bmc.power(MACHINE) == "Off"
    await redfish_bmc.is_on_again(MACHINE)
    assert redfish_bmc.resets() == 1


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"secret": "wrong"}, "HTTP 401: Incorrect username or password"),
        (
            {"reset_type": "PowerCycle"},
            "HTTP 501: Power state PowerCycle is not supported",
        ),
        ({"system": "no-such"}, "HTTP 404: Fake system no-such was not found"),
        # Redirects are not followed, because the password would go there.
        (
            {"system": "n1"},
            f"HTTP 307: redirects to {OTHER}, which is not followed; expected its url",
        ),
    ],
)
async def test_what_a_redfish_bmc_refuses_has_failed_with_its_words(
    redfish_bmc: RedfishBmc, tmp_path: Path, changed: dict[str, str], text: str
) -> None:
    secret = password(tmp_path, changed.get("secret", PASSWORD))
    made = redfish(
        redfish_bmc,
        secret,
        system=changed.get("system", MACHINE),
        reset_type=changed.get("reset_type", "ForceRestart"),
    )
    answer = await made.order(ORDER, UNGUARDED)
    assert (answer.state, answer.text) == (AnswerState.FAILED, text)
    assert await redfish_bmc.power(MACHINE) == "On"


async def test_a_certificate_of_an_unknown_authority_keeps_the_password_from_a_redfish_bmc(
    redfish_bmc: RedfishBmc, tmp_path: Path
) -> None:
    answer = await redfish(redfish_bmc, password(tmp_path), trusted=False).order(ORDER, UNGUARDED)
    assert answer.state is AnswerState.NOT_SENT
    assert "its certificate is not trusted" in answer.text
    assert redfish_bmc.resets() == 0


async def test_a_redfish_bmc_that_takes_no_connection_has_certainly_ordered_nothing(
    redfish_bmc: RedfishBmc, tmp_path: Path
) -> None:
    redfish_bmc.process.pause()  # the kernel connects for it, and TLS gets no answer
    answer = await redfish(redfish_bmc, password(tmp_path)).order(BRIEF, UNGUARDED)
    assert (answer.state, answer.text) == (AnswerState.NOT_SENT, "no connection within 1 s")
    redfish_bmc.process.resume()
    assert await redfish_bmc.power(MACHINE) == "On"
    assert redfish_bmc.resets() == 0


async def test_a_redfish_bmc_that_hangs_after_the_order_leaves_the_outcome_open(
    redfish_bmc: RedfishBmc, tmp_path: Path, listener: Listener
) -> None:
    order = replace(BRIEF, lasts=12.0)
    answer = await redfish(redfish_bmc, password(tmp_path), system=WATCHED).order(order, UNGUARDED)
    assert (answer.state, answer.text) == (AnswerState.UNSURE, "no answer within 12 s")
    await until(lambda: listener.states == ["Off"], lambda: listener.states)  # it was carried out


async def test_each_order_reaches_a_redfish_bmc_once(
    redfish_bmc: RedfishBmc, tmp_path: Path
) -> None:
    made = redfish(redfish_bmc, password(tmp_path))
    # One after the other: the emulator's own database refuses the second of two writers at times.
    answers = [await made.order(ORDER, UNGUARDED), await made.order(SECOND, UNGUARDED)]
    assert [one.state for one in answers] == [AnswerState.TAKEN] * 2
    assert redfish_bmc.resets() == 2
    assert not made.sends_twice


# -- IPMI -------------------------------------------------------------------------------------


def ipmi(
    bmc: IpmiBmc,
    secret: Path,
    *,
    user: str = USER,
    power: str = "cycle",
    host: str = "127.0.0.1",
    program: str = "",
) -> IpmiRepairer:
    program = program or str(bmc.program)
    return IpmiRepairer(IpmiTarget(host, bmc.port, user, secret, power, program))


@pytest.mark.parametrize(
    ("power", "steps"), [("cycle", ["power 0", "power 1"]), ("reset", ["reset 1"])]
)
async def test_a_restart_by_ipmi_reaches_the_machine(
    ipmi_bmc: IpmiBmc, tmp_path: Path, power: str, steps: list[str]
) -> None:
    answer = await ipmi(ipmi_bmc, password(tmp_path), power=power).order(ORDER, UNGUARDED)
    text = f"Chassis Power Control: {power.title()}"
    assert (answer.state, answer.text) == (AnswerState.TAKEN, text)
    await until(lambda: ipmi_bmc.orders() == steps, ipmi_bmc.orders)
    await until(lambda: (ipmi_bmc.folder / "power").read_text() == "1\n")


async def test_ipmitool_itself_finds_a_cipher_suite_with_a_bmc_that_lists_none(
    ipmi_bmc: IpmiBmc, tmp_path: Path
) -> None:
    made = ipmi(ipmi_bmc, password(tmp_path), power="reset", program="ipmitool")
    answer = await made.order(ORDER, UNGUARDED)
    assert answer.state is AnswerState.TAKEN, answer.text
    assert ipmi_bmc.orders() == ["reset 1"]


@pytest.mark.parametrize(
    ("user", "secret", "text"),
    [
        (USER, "wrong", "RAKP 2 HMAC is invalid"),
        ("nobody", PASSWORD, "unauthorized name"),
        (USER, "123456789012345678901", "IPMI takes a password of 20 bytes at most"),
    ],
)
async def test_a_login_that_the_bmc_refuses_has_failed_with_the_cause(
    ipmi_bmc: IpmiBmc, tmp_path: Path, user: str, secret: str, text: str
) -> None:
    answer = await ipmi(ipmi_bmc, password(tmp_path, secret), user=user).order(ORDER, UNGUARDED)
    assert answer.state is AnswerState.FAILED
    assert text in answer.text
    assert "Loading IANA" not in answer.text
    assert ipmi_bmc.orders() == []


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such.invalid"])
async def test_an_ipmi_bmc_that_is_not_reached_has_certainly_ordered_nothing(
    ipmi_bmc: IpmiBmc, tmp_path: Path, host: str
) -> None:
    ipmi_bmc.process.pause()
    answer = await ipmi(ipmi_bmc, password(tmp_path), host=host).order(ORDER, UNGUARDED)
    assert answer.state is AnswerState.NOT_SENT, answer.text
    assert "Unable to establish" in answer.text
    ipmi_bmc.process.resume()
    assert ipmi_bmc.orders() == []


async def test_a_slow_ipmi_bmc_restarts_the_machine_once(ipmi_bmc: IpmiBmc, tmp_path: Path) -> None:
    ipmi_bmc.answer_after(4.0)  # ipmitool alone repeats its request after a second
    answer = await ipmi(ipmi_bmc, password(tmp_path), power="reset").order(ORDER, UNGUARDED)
    assert answer.state is AnswerState.TAKEN, answer.text
    assert ipmi_bmc.orders() == ["reset 1"]


async def test_an_ipmi_bmc_that_hangs_after_the_order_leaves_the_outcome_open(
    ipmi_bmc: IpmiBmc, tmp_path: Path
) -> None:
    ipmi_bmc.answer_after(20.0)
    made = ipmi(ipmi_bmc, password(tmp_path), power="reset")
    answer = await made.order(replace(ORDER, lasts=8.0), UNGUARDED)
    assert answer.state is AnswerState.UNSURE
    assert "did not end within 8 s" in answer.text
    assert ipmi_bmc.orders() == ["reset 1"]


async def test_each_order_reaches_an_ipmi_bmc_once(ipmi_bmc: IpmiBmc, tmp_path: Path) -> None:
    made = ipmi(ipmi_bmc, password(tmp_path), power="reset")
    answers = await asyncio.gather(made.order(ORDER, UNGUARDED), made.order(SECOND, UNGUARDED))
    assert [one.state for one in answers] == [AnswerState.TAKEN] * 2
    assert ipmi_bmc.orders() == ["reset 1", "reset 1"]
    assert not made.sends_twice
