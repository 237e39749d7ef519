"""The agent on this machine as it is: its kernel log, its bus, its driver; files of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from nodeagent.local.client import AgentTrouble, NoAgent, get_json, post_json

ROOT = Path(__file__).parents[2]
_PATIENCE = 30.0
_T = TypeVar("_T")


def host_python() -> str | None:
    """The host's Python with PyTorch, as an active test finds one by ``repair.tool_path``."""
    named = os.environ.get("GPU_TORCH_PYTHON")
    folders = [Path(each) for each in os.environ.get("PATH", "").split(":") if each]
    own = Path(sys.executable).parent
    candidates = [each / "python3" for each in folders if each != own]
    for candidate in [Path(named)] if named else candidates:
        command = [str(candidate), "-c", "import torch"]
        if candidate.exists() and _succeeds(command):
            return str(candidate)
    return None


def host_environment() -> dict[str, str]:
    """The variables for that Python, without this one's packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _succeeds(command: Sequence[str]) -> bool:
    env = host_environment()
    return subprocess.run(command, check=False, capture_output=True, env=env).returncode == 0


def sees_host_processes() -> bool:
    """Whether this PID namespace is the machine's own, as the agent's test of users asks."""
    try:
        return str(Path("/proc/1/ns/pid").readlink()) == "pid:[4026531836]"
    except OSError:
        return False


def wait_for(look: Callable[[], _T], what: str, within: float = _PATIENCE) -> _T:
    """The first true answer of ``look``; an AssertionError that says ``what`` without one."""
    end = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < end, f"not within {within:g} s: {what}"
        time.sleep(0.1)
    return found


class RealAgent:
    """One agent. ``python`` runs it; ``more`` is added to its configuration."""

    def __init__(
        self,
        folder: Path,
        *,
        python: str = sys.executable,
        aggregator: str = "",
        authority: str = "",
        tool_path: Sequence[str] = (),
        more: str = "",
        env: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "agent.toml"
        self.socket = folder / "run/agent.sock"
        self.log = folder / "agent.log"
        self._command = [python, "-m", "nodeagent.cli"]
        env = env or dict(os.environ)
        paths = [str(ROOT), str(ROOT / "proto"), env.get("PYTHONPATH", "")]
        self._env = {**env, "PYTHONPATH": ":".join(filter(None, paths))}
        self.process: subprocess.Popen[bytes] | None = None
        path = f"tool_path = {json.dumps(list(tool_path))}\n" if tool_path else ""
        own = "insecure_own_pid_namespace = true\n" if not sees_host_processes() else ""
        uplink = f'[aggregator]\naddress = "{aggregator}"\n' if aggregator else ""
        uplink += f'ca_file = "{authority}"\n' if authority else ""
        self.config.write_text(
            f'node = "gpu-node"\nrun_dir = "{folder / "run"}"\nstate_dir = "{folder / "state"}"\n'
            f"{uplink}[repair]\n{path}{own}{more}"
        )

    def start(self) -> "RealAgent":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command, "run", "--config", str(self.config)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._env,
            )
        return self

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def command(self, *arguments: str, limit: float = 60) -> "subprocess.CompletedProcess[str]":
        """Run ``sickbay-agent`` with this configuration."""
        command = [*self._command, arguments[0], "--config", str(self.config), *arguments[1:]]
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=limit,
            env=self._env,
            stdin=subprocess.DEVNULL,
        )

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            get_json(self.socket, "/healthz", 5.0)
        except (NoAgent, AgentTrouble):
            return False
        return True

    def results(self) -> dict[str, Any]:
        told: dict[str, Any] = get_json(self.socket, "/v1/results", 10.0)
        return told

    def result(self, check: str, component: str = "") -> dict[str, Any] | None:
        """The check's present result for that component."""
        for each in self.results()["results"]:
            if (each["check"], each["component"]) == (check, component):
                return dict(each)
        return None

    def faults(self) -> list[dict[str, Any]]:
        return list(self.results()["faults"])

    def run_checks(self, *names: str) -> None:
        post_json(self.socket, "/v1/run-checks", {"checks": list(names)}, 30.0)

    def up(self, within: float = 40.0) -> "RealAgent":
        """Wait until it has had its first answer from NVML."""
        wait_for(self.answers, "the agent's socket", within)
        self.wait_for_status("gpu-inventory", "ok", within=within)
        return self

    def wait_for_status(self, check: str, *statuses: str, within: float = 30.0) -> None:
        def has_it() -> bool:
            found = self.result(check)
            return found is not None and found["status"] in statuses

        wait_for(has_it, f"{check} to be {statuses}: {self.result(check)}", within)

    def pids(self) -> list[int]:
        """Its process, and all below it."""
        assert self.process is not None
        root = psutil.Process(self.process.pid)
        return [root.pid, *(each.pid for each in root.children(recursive=True))]

    def device_files(self) -> dict[int, list[str]]:
        """The device files of GPUs that its processes have open."""
        found = {pid: sorted(set(device_files(pid))) for pid in self.pids()}
        return {pid: files for pid, files in found.items() if files}


def device_files(pid: int) -> Iterator[str]:
    """The device files of GPUs that a process has open."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        numbers = list(folder.iterdir())
    except OSError:
        return
    for number in numbers:
        try:
            target = str(number.readlink())
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            yield target
