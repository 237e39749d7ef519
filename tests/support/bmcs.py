"""Real BMCs, each a process of its own: sushy-tools for Redfish, OpenIPMI's simulator for IPMI."""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aggregator.demo.ports import free_port
from tests.support.pki import Authority
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
        chassis = folder / "chassis"
        chassis.write_text(_CHASSIS)
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
        """What the simulator has done with the machine: "power 0", "reset 1"."""
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
