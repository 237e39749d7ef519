"""``sickbay-agent test`` with the real fio and iperf3, and programs that answer as dcgmi does."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from aggregator.demo.ports import free_port
from nodeagent.active_tests import runner
from nodeagent.active_tests.host import HostPrograms
from nodeagent.active_tests.model import Verdict
from nodeagent.active_tests.profile import Profile, StepSpec
from nodeagent.clock import SystemClock
from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.cli import PROGRAM, Done, agent
from tests.agent.fake_tools import FakeTools
from tests.nvml import FakeGpus, gpu
from tests.support.waiting import until

needs_fio = pytest.mark.skipif(not shutil.which("fio"), reason="no fio: apt-get install fio")
needs_iperf3 = pytest.mark.skipif(not shutil.which("iperf3"), reason="no iperf3")

PASSED = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {
                        "name": "software",
                        "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Pass"}],
                    }
                ],
            }
        ]
    }
}


class Machine:
    """A configuration with GPUs of tests/nvml and a folder of programs."""

    def __init__(self, folder: Path, gpus: int = 0, path: str = "/usr/bin:/bin") -> None:
        self.folder = folder
        cards = [gpu(index) for index in range(gpus)]
        self.gpus = FakeGpus(folder, cards)
        self.tools = FakeTools(folder / "tools", cards)
        self.profiles = folder / "profiles"
        self.profiles.mkdir()
        places = ", ".join(f'"{each}"' for each in [str(self.tools.folder), *path.split(":")])
        self.config = folder / "agent.toml"
        self.config.write_text(
            f'node = "n1"\nsys = "{self.gpus.sys}"\nrun_dir = "{folder}/run"\n'
            f'state_dir = "{folder}/state"\n[repair]\ntool_path = [{places}]\n'
            f'profiles = "{self.profiles}"\ninsecure_own_pid_namespace = true\n'
        )

    def profile(self, name: str, text: str) -> None:
        (self.profiles / f"{name}.toml").write_text(text)

    def one_step(self, name: str, script: str, **more: str) -> None:
        """A profile of one shell script."""
        lines = "".join(f"{key} = {value}\n" for key, value in more.items())
        command = json.dumps(["sh", "-c", script])
        limit = "" if "limit" in more else 'limit = "30s"\n'
        self.profile(name, f'[[step]]\nname = "{name}"\ncommand = {command}\n{limit}{lines}')

    def test(self, *arguments: str) -> Done:
        return agent("test", *arguments, "--config", self.config, env=self.gpus.env)

    def begin(self, profile: str) -> "subprocess.Popen[bytes]":
        return begin(self.config, profile)

    def run(self, profile: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = self.test("--profile", profile, "--json", *arguments)
        assert done.out, done.err
        return done.code, done.json


def begin(config: Path, profile: str, *before: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*before, PROGRAM, "test", "--profile", profile, "--config", config],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def ignores_hang_up(process: "subprocess.Popen[bytes]") -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    [ignored] = (line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) & 1)


@contextmanager
def started(command: Sequence[str]) -> "Iterator[subprocess.Popen[str]]":
    """A program whose output can be read until the end of the block, which kills it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def with_gpus(tmp_path: Path) -> Machine:
    return Machine(tmp_path, gpus=2)


@needs_fio
def test_fio_measures_a_real_disk(machine: Machine) -> None:
    source = (Path("nodeagent/active_tests/profiles/quick.toml")).read_text()
    step = source[source.rindex("[[step]]") :].replace("--runtime=10", "--runtime=1")
    machine.profile("disk", step.replace("--size=64m", "--size=4m"))
    code, told = machine.run("disk")
    assert (code, told["outcome"]) == (0, "passed"), told
    [step_told] = told["steps"]
    assert {each["measure"] for each in step_told["measurements"]} == {
        "disk-read-bandwidth",
        "disk-write-bandwidth",
    }
    assert all(each["value"] > 0 for each in step_told["measurements"])
    assert not list((machine.folder / "state").glob("scratch*")), "its files are removed"


@needs_fio
def test_a_threshold_that_is_not_met_fails_and_names_its_source(machine: Machine) -> None:
    command = json.dumps(
        ["fio", "--name=x", "--directory={scratch}", "--rw=write", "--size=1m",
         "--output-format=json"]
    )  # fmt: skip
    machine.profile(
        "disk",
        f'[[step]]\nname = "fio"\ncommand = {command}\nlimit = "60s"\noutput = "fio"\n'
        '[[step.threshold]]\nmeasure = "disk-write-bandwidth"\nminimum = 1e9\nsource = "a wish"\n',
    )
    done = machine.test("--profile", "disk")
    assert done.code == 1
    assert "less than 1e+09 (a wish)" in done.out


@needs_iperf3
def test_iperf3_measures_the_network_to_a_peer(machine: Machine) -> None:
    port = free_port()
    command = json.dumps(["iperf3", "-c", "{peer}", "-p", str(port), "-J", "-t", "1"])
    machine.profile(
        "net",
        f'requires = ["peer"]\n[[step]]\nname = "iperf3"\ncommand = {command}\nlimit = "20s"\n'
        'output = "iperf3"\nrequired = true\n',
    )
    code, told = machine.run("net", "--peer", "127.0.0.1")
    assert (code, told["reason"]) == (3, "no-connection"), "no server is no fault of this node"
    with started(["iperf3", "-s", "-B", "127.0.0.1", "-p", str(port), "--forceflush"]) as server:
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            pass
        code, told = machine.run("net", "--peer", "127.0.0.1")
    assert (code, told["outcome"]) == (0, "passed"), told
    assert told["steps"][0]["measurements"][0]["value"] > 0.01


def test_a_peer_that_would_be_an_option_is_wrong_use(machine: Machine) -> None:
    done = machine.test("--profile", "network", "--peer=-B/etc/passwd")
    assert (done.code, done.out) == (2, "")
    done = machine.test("--profile", "network")
    assert done.code == 2
    assert "name it with --peer" in done.err


def test_an_unknown_profile_names_those_that_there_are(machine: Machine) -> None:
    done = machine.test("--profile", "quikc")
    assert done.code == 2
    assert "there is no test profile 'quikc'; expected one of disk, gemm, long" in done.err
    assert machine.test().code == 2


def test_a_profile_with_mistakes_is_refused_with_all_of_them(machine: Machine) -> None:
    machine.profile(
        "mine",
        '[[step]]\nname = "a"\ncommand = []\nlimit = "1m"\noutput = "fio"\nspeed = 1\n'
        '[[step.threshold]]\nmeasure = "latency"\nsource = "x"\n',
    )
    done = machine.test("--profile", "mine")
    assert done.code == 2
    for words in ("step[0].command", "step[0].speed", "measure", "minimum"):
        assert words in done.err, done.err
    assert f"{machine.profiles}/mine.toml" in done.err


def test_a_missing_tool_skips_and_a_test_of_which_nothing_ran_has_no_verdict(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, path=str(tmp_path))
    code, told = machine.run("disk")
    assert (code, told["outcome"], told["reason"]) == (3, "inconclusive", "missing-tool")
    assert "there is no fio in" in str(told["message"])


def test_dcgm_is_evaluated_by_severity(with_gpus: Machine) -> None:
    machine = with_gpus
    command = '["dcgmi", "diag", "-r", "1", "-j"]'
    machine.profile(
        "dcgm",
        f'requires = ["gpu"]\n[[step]]\nname = "dcgm"\ncommand = {command}\nlimit = "20s"\n'
        'output = "dcgm"\nrequired = true\n',
    )
    for out, exit_code, expected in (
        (json.dumps(PASSED), 0, (0, "passed", "")),
        ("no json", 205, (1, "failed", "isolate")),
        ("", 226, (1, "failed", "triage")),
        ("", 217, (3, "inconclusive", "other-diagnostic")),
        ("", 203, (3, "inconclusive", "killed")),
        ("", 202, (3, "inconclusive", "paused")),
        ("", 0, (3, "inconclusive", "no-results")),
        ("", 134, (3, "inconclusive", "killed")),
        ("cannot connect", 255, (3, "inconclusive", "exit-code")),
    ):
        machine.tools.tool("dcgmi", out, exit_code)
        code, told = machine.run("dcgm")
        assert (code, told["outcome"], told["reason"]) == expected, (exit_code, told)
    assert machine.tools.count("dcgmi diag -r 1 -j") == 9


def test_a_hang_is_ended_with_all_that_it_started(machine: Machine) -> None:
    pids = machine.folder / "pids"
    script = f"sleep 600 & echo $! > {pids}; (setsid sleep 600 & echo $! >> {pids}); wait"
    machine.one_step("hang", script, limit='"1s"')
    code, told = machine.run("hang")
    assert (code, told["reason"]) == (3, "timeout")
    for pid in map(int, pids.read_text().split()):
        assert not psutil.pid_exists(pid)


def test_a_hundred_megabytes_of_garbage_are_bounded(machine: Machine) -> None:
    machine.one_step("garbage", "head -c 100000000 /dev/urandom")
    code, told = machine.run("garbage")
    assert (code, told["reason"]) == (3, "flood")
    machine.one_step("binary", "head -c 400000 /dev/urandom", output='"fio"')
    code, told = machine.run("binary")
    assert code == 0, "garbage is no measurement, and this profile has no threshold"


def test_exit_codes_have_the_profiles_meaning(machine: Machine) -> None:
    for script, expected in (
        ("exit 0", (0, "passed")),
        ("exit 1", (1, "failed")),
        ("exit 9", (3, "inconclusive")),
        ("kill -9 $$", (3, "inconclusive")),
    ):
        machine.one_step("exits", script, exits='{ "9" = "inconclusive" }')
        code, told = machine.run("exits")
        assert (code, told["outcome"]) == expected, told


def test_a_threshold_without_a_measurement_is_a_failed_test(with_gpus: Machine) -> None:
    script = "echo '# Out of bounds values : 0 OK'"
    for model, expected in (("H100", (1, "no-measurement")), ("A100", (0, ""))):
        command = json.dumps(["sh", "-c", script])
        with_gpus.profile(
            "nccl",
            f'[[step]]\nname = "n"\ncommand = {command}\nlimit = "9s"\noutput = "nccl-tests"\n'
            f'[[step.threshold]]\nmeasure = "all-reduce-bus-bandwidth"\nmodel = "{model}"\n'
            'minimum = 460\nsource = "x"\n',
        )
        code, told = with_gpus.run("nccl")
        assert (code, told["reason"]) == expected, told


@pytest.mark.root
def test_a_gpu_in_use_keeps_a_test_away(with_gpus: Machine) -> None:
    script = "mount -t tmpfs x /dev && exec 9>/dev/nvidia0 && echo ready && exec sleep 600"
    with started(["unshare", "--mount", "sh", "-c", script]) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "ready\n"
        done = with_gpus.test("--profile", "gemm")
        assert done.code == 3
        assert f"a GPU is in use: sleep (pid {user.pid}) has /dev/nvidia0 open" in done.err


def test_two_tests_at_once_are_refused(machine: Machine) -> None:
    fifo = machine.folder / "fifo"
    os.mkfifo(fifo)
    machine.one_step("wait", f"cat {fifo}")
    first = machine.begin("wait")
    with fifo.open("w"):  # the first one has begun
        done = machine.test("--profile", "wait")
        assert done.code == 3
        assert "repair.lock is held" in done.err
    assert first.wait(300) == 0


async def test_a_test_that_is_killed_leaves_no_process(machine: Machine) -> None:
    pid_file = machine.folder / "pid"
    machine.one_step("hang", f"echo $$ > {pid_file}; exec sleep 600", limit='"10m"')
    test = machine.begin("hang")
    await until(lambda: pid_file.exists() and pid_file.read_text().strip(), within=30)
    pid = int(pid_file.read_text())
    test.send_signal(signal.SIGKILL)
    test.wait()
    await until(lambda: not psutil.pid_exists(pid), within=30, what="the test's program is ended")


@pytest.mark.root
async def test_a_disk_that_hangs_under_a_test_holds_no_thread_of_the_agent(
    frozen_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_RENEW_LIMIT", 0.2, raising=False)
    over, held = threading.Event(), []

    def watch(thread: int) -> None:
        """Thaw the disk once the event loop's thread waits for it, which nothing else would end."""
        while not over.wait(0.02):
            wchan = Path(f"/proc/self/task/{thread}/wchan").read_text()
            if "percpu_rwsem" in wchan or "sb_start" in wchan:
                held.append(wchan)
                subprocess.run(["fsfreeze", "-u", frozen_disk], check=True)
                return

    watching = threading.Thread(target=watch, args=(threading.get_native_id(),))
    watching.start()
    try:
        step = StepSpec(name="true", command=("true",), limit=30.0, output="exit")
        report = await runner.run_profile(
            Profile(name="p", purpose="", requires=(), steps=(step,)),
            node=runner.Node(0, (), frozen_disk / "scratch"),
            programs=HostPrograms(Path("/"), ("/bin", "/usr/bin")),
            clock=SystemClock(),
        )
    finally:
        over.set()
        await asyncio.to_thread(watching.join)
    assert (report.outcome, held) == (Verdict.PASSED, [])


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentProcess]:
    node = AgentProcess(tmp_path, more=QUIET, top="[expect]\ngpus = 2\n")
    for name, value in FakeGpus(tmp_path, [gpu(0), gpu(1)]).env.items():
        monkeypatch.setenv(name, value)
    yield node
    node.close()


async def test_the_running_agent_lets_go_of_the_driver_for_a_test_and_takes_it_up_again(
    running: AgentProcess, tmp_path: Path
) -> None:
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    ask = (
        "import socket; s = socket.socket(socket.AF_UNIX); "
        f"s.connect('{running.socket}'); s.sendall(b'GET /v1/results HTTP/1.0\\r\\n\\r\\n'); "
        "print(s.makefile().read())"
    )
    (tmp_path / "ask.py").write_text(ask)
    command = json.dumps(["sh", "-c", f"{sys.executable} {tmp_path}/ask.py > {tmp_path}/seen"])
    (profiles / "mine.toml").write_text(
        f'requires = ["gpu"]\n[[step]]\nname = "ask"\ncommand = {command}\nlimit = "30s"\n'
    )
    running.more = f'[repair]\nprofiles = "{profiles}"\n{QUIET}'
    await running.start().up()
    done = await asyncio.to_thread(agent, "test", "--profile", "mine", "--config", running.config)
    assert done.code == 0, done.err
    assert '"quiesced"' in (tmp_path / "seen").read_text(), "clocks and heat are no evidence now"
    _, body = await running.ask("/v1/results")
    assert json.loads(body)["agent"]["quiesced_seconds"] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_test_that_a_signal_ends_gives_the_driver_back(
    running: AgentProcess, tmp_path: Path, number: signal.Signals
) -> None:
    """As the end of a person's session: the agent's GPU checks would be off for hours."""
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    (profiles / "mine.toml").write_text(
        'requires = ["gpu"]\n[[step]]\nname = "hang"\n'
        f'command = ["sh", "-c", "touch {tmp_path}/began; exec sleep 600"]\nlimit = "10m"\n'
    )
    running.more = f'[repair]\nprofiles = "{profiles}"\n{QUIET}'
    await running.start().up()

    async def quiesced() -> float:
        _, body = await running.ask("/v1/results")
        return float(json.loads(body)["agent"]["quiesced_seconds"])

    # Not what this run of the tests inherited, which `nohup` may have started.
    hang_up = ["env", "--default-signal=HUP"] if number == signal.SIGHUP else ["nohup"]
    test = begin(running.config, "mine", *hang_up)
    await until((tmp_path / "began").exists, within=30)
    assert ignores_hang_up(test) is (number != signal.SIGHUP)
    before = await quiesced()
    test.send_signal(number)
    code = await asyncio.to_thread(test.wait)
    assert (before > 0, code, await quiesced()) == (True, 130, 0.0)


def test_the_list_has_every_profile(machine: Machine) -> None:
    done = machine.test("--list", "--json")
    assert done.code == 0
    assert [each["name"] for each in done.json] == [
        "disk", "gemm", "long", "nccl", "network", "nvbandwidth", "quick", "rdma", "standard",
    ]  # fmt: skip
    listed = machine.test("--list").out
    assert "at most 20 min: nvbandwidth\n" in listed, "each program once"
