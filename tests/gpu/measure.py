"""The agent's cost with the real driver: `python -m tests.gpu.measure FOLDER`, one table.

All default checks, the machine's own kernel log and bus, a stream to a played aggregator. In the
same minutes a bare stream runs (tests/bench/bare_stream.py). After a rest the GPU works for
LOAD_SECONDS (60), where the host's Python has PyTorch. BENCH_SECONDS is the time of the agent
before that (120), of which the first 30 are not counted. GPU_AGENT_PYTHON runs the agent and
GPU_AGENT_SITE is its folder of packages: a copy of their own, since libraries that several
processes share would lower the proportional set size; GPU_BARE_PYTHON and GPU_BARE_SITE are another
copy, for the bare stream. GPU_TLS is a folder with ``ca.crt``, ``aggregator.crt`` and
``aggregator.key`` for ``127.0.0.1``; without it the stream has no TLS. Writes ``figures.json``,
``agent-check.json`` and ``loaded-check.json`` to FOLDER.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from nodeagent.uplink.dialer import OPTIONS
from tests.bench.processes import Cost, cost
from tests.gpu.environment import optimized
from tests.gpu.real_agent import ROOT, RealAgent, host_environment, host_python, wait_for

_SETTLE = 30.0
_EVERY = 5.0
_MIB = 2**20


class Watched:
    """One process of the agent over the time: its sizes, and the processor's time that it took."""

    def __init__(self) -> None:
        self.pss: list[float] = []
        self.rss: list[float] = []
        #: Without its children's: before the time, and at the latest look.
        self.cpu = [0.0, 0.0]
        self.name = ""


def watch(pid: int, seconds: float) -> tuple[dict[int, Watched], list[Cost]]:
    """The process and all below it, each by its pid; and the cost of all at each look."""
    found: dict[int, Watched] = defaultdict(Watched)
    costs: list[Cost] = []
    end = time.monotonic() + seconds
    while True:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                _measure(process, found, is_first=not costs)
        costs.append(cost(pid))
        if time.monotonic() >= end:
            return dict(found), costs
        time.sleep(_EVERY)


def _measure(process: psutil.Process, found: dict[int, Watched], *, is_first: bool) -> None:
    memory, cpu = process.memory_full_info(), process.cpu_times()
    one = found[process.pid]
    one.cpu[1] = cpu.user + cpu.system
    if is_first:
        one.cpu[0] = one.cpu[1]  # a process that starts later has spent it all within this time
    one.pss.append(memory.pss / _MIB)
    one.rss.append(memory.rss / _MIB)
    one.name = _name(process)


def _name(process: psutil.Process) -> str:
    words = [Path(word).name for word in process.cmdline() if word.endswith(".py")]
    return words[0] if words else "sickbay-agent"


@dataclass
class Peers:
    """The played aggregator and a bare stream to it."""

    address: str
    bare: "subprocess.Popen[str] | None"


@contextlib.contextmanager
def _peers(env: Mapping[str, str]) -> Iterator[Peers]:
    folder = os.environ.get("GPU_TLS", "")
    with contextlib.ExitStack() as stack:
        played = stack.enter_context(
            _program([sys.executable, "-m", "tests.gpu.played_aggregator", *filter(None, [folder])])
        )
        assert played.stdout is not None
        address = played.stdout.readline().strip()
        bare = None
        if folder and "GPU_BARE_PYTHON" in os.environ:
            command = [
                *(os.environ["GPU_BARE_PYTHON"], "-s", "-P"),
                str(ROOT / "tests/bench/bare_stream.py"),
                *(address, f"{folder}/ca.crt", json.dumps(dict(OPTIONS))),
            ]
            bare = stack.enter_context(
                _program(command, {**env, "PYTHONPATH": str(ROOT / "proto")})
            )
            assert bare.stdout is not None
            if bare.stdout.readline() != "welcome\n":
                bare = None  # its end has its reason on standard error
        yield Peers(address, bare)


@contextlib.contextmanager
def _program(
    command: Sequence[str], env: Mapping[str, str] | None = None
) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def agent_figures(folder: Path, seconds: float, load: float) -> dict[str, Any]:
    """The cost of one agent at rest and beside a working GPU, and the times of its start."""
    python = os.environ.get("GPU_AGENT_PYTHON", sys.executable)
    sites = [os.environ.get(f"GPU_{whose}_SITE", "") for whose in ("AGENT", "BARE")]
    env = optimized(python, *sites)
    if "GPU_AGENT_PYTHON" in os.environ:
        env.pop("PYTHONPATH", None)  # the packages of this process, which are another copy
    with _peers(env) as peers:
        tls = os.environ.get("GPU_TLS", "")
        agent = RealAgent(
            Path(tempfile.mkdtemp(prefix="sickbay-gpu-")),
            python=python,
            aggregator=peers.address,
            authority=f"{tls}/ca.crt" if tls else "",
            env=env,
        )
        try:
            return _figures(agent, peers, folder, seconds, load)
        finally:
            agent.stop()
            (folder / "agent.log").write_bytes(agent.log.read_bytes())


def _figures(
    agent: RealAgent, peers: Peers, folder: Path, seconds: float, load: float
) -> dict[str, Any]:
    began = time.monotonic()
    agent.start()
    wait_for(agent.answers, "the agent's socket", 60.0)
    answered = time.monotonic() - began
    wait_for(lambda: agent.result("gpu-inventory"), "the first look at the GPUs", 90.0)
    looked = time.monotonic() - began
    time.sleep(max(0.0, _SETTLE - looked))
    at_rest = _watched(agent, peers, max(_EVERY, seconds - _SETTLE))
    told = agent.results()
    (folder / "agent-check.json").write_text(json.dumps(told, indent=2))
    (folder / "agent-metrics.txt").write_text(_metrics(agent))
    (folder / "agent-smaps.txt").write_text(_smaps(agent))
    found = {
        "start_socket_s": round(answered, 2),
        "start_first_gpu_reading_s": round(looked, 2),
        "uplink": told["agent"]["uplink"].get("state", ""),
        **at_rest,
    }
    if load:
        python = host_python()
        found["loaded"] = (
            _loaded(agent, peers, folder, python, load)
            if python is not None
            else {"error": "no python3 on the path imports PyTorch; GPU_TORCH_PYTHON names one"}
        )
    return found


def _loaded(
    agent: RealAgent, peers: Peers, folder: Path, python: str, seconds: float
) -> dict[str, Any]:
    """The same while the GPU multiplies matrices; ``not_ok`` are the GPU checks that complain."""
    program = str(Path(__file__).with_name("matmul.py"))
    with _program([python, program], host_environment()) as working:
        assert working.stdin is not None
        assert working.stdout is not None
        if working.stdout.readline() != "ready\n":
            return {"error": "PyTorch does not use the GPU"}
        found = _watched(agent, peers, seconds)
        found["nvml"] = nvml_figures()
        agent.run_checks(*[each["name"] for each in agent.results()["checks"] if _is_gpu(each)])
        told = agent.results()
        working.stdin.close()
        found["work"] = working.stdout.read().strip()
    (folder / "loaded-check.json").write_text(json.dumps(told, indent=2))
    found["not_ok"] = [
        f"{each['check']} {each['component']} {each['status']} {each['reason']}"
        for each in told["results"]
        if each["check"].startswith("gpu-") and each["status"] != "ok"
    ]
    found["told"] = clocks_and_temperature(told["results"])
    return found


def clocks_and_temperature(results: Sequence[Mapping[str, str]]) -> list[str]:
    """The checks' messages: of the node's shared row, and of each GPU that has a row of its own."""
    checks = ("gpu-clocks", "gpu-thermal")
    return [f"{each['check']}: {each['message']}" for each in results if each["check"] in checks]


def _is_gpu(check: Mapping[str, str]) -> bool:
    return check["name"].startswith("gpu-") and not check["off_because"]


def _watched(agent: RealAgent, peers: Peers, seconds: float) -> dict[str, Any]:
    assert agent.process is not None
    bare = peers.bare.pid if peers.bare is not None else None
    alone = cost(bare) if bare is not None else None
    seen, costs = watch(agent.process.pid, seconds)
    found: dict[str, Any] = {
        "seconds": seconds,
        "pss_mib": round(median(one.pss_mib for one in costs), 1),
        "pss_max_mib": round(max(one.pss_mib for one in costs), 1),
        "rss_mib": round(median(one.rss_mib for one in costs), 1),
        "cpu_percent": round(100 * (costs[-1].cpu_s - costs[0].cpu_s) / seconds, 3),
        "processes": {
            f"{one.name} {pid}": {
                "pss_mib": round(median(one.pss), 1),
                "rss_mib": round(median(one.rss), 1),
                "cpu_percent": round(100 * (one.cpu[1] - one.cpu[0]) / seconds, 3),
                "looks": len(one.pss),
            }
            for pid, one in seen.items()
        },
    }
    if bare is not None and alone is not None:
        now = cost(bare)
        found["bare_pss_mib"] = round(now.pss_mib, 1)
        found["bare_cpu_percent"] = round(100 * (now.cpu_s - alone.cpu_s) / seconds, 3)
    return found


def _smaps(agent: RealAgent) -> str:
    return "".join(f"== {pid}\n{Path(f'/proc/{pid}/smaps').read_text()}" for pid in agent.pids())


def _metrics(agent: RealAgent) -> str:
    import http.client
    import socket

    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(agent.socket))
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def table(figures: dict[str, Any]) -> str:
    nvml, agent = figures["nvml"], figures["agent"]
    rows = [
        ("driver", nvml["driver"]),
        ("NVML's start", f"{nvml['init_ms']:.1f} ms"),
        ("the first reading", f"{nvml['first_sample_ms']:.1f} ms"),
        ("one reading", f"{nvml['quick_sample_ms']:.2f} ms"),
        ("one with the values that change seldom", f"{nvml['slow_sample_ms']:.2f} ms"),
        (f"growth over {nvml['samples']} readings", f"{nvml['growth_kib']} KiB"),
        ("calls that the driver refused", json.dumps(nvml["errors"])),
        ("agent: start until it answers", f"{agent['start_socket_s']} s"),
        (
            "agent: start until its first reading of the GPUs",
            f"{agent['start_first_gpu_reading_s']} s",
        ),
        ("agent: its stream", f"{agent['uplink']}, {agent['tls']}"),
    ]
    rows += _cost_rows("at rest", agent)
    if loaded := agent.get("loaded"):
        rows += _loaded_rows(loaded)
    for kind in ("first_calls_ms", "slow_calls_ms", "quick_calls_ms"):
        calls = sorted(nvml[kind].items(), key=lambda item: -item[1])[:12]
        rows.append((kind, ", ".join(f"{name} {ms:g}" for name, ms in calls)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _cost_rows(when: str, agent: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (f"{when}: proportional set size", f"{agent['pss_mib']} MiB"),
        (f"{when}: its maximum", f"{agent['pss_max_mib']} MiB"),
        (f"{when}: CPU of one core", f"{agent['cpu_percent']} %"),
        (f"{when}: counted for", f"{agent['seconds']:g} s"),
    ]
    if "bare_pss_mib" in agent:
        bare = f"{agent['bare_pss_mib']} MiB, {agent['bare_cpu_percent']} %"
        rows.append((f"{when}: a bare stream", bare))
    return rows + [
        (f"  {name}", f"{row['pss_mib']} MiB, {row['cpu_percent']} %, {row['looks']} looks")
        for name, row in agent["processes"].items()
    ]


def _loaded_rows(loaded: dict[str, Any]) -> list[tuple[str, str]]:
    if "error" in loaded:
        return [("under load", loaded["error"])]
    nvml = loaded["nvml"]
    times = [f"{nvml[f'{kind}_sample_ms']:.2f}" for kind in ("first", "quick", "slow")]
    return [
        *_cost_rows("under load", loaded),
        ("under load: the first reading, one, one with all", f"{', '.join(times)} ms"),
        ("under load: the work", loaded["work"]),
        ("under load: GPU checks not ok", "; ".join(loaded["not_ok"]) or "none"),
        ("under load: clocks and temperature", "; ".join(loaded["told"])),
    ]


def nvml_figures() -> dict[str, Any]:
    """Those of nvml_times, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.nvml_times"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {"nvml": nvml_figures()}
    seconds = float(os.environ.get("BENCH_SECONDS", "120"))
    load = float(os.environ.get("LOAD_SECONDS", "60"))
    figures["agent"] = agent_figures(folder, seconds, load)
    figures["agent"]["tls"] = "TLS" if os.environ.get("GPU_TLS") else "no TLS"
    (folder / "figures.json").write_text(json.dumps(figures, indent=2))
    print(table(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
