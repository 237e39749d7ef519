"""A real agent process whose kernel log is a FIFO and whose PCI bus is files."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.agent.kernel_log import GPU, pci_device, raw
from tests.support.agent_programs import AGENT, AGENT_WITH_UPLINK
from tests.support.fork_server import start_program
from tests.support.waiting import until

#: Checks of this machine are off, because the tests must not depend on its hardware.
QUIET = """
[checks.disk-space]
on = false
[checks.disk-readonly]
on = false
[checks.disk-write]
on = false
[checks.nic-link]
on = false
[checks.reach]
on = false
[checks.clock]
on = false
[checks.memory]
on = false
[checks.pressure]
on = false
[checks.processes]
on = false
[checks.kubelet]
on = false
[checks.container-runtime]
on = false
[checks.reboot]
on = false
[checks.maintenance]
on = false
[checks.disk-ext4]
on = false
[checks.disk-nvme]
on = false
[checks.disk-md]
on = false
[checks.disk-mounts]
on = false
[checks.nic-health]
on = false
[checks.infiniband]
on = false
[checks.dns]
on = false
[checks.net-tables]
on = false
[checks.peers]
on = false
"""


class AgentProcess:
    """One node's files under ``folder``, and the agent that is started on them, again and again."""

    def __init__(
        self,
        folder: Path,
        *,
        aggregator: str = "",
        more: str = QUIET,
        top: str = "",
        address: str = GPU,
        replayable: bool = False,
    ) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.state_dir = folder / "state"
        self.socket = self.run_dir / "agent.sock"
        self.log_path = folder / "agent.log"
        self.config = folder / "agent.toml"
        self.node = "node-a"
        self.aggregator = aggregator
        self.uplink = ""
        self.more_kernel_log = ""
        self.more = more
        self.top = top
        self.kmsg = folder / "kmsg"
        self.kernel_log = str(self.kmsg)
        self.process: subprocess.Popen[bytes] | None = None
        #: Words before the agent's own command: a namespace to run it in, say.
        self.prefix: Sequence[str] = ()
        self._seq = 0
        self.address = address
        pci_device(folder / "sys", f"{address}.0", "0x030200")
        # A FIFO wakes the agent as the kernel does; a file can be read again, as the ring can.
        if not replayable:
            os.mkfifo(self.kmsg)
        # Held open, so that lines written while no agent runs stay in it.
        self._kmsg = os.open(self.kmsg, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def write_config(self) -> None:
        uplink = f'[aggregator]\naddress = "{self.aggregator}"\n{self.uplink}'
        self.config.write_text(
            f"""
node = "{self.node}"
sys = "{self.folder / "sys"}"
run_dir = "{self.run_dir}"
state_dir = "{self.state_dir}"
socket = "{self.socket}"
{self.top}
{uplink if self.aggregator else ""}
[kernel_log]
path = "{self.kernel_log}"
boot_grace = "3650d"
{self.more_kernel_log}
{self.more}
"""
        )

    def start(self) -> "AgentProcess":
        self.write_config()
        program = AGENT_WITH_UPLINK if self.aggregator else AGENT
        with self.log_path.open("ab") as log:
            self.process = start_program(
                program, ["--config", self.config], output=log, before=self.prefix
            )
        return self

    def kill(self) -> None:
        """Kill it, as the kernel's out-of-memory killer would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def terminate(self) -> int:
        assert self.process is not None
        process = self.process
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None, within=30, what=self.log())
        return process.wait()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        os.close(self._kmsg)

    def xid(self, code: int = 79, *, pid: int = 1234) -> int:
        """One Xid line; its sequence number."""
        text = f"NVRM: Xid (PCI:{self.address}): {code}, pid={pid}, name=python3, and so on"
        return self.line(text)

    def line(self, text: str, *, skip: int = 0) -> int:
        """One record; ``skip`` leaves out so many sequence numbers before it."""
        self._seq += 1 + skip
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.write(self._kmsg, raw(self._seq, text, at=now))
        return self._seq

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def state(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.run_dir / "state.json").read_bytes())
        return document

    async def ask(self, path: str, method: str = "GET", body: str = "") -> tuple[int, str]:
        """Ask the local socket, off the loop: the fake aggregator lives on it."""
        return await asyncio.to_thread(self._ask, path, method, body)

    def _ask(self, path: str, method: str, body: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("localhost", timeout=300)
        connection.sock = socket.socket(socket.AF_UNIX)
        with closing(connection):
            connection.sock.connect(str(self.socket))
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    async def up(self) -> "AgentProcess":
        """Wait until it answers on its socket."""
        await until(self.answers, within=20, what="the agent's socket")
        return self

    def answers(self) -> bool:
        """Whether it answers on its socket, which stands in its folder a moment before."""
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            return self._ask("/healthz", "GET", "")[0] == 200
        except OSError:
            return False


#: Makes one in a folder of its own: the fixture `make`.
Make = Callable[..., AgentProcess]
