"""Restarts by real BMCs: sushy-tools' Redfish emulator, and OpenIPMI's simulator with ipmitool."""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from aggregator.cluster.port import UNGUARDED
from aggregator.demo.ports import free_port
from aggregator.quarantine.repair.protocol import AnswerState, RepairOrder
from aggregator.repairers.ipmi import IpmiRepairer, IpmiTarget
from aggregator.repairers.redfish import RedfishRepairer, RedfishTarget
from tests.support.pki import Authority
from tests.support.text_files import text_file
from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
EMULATOR = ROOT / "build" / "bmc-env" / "bin" / "sushy-emulator"
USER, PASSWORD = "root", "secret"
#: The systems behind the BMC, by their ids; each is named as its id too.
MACHINE = "11111111-9e44-4fa7-8e91-f3527a1ef094"
#: One whose BMC tells a listener of each change, and answers when that has answered.
WATCHED = "22222222-9e44-4fa7-8e91-f3527a1ef094"
#: Part of the emulator's settings, which are Python. Its own draw of 1 to 11 s, from the start of
#: the second on, lets some machines be on again before a test can see them off.
OFF_FOR_EIGHT_SECONDS = "import random\nrandom.randint = lambda low, high: 8\n"


def unusable(reason: str) -> None:
    """Skips the test; in CI it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@cache
def _environment() -> str:
    """Installs what the lock names, which takes seconds; the error, or no text."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "--no-print-directory", "build/bmc-env/.synced"]
    done = subprocess.run(make, cwd=ROOT, env=clean, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


class Stoppable:
    """A process that a test can pause, which is a BMC that hangs."""

    def __init__(self, argv: list[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self.log = log

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def pause(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if not self.ended:
            os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        if not self.ended:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class RedfishBmc:
    """sushy-tools' emulator with its own state, behind TLS and a password."""

    def __init__(self, folder: Path, notify: str) -> None:
        if error := _environment():
            unusable(f"the environment of the Redfish emulator can't be made: {error}")
        folder.mkdir()
        self.authority = Authority.create(folder / "pki")
        pair = self.authority.server("bmc", ["localhost", "127.0.0.1"])
        self.port = free_port()
        self.systems = f"https://localhost:{self.port}/redfish/v1/Systems"
        auth, state, settings = (folder / name for name in ("auth", "state", "settings.py"))
        auth.write_text(f"{USER}:{_hashed(PASSWORD)}\n")
        state.mkdir()
        fleet = [
            {"uuid": MACHINE, "name": "n1", "power_state": "On", "nics": []},
            {
                "uuid": WATCHED,
                "name": "n2",
                "power_state": "On",
                "nics": [],
                "external_notifier": True,
            },
        ]
        names = {
            "SUSHY_EMULATOR_FAKE_DRIVER": True,
            "SUSHY_EMULATOR_LISTEN_IP": "127.0.0.1",
            "SUSHY_EMULATOR_LISTEN_PORT": self.port,
            "SUSHY_EMULATOR_SSL_CERT": str(pair.certificate),
            "SUSHY_EMULATOR_SSL_KEY": str(pair.key),
            "SUSHY_EMULATOR_AUTH_FILE": str(auth),
            "SUSHY_EMULATOR_STATE_DIR": str(state),
            "SUSHY_EMULATOR_FAKE_SYSTEMS": fleet,
            "EXTERNAL_NOTIFICATION_URL": notify,
        }
        text = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        settings.write_text(f"{text}{OFF_FOR_EIGHT_SECONDS}")
        argv = [str(EMULATOR), "--config", str(settings)]
        self.process = Stoppable(argv, folder / "log", {"TMPDIR": str(folder)})

    async def answers(self) -> None:
        """Returns once it listens."""

        def listens() -> bool:
            assert not self.process.ended, self.process.log.read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        await until(listens)

    async def power(self, system: str) -> str:
        """The power state that the emulator itself has for the machine."""
        found = await self._get(f"{self.systems}/{system}")
        return str(found["PowerState"])

    def resets(self) -> int:
        """How many orders to restart a machine have reached it, taken or refused."""
        text = self.process.log.read_text()
        return text.count("/Actions/ComputerSystem.Reset HTTP/1.1")

    async def is_on_again(self, system: str) -> None:
        """Returns once the machine runs, which the emulator lets take 8 s."""
        async with asyncio.timeout(PATIENCE):
            while await self.power(system) != "On":  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.2)

    async def _get(self, url: str) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        proof = {"Authorization": aiohttp.encode_basic_auth(USER, PASSWORD)}
        async with (
            aiohttp.ClientSession(headers=proof) as session,
            session.get(url, ssl=context) as answer,
        ):
            found: dict[str, Any] = await answer.json()
            return found


def _hashed(password: str) -> str:
    """bcrypt is in the emulator's environment alone."""
    code = "import bcrypt, sys; print(bcrypt.hashpw(sys.argv[1].encode(), bcrypt.gensalt(4)))"
    argv = [str(EMULATOR.with_name("python")), "-c", code, password]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return printed.strip().removeprefix("b'").removesuffix("'")


#: ipmi_sim asks this program for the machine's state, and tells it what to do: MC get|set NAME ...
_CHASSIS = """#!/bin/sh
cd "$(dirname "$0")" || exit 1
echo "$*" >> calls
verb=$2
shift 2
case $verb in
get) for name; do [ "$name" = power ] && echo "power:$(cat power)" || echo "$name:0"; done ;;
set)
  sleep "$(cat slow)"
  while [ $# -gt 0 ]; do [ "$1" = power ] && echo "$2" > power; shift 2; done ;;
esac
"""
_LAN = """name "bmc"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_user md5
    allowed_auths_operator md5
    allowed_auths_admin md5
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "{folder}/chassis 0x20"
  user 2 true "{user}" "{password}" admin 10 md5
"""
#: 0x9f: the MC is a chassis device too.
_MC = """mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02
mc_enable 0x20
"""


class IpmiBmc:
    """OpenIPMI's simulator of a BMC, with a machine that is two files."""

    def __init__(self, folder: Path) -> None:
        for name in ("ipmi_sim", "ipmitool"):
            if shutil.which(name) is None:
                unusable(f"no {name}: tests/setup-debian.sh installs openipmi and ipmitool")
        folder.mkdir()
        self.folder, self.port = folder, free_port()
        (folder / "state").mkdir()
        chassis = text_file(folder / "chassis", _CHASSIS)
        chassis.chmod(0o755)
        (folder / "power").write_text("1\n")
        (folder / "slow").write_text("0\n")
        lan = _LAN.format(port=self.port, folder=folder, user=USER, password=PASSWORD)
        (folder / "lan.conf").write_text(lan)
        (folder / "commands").write_text(_MC)
        # The simulator does not answer the request for its cipher suites, which ipmitool waits for.
        self.program = folder / "ipmitool"
        self.program.write_text('#!/bin/sh\nexec ipmitool -C 3 "$@"\n')
        self.program.chmod(0o755)
        argv = ["ipmi_sim", "-n", "-c", f"{folder}/lan.conf"]
        argv += ["-f", f"{folder}/commands", "-s", f"{folder}/state"]
        self.process = Stoppable(argv, folder / "log", {})

    async def answers(self) -> None:
        """Returns once it has its port."""

        def listens() -> bool:
            assert not self.process.ended, self.process.log.read_text()
            # A socket that tries the port would keep it from the simulator at that moment.
            return f" 0100007F:{self.port:04X} " in Path("/proc/net/udp").read_text()

        await until(listens)

    def answer_after(self, seconds: float) -> None:
        """The BMC needs so long for each order."""
        (self.folder / "slow").write_text(f"{seconds}\n")

    def orders(self) -> list[str]:
        """The simulator's acts on the machine: "power 0", "reset 1"."""
        calls = self.folder / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [one.partition(" set ")[2] for one in lines if " set " in one]


@contextmanager
def running(bmc: RedfishBmc | IpmiBmc) -> Iterator[None]:
    try:
        yield
    finally:
        bmc.process.resume()
        bmc.process.stop()


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
    return text_file(tmp_path / "password", f"{text}\n")


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
