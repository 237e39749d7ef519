"""A real Slurm on this machine: munged, slurmctld and a slurmd for each node, on loopback."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pytest

from tests.controlplane.ports import ReservedPort
from tests.controlplane.waiting import wait_until

NEEDED = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "squeue", "sbatch")
LACKING = [
    name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None
]
needs_rest = pytest.mark.skipif(
    shutil.which("slurmrestd", path=f"{os.environ['PATH']}:/usr/sbin") is None,
    reason="slurmrestd not installed (tests/setup-debian.sh)",
)
needs_slurm = pytest.mark.skipif(
    bool(LACKING), reason=f"{', '.join(LACKING)} not installed (tests/setup-debian.sh)"
)

#: Words that an administrator may give a node.
REASONS = (
    10_000 * "x",
    "fan 3 dead\nsickbay: xid:79 on GPU 3\nRMA 123",
    "sickbay: xid:79 on GPU 3 (0000:ab:00.0) fell off the bus",
    '"quoted" \'words\' `x` $(y) \\\\ {node}"',
    "\x01\x1b[31mred\x07\t\u202eno\N{SNOWMAN}",
    "--all <script>alert(1)</script> | a : Not responding",
)
#: Names of nodes that Slurm may have, and programs would take for something else.
NO_NAMES = ("-x", "--all", "ALL", "w[1-2]", "w1,w2", "w1\nw2", "<b>w1</b>", "")

CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1
JobAcctGatherType=jobacct_gather/none
KillWait=1
CommunicationParameters=NoInAddrAny
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

_TWO_CONTROLLERS = """\
SlurmctldHost=primary(127.0.0.1)
SlurmctldHost=backup(127.0.0.2)
SlurmctldTimeout=10"""


class Slurm:
    """``working``: nodes with a slurmd of their own; ``silent``: nodes that never answer.

    ``lacking``: nodes that work and register one GPU less than they have in slurm.conf.
    ``tokens``: slurmctld accepts tokens that `jwt_key` signs. ``more``: lines for slurm.conf.
    ``backup``: a second slurmctld takes over when the first one is killed.
    ``guard`` receives the pid of each program: another process may have to end it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        working: int = 1,
        silent: int = 2,
        lacking: int = 0,
        tokens: bool = False,
        more: str = "",
        backup: bool = False,
        guard: Callable[[int], object] = id,
    ) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.working = [f"w{number}" for number in range(1, working + 1)]
        self.lacking = [f"l{number}" for number in range(1, lacking + 1)]
        silent_ones = [f"s{number}" for number in range(1, silent + 1)]
        self.nodes = [*self.working, *self.lacking, *silent_ones]
        self._guard = guard
        self._stack = ExitStack()
        self._slurmds: dict[str, subprocess.Popen[bytes]] = {}
        self._controller: subprocess.Popen[bytes] | None = None
        ports = [self._free_port() for _ in range(1 + len(self.nodes))]
        lines = [
            f"NodeName={name} NodeHostname={'host-' + name if name in silent_ones else 'localhost'}"
            f" NodeAddr=127.0.0.1 Port={port} CPUs=1"
            + (" Gres=gpu:2" if name in self.lacking else "")
            for name, port in zip(self.nodes, ports[1:], strict=True)
        ]
        gpus = "".join(f"NodeName={name} Name=gpu Count=1\n" for name in self.lacking)
        (folder / "gres.conf").write_text(gpus)
        self.jwt_key = folder / "jwt.key"
        lines += [more] if more else []
        if tokens:
            self.jwt_key.write_bytes(os.urandom(32))
            self.jwt_key.chmod(0o600)
            lines += ["AuthAltTypes=auth/jwt", f"AuthAltParameters=jwt_key={self.jwt_key}"]
        text = CONF.format(folder=folder, controller=ports[0], nodes="\n".join(lines))
        self._backup = backup
        if backup:
            text = text.replace("SlurmctldHost=localhost(127.0.0.1)", _TWO_CONTROLLERS)
            text = text.replace("NoInAddrAny", "NoInAddrAny,NoCtldInAddrAny")
            (folder / "hosts").write_text("127.0.0.1 localhost primary\n127.0.0.2 backup\n")
            (folder / "backup.conf").write_text(text.replace("slurmctld.pid", "backup.pid"))
        self.conf.write_text(text)

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _begin(self) -> None:
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        munge = self.folder / "munge"
        files = {"key-file": key, "socket": self.folder / "munge.socket"}
        files |= {f"{kind}-file": Path(f"{munge}.{kind}") for kind in ("pid", "log", "seed")}
        self._start(
            [
                "munged",
                "--foreground",
                "--force",
                *(f"--{key}={path}" for key, path in files.items()),
            ]
        )
        wait_until(files["socket"].exists, what=self.log)
        self.start_controller(clean=True)
        for name in (*self.working, *self.lacking):
            self.start_node(name)
        wait_until(lambda: all(self.state(name) == "IDLE" for name in self.working), what=self.log)

    def __exit__(self, *_: object) -> None:
        for job in self.run("squeue", "--noheader", "--format=%i", check=False).split():
            self.run("scancel", "--signal=KILL", "--full", job, check=False)
        self._stack.close()
        # slurmd dies before it has delivered that signal to a job whose start is under way.
        wait_until(self._kill_steps, what=lambda: f"a job step goes on: {self.log()}")

    def _kill_steps(self) -> bool:
        """Kill each job step, and each job, that is left; whether there was none."""
        left = [pid for pid in Path("/proc").iterdir() if pid.name.isdigit() and self._began(pid)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(int(pid.name), signal.SIGKILL)
        return not left

    def _began(self, process: Path) -> bool:
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            step = (process / "cmdline").read_bytes().startswith(b"slurmstepd")
        except OSError:
            return False
        ours = f"SLURM_CONF={self.conf}".encode() in variables
        return ours and (step or any(one.startswith(b"SLURM_JOB_ID=") for one in variables))

    def start_controller(self, *, clean: bool = False) -> None:
        """Start slurmctld; ``clean``: without its saved state."""
        command = ["slurmctld", "-D", *(["-c"] if clean else [])]
        if self._backup:
            self._controller = self._start(self._on_host("primary", *command))
            # The backup ends where it reads the cluster's name while the primary writes it.
            self._wait_for_controllers(1)
            self._start(
                self._on_host("backup", "slurmctld", "-D", "-f", str(self.folder / "backup.conf"))
            )
        else:
            self._controller = self._start(command)
        self._wait_for_controllers(1 + self._backup)

    def _wait_for_controllers(self, up: int) -> None:
        wait_until(
            lambda: self.run("scontrol", "ping", check=False).count("is UP") == up, what=self.log
        )

    def _on_host(self, name: str, *command: str) -> list[str]:
        """The command with a host name of its own: two slurmctld of one machine differ by that."""
        hosts = f"mount --bind {self.folder}/hosts /etc/hosts && hostname {name}"
        return ["unshare", "--uts", "--mount", "sh", "-c", f'{hosts} && exec "$@"', name, *command]

    def kill_controller(self) -> None:
        """Kill slurmctld, as a power cut would."""
        assert self._controller is not None
        self._controller.kill()
        self._controller.wait()

    def stop_controller(self) -> None:
        assert self._controller is not None
        self._controller.terminate()
        self._controller.wait(300)

    def start_node(self, name: str, *, rebooted: bool = False) -> None:
        """Start a node's slurmd; ``rebooted``: it reports that its machine has just booted."""
        option = ["-b"] if rebooted else []
        self._slurmds[name] = self._start(["slurmd", "-D", *option, "-N", name])

    def kill_node(self, name: str) -> None:
        """Kill a node's slurmd, as a power cut would."""
        self._slurmds[name].kill()
        self._slurmds[name].wait()

    def reboot_node(self, name: str) -> None:
        """The machine restarts: slurmd is killed, and comes back in another boot."""
        # Slurm counts seconds, and slurmd reports its boot a second early. A boot that is not after
        # the request for it counts as none, and the node loses its drain when the reboot times out.
        before = self.boot_time(name)
        late = max(before, time.time()) + 2
        self.kill_node(name)
        wait_until(lambda: time.time() >= late, what=self.log)
        self.start_node(name, rebooted=True)
        wait_until(lambda: self.boot_time(name) > before, what=self.log)

    def boot_time(self, name: str) -> int:
        """As slurmctld has it, in seconds; 0: not since its start."""
        nodes = json.loads(self.run("sinfo", "--json"))["nodes"]
        return next(int(one["boot_time"]) for one in nodes if one["name"] == name)

    def start_rest(self) -> str:
        """Start slurmrestd; its URL."""
        port = self._free_port()
        api = ["-s", "openapi/v0.0.37,openapi/v0.0.38", "-a", "rest_auth/jwt"]
        # The daemon itself has no token: each request carries its user's.
        safe = "disable_user_check,disable_unshare_sysv,disable_unshare_files"
        self._start(
            ["slurmrestd", *api, f"127.0.0.1:{port}"],
            {"SLURM_JWT": "daemon", "SLURMRESTD_SECURITY": safe},
        )
        wait_until(lambda: _answers(port), what=self.log)
        return f"http://127.0.0.1:{port}"

    def run(self, *command: str, check: bool = True) -> str:
        """The output of one of Slurm's programs."""
        done = subprocess.run(
            command, env=self._environ, check=False, capture_output=True, text=True, timeout=300
        )
        assert not check or done.returncode == 0, (command, done.stderr)
        return done.stdout

    def update(self, node: str, *words: str) -> None:
        """As an administrator does it."""
        self.run("scontrol", "update", f"nodename={node}", *words)

    def shown(self, node: str) -> dict[str, str]:
        """The fields of `scontrol show node`."""
        text = self.run("scontrol", "show", "node", node)
        words = (word.partition("=") for word in text.split("Reason=")[0].split())
        found = {key: value for key, _, value in words}
        return found | {"Reason": text.partition("Reason=")[2].split("\n")[0].rpartition(" [")[0]}

    def state(self, node: str) -> str:
        """Its state; slurmctld has not heard of a node for a moment after each change."""
        return self.shown(node)["State"].replace("+NOT_RESPONDING", "").replace("*", "")

    def submit(self, node: str, seconds: float = 3600, *, name: str = "llama") -> str:
        """A job that really runs, on ``node`` or, without a name, where Slurm wants; its id."""
        job = self.queue(node, seconds, name=name)
        wait_until(
            lambda: self.job_state(job) == "RUNNING",
            what=lambda: self.run("squeue") + self.log(),
        )
        return job

    def queue(self, node: str, seconds: float = 3600, *, name: str = "llama") -> str:
        """A job that may have to wait; its id."""
        return self.run(
            "sbatch", "--parsable", *(["--nodelist", node] if node else []), f"--job-name={name}",
            "--time=60", "--output=/dev/null", f"--chdir={self.folder}", f"--wrap=sleep {seconds}",
        ).strip()  # fmt: skip

    def job_state(self, job: str) -> str:
        """Such as PENDING or RUNNING; empty: Slurm has forgotten the job."""
        return self.run("squeue", "--noheader", "--format=%T", "--jobs", job, check=False).strip()

    def cycles(self) -> int:
        """How often slurmctld has tried to start what waits."""
        return int(re.findall(r"Total cycles: *(\d+)", self.run("sdiag"))[0])

    def node_of(self, job: str) -> str:
        return self.run("squeue", "--noheader", "--format=%N", "--jobs", job).strip()

    def log(self) -> str:
        return "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("*.out")))

    @property
    def _environ(self) -> dict[str, str]:
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        return os.environ | {"SLURM_CONF": str(self.conf), "PATH": path}

    def _free_port(self) -> int:
        """No other program gets it, before one of Slurm's listens there or after that has ended."""
        return self._stack.enter_context(ReservedPort()).number

    def _start(
        self, command: list[str], more: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        out = (self.folder / f"{command[0]}-{time.monotonic_ns()}.out").open("wb")
        environ = self._environ | dict(more or {})
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=out)
        out.close()
        self._guard(process.pid)

        def end() -> None:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()

        self._stack.callback(end)
        return process


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
